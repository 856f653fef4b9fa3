//! `run`: a kernel of the user's own, compiled from its Slang file.

mod groups;
mod out;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use backslang::HostTensor;
use backslang::kernels::Target as Typical;
use backslang::runtime::{Execution, Timing};
use backslang::slang::{Call, Compiler, UserKernel, Value};
use serde_json::{Map, json};

use self::out::{Kind, Out};
use super::args::{GlobalArgs, RunArgs};
use super::commands::keep_inputs;
use super::compute;
use super::failure::{Failure, Result};
use super::files::{OutputArray, OutputValues, Spelling, Target};
use super::inputs::Inputs;
use super::interrupt::DeviceWork;
use super::place::Place;
use super::report::Report;
use super::talk::Talk;

/// NaN as an element of any floating-point type.
const POISON: u32 = u32::MAX;

/// The size of the heap for the layer to look into: more than a kernel's push constants can name.
const VALIDATED_SLOTS: u32 = 1024;

/// The name under which the subgroup size is known.
const LANES: &str = "lanes";

/// A call that is ready to run.
struct Job<'k> {
    kernel: &'k UserKernel,
    call: Call<'k>,
    inputs: BTreeMap<String, (HostTensor, Spelling)>,
    outs: Vec<Out>,
    groups: String,
}

/// `run`.
pub(crate) fn run(args: &RunArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let place = Place::resolve(global)?.unhurried(args.files.device.bound().is_zero());
    if place == Place::Reference {
        let message =
            "--device: expected a Vulkan device, found `reference`, which runs no kernels";
        return Err(Failure::usage(message));
    }
    if args.files.output.shard.is_some() {
        return Err(Failure::usage("--shard: expected a command of this program, found `run`"));
    }
    let kernel = compile(args, &place, talk)?;
    let job = Job::resolve(args, &kernel, talk)?;
    if args.files.output.plan { job.plan() } else { perform(&job, args, &place, talk) }
}

fn compile(args: &RunArgs, place: &Place, talk: &Talk) -> Result<UserKernel> {
    let _step = talk.step(&format!("compiling {}", args.file.display()));
    let mut compiler = Compiler::new()?;
    if place.looks_into_kernels() {
        compiler = compiler.with_heap_slots(VALIDATED_SLOTS);
    }
    Ok(compiler.load(&args.file)?.kernel(args.entry.as_deref())?)
}

fn perform(job: &Job<'_>, args: &RunArgs, place: &Place, talk: &Talk) -> Result<Report> {
    let Some(output) = &args.files.output.output else {
        return Err(Failure::usage("--output: expected a path, found none"));
    };
    let target = Target::resolve(output)?;
    keep_inputs(&args.files.input, &target, false)?;
    let target = target.open(job.outs.iter().map(|out| out.name.as_str()))?;
    let step = talk.step("computing");
    let work = DeviceWork::begin();
    let runtime = place.open()?;
    let execution = runtime.execution().bound(args.files.device.bound()).watch(|progress| {
        step.reach(progress.fraction());
        if work.is_to_end() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let (results, timings) = job.on_device(execution)?;
    let (device, gpu) = (runtime.device().name.clone(), compute::time(&timings));
    // What the validation layer says of the device's end counts too.
    runtime.finish()?;
    drop(step);
    let _step = talk.step(&format!("writing {}", output.display()));
    let outputs = target.write(&results)?;
    Ok(Report { device: Some(device), outputs, gpu, ..Report::default() })
}

impl<'k> Job<'k> {
    fn resolve(args: &RunArgs, kernel: &'k UserKernel, talk: &Talk) -> Result<Self> {
        let mut call = kernel.call();
        for text in &args.values {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Failure::usage(format!("--set: expected NAME=VALUE, found `{text}`"))
            })?;
            call.set_text(name, value)?;
        }
        call.check_values()?;
        let axis = |name: &str| if name == LANES { None } else { whole(call.value(name)?) };
        let outs = args.outs.iter().map(|text| Out::parse(text, &axis));
        let outs = outs.collect::<Result<Vec<_>>>()?;
        for (place, Out { name, .. }) in outs.iter().enumerate() {
            kernel.check_tensor(name)?;
            if outs[..place].iter().any(|other| other.name == *name) {
                return Err(Failure::usage(format!(
                    "--out: expected `{name}` once, found it twice"
                )));
            }
        }
        let inputs = inputs(args, kernel, &outs, talk)?;
        let job = Self { kernel, call, inputs, outs, groups: args.groups.clone() };
        // So that it is found wrong before the device is used.
        job.grid(Typical::TYPICAL.lanes)?;
        Ok(job)
    }

    /// The workgroups along x and y.
    fn grid(&self, lanes: u32) -> Result<[usize; 2]> {
        let has_lanes = self.kernel.constants().iter().any(|constant| constant.name == LANES);
        let value = |name: &str| match name {
            LANES if has_lanes => Some(lanes.into()),
            name => whole(self.call.value(name)?),
        };
        let fault = |message| Failure::usage(format!("--groups: {message}"));
        match *groups::sizes(&self.groups, &value).map_err(fault)? {
            [x] => Ok([x, 1]),
            [x, y] => Ok([x, y]),
            ref all => Err(fault(format!("expected one or two axes, found {}", all.len()))),
        }
    }

    fn on_device(&self, execution: Execution<'_>) -> Result<(Vec<OutputArray>, Vec<Timing>)> {
        let runtime = execution.runtime();
        let mut call = self.call.clone();
        let written = |name: &str| self.outs.iter().any(|out| out.name == name);
        for (name, (array, _)) in self.inputs.iter().filter(|(name, _)| !written(name)) {
            call.read(name, &runtime.upload(name, array)?)?;
        }
        let mut written = Vec::new();
        for Out { name, shape, kind } in &self.outs {
            let tensor = match self.inputs.get(name) {
                Some((array, _)) => runtime.upload(name, array)?,
                None => runtime.tensor(name, kind.dtype(), shape)?,
            };
            call.write(name, &tensor)?;
            written.push(tensor);
        }
        let grid = self.grid(runtime.lanes())?;
        let timings = execution.run(|recorder| {
            for (out, tensor) in self.outs.iter().zip(&written) {
                if !self.inputs.contains_key(&out.name) {
                    recorder.fill(tensor, POISON)?;
                }
            }
            // SAFETY: that the kernel stays within its arrays is up to who wrote it and called this command, which says so.
            unsafe { call.record(recorder, grid) }
        })?;
        let download = |(out, tensor)| Ok(self.result(out, runtime.download(tensor)?));
        let results = self.outs.iter().zip(&written).map(download).collect::<Result<_>>()?;
        Ok((results, timings))
    }

    fn result(&self, out: &Out, tensor: HostTensor) -> OutputArray {
        let spelling = self.inputs.get(&out.name).map_or(Spelling::LITTLE, |(_, known)| *known);
        let words = || bytemuck::allocation::pod_collect_to_vec(tensor.bytes());
        let values = match out.kind {
            Kind::Float(_) => OutputValues::Floats(tensor),
            Kind::Unsigned => OutputValues::Words(words()),
            Kind::Signed => {
                OutputValues::Integers(words().into_iter().map(u32::cast_signed).collect())
            }
        };
        OutputArray { name: out.name.clone(), shape: out.shape.clone(), values, spelling }
    }

    fn plan(&self) -> Result<Report> {
        let [x, y] = self.grid(Typical::TYPICAL.lanes)?;
        let values = self.kernel.values().into_iter();
        let values = values.filter_map(|name| Some((name, self.call.value(name)?)));
        let is_constant = |name: &str| self.kernel.constants().iter().any(|c| c.name == name);
        let (constants, sizes): (Vec<_>, Vec<_>) = values.partition(|(name, _)| is_constant(name));
        let bytes = [
            ("inputs", self.inputs.values().map(|(array, _)| array.bytes().len()).sum::<usize>()),
            ("outputs", self.outs.iter().map(Out::bytes).sum()),
        ];
        let list = |pairs: &[(&str, Value)]| {
            pairs.iter().map(|(name, value)| format!(", {name} {value}")).collect::<String>()
        };
        let name = self.kernel.name();
        let text = format!(
            "values: {}\nrun {name}: {x} x {y} workgroups{}\nbytes: inputs {}, outputs {}\n",
            list(&sizes).trim_start_matches(", "),
            list(&constants),
            bytes[0].1,
            bytes[1].1
        );
        let object = |pairs: Vec<(&str, Value)>| {
            pairs
                .into_iter()
                .map(|(name, value)| (name.into(), number(value)))
                .collect::<Map<_, _>>()
        };
        let plan = json!({
            "sizes": object(sizes),
            "steps": [{ "kernel": name, "workgroups": [x, y], "constants": object(constants) }],
            "bytes": bytes.into_iter().map(|(what, n)| (what.into(), n.into())).collect::<Map<_, _>>(),
        });
        Ok(Report { text, extra: Some(("plan", plan)), ..Report::default() })
    }
}

/// The arrays of the kernel's tensors: all but those that are only written.
fn inputs(
    args: &RunArgs,
    kernel: &UserKernel,
    outs: &[Out],
    talk: &Talk,
) -> Result<BTreeMap<String, (HostTensor, Spelling)>> {
    let found = Inputs::open(&args.files.input, talk)?;
    found.spelled().iter().try_for_each(|name| kernel.check_tensor(name))?;
    let known = kernel.tensors();
    let mut inputs = BTreeMap::new();
    for name in &known {
        let out = outs.iter().find(|out| out.name == *name);
        match (found.any(name)?, out) {
            (Some((array, spelling)), out) => {
                if let Some(out) = out {
                    expect_alike(out, &array)?;
                }
                inputs.insert((*name).to_owned(), (array, spelling));
            }
            (None, Some(_)) => {}
            (None, None) => return Err(missing(&found, name, &known)),
        }
    }
    for (message, _) in found.ignored(&known) {
        talk.detail(&message);
    }
    Ok(inputs)
}

fn missing(found: &Inputs, name: &str, known: &[&str]) -> Failure {
    let failure = found.missing(name, known);
    let hint = "(give --in for what the kernel reads, --out for what it writes)";
    Failure { message: format!("{} {hint}", failure.message), ..failure }
}

/// An output that begins as an input has its shape and type.
fn expect_alike(out: &Out, array: &HostTensor) -> Result<()> {
    let Out { name, shape, kind } = out;
    if (shape.as_slice(), kind.dtype()) == (array.shape(), array.dtype()) {
        return Ok(());
    }
    let (expected, found) = (kind.dtype(), array.dtype());
    let expected = format!("{expected} {shape:?}, as --out says");
    let message = format!("array `{name}`: expected {expected}, found {found} {:?}", array.shape());
    Err(Failure::input("shape", message))
}

/// A value as a size.
fn whole(value: Value) -> Option<u64> {
    match value {
        Value::U32(value) => Some(value.into()),
        Value::I32(value) => u64::try_from(value).ok(),
        Value::F32(_) | Value::Bool(_) => None,
    }
}

fn number(value: Value) -> serde_json::Value {
    match value {
        Value::U32(value) => value.into(),
        Value::I32(value) => value.into(),
        Value::F32(value) => value.into(),
        Value::Bool(value) => value.into(),
    }
}

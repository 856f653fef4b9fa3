//! The attention backward: the query kernel (row statistics, query gradients), then the history kernel.
//!
//! [`run`] does all at once. To keep tensors on the device, to reuse a plan, or to put more kernels into a submission:
//!
//! ```no_run
//! use backslang::kernels::attention::{
//!     BackwardInputs, DevicePlan, Geometry, Options, Plan, Schedule, backward,
//! };
//! use backslang::runtime::Runtime;
//! use backslang::{HostTensor, Result};
//!
//! fn gradients(
//!     runtime: &Runtime,
//!     inputs: &BackwardInputs<HostTensor>,
//!     schedule: &Schedule,
//!     options: &Options,
//! ) -> Result<()> {
//!     let inputs = inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
//!     // Once a schedule; serves any number of calls.
//!     let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
//!     let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
//!     let plan = DevicePlan::upload(runtime, plan)?;
//!
//!     let outputs = backward::allocate(runtime, &inputs, options)?;
//!     let mut recorder = runtime.recorder()?;
//!     backward::record(&mut recorder, &inputs, &plan, options, &outputs)?;
//!     // Other kernels can follow here, such as `mamba3::preprocess_backward::record`.
//!     let submission = recorder.submit()?;
//!     for timing in submission.timings()? {
//!         println!("{}: {:?}", timing.kernel, timing.gpu);
//!     }
//!     for (gradient, tensor) in &outputs.gradients {
//!         println!("{}: {:?}", gradient.output_name(), runtime.download(tensor)?.as_f32());
//!     }
//!     Ok(())
//! }
//! ```

mod bind;
mod call;
mod tiled;

use std::ops::Range;

use bind::Binding;
use call::{Call, PAGE, ROW, Step, has_rows};

use super::{
    BackwardInputs, BackwardOutputs, DevicePlan, Geometry, Gradient, Gradients, Options, Plan,
    Schedule,
};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::kernels::windows::{self, Scratch};
use crate::kernels::{Launch, Layout, Run, Target, prepare};
use crate::runtime::{Execution, Recorder, Runtime, Tensor};

/// Plans, uploads, runs and downloads: all from host arrays to host arrays. It runs on a [`Runtime`], or as an
/// [`Execution`] says.
///
/// # Errors
/// A schedule, shape, element type or option that does not fit, before any device work; then
/// whatever transfers and the device report, and [`Error::Cancelled`].
pub fn run<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    schedule: &Schedule,
    options: &Options,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    run_onto(on, inputs, schedule, options, &[])
}

/// As [`run`], with gradients to add to: each listed one comes back as `round(old + sum)`, rounded once, and with its old
/// bits where the sum is 0. [`Options::accumulate`] names those listed, or none.
///
/// # Errors
/// As [`run`]; an old value of another shape or element type than the gradient, of a gradient that is not asked for, or a
/// missing one.
pub fn run_onto<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    schedule: &Schedule,
    options: &Options,
    onto: &[(Gradient, HostTensor)],
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
    run_planned(on, inputs, options, onto, || {
        Plan::new(schedule, &geometry, options.query_block_rows)
    })
}

/// As [`run_onto`], under a plan of the caller's.
pub(crate) fn run_planned<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    options: &Options,
    onto: &[(Gradient, HostTensor)],
    plan: impl FnOnce() -> Result<Plan>,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let options = &accumulating(options, inputs.is_mla(), onto)?;
    Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
    // The arrays first: a plan for a cache that the device cannot hold takes long to make.
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let plan = plan()?;
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let call = Call::on_own_outputs(&layouts, &plan, options, Target::of(runtime))?;
    call.check_sizes(runtime, &plan)?;
    for (gradient, old) in onto {
        call.check_old(*gradient, old)?;
    }
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &inputs, options)?;
    for (gradient, tensor) in &outputs.gradients {
        if let Some((_, old)) = onto.iter().find(|(g, _)| g == gradient) {
            runtime.write(tensor, old.bytes())?;
        }
    }
    let timings = execution.run(|recorder| record(recorder, &inputs, &plan, options, &outputs))?;
    let gradients = outputs.gradients.iter().map(|(g, t)| Ok((*g, runtime.download(t)?)));
    Ok(Run {
        outputs: BackwardOutputs {
            gradients: gradients.collect::<Result<_>>()?,
            statistics: runtime.download(&outputs.statistics)?,
        },
        timings,
    })
}

/// The statistics alone, `[queries, heads, 3]`: what the query kernel completes of those given.
pub(crate) fn run_statistics<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    schedule: &Schedule,
    options: &Options,
) -> Result<Run<HostTensor>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
    let (layouts, target) = (inputs.as_ref().map(|_, t| t.into()), Target::of(runtime));
    Call::statistics_on_own_outputs(&layouts, &plan, options, target)?
        .check_sizes(runtime, &plan)?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let statistics = runtime.tensor("statistics", Dtype::F32, &geometry.statistics_shape())?;
    let outputs = BackwardOutputs { gradients: Vec::new(), statistics };
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let call = Call::of_statistics(&layouts, &plan.plan, options)?;
    let timings =
        execution.run(|recorder| record_call(recorder, call, &inputs, &plan, &outputs))?;
    Ok(Run { outputs: runtime.download(&outputs.statistics)?, timings })
}

/// The options with those gradients accumulated that there are old values of.
fn accumulating(options: &Options, mla: bool, onto: &[(Gradient, HostTensor)]) -> Result<Options> {
    let listed = onto.iter().map(|(g, _)| *g).collect::<Vec<_>>();
    let accumulate = Gradients::only(&listed);
    let (_, asked) = options.resolve(|g| g.exists(mla))?;
    if accumulate.iter().count() == onto.len() && (asked == accumulate || asked == Gradients::NONE)
    {
        return Ok(Options { accumulate, ..*options });
    }
    Err(Error::Parameter {
        name: "accumulate",
        expected: match listed[..] {
            [] => "none without old values (`run_onto` takes them)".into(),
            _ => format!("the gradients that have old values, {listed:?}, each once"),
        },
        found: format!("{:?}", asked.iter().collect::<Vec<_>>()),
    })
}

/// Device memory, with undefined contents, for the gradients asked for and for the statistics.
/// Complete statistics among the inputs serve as the output's.
///
/// # Errors
/// Shapes or gradients that do not fit; what allocation reports.
pub fn allocate(
    runtime: &Runtime,
    inputs: &BackwardInputs<Tensor>,
    options: &Options,
) -> Result<BackwardOutputs<Tensor>> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
    let gradients = options.gradients.resolve(|g| g.exists(geometry.is_mla()))?;
    Ok(BackwardOutputs {
        gradients: gradient_tensors(runtime, &geometry, gradients, inputs.q.dtype())?,
        statistics: match &inputs.statistics {
            Some(complete) if geometry.statistics_columns == 3 => complete.clone(),
            _ => runtime.tensor("statistics", Dtype::F32, &geometry.statistics_shape())?,
        },
    })
}

fn gradient_tensors(
    runtime: &Runtime,
    geometry: &Geometry,
    gradients: Gradients,
    dtype: Dtype,
) -> Result<Vec<(Gradient, Tensor)>> {
    let tensor = |g: Gradient| runtime.tensor(g.output_name(), dtype, &geometry.gradient_shape(g));
    gradients.iter().map(|g| Ok((g, tensor(g)?))).collect()
}

/// Records the kernels that the gradients asked for need. Without a query gradient and with complete
/// statistics given, that is the history kernel alone; without a history gradient, the query kernel alone.
/// Every element of every output is written; to an accumulated gradient the sum is added.
///
/// `q`, `q_position`, `output_gradient`, `output` and the gradients of the first two may be views whose rows lie at any
/// distance, as in packed q, k and v; those written as halves lie in whole words, and where any of the widths is odd they
/// have no gaps either. All else is without gaps. What is written shares no element with anything else of the call.
///
/// # Errors
/// A shape, element type or option that does not fit, before anything is recorded; then whatever
/// allocation and pipeline creation report.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    plan: &DevicePlan,
    options: &Options,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    let call = Call::new(&inputs.as_ref().map(|_, t| t.into()), &plan.plan, options)?;
    record_call(recorder, call, inputs, plan, outputs)
}

fn record_call(
    recorder: &mut Recorder<'_>,
    mut call: Call,
    inputs: &BackwardInputs<Tensor>,
    plan: &DevicePlan,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    let target = Target::of(recorder.runtime());
    call.set_outputs(inputs, outputs, target)?;
    let tiled = call.prepare_tiled(recorder.runtime())?;
    prepare(recorder.runtime(), &call.all_launches(&plan.plan, target)?)?;
    let mut scratch = Scratch::new(call.row_windows());
    for rows in call.row_windows() {
        let tiled = tiled.as_ref();
        let part = Part { axes: ROW, window: rows, scratch: &mut scratch, tiled };
        let of_rows = |g: Gradient| !g.is_history();
        let (inputs, outputs) = part.narrow(inputs, outputs, has_rows, of_rows)?;
        let call = call.of_rows(rows, &inputs, &outputs)?;
        let launches = call.row_launches(&plan.plan, target)?;
        part.record(recorder, &call, (&inputs, &outputs, plan), of_rows, launches)?;
    }
    let mut scratch = Scratch::new(call.page_windows());
    for pages in call.page_windows() {
        let tiled = tiled.as_ref();
        let part = Part { axes: PAGE, window: pages, scratch: &mut scratch, tiled };
        let (inputs, outputs) =
            part.narrow(inputs, outputs, |name| !has_rows(name), Gradient::is_history)?;
        let launches = call.page_launches(&plan.plan, pages, target)?;
        part.record(recorder, &call, (&inputs, &outputs, plan), Gradient::is_history, launches)?;
    }
    Ok(())
}

/// As [`launches`], of the statistics alone.
pub(crate) fn launches_of_statistics(
    inputs: &BackwardInputs<Layout<'_>>,
    plan: &Plan,
    options: &Options,
    target: Target,
) -> Result<Vec<Launch>> {
    Call::statistics_on_own_outputs(inputs, plan, options, target)?.all_launches(plan, target)
}

/// A window of a call: of rows, or of pages.
struct Part<'a> {
    /// The last axes that are a row, or a page.
    axes: usize,
    window: &'a Range<usize>,
    scratch: &'a mut Scratch,
    tiled: Option<&'a tiled::Scratch>,
}

impl Part<'_> {
    /// The window's part of the arrays that have its rows or pages, all of the others.
    fn narrow(
        &self,
        inputs: &BackwardInputs<Tensor>,
        outputs: &BackwardOutputs<Tensor>,
        is_input: impl Fn(&str) -> bool,
        is_gradient: impl Fn(Gradient) -> bool,
    ) -> Result<(BackwardInputs<Tensor>, BackwardOutputs<Tensor>)> {
        let narrow = |name: &'static str, chosen: bool, tensor: &Tensor| -> Result<Tensor> {
            if !chosen {
                return Ok(tensor.clone());
            }
            let part = windows::narrow(tensor, self.axes, self.window)?;
            if name == "statistics" || self.axes == PAGE {
                Layout::from(&part).expect_dense(name)?;
            }
            Ok(part)
        };
        let gradients = outputs.gradients.iter();
        let gradients =
            gradients.map(|(g, t)| Ok((*g, narrow(g.output_name(), is_gradient(*g), t)?)));
        let outputs = BackwardOutputs {
            gradients: gradients.collect::<Result<_>>()?,
            statistics: narrow("statistics", is_input("statistics"), &outputs.statistics)?,
        };
        Ok((inputs.as_ref().try_map(|name, t| narrow(name, is_input(name), t))?, outputs))
    }

    /// Records launches on narrowed tensors.
    fn record(
        self,
        recorder: &mut Recorder<'_>,
        call: &Call,
        (inputs, outputs, plan): (&BackwardInputs<Tensor>, &BackwardOutputs<Tensor>, &DevicePlan),
        is_gradient: impl Fn(Gradient) -> bool,
        launches: Vec<(Step, Launch)>,
    ) -> Result<()> {
        let runtime = recorder.runtime();
        let rows = self.window.len();
        let mut scratch = |g: Gradient, t: &Tensor| {
            Ok((g, self.scratch.get(runtime, g.output_name(), rows, t.shape())?))
        };
        let written = match call.is_wide() {
            true => {
                let own = outputs.gradients.iter().filter(|(g, _)| is_gradient(*g));
                own.map(|(g, t)| scratch(*g, t)).collect::<Result<_>>()?
            }
            false => outputs.gradients.clone(),
        };
        let (written, window) = (&written[..], self.window.clone());
        let scratch = self.tiled;
        let binding = Binding { call, inputs, plan, outputs, written, window, scratch };
        let mut launches = launches.into_iter();
        launches.try_for_each(|(step, launch)| binding.record(recorder, step, &launch))
    }
}

/// What a call launches, in order, without a device: `inputs` are the layouts of the arrays.
///
/// # Errors
/// As [`record`], but for what the device reports.
pub fn launches(
    inputs: &BackwardInputs<Layout<'_>>,
    plan: &Plan,
    options: &Options,
    target: Target,
) -> Result<Vec<Launch>> {
    Call::on_own_outputs(inputs, plan, options, target)?.all_launches(plan, target)
}

/// Bytes that such a call allocates beside its results: where a width of halves is odd, f32 rows or pages of each gradient,
/// of which there are 64 MiB or 128 at a time.
///
/// # Errors
/// As [`launches`].
pub fn scratch_bytes(
    inputs: &BackwardInputs<Layout<'_>>,
    plan: &Plan,
    options: &Options,
    target: Target,
) -> Result<u64> {
    Ok(Call::on_own_outputs(inputs, plan, options, target)?.scratch_bytes())
}

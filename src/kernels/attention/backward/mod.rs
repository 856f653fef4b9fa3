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

use bind::Binding;
use call::Call;

use super::{
    BackwardInputs, BackwardOutputs, DevicePlan, Geometry, Gradient, Gradients, Options, Plan,
    Schedule,
};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
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
    let call = Call::new(&inputs.as_ref().map(|_, t| t.into()), &plan, options)?;
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
    let call = Call::of_statistics(&inputs.as_ref().map(|_, t| t.into()), &plan, options)?;
    call.check_sizes(runtime, &plan)?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let statistics = runtime.tensor("statistics", Dtype::F32, &geometry.statistics_shape())?;
    let outputs = BackwardOutputs { gradients: Vec::new(), statistics };
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
    call.set_outputs(inputs, outputs)?;
    let runtime = recorder.runtime();
    let scratch = match call.is_wide() {
        true => gradient_tensors(runtime, &call.geometry, call.gradients, Dtype::F32)?,
        false => Vec::new(),
    };
    let written = if call.is_wide() { &scratch } else { &outputs.gradients };
    let binding = Binding { call: &call, inputs, plan, outputs, written };
    let launches = call.launches(&plan.plan, Target::of(runtime))?;
    prepare(runtime, launches.iter().map(|(_, launch)| launch))?;
    for (step, launch) in launches {
        binding.record(recorder, step, &launch)?;
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
    let launches = Call::of_statistics(inputs, plan, options)?.launches(plan, target)?;
    Ok(launches.into_iter().map(|(_, launch)| launch).collect())
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
    let launches = Call::new(inputs, plan, options)?.launches(plan, target)?;
    Ok(launches.into_iter().map(|(_, launch)| launch).collect())
}

//! The attention forward: `output = Σ p·v` and the statistics that a backward can use.
//!
//! One walk over a row's tokens with the running maximum. Where there are few rows and a long history, as in decoding,
//! each row's tokens are cut into chunks and a second kernel merges these in increasing order; the cut follows from the
//! sizes of the call alone, so that results repeat to the bit. Sums of values are normalised at the end: where a row's
//! values, weighted by at most 1, come to more than 3e38 together, its output is infinite.
//!
//! [`run`] does all at once. With tensors that stay on the device, a training step is:
//!
//! ```no_run
//! use backslang::kernels::attention::{
//!     BackwardOutputs, DevicePlan, ForwardInputs, Geometry, Options, Plan, Schedule, backward,
//!     forward,
//! };
//! use backslang::runtime::{Runtime, Tensor};
//! use backslang::{HostTensor, Result};
//!
//! fn step(
//!     runtime: &Runtime,
//!     inputs: &ForwardInputs<HostTensor>,
//!     schedule: &Schedule,
//!     options: &Options,
//!     loss_gradient: impl Fn(&Tensor) -> Result<Tensor>,
//! ) -> Result<BackwardOutputs<Tensor>> {
//!     let inputs = inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
//!     // Once a schedule; serves both ways, and any number of calls.
//!     let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
//!     let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
//!     let plan = DevicePlan::upload(runtime, plan)?;
//!
//!     let outputs = forward::allocate(runtime, &inputs)?;
//!     let mut recorder = runtime.recorder()?;
//!     forward::record(&mut recorder, &inputs, &plan, options, &outputs)?;
//!     recorder.submit()?;
//!
//!     // The rest of the model: from the output to the loss and back.
//!     let output_gradient = loss_gradient(&outputs.output)?;
//!     let inputs = inputs.into_backward(output_gradient, outputs);
//!     let gradients = backward::allocate(runtime, &inputs, options)?;
//!     let mut recorder = runtime.recorder()?;
//!     backward::record(&mut recorder, &inputs, &plan, options, &gradients)?;
//!     recorder.submit()?;
//!     Ok(gradients)
//! }
//! ```

mod bind;
mod call;
mod split;

use bind::Binding;
use call::{Call, ROW};
pub(crate) use split::Split;

use super::{DevicePlan, ForwardInputs, ForwardOutputs, Geometry, Options, Plan, Schedule};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::windows::{self, Scratch};
use crate::kernels::{Launch, Layout, Run, Target, prepare};
use crate::runtime::{Execution, Recorder, Runtime, Tensor};

/// Plans, uploads, runs and downloads: all from host arrays to host arrays. Of the options, `causal` and `scale` count. It
/// runs on a [`Runtime`], or as an [`Execution`] says.
///
/// # Errors
/// A schedule, shape, element type or option that does not fit, before any device work; then
/// whatever transfers and the device report, and [`Error::Cancelled`](crate::Error::Cancelled).
pub fn run<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &ForwardInputs<HostTensor>,
    schedule: &Schedule,
    options: &Options,
) -> Result<Run<ForwardOutputs<HostTensor>>> {
    run_split(on, inputs, schedule, options, None)
}

/// As [`run`] for a part of a call whose rows are divided so.
pub(crate) fn run_split<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &ForwardInputs<HostTensor>,
    schedule: &Schedule,
    options: &Options,
    split: Option<Split>,
) -> Result<Run<ForwardOutputs<HostTensor>>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, t| t.shape()))?;
    // The arrays first: a plan for a cache that the device cannot hold takes long to make.
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
    let (layouts, target) = (inputs.as_ref().map(|_, t| t.into()), Target::of(runtime));
    let call = Call::new(&layouts, None, &plan, options, split, target)?;
    call.check_sizes(runtime, &plan)?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &inputs)?;
    let timings = execution
        .run(|recorder| record_split(recorder, &inputs, &plan, options, &outputs, split))?;
    Ok(Run { outputs: outputs.try_map(|_, tensor| runtime.download(&tensor))?, timings })
}

/// Device memory, with undefined contents, for the output and the statistics.
///
/// # Errors
/// Shapes that do not fit; what allocation reports.
pub fn allocate(
    runtime: &Runtime,
    inputs: &ForwardInputs<Tensor>,
) -> Result<ForwardOutputs<Tensor>> {
    let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, t| t.shape()))?;
    let statistics = geometry.forward_statistics_shape();
    Ok(ForwardOutputs {
        output: runtime.tensor("output", inputs.q.dtype(), &geometry.output_shape())?,
        statistics: runtime.tensor("statistics", Dtype::F32, &statistics)?,
    })
}

/// Records the kernels. Every element of both outputs is written. Of the options, `causal` and `scale` count.
///
/// `q`, `q_position` and `output` may be views whose rows `[heads, dim]` have no gaps; of an output of halves such a row
/// is a whole number of words. The other arrays have no gaps.
///
/// # Errors
/// A shape, element type or option that does not fit, before anything is recorded; then whatever
/// allocation and pipeline creation report.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &ForwardInputs<Tensor>,
    plan: &DevicePlan,
    options: &Options,
    outputs: &ForwardOutputs<Tensor>,
) -> Result<()> {
    record_split(recorder, inputs, plan, options, outputs, None)
}

fn record_split(
    recorder: &mut Recorder<'_>,
    inputs: &ForwardInputs<Tensor>,
    plan: &DevicePlan,
    options: &Options,
    outputs: &ForwardOutputs<Tensor>,
    split: Option<Split>,
) -> Result<()> {
    let runtime = recorder.runtime();
    let target = Target::of(runtime);
    let layouts = ForwardOutputs {
        output: (&outputs.output).into(),
        statistics: (&outputs.statistics).into(),
    };
    let of_inputs = inputs.as_ref().map(|_, t| t.into());
    let call = Call::new(&of_inputs, Some(layouts), &plan.plan, options, split, target)?;
    call.check_statistics(&outputs.statistics)?;
    call.check_scratch(runtime)?;
    prepare(runtime, &call.all_launches(target)?)?;
    let mut scratch = Scratch::new(&call.windows);
    for rows in &call.windows {
        let part = |name: &'static str, t: &Tensor| match name {
            "q" | "q_position" | "output" | "statistics" => windows::narrow(t, ROW, rows),
            _ => Ok(t.clone()),
        };
        let (inputs, outputs) = (inputs.as_ref().try_map(part)?, outputs.as_ref().try_map(part)?);
        Layout::from(&outputs.statistics).expect_dense("statistics")?;
        let layouts = inputs.as_ref().map(|_, t| t.into());
        let call = call.window(rows, &layouts, &(&outputs.output).into())?;
        let scratch = match call.is_partial() {
            true => Some(scratch_of(runtime, &call, &mut scratch)?),
            false => None,
        };
        let (inputs, outputs) = (&inputs, &outputs);
        let binding = Binding { call: &call, inputs, plan, outputs, scratch: scratch.as_ref() };
        for (step, launch) in call.launches(target)? {
            binding.record(recorder, step, &launch)?;
        }
    }
    Ok(())
}

fn scratch_of(
    runtime: &Runtime,
    call: &Call,
    scratch: &mut Scratch,
) -> Result<ForwardOutputs<Tensor>> {
    let [sums, statistics] = call.scratch();
    let mut get = |(name, shape): (&'static str, [usize; 4])| {
        scratch.get(runtime, name, call.geometry.queries, &shape)
    };
    Ok(ForwardOutputs { output: get(sums)?, statistics: get(statistics)? })
}

/// What a call launches, in order, without a device: `inputs` are the layouts of the arrays.
///
/// # Errors
/// As [`record`], but for what the device reports.
pub fn launches(
    inputs: &ForwardInputs<Layout<'_>>,
    plan: &Plan,
    options: &Options,
    target: Target,
) -> Result<Vec<Launch>> {
    launches_split(inputs, plan, options, None, target)
}

/// As [`launches`] for a part of a call whose rows are divided so.
pub(crate) fn launches_split(
    inputs: &ForwardInputs<Layout<'_>>,
    plan: &Plan,
    options: &Options,
    split: Option<Split>,
    target: Target,
) -> Result<Vec<Launch>> {
    Call::new(inputs, None, plan, options, split, target)?.all_launches(target)
}

/// Bytes that such a call allocates beside its results: the sums of chunks of long histories; where value_dim of halves is
/// odd, f32 rows of the output, of which there are 64 MiB or 128 at a time.
///
/// # Errors
/// As [`launches`].
pub fn scratch_bytes(
    inputs: &ForwardInputs<Layout<'_>>,
    plan: &Plan,
    options: &Options,
    target: Target,
) -> Result<u64> {
    Ok(Call::new(inputs, None, plan, options, None, target)?.scratch_bytes())
}

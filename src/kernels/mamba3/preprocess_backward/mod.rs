//! The fused adjoint of the projection preprocess, and the ordered sum of its dt_bias terms.

mod launches;
mod row_sum;

use super::preprocess::{BackwardInputs, BackwardOutputs, Geometry, Parameters, dtype_of};
use super::rows::{Copies, row_axes};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::windows::{self, Scratch};
use crate::kernels::{
    Launch, Layout, Run, Target, expect_dtype, expect_shape, for_dtype, pack, prepare,
};
use crate::manifest::mamba3_preprocess_backward;
use crate::runtime::{Execution, Recorder, Runtime, Tensor, Timing};
use launches::{Launches, Sums, windows_of};
use row_sum::RowSum;

/// Rows that the first level of the dt_bias sum adds in increasing order; the second level adds the chunks.
pub const DT_BIAS_CHUNK_ROWS: usize = 128;

/// What errors call the packed gradient before it is rounded to halves of odd widths.
const SCRATCH: &str = "projected_gradient in f32";

/// Which outputs are added to what their tensors hold: `round(old + new)`, summed in f32 and rounded once; the old bits
/// where the new value is 0. `dt_bias_partial` is a term, never a sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accumulate {
    /// All of it but what lies in its slice already, which stays as it is.
    pub projected_gradient: bool,
    /// The sum over rows.
    pub dt_bias_gradient: bool,
}

/// Old values to add to, for [`run_onto`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Onto {
    /// `[rows, projected_width]`, of the type of `projected`.
    pub projected_gradient: Option<HostTensor>,
    /// `[heads]`, f32.
    pub dt_bias_gradient: Option<HostTensor>,
}

impl Onto {
    /// The outputs that there are old values of.
    pub fn accumulate(&self) -> Accumulate {
        Accumulate {
            projected_gradient: self.projected_gradient.is_some(),
            dt_bias_gradient: self.dt_bias_gradient.is_some(),
        }
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &HostTensor)> {
        let projected = self.projected_gradient.as_ref().map(|t| ("projected_gradient", t));
        let dt_bias = self.dt_bias_gradient.as_ref().map(|t| ("dt_bias_gradient", t));
        projected.into_iter().chain(dt_bias)
    }
}

/// Uploads the inputs, runs both kernels and downloads the outputs. It runs on a [`Runtime`], or as an [`Execution`] says.
///
/// # Errors
/// As [`record`], and whatever transfers and the device report; [`Error::Cancelled`].
pub fn run<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    run_onto(on, inputs, parameters, &Onto::default())
}

/// As [`run`], with old values to add to; see [`Accumulate`].
///
/// # Errors
/// As [`run`]; old values of another shape or element type than their output.
pub fn run_onto<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
    onto: &Onto,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    let Work { runtime, outputs, timings, .. } = work(on, inputs, parameters, onto)?;
    Ok(Run { outputs: outputs.try_map(|_, t| runtime.download(&t))?, timings })
}

/// As [`run_onto`], and the sums of the chunks of [`DT_BIAS_CHUNK_ROWS`] rows, `[chunks, heads]`, of which
/// `dt_bias_gradient` is the sum.
pub(crate) fn run_chunks<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
    onto: &Onto,
) -> Result<Run<(BackwardOutputs<HostTensor>, HostTensor)>> {
    let Work { runtime, outputs, chunks, timings } = work(on, inputs, parameters, onto)?;
    let outputs = outputs.try_map(|_, t| runtime.download(&t))?;
    Ok(Run { outputs: (outputs, runtime.download(&chunks)?), timings })
}

/// A call that is done.
struct Work<'a> {
    runtime: &'a Runtime,
    outputs: BackwardOutputs<Tensor>,
    /// The first level of the dt_bias sum.
    chunks: Tensor,
    timings: Vec<Timing>,
}

fn work<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
    onto: &Onto,
) -> Result<Work<'a>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, parameters)?;
    let shapes = geometry.backward_outputs();
    for (array, old) in onto.named() {
        expect_dtype(array, old.dtype(), dtype_of(array, inputs.projected.dtype()))?;
        let expected = shapes.named().find(|(name, _)| *name == array).map(|(_, shape)| shape);
        if let Some(shape) = expected.filter(|shape| shape.as_slice() != old.shape()) {
            let found = old.shape().to_vec();
            return Err(Error::Shape { array, expected: format!("{shape:?}"), found });
        }
    }
    // No output is larger than the input that it is the gradient of, but for scratch.
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let (dtype, target) = (inputs.projected.dtype(), Target::of(runtime));
    let launches = launches::on_dense(&geometry, dtype, onto.accumulate(), target)?;
    if launches.iter().any(|launch| launch.kernel.name == pack::NAME) {
        windows::check_scratch(runtime, SCRATCH, geometry.rows, geometry.projected_width())?;
    }
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &geometry, dtype)?;
    for (array, old) in onto.named() {
        for (_, tensor) in outputs.named().filter(|(name, _)| *name == array) {
            runtime.write(tensor, old.bytes())?;
        }
    }
    let accumulate = onto.accumulate();
    let mut chunks = None;
    let timings = execution.run(|recorder| {
        let sums = record_chunks(recorder, &inputs, parameters, accumulate, &outputs)?;
        chunks = Some(sums);
        Ok(())
    })?;
    // Recorded by then.
    let chunks = match chunks {
        Some(chunks) => chunks,
        None => runtime.tensor("dt_bias_chunks", Dtype::F32, &[0, geometry.heads])?,
    };
    Ok(Work { runtime, outputs, chunks, timings })
}

/// Device memory for the outputs of inputs whose `projected` is of `dtype`, with undefined contents.
///
/// # Errors
/// What allocation reports.
pub fn allocate(
    runtime: &Runtime,
    geometry: &Geometry,
    dtype: Dtype,
) -> Result<BackwardOutputs<Tensor>> {
    let outputs = geometry.backward_outputs();
    outputs.try_map(|name, shape| runtime.tensor(name, dtype_of(name, dtype), &shape))
}

/// Records both kernels; the outputs hold their values, every element written, once the submission is done.
///
/// A gradient that passes through and lies in its slice of `projected_gradient` already stays there: it is not copied.
/// Rows of halves of `projected_gradient` that lie apart are written where its slices and their places are whole words, an
/// even number of elements.
///
/// # Errors
/// A shape, element type, layout or parameter that does not fit, before anything is recorded; then
/// whatever allocation and pipeline creation report.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    parameters: &Parameters,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    record_onto(recorder, inputs, parameters, Accumulate::default(), outputs)
}

/// As [`record`], adding to what some outputs hold.
///
/// # Errors
/// As [`record`].
pub fn record_onto(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    parameters: &Parameters,
    accumulate: Accumulate,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    record_chunks(recorder, inputs, parameters, accumulate, outputs).map(drop)
}

/// As [`record_onto`]; gives the sums of the chunks.
fn record_chunks(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    parameters: &Parameters,
    accumulate: Accumulate,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<Tensor> {
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, parameters)?;
    let dtype = inputs.projected.dtype();
    for ((_, tensor), (name, shape)) in outputs.named().zip(geometry.backward_outputs().named()) {
        expect_dtype(name, tensor.dtype(), dtype_of(name, dtype))?;
        expect_shape(name, tensor, shape)?;
    }
    let runtime = recorder.runtime();
    let targets = outputs.as_ref().map(|_, t| t.into());
    let windows = windows_of(&geometry, &layouts, &targets, Target::of(runtime))?;
    let mut scratch = Scratch::new(&windows);
    for rows in &windows {
        let part = |name: &'static str, t: &Tensor| match name {
            "dt_bias" | "dt_bias_gradient" => Ok(t.clone()),
            _ => windows::narrow(t, row_axes(name), rows),
        };
        let inputs = inputs.as_ref().try_map(part)?;
        let outputs = outputs.as_ref().try_map(part)?;
        record_rows(recorder, &inputs, parameters, accumulate, &outputs, &mut scratch)?;
    }
    let (rows, heads) = (geometry.rows, geometry.heads);
    let chunks = rows.div_ceil(DT_BIAS_CHUNK_ROWS);
    let sums = runtime.tensor("dt_bias_chunks", Dtype::F32, &[chunks, heads])?;
    let launches = Sums::new(&geometry, accumulate, Target::of(runtime));
    prepare(runtime, [&launches.chunks, &launches.total])?;
    let terms = RowSum { rows, heads, chunk_rows: DT_BIAS_CHUNK_ROWS };
    terms.record(recorder, &launches.chunks, &outputs.dt_bias_partial, &sums)?;
    let chunks = RowSum { rows: chunks, heads, chunk_rows: chunks };
    chunks.record(recorder, &launches.total, &sums, &outputs.dt_bias_gradient)?;
    Ok(sums)
}

/// Records all but the sum over rows, of rows that one binding shows of each tensor.
fn record_rows(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    parameters: &Parameters,
    accumulate: Accumulate,
    outputs: &BackwardOutputs<Tensor>,
    scratch: &mut Scratch,
) -> Result<()> {
    let runtime = recorder.runtime();
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, parameters)?;
    let packed = &outputs.projected_gradient;
    let BackwardInputs { z_gradient, x_gradient, trap_gradient, angle_gradient, .. } = inputs;
    let passed = [z_gradient, x_gradient, trap_gradient, angle_gradient];
    let copies = Copies::new(&geometry.views(packed)?, passed);
    let targets = outputs.as_ref().map(|_, t| t.into());
    let launches =
        Launches::new(&geometry, &layouts, &targets, copies, accumulate, Target::of(runtime))?;
    prepare(runtime, launches.pack.iter().chain([&launches.preprocess]))?;
    let wide = match &launches.pack {
        Some(_) => Some(scratch.get(runtime, SCRATCH, geometry.rows, packed.shape())?),
        None => None,
    };
    let written =
        BackwardOutputs { projected_gradient: wide.as_ref().unwrap_or(packed), ..outputs.as_ref() };
    record_preprocess(recorder, &launches, inputs, &written, &geometry, parameters)?;
    match &launches.pack {
        Some(launch) => {
            let target = ("projected_gradient", packed);
            pack::record(recorder, launch, written.projected_gradient, target)
        }
        None => Ok(()),
    }
}

/// What a call of these sizes launches on arrays without gaps, where `projected` is of `dtype`: the preprocess; the
/// packing of its gradient, where a width of halves is odd; the dt_bias sum over chunks of rows, then over the chunks.
/// `accumulate` as in [`record_onto`].
///
/// # Errors
/// [`Error::TooLarge`] for sizes beyond the kernels' indices,
/// [`Error::Dtype`] for one that is not a floating-point type.
pub fn launches(
    geometry: &Geometry,
    dtype: Dtype,
    accumulate: Accumulate,
    target: Target,
) -> Result<Vec<Launch>> {
    launches::on_dense(geometry, dtype, accumulate, target)
}

/// Bytes that such a call allocates beside its results: the sums of chunks of rows; where a width of halves is odd, also
/// f32 rows of the packed gradient, of which there are 64 MiB or 128 at a time.
///
/// # Errors
/// As [`launches`].
pub fn scratch_bytes(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<u64> {
    launches::scratch_on_dense(geometry, dtype, target)
}

fn check(inputs: &BackwardInputs<Layout<'_>>, parameters: &Parameters) -> Result<Geometry> {
    parameters.check()?;
    let packed = inputs.projected.dtype();
    for_dtype(&mamba3_preprocess_backward::F32, "projected", packed)?;
    inputs.try_map(|name, layout| expect_dtype(name, layout.dtype(), dtype_of(name, packed)))?;
    Geometry::of_backward(&inputs.map(|_, layout| layout.shape()))
}

fn record_preprocess(
    recorder: &mut Recorder<'_>,
    launches: &Launches,
    inputs: &BackwardInputs<Tensor>,
    outputs: &BackwardOutputs<&Tensor>,
    geometry: &Geometry,
    parameters: &Parameters,
) -> Result<()> {
    use mamba3_preprocess_backward::Push;
    let parts = &launches.parts;
    let push = Push {
        rows: narrow("rows", geometry.filled_rows())?,
        z_parts: parts.z,
        x_parts: parts.x,
        head_parts: parts.heads,
        inner_size: narrow("inner_size", geometry.inner_size)?,
        bc_rows: narrow("bc_rows", geometry.filled_bc_rows())?,
        state_size: narrow("state_size", geometry.state_size)?,
        heads: narrow("heads", geometry.heads)?,
        rope_angles: narrow("rope_angles", geometry.rope_angles)?,
        epsilon: parameters.epsilon,
        dt_min: parameters.dt_min,
        dt_max: parameters.dt_max,
        a_floor: parameters.a_floor,
        ..Push::default()
    };
    let (copies, target) = (launches.copies, Target::of(recorder.runtime()));
    let elements = geometry.projected_width().saturating_mul(3);
    let load = || parts.load(elements, target);
    launches.preprocess.record_loaded(recorder, load, |access| Push {
        projected_index: access.read(&inputs.projected),
        dt_bias_index: access.read(&inputs.dt_bias),
        z_gradient_index: access.read_if(copies.z.then_some(&inputs.z_gradient)),
        x_gradient_index: access.read_if(copies.x.then_some(&inputs.x_gradient)),
        bh_gradient_index: access.read(&inputs.bh_gradient),
        ch_gradient_index: access.read(&inputs.ch_gradient),
        dt_gradient_index: access.read(&inputs.dt_gradient),
        adt_gradient_index: access.read(&inputs.adt_gradient),
        trap_gradient_index: access.read_if(copies.trap.then_some(&inputs.trap_gradient)),
        angle_gradient_index: access.read_if(copies.angle.then_some(&inputs.angle_gradient)),
        projected_gradient_index: access.write(outputs.projected_gradient),
        dt_bias_partial_index: access.write(outputs.dt_bias_partial),
        ..push
    })
}

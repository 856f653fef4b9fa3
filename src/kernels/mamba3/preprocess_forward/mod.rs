//! The projection preprocess.
//!
//! [`run`] does all at once. To keep tensors on the device, or to put more kernels into a submission:
//!
//! ```no_run
//! use backslang::kernels::mamba3::preprocess::{ForwardInputs, Geometry, Parameters, Widths};
//! use backslang::kernels::mamba3::preprocess_forward;
//! use backslang::runtime::Runtime;
//! use backslang::{HostTensor, Result};
//!
//! fn steps(runtime: &Runtime, inputs: &ForwardInputs<HostTensor>, widths: &Widths) -> Result<HostTensor> {
//!     let inputs = inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
//!     let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, tensor| tensor.shape()), widths)?;
//!     let outputs = preprocess_forward::allocate(runtime, &geometry, inputs.projected.dtype())?;
//!     let mut recorder = runtime.recorder()?;
//!     preprocess_forward::record(&mut recorder, &inputs, widths, &Parameters::default(), &outputs)?;
//!     // Other kernels can follow here.
//!     recorder.submit()?.wait()?;
//!     runtime.download(&outputs.dt)
//! }
//! ```

mod launches;

use super::preprocess::{ForwardInputs, ForwardOutputs, Geometry, Parameters, Widths, dtype_of};
use super::rows::{Copies, row_axes};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::windows::{self, Scratch};
use crate::kernels::{
    Launch, Layout, Run, Target, expect_dtype, expect_shape, for_dtype, pack, prepare,
};
use crate::manifest::mamba3_preprocess;
use crate::runtime::{Execution, Recorder, Runtime, Tensor};
use launches::{Launches, row_width, windows_of};

/// Uploads the inputs, runs the kernel and downloads the outputs. `widths` says how the packed rows are cut. It runs on a
/// [`Runtime`], or as an [`Execution`] says.
///
/// # Errors
/// As [`record`], and whatever transfers and the device report;
/// [`Error::Cancelled`](crate::Error::Cancelled).
pub fn run<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &ForwardInputs<HostTensor>,
    widths: &Widths,
    parameters: &Parameters,
) -> Result<Run<ForwardOutputs<HostTensor>>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, widths, parameters)?;
    let dtype = inputs.projected.dtype();
    // Everything that will be there, before anything is.
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let launches = launches::on_dense(&geometry, dtype, Target::of(runtime))?;
    let packed = launches.iter().any(|launch| launch.kernel.name == pack::NAME);
    for (name, shape) in geometry.forward_outputs().named() {
        runtime.check_size(name, dtype_of(name, dtype), shape)?;
        if packed {
            let width = row_width(name, &Layout::dense(shape, dtype));
            windows::check_scratch(runtime, scratch(name), geometry.rows, width)?;
        }
    }
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &geometry, dtype)?;
    let timings =
        execution.run(|recorder| record(recorder, &inputs, widths, parameters, &outputs))?;
    Ok(Run { outputs: outputs.try_map(|_, t| runtime.download(&t))?, timings })
}

/// Device memory for the outputs of inputs whose `projected` is of `dtype`, with undefined contents.
///
/// # Errors
/// What allocation reports.
pub fn allocate(
    runtime: &Runtime,
    geometry: &Geometry,
    dtype: Dtype,
) -> Result<ForwardOutputs<Tensor>> {
    let outputs = geometry.forward_outputs();
    outputs.try_map(|name, shape| runtime.tensor(name, dtype_of(name, dtype), &shape))
}

/// As [`allocate`], but for the outputs that are slices of `projected` as they are: these are views of it.
///
/// # Errors
/// What allocation reports; [`Error::Shape`](crate::Error::Shape) for rows of other sizes.
pub fn allocate_views(
    runtime: &Runtime,
    geometry: &Geometry,
    projected: &Tensor,
) -> Result<ForwardOutputs<Tensor>> {
    let slices = geometry.views(projected)?;
    let dtype = projected.dtype();
    geometry.forward_outputs().try_map(|name, shape| match name {
        "z" => Ok(slices.z.clone()),
        "x" => Ok(slices.x.clone()),
        "angle" => Ok(slices.angle.clone()),
        "trap" if dtype == Dtype::F32 => Ok(slices.trap.clone()),
        _ => runtime.tensor(name, dtype_of(name, dtype), &shape),
    })
}

/// Records the kernel; the outputs hold their values, every element written, once the submission is done. An output that
/// is a slice of `projected` as it is is not written. Rows of halves that lie apart are written where the slices and
/// their places are whole words, an even number of elements.
///
/// # Errors
/// A shape, element type, layout or parameter that does not fit, before anything is recorded; then
/// whatever allocation and pipeline creation report.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &ForwardInputs<Tensor>,
    widths: &Widths,
    parameters: &Parameters,
    outputs: &ForwardOutputs<Tensor>,
) -> Result<()> {
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, widths, parameters)?;
    let dtype = inputs.projected.dtype();
    for ((_, tensor), (array, shape)) in outputs.named().zip(geometry.forward_outputs().named()) {
        expect_dtype(array, tensor.dtype(), dtype_of(array, dtype))?;
        expect_shape(array, tensor, shape)?;
    }
    let runtime = recorder.runtime();
    let passed = [&outputs.z, &outputs.x, &outputs.trap, &outputs.angle];
    let copies = Copies::new(&geometry.views(&inputs.projected)?, passed);
    let targets = outputs.as_ref().map(|_, t| t.into());
    let windows = windows_of(&geometry, &layouts, &targets, copies, Target::of(runtime))?;
    let mut scratch = Scratch::new(&windows);
    for rows in &windows {
        let part = |name: &'static str, t: &Tensor| match name {
            "dt_bias" => Ok(t.clone()),
            _ if !copies.has(name) => Ok(t.clone()),
            _ => windows::narrow(t, row_axes(name), rows),
        };
        let (inputs, outputs) = (inputs.as_ref().try_map(part)?, outputs.as_ref().try_map(part)?);
        record_rows(recorder, &inputs, widths, parameters, &outputs, copies, &mut scratch)?;
    }
    Ok(())
}

/// Records the kernels over rows that one binding shows of each tensor.
fn record_rows(
    recorder: &mut Recorder<'_>,
    inputs: &ForwardInputs<Tensor>,
    widths: &Widths,
    parameters: &Parameters,
    outputs: &ForwardOutputs<Tensor>,
    copies: Copies,
    scratch: &mut Scratch,
) -> Result<()> {
    let runtime = recorder.runtime();
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, widths, parameters)?;
    let targets = outputs.as_ref().map(|_, t| t.into());
    let launches = Launches::new(&geometry, &layouts, &targets, copies, Target::of(runtime))?;
    prepare(runtime, launches.packs.iter().chain([&launches.preprocess]))?;
    let mut wide = launches.written.named().map(|(_, written)| written.wide);
    let written = outputs.as_ref().try_map(|name, tensor| match wide.next() {
        Some(true) => scratch.get(runtime, self::scratch(name), geometry.rows, tensor.shape()),
        _ => Ok(tensor.clone()),
    })?;
    record_preprocess(recorder, &launches, inputs, &written, &geometry, parameters)?;
    let pairs = written.named().zip(outputs.named()).zip(launches.written.named());
    let packed = pairs.filter(|(_, (_, written))| written.wide);
    for (launch, (((_, source), target), _)) in launches.packs.iter().zip(packed) {
        pack::record(recorder, launch, source, target)?;
    }
    Ok(())
}

/// What a call of these sizes launches on arrays without gaps, where `projected` is of `dtype`: the preprocess; the
/// packing of each output of halves whose width is odd.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge) for sizes beyond the kernels' indices,
/// [`Error::Dtype`](crate::Error::Dtype) for one that is not a floating-point type.
pub fn launches(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<Vec<Launch>> {
    launches::on_dense(geometry, dtype, target)
}

/// Bytes that such a call allocates beside its results: where a width of halves is odd, f32 rows of that output, of which
/// there are 64 MiB or 128 at a time.
///
/// # Errors
/// As [`launches`].
pub fn scratch_bytes(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<u64> {
    launches::scratch_on_dense(geometry, dtype, target)
}

/// What errors call an output before it is rounded to halves.
fn scratch(output: &str) -> &'static str {
    match output {
        "z" => "z in f32",
        "x" => "x in f32",
        "bh" => "bh in f32",
        "ch" => "ch in f32",
        _ => "angle in f32",
    }
}

fn check(
    inputs: &ForwardInputs<Layout<'_>>,
    widths: &Widths,
    parameters: &Parameters,
) -> Result<Geometry> {
    parameters.check()?;
    let packed = inputs.projected.dtype();
    for_dtype(&mamba3_preprocess::F32, "projected", packed)?;
    inputs.try_map(|name, layout| expect_dtype(name, layout.dtype(), dtype_of(name, packed)))?;
    Geometry::of_forward(&inputs.map(|_, layout| layout.shape()), widths)
}

fn record_preprocess(
    recorder: &mut Recorder<'_>,
    launches: &Launches,
    inputs: &ForwardInputs<Tensor>,
    outputs: &ForwardOutputs<Tensor>,
    geometry: &Geometry,
    parameters: &Parameters,
) -> Result<()> {
    use mamba3_preprocess::Push;
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
    let elements = geometry.projected_width().saturating_mul(2);
    let load = || parts.load(elements, target);
    launches.preprocess.record_loaded(recorder, load, |access| Push {
        projected_index: access.read(&inputs.projected),
        dt_bias_index: access.read(&inputs.dt_bias),
        z_index: access.write_if(copies.z.then_some(&outputs.z)),
        x_index: access.write_if(copies.x.then_some(&outputs.x)),
        bh_index: access.write(&outputs.bh),
        ch_index: access.write(&outputs.ch),
        dt_index: access.write(&outputs.dt),
        adt_index: access.write(&outputs.adt),
        trap_index: access.write_if(copies.trap.then_some(&outputs.trap)),
        angle_index: access.write_if(copies.angle.then_some(&outputs.angle)),
        ..push
    })
}

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
use super::rows::Copies;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::{
    Launch, Layout, Run, Target, expect_dtype, expect_shape, for_dtype, pack, prepare,
};
use crate::manifest::mamba3_preprocess;
use crate::runtime::{Execution, Load, Recorder, Runtime, Tensor};
use launches::Launches;

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
    let shapes = geometry.forward_outputs();
    let dense = shapes.as_ref().map(|name, shape| Layout::dense(shape, dtype_of(name, dtype)));
    let launches = Launches::new(&geometry, &layouts, &dense, Copies::ALL, Target::of(runtime))?;
    let written = dense.named().zip(launches.written.named());
    for ((name, layout), (_, written)) in written {
        runtime.check_size(name, layout.dtype(), layout.shape())?;
        if written.wide {
            runtime.check_size(scratch(name), Dtype::F32, layout.shape())?;
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
    let launches = Launches::new(&geometry, &layouts, &targets, copies, Target::of(runtime))?;
    prepare(runtime, launches.packs.iter().chain([&launches.preprocess]))?;
    let mut wide = launches.written.named().map(|(_, written)| written.wide);
    let written = outputs.as_ref().try_map(|name, tensor| match wide.next() {
        Some(true) => runtime.tensor(scratch(name), Dtype::F32, tensor.shape()),
        _ => Ok(tensor.clone()),
    })?;
    record_preprocess(recorder, &launches, inputs, &written, &geometry, parameters)?;
    let pairs = written.named().zip(outputs.named()).zip(launches.written.named());
    let packed = pairs.filter(|(_, (_, written))| written.wide);
    for (launch, (((_, source), (_, target)), _)) in launches.packs.iter().zip(packed) {
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
    let shapes = geometry.backward_inputs();
    let inputs = ForwardInputs { projected: &shapes.projected, dt_bias: &shapes.dt_bias };
    let inputs = inputs.map(|name, shape| Layout::dense(shape, dtype_of(name, dtype)));
    let shapes = geometry.forward_outputs();
    let outputs = shapes.as_ref().map(|name, shape| Layout::dense(shape, dtype_of(name, dtype)));
    let launches = Launches::new(geometry, &inputs, &outputs, Copies::ALL, target)?;
    Ok([vec![launches.preprocess], launches.packs].concat())
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
    let push = Push {
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
    let copies = launches.copies;
    let load = || Load::Even(2 * geometry.projected_width() as u64);
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

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

use super::preprocess::{ForwardInputs, ForwardOutputs, Geometry, Parameters, Widths, dtype_of};
use super::workgroup_size;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::{count, fits, narrow};
use crate::kernels::{Launch, Layout, Run, Target, expect_dtype, expect_tensor, for_dtype, pack};
use crate::manifest::mamba3_preprocess;
use crate::runtime::{Recorder, Runtime, Tensor};

/// Uploads the inputs, runs the kernel and downloads the outputs. `widths` says how the packed rows are cut.
///
/// # Errors
/// As [`record`], and whatever transfers and the device report.
pub fn run(
    runtime: &Runtime,
    inputs: &ForwardInputs<HostTensor>,
    widths: &Widths,
    parameters: &Parameters,
) -> Result<Run<ForwardOutputs<HostTensor>>> {
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let geometry = check(&layouts, widths, parameters)?;
    let dtype = inputs.projected.dtype();
    // Everything that will be there, before anything is.
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let wide = Wide::new(&geometry, dtype);
    geometry.forward_outputs().try_map(|name, shape| {
        runtime.check_size(name, dtype_of(name, dtype), &shape)?;
        scratch(name)
            .filter(|_| wide.has(name))
            .map_or(Ok(()), |scratch| runtime.check_size(scratch, Dtype::F32, &shape))
    })?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &geometry, dtype)?;
    let mut recorder = runtime.recorder()?;
    record(&mut recorder, &inputs, widths, parameters, &outputs)?;
    let submission = recorder.submit()?;
    submission.wait()?;
    Ok(Run {
        outputs: outputs.try_map(|_, t| runtime.download(&t))?,
        timings: submission.timings()?,
    })
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

/// Records the kernel; the outputs hold their values, every element written, once the submission is done.
///
/// # Errors
/// A shape, element type or parameter that does not fit, before anything is recorded; then
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
    for ((_, tensor), (name, shape)) in outputs.named().zip(geometry.forward_outputs().named()) {
        expect_tensor(name, tensor, dtype_of(name, dtype), shape)?;
    }
    let runtime = recorder.runtime();
    let launches = Launches::new(&geometry, dtype, Target::of(runtime))?;
    let written = outputs.as_ref().try_map(|name, tensor| match scratch(name) {
        Some(scratch) if launches.wide.has(name) => {
            runtime.tensor(scratch, Dtype::F32, tensor.shape())
        }
        _ => Ok(tensor.clone()),
    })?;
    record_preprocess(recorder, &launches.preprocess, inputs, &written, &geometry, parameters)?;
    let pairs = written.named().zip(outputs.named());
    let packed = pairs.filter(|((name, _), _)| launches.wide.has(name));
    for (launch, ((_, source), (_, target))) in launches.packs.iter().zip(packed) {
        pack::record(recorder, launch, source, target)?;
    }
    Ok(())
}

/// What a call of these sizes launches, where `projected` is of `dtype`: the preprocess; the packing of each output of
/// halves whose width is odd.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge) for sizes beyond the kernels' indices,
/// [`Error::Dtype`](crate::Error::Dtype) for one that is not a floating-point type.
pub fn launches(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<Vec<Launch>> {
    let Launches { preprocess, packs, .. } = Launches::new(geometry, dtype, target)?;
    Ok([vec![preprocess], packs].concat())
}

/// The outputs that the kernel leaves in f32 to be packed: where a row of halves is no whole number of words, one is
/// shared with the next.
#[derive(Clone, Copy)]
struct Wide {
    inner: bool,
    state: bool,
    angle: bool,
}

impl Wide {
    fn new(geometry: &Geometry, dtype: Dtype) -> Self {
        let odd = |width: usize| dtype.is_half() && width % 2 == 1;
        Self {
            inner: odd(geometry.inner_size),
            state: odd(geometry.state_size),
            angle: odd(geometry.rope_angles),
        }
    }

    fn has(self, output: &str) -> bool {
        match output {
            "z" | "x" => self.inner,
            "bh" | "ch" => self.state,
            "angle" => self.angle,
            _ => false,
        }
    }
}

/// What errors call an output before it is rounded to halves; `None` for one that is f32 in any case.
fn scratch(output: &str) -> Option<&'static str> {
    match output {
        "z" => Some("z in f32"),
        "x" => Some("x in f32"),
        "bh" => Some("bh in f32"),
        "ch" => Some("ch in f32"),
        "angle" => Some("angle in f32"),
        _ => None,
    }
}

/// In the order in which they run.
struct Launches {
    wide: Wide,
    preprocess: Launch,
    /// One for each wide output.
    packs: Vec<Launch>,
}

impl Launches {
    fn new(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<Self> {
        let wide = Wide::new(geometry, dtype);
        let outputs = geometry.forward_outputs();
        let packed = outputs.named().filter(|(name, _)| wide.has(name));
        let packs = packed.map(|(name, shape)| {
            // An empty axis may stand beside axes of any size.
            let elements = count(shape);
            fits("elements of an output", elements)?;
            pack::launch(name, dtype, elements as usize, target)
        });
        narrow("rows", geometry.rows)?;
        Ok(Self {
            wide,
            preprocess: Launch {
                kernel: for_dtype(&mamba3_preprocess::F32, "projected", dtype)?,
                constants: mamba3_preprocess::Constants {
                    lanes: target.lanes,
                    workgroup_size: workgroup_size(target),
                    wide_inner: wide.inner,
                    wide_state: wide.state,
                    wide_angle: wide.angle,
                }
                .words(),
                groups: [geometry.filled_rows(), 1],
            },
            packs: packs.collect::<Result<_>>()?,
        })
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
    inputs.try_map(|name, layout| {
        expect_dtype(name, layout.dtype(), dtype_of(name, packed))?;
        layout.expect_dense(name)
    })?;
    Geometry::of_forward(&inputs.map(|_, layout| layout.shape()), widths)
}

fn record_preprocess(
    recorder: &mut Recorder<'_>,
    launch: &Launch,
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
    launch.record(recorder, |access| Push {
        projected_index: access.read(&inputs.projected),
        dt_bias_index: access.read(&inputs.dt_bias),
        z_index: access.write(&outputs.z),
        x_index: access.write(&outputs.x),
        bh_index: access.write(&outputs.bh),
        ch_index: access.write(&outputs.ch),
        dt_index: access.write(&outputs.dt),
        adt_index: access.write(&outputs.adt),
        trap_index: access.write(&outputs.trap),
        angle_index: access.write(&outputs.angle),
        ..push
    })
}

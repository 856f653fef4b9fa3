//! The fused adjoint of the projection preprocess, and the ordered sum of its dt_bias terms.

use super::preprocess::{BackwardInputs, BackwardOutputs, Geometry, Parameters};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::{Run, expect_dtype, expect_tensor};
use crate::manifest::{mamba3_dt_bias_gradient, mamba3_preprocess_backward};
use crate::runtime::{Recorder, Runtime, Tensor};

/// Rows that the first level of the dt_bias sum adds in increasing order; the second level adds the chunks.
pub const DT_BIAS_CHUNK_ROWS: usize = 128;

/// Invocations of a workgroup, which writes one packed row; fewer where the device allows fewer.
const WORKGROUP_SIZE: u32 = 512;

/// Uploads the inputs, runs both kernels and downloads the outputs.
///
/// # Errors
/// As [`record`], and whatever transfers and the device report.
pub fn run(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    let geometry = check(&inputs.as_ref().map(|_, t| (t.shape(), t.dtype())), parameters)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &geometry)?;
    let mut recorder = runtime.recorder()?;
    record(&mut recorder, &inputs, parameters, &outputs)?;
    let submission = recorder.submit()?;
    submission.wait()?;
    Ok(Run {
        outputs: outputs.try_map(|_, t| runtime.download(&t))?,
        timings: submission.timings()?,
    })
}

/// Device memory for the outputs, with undefined contents.
///
/// # Errors
/// What allocation reports.
pub fn allocate(runtime: &Runtime, geometry: &Geometry) -> Result<BackwardOutputs<Tensor>> {
    geometry.backward_outputs().try_map(|name, shape| runtime.tensor(name, Dtype::F32, &shape))
}

/// Records both kernels; the outputs hold their values, every element written, once the submission is done.
///
/// # Errors
/// A shape, element type or parameter that does not fit, before anything is recorded; then
/// whatever allocation and pipeline creation report.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    parameters: &Parameters,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    let geometry = check(&inputs.as_ref().map(|_, t| (t.shape(), t.dtype())), parameters)?;
    let expected = geometry.backward_outputs();
    for ((_, tensor), (name, shape)) in outputs.named().zip(expected.named()) {
        expect_tensor(name, tensor, Dtype::F32, shape)?;
    }
    record_preprocess(recorder, inputs, outputs, &geometry, parameters)?;
    record_dt_bias(recorder, outputs, &geometry)
}

fn check(inputs: &BackwardInputs<(&[usize], Dtype)>, parameters: &Parameters) -> Result<Geometry> {
    parameters.check()?;
    inputs.try_map(|name, (_, dtype)| expect_dtype(name, dtype, Dtype::F32))?;
    Geometry::of_backward(&inputs.map(|_, (shape, _)| shape))
}

fn record_preprocess(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    outputs: &BackwardOutputs<Tensor>,
    geometry: &Geometry,
    parameters: &Parameters,
) -> Result<()> {
    use mamba3_preprocess_backward::{Constants, F32, Push};
    let lanes = recorder.runtime().lanes();
    let limits = &recorder.runtime().device().limits;
    let subgroups = (WORKGROUP_SIZE.min(limits.max_compute_work_group_invocations) / lanes)
        .clamp(1, limits.max_compute_workgroup_subgroups.max(1));
    let constants = Constants { lanes, workgroup_size: subgroups * lanes };
    let push = Push {
        inner_size: narrow("inner_size", geometry.inner_size)?,
        bc_rows: narrow("bc_rows", geometry.bc_rows)?,
        state_size: narrow("state_size", geometry.state_size)?,
        heads: narrow("heads", geometry.heads)?,
        rope_angles: narrow("rope_angles", geometry.rope_angles)?,
        epsilon: parameters.epsilon,
        dt_min: parameters.dt_min,
        dt_max: parameters.dt_max,
        a_floor: parameters.a_floor,
        ..Push::default()
    };
    recorder.dispatch(&F32, &constants.words(), [geometry.rows, 1], |access| Push {
        projected_index: access.read(&inputs.projected),
        dt_bias_index: access.read(&inputs.dt_bias),
        z_gradient_index: access.read(&inputs.z_gradient),
        x_gradient_index: access.read(&inputs.x_gradient),
        bh_gradient_index: access.read(&inputs.bh_gradient),
        ch_gradient_index: access.read(&inputs.ch_gradient),
        dt_gradient_index: access.read(&inputs.dt_gradient),
        adt_gradient_index: access.read(&inputs.adt_gradient),
        trap_gradient_index: access.read(&inputs.trap_gradient),
        angle_gradient_index: access.read(&inputs.angle_gradient),
        projected_gradient_index: access.write(&outputs.projected_gradient),
        dt_bias_partial_index: access.write(&outputs.dt_bias_partial),
        ..push
    })
}

/// Chunks of rows, then the chunks: the same kernel twice, so one order for any number of rows.
fn record_dt_bias(
    recorder: &mut Recorder<'_>,
    outputs: &BackwardOutputs<Tensor>,
    geometry: &Geometry,
) -> Result<()> {
    let (rows, heads) = (geometry.rows, geometry.heads);
    let chunks = rows.div_ceil(DT_BIAS_CHUNK_ROWS);
    let sums = recorder.runtime().tensor("dt_bias_chunks", Dtype::F32, &[chunks, heads])?;
    let by_chunk = RowSum { rows, heads, chunk_rows: DT_BIAS_CHUNK_ROWS, chunks };
    by_chunk.record(recorder, &outputs.dt_bias_partial, &sums)?;
    let in_all = RowSum { rows: chunks, heads, chunk_rows: chunks, chunks: 1 };
    in_all.record(recorder, &sums, &outputs.dt_bias_gradient)
}

/// `target[c, h] = Σ source[r, h]` over the rows `r` of chunk `c`, in increasing order.
struct RowSum {
    rows: usize,
    heads: usize,
    chunk_rows: usize,
    chunks: usize,
}

impl RowSum {
    fn record(&self, recorder: &mut Recorder<'_>, source: &Tensor, target: &Tensor) -> Result<()> {
        use mamba3_dt_bias_gradient::{Constants, F32, Push};
        let lanes = recorder.runtime().lanes();
        let push = Push {
            rows: narrow("rows", self.rows)?,
            heads: narrow("heads", self.heads)?,
            chunk_rows: narrow("rows of a chunk", self.chunk_rows)?,
            ..Push::default()
        };
        let groups = [self.chunks, self.heads.div_ceil(lanes as usize)];
        recorder.dispatch(&F32, &Constants { lanes }.words(), groups, |access| Push {
            source_index: access.read(source),
            target_index: access.write(target),
            ..push
        })
    }
}

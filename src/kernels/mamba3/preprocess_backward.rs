//! The fused adjoint of the projection preprocess, and the ordered sum of its dt_bias terms.

use super::preprocess::{BackwardInputs, BackwardOutputs, Geometry, Parameters, dtype_of};
use super::workgroup_size;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::{Launch, Layout, Run, Target, expect_dtype, expect_tensor, for_dtype, pack};
use crate::manifest::{mamba3_dt_bias_gradient, mamba3_preprocess_backward};
use crate::runtime::{Recorder, Runtime, Tensor};

/// Rows that the first level of the dt_bias sum adds in increasing order; the second level adds the chunks.
pub const DT_BIAS_CHUNK_ROWS: usize = 128;

/// What errors call the packed gradient before it is rounded to halves of odd widths.
const SCRATCH: &str = "projected_gradient in f32";

/// Uploads the inputs, runs both kernels and downloads the outputs.
///
/// # Errors
/// As [`record`], and whatever transfers and the device report.
pub fn run(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    let geometry = check(&inputs.as_ref().map(|_, t| t.into()), parameters)?;
    // No output is larger than the input that it is the gradient of, but for scratch.
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    if is_wide(&geometry, inputs.projected.dtype()) {
        runtime.check_size(SCRATCH, Dtype::F32, inputs.projected.shape())?;
    }
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &geometry, inputs.projected.dtype())?;
    let mut recorder = runtime.recorder()?;
    record(&mut recorder, &inputs, parameters, &outputs)?;
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
) -> Result<BackwardOutputs<Tensor>> {
    let outputs = geometry.backward_outputs();
    outputs.try_map(|name, shape| runtime.tensor(name, dtype_of(name, dtype), &shape))
}

/// Whether the kernel leaves an f32 gradient to be packed: where a row of halves is no whole number of words, one is
/// shared with the next.
fn is_wide(geometry: &Geometry, dtype: Dtype) -> bool {
    let Geometry { inner_size, state_size, heads, rope_angles, .. } = *geometry;
    dtype.is_half() && [inner_size, state_size, heads, rope_angles].iter().any(|n| n % 2 == 1)
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
    let geometry = check(&inputs.as_ref().map(|_, t| t.into()), parameters)?;
    let expected = geometry.backward_outputs();
    let dtype = inputs.projected.dtype();
    for ((_, tensor), (name, shape)) in outputs.named().zip(expected.named()) {
        expect_tensor(name, tensor, dtype_of(name, dtype), shape)?;
    }
    let runtime = recorder.runtime();
    let packed = &outputs.projected_gradient;
    let scratch = match is_wide(&geometry, dtype) {
        true => Some(runtime.tensor(SCRATCH, Dtype::F32, packed.shape())?),
        false => None,
    };
    let written = BackwardOutputs {
        projected_gradient: scratch.as_ref().unwrap_or(packed),
        ..outputs.as_ref()
    };
    let launches = Launches::new(&geometry, dtype, Target::of(runtime))?;
    record_preprocess(recorder, &launches.preprocess, inputs, &written, &geometry, parameters)?;
    if let Some(launch) = &launches.pack {
        pack::record(recorder, launch, written.projected_gradient, packed)?;
    }
    let (rows, heads) = (geometry.rows, geometry.heads);
    let chunks = rows.div_ceil(DT_BIAS_CHUNK_ROWS);
    let sums = runtime.tensor("dt_bias_chunks", Dtype::F32, &[chunks, heads])?;
    let terms = RowSum { rows, heads, chunk_rows: DT_BIAS_CHUNK_ROWS };
    terms.record(recorder, &launches.chunk_sums, &outputs.dt_bias_partial, &sums)?;
    let chunks = RowSum { rows: chunks, heads, chunk_rows: chunks };
    chunks.record(recorder, &launches.total, &sums, &outputs.dt_bias_gradient)
}

/// What a call of these sizes launches, where `projected` is of `dtype`: the preprocess; the packing of its gradient,
/// where a width of halves is odd; the dt_bias sum over chunks of rows, then over the chunks.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge) for sizes beyond the kernels' indices,
/// [`Error::Dtype`](crate::Error::Dtype) for one that is not a floating-point type.
pub fn launches(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<Vec<Launch>> {
    let Launches { preprocess, pack, chunk_sums, total } = Launches::new(geometry, dtype, target)?;
    Ok([Some(preprocess), pack, Some(chunk_sums), Some(total)].into_iter().flatten().collect())
}

/// In the order in which they run.
struct Launches {
    preprocess: Launch,
    pack: Option<Launch>,
    chunk_sums: Launch,
    total: Launch,
}

impl Launches {
    fn new(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<Self> {
        let lanes = target.lanes;
        let wide_gradient = is_wide(geometry, dtype);
        let row_sum = |chunks| Launch {
            kernel: &mamba3_dt_bias_gradient::F32,
            constants: mamba3_dt_bias_gradient::Constants { lanes }.words(),
            groups: [chunks, geometry.heads.div_ceil(lanes as usize)],
        };
        narrow("rows", geometry.rows)?;
        let packed = geometry.rows * geometry.projected_width();
        let pack = pack::launch("projected", dtype, packed, target);
        Ok(Self {
            preprocess: Launch {
                kernel: for_dtype(&mamba3_preprocess_backward::F32, "projected", dtype)?,
                constants: mamba3_preprocess_backward::Constants {
                    lanes,
                    workgroup_size: workgroup_size(target),
                    wide_gradient,
                }
                .words(),
                groups: [geometry.filled_rows(), 1],
            },
            pack: wide_gradient.then_some(pack).transpose()?,
            chunk_sums: row_sum(geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS)),
            total: row_sum(1),
        })
    }
}

fn check(inputs: &BackwardInputs<Layout<'_>>, parameters: &Parameters) -> Result<Geometry> {
    parameters.check()?;
    let packed = inputs.projected.dtype();
    for_dtype(&mamba3_preprocess_backward::F32, "projected", packed)?;
    inputs.try_map(|name, layout| {
        expect_dtype(name, layout.dtype(), dtype_of(name, packed))?;
        layout.expect_dense(name)
    })?;
    Geometry::of_backward(&inputs.map(|_, layout| layout.shape()))
}

fn record_preprocess(
    recorder: &mut Recorder<'_>,
    launch: &Launch,
    inputs: &BackwardInputs<Tensor>,
    outputs: &BackwardOutputs<&Tensor>,
    geometry: &Geometry,
    parameters: &Parameters,
) -> Result<()> {
    use mamba3_preprocess_backward::Push;
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
        z_gradient_index: access.read(&inputs.z_gradient),
        x_gradient_index: access.read(&inputs.x_gradient),
        bh_gradient_index: access.read(&inputs.bh_gradient),
        ch_gradient_index: access.read(&inputs.ch_gradient),
        dt_gradient_index: access.read(&inputs.dt_gradient),
        adt_gradient_index: access.read(&inputs.adt_gradient),
        trap_gradient_index: access.read(&inputs.trap_gradient),
        angle_gradient_index: access.read(&inputs.angle_gradient),
        projected_gradient_index: access.write(outputs.projected_gradient),
        dt_bias_partial_index: access.write(outputs.dt_bias_partial),
        ..push
    })
}

/// `target[c, h] = Σ source[r, h]` over the rows `r` of chunk `c`, in increasing order.
struct RowSum {
    rows: usize,
    heads: usize,
    chunk_rows: usize,
}

impl RowSum {
    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<()> {
        use mamba3_dt_bias_gradient::Push;
        let push = Push {
            rows: narrow("rows", self.rows)?,
            heads: narrow("heads", self.heads)?,
            chunk_rows: narrow("rows of a chunk", self.chunk_rows)?,
            ..Push::default()
        };
        launch.record(recorder, |access| Push {
            source_index: access.read(source),
            target_index: access.write(target),
            ..push
        })
    }
}

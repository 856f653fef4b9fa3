//! What a backward launches.

use super::super::preprocess::{BackwardInputs, BackwardOutputs, Geometry, dtype_of};
use super::super::rows::{Copies, Written, place};
use super::super::workgroup_size;
use super::{Accumulate, DT_BIAS_CHUNK_ROWS};
use crate::error::Result;
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Target, for_dtype, pack};
use crate::manifest::{mamba3_dt_bias_gradient, mamba3_preprocess_backward};

/// In the order in which they run.
pub(super) struct Launches {
    pub(super) copies: Copies,
    pub(super) preprocess: Launch,
    pub(super) pack: Option<Launch>,
    pub(super) chunk_sums: Launch,
    pub(super) total: Launch,
}

/// Those on arrays without gaps.
pub(super) fn on_dense(
    geometry: &Geometry,
    dtype: Dtype,
    accumulate: Accumulate,
    target: Target,
) -> Result<Launches> {
    let (inputs, outputs) = (geometry.backward_inputs(), geometry.backward_outputs());
    let inputs = inputs.as_ref().map(|name, shape| Layout::dense(shape, dtype_of(name, dtype)));
    let outputs = outputs.as_ref().map(|name, shape| Layout::dense(shape, dtype_of(name, dtype)));
    Launches::new(geometry, &inputs, &outputs, Copies::ALL, accumulate, target)
}

impl Launches {
    /// All that there are.
    pub(super) fn all(&self) -> impl Iterator<Item = &Launch> {
        let Self { preprocess, pack, chunk_sums, total, .. } = self;
        [Some(preprocess), pack.as_ref(), Some(chunk_sums), Some(total)].into_iter().flatten()
    }

    pub(super) fn new(
        geometry: &Geometry,
        inputs: &BackwardInputs<Layout<'_>>,
        outputs: &BackwardOutputs<Layout<'_>>,
        copies: Copies,
        accumulate: Accumulate,
        target: Target,
    ) -> Result<Self> {
        narrow("rows", geometry.rows)?;
        let (dtype, lanes) = (inputs.projected.dtype(), target.lanes);
        let from = inputs.try_map(|name, layout| place(name, &layout))?;
        let to = outputs.try_map(|name, layout| place(name, &layout))?;
        let Geometry { inner_size, state_size, heads, rope_angles, .. } = *geometry;
        let slices = [inner_size, state_size, heads, rope_angles];
        let packed = Written::new("projected_gradient", &outputs.projected_gradient, slices)?;
        // What lies in its slice goes through the scratch as all else, but is not added to itself.
        let all = packed.wide && !accumulate.projected_gradient;
        let copies = if all { Copies::ALL } else { copies };
        let to = BackwardOutputs { projected_gradient: packed.rows, ..to };
        let elements = geometry.rows * geometry.projected_width();
        let pack = packed.wide.then(|| {
            pack::launch("projected", dtype, elements, accumulate.projected_gradient, target)
        });
        let row_sum = |chunks, accumulate| Launch {
            kernel: &mamba3_dt_bias_gradient::F32,
            constants: mamba3_dt_bias_gradient::Constants { lanes, accumulate }.words(),
            groups: [chunks, heads.div_ceil(lanes as usize)],
        };
        Ok(Self {
            copies,
            preprocess: Launch {
                kernel: for_dtype(&mamba3_preprocess_backward::F32, "projected", dtype)?,
                constants: mamba3_preprocess_backward::Constants {
                    accumulate: accumulate.projected_gradient,
                    ..constants(&from, &to, packed.wide, copies, target)
                }
                .words(),
                groups: [geometry.filled_rows(), 1],
            },
            pack: pack.transpose()?,
            chunk_sums: row_sum(geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS), false),
            total: row_sum(1, accumulate.dt_bias_gradient),
        })
    }
}

fn constants(
    from: &BackwardInputs<Rows>,
    to: &BackwardOutputs<Rows>,
    wide_gradient: bool,
    copies: Copies,
    target: Target,
) -> mamba3_preprocess_backward::Constants {
    mamba3_preprocess_backward::Constants {
        lanes: target.lanes,
        workgroup_size: workgroup_size(target),
        wide_gradient,
        copy_z: copies.z,
        copy_x: copies.x,
        copy_trap: copies.trap,
        copy_angle: copies.angle,
        projected_first: from.projected.first,
        projected_stride: from.projected.stride,
        z_gradient_first: from.z_gradient.first,
        z_gradient_stride: from.z_gradient.stride,
        x_gradient_first: from.x_gradient.first,
        x_gradient_stride: from.x_gradient.stride,
        bh_gradient_first: from.bh_gradient.first,
        bh_gradient_stride: from.bh_gradient.stride,
        ch_gradient_first: from.ch_gradient.first,
        ch_gradient_stride: from.ch_gradient.stride,
        dt_gradient_first: from.dt_gradient.first,
        dt_gradient_stride: from.dt_gradient.stride,
        adt_gradient_first: from.adt_gradient.first,
        adt_gradient_stride: from.adt_gradient.stride,
        trap_gradient_first: from.trap_gradient.first,
        trap_gradient_stride: from.trap_gradient.stride,
        angle_gradient_first: from.angle_gradient.first,
        angle_gradient_stride: from.angle_gradient.stride,
        projected_gradient_first: to.projected_gradient.first,
        projected_gradient_stride: to.projected_gradient.stride,
        dt_bias_partial_first: to.dt_bias_partial.first,
        dt_bias_partial_stride: to.dt_bias_partial.stride,
        dt_bias_first: from.dt_bias.first,
        accumulate: false,
    }
}

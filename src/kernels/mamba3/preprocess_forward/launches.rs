//! What a forward launches.

use super::super::preprocess::{ForwardInputs, ForwardOutputs, Geometry};
use super::super::rows::{Copies, Written, place};
use super::super::workgroup_size;
use crate::error::Result;
use crate::kernels::index_range::{count, fits, narrow};
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Target, for_dtype, pack};
use crate::manifest::mamba3_preprocess;

/// In the order in which they run.
pub(super) struct Launches {
    pub(super) copies: Copies,
    pub(super) written: ForwardOutputs<Written>,
    pub(super) preprocess: Launch,
    /// One for each output that is written in f32 first.
    pub(super) packs: Vec<Launch>,
}

impl Launches {
    pub(super) fn new(
        geometry: &Geometry,
        inputs: &ForwardInputs<Layout<'_>>,
        outputs: &ForwardOutputs<Layout<'_>>,
        copies: Copies,
        target: Target,
    ) -> Result<Self> {
        narrow("rows", geometry.rows)?;
        let written = outputs.try_map(|name, layout| match copies.has(name) {
            true => Written::new(name, &layout, layout.shape().last().copied()),
            false => Ok(Written::dense(false)),
        })?;
        let packed = outputs.named().zip(written.named()).filter(|(_, (_, written))| written.wide);
        let packs = packed.map(|((name, layout), _)| {
            // An empty axis may stand beside axes of any size.
            let elements = count(layout.shape());
            fits("elements of an output", elements)?;
            pack::launch(name, layout.dtype(), elements as usize, false, target)
        });
        let packs = packs.collect::<Result<_>>()?;
        let from = inputs.try_map(|name, layout| place(name, &layout))?;
        let preprocess = Launch {
            kernel: for_dtype(&mamba3_preprocess::F32, "projected", inputs.projected.dtype())?,
            constants: constants(&from, &written, copies, target),
            groups: [geometry.filled_rows(), 1],
        };
        Ok(Self { copies, written, preprocess, packs })
    }
}

fn constants(
    from: &ForwardInputs<Rows>,
    to: &ForwardOutputs<Written>,
    copies: Copies,
    target: Target,
) -> Vec<u32> {
    mamba3_preprocess::Constants {
        lanes: target.lanes,
        workgroup_size: workgroup_size(target),
        wide_z: to.z.wide,
        wide_x: to.x.wide,
        wide_bh: to.bh.wide,
        wide_ch: to.ch.wide,
        wide_angle: to.angle.wide,
        copy_z: copies.z,
        copy_x: copies.x,
        copy_trap: copies.trap,
        copy_angle: copies.angle,
        projected_first: from.projected.first,
        projected_stride: from.projected.stride,
        z_first: to.z.rows.first,
        z_stride: to.z.rows.stride,
        x_first: to.x.rows.first,
        x_stride: to.x.rows.stride,
        bh_first: to.bh.rows.first,
        bh_stride: to.bh.rows.stride,
        ch_first: to.ch.rows.first,
        ch_stride: to.ch.rows.stride,
        dt_first: to.dt.rows.first,
        dt_stride: to.dt.rows.stride,
        adt_first: to.adt.rows.first,
        adt_stride: to.adt.rows.stride,
        trap_first: to.trap.rows.first,
        trap_stride: to.trap.rows.stride,
        angle_first: to.angle.rows.first,
        angle_stride: to.angle.rows.stride,
        dt_bias_first: from.dt_bias.first,
    }
    .words()
}

//! What a forward launches.

use std::ops::Range;

use super::super::parts::{COPY_QUADS, Parts, at_multiples, per_word, state_slots, workgroup_size};
use super::super::preprocess::{ForwardInputs, ForwardOutputs, Geometry, dtype_of};
use super::super::rows::{Copies, Written, place, row_axes};
use crate::error::Result;
use crate::host::Dtype;
use crate::kernels::index_range::{count, fits, narrow};
use crate::kernels::layout::Rows;
use crate::kernels::windows::{scratch_bytes, scratch_rows, windows};
use crate::kernels::{Launch, Layout, Target, for_dtype, pack};
use crate::manifest::mamba3_preprocess;

/// What runs over a window of rows, in that order.
pub(super) struct Launches {
    pub(super) copies: Copies,
    pub(super) parts: Parts,
    pub(super) written: ForwardOutputs<Written>,
    pub(super) preprocess: Launch,
    /// One for each output that is written in f32 first.
    pub(super) packs: Vec<Launch>,
}

/// Those on arrays without gaps, in the order in which they run.
pub(super) fn on_dense(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<Vec<Launch>> {
    let dense = |name: &str, shape| Layout::dense(shape, dtype_of(name, dtype)).on(target);
    let (inputs, outputs) = (geometry.backward_inputs(), geometry.forward_outputs());
    let inputs = ForwardInputs { projected: &inputs.projected, dt_bias: &inputs.dt_bias };
    let inputs = inputs.map(|name, shape| dense(name, shape));
    let outputs = outputs.as_ref().map(|name, shape| dense(name, shape));
    let launches = Launches::new(geometry, &inputs, &outputs, Copies::ALL, target)?;
    let mut all = Vec::new();
    for rows in windows_of(geometry, &inputs, &outputs, Copies::ALL, target)? {
        let part = Geometry { rows: rows.len(), ..geometry.clone() };
        let groups = [launches.parts.groups(part.filled_rows(), target)?, 1];
        all.push(Launch { groups, ..launches.preprocess.clone() });
        all.extend(packs(&outputs, &launches.written, Some(rows.len()), target)?);
    }
    Ok(all)
}

/// Bytes that a call on arrays without gaps allocates beside its results.
pub(super) fn scratch_on_dense(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<u64> {
    let dense = |name: &str, shape| Layout::dense(shape, dtype_of(name, dtype)).on(target);
    let (inputs, outputs) = (geometry.backward_inputs(), geometry.forward_outputs());
    let inputs = ForwardInputs { projected: &inputs.projected, dt_bias: &inputs.dt_bias };
    let inputs = inputs.map(|name, shape| dense(name, shape));
    let outputs = outputs.as_ref().map(|name, shape| dense(name, shape));
    let windows = windows_of(geometry, &inputs, &outputs, Copies::ALL, target)?;
    let written = written(&outputs, Copies::ALL)?;
    let wide = outputs.named().zip(written.named()).filter(|(_, (_, written))| written.wide);
    Ok(wide.map(|((name, layout), _)| scratch_bytes(&windows, row_width(name, layout))).sum())
}

/// The rows that are under way at a time.
pub(super) fn windows_of(
    geometry: &Geometry,
    inputs: &ForwardInputs<Layout<'_>>,
    outputs: &ForwardOutputs<Layout<'_>>,
    copies: Copies,
    target: Target,
) -> Result<Vec<Range<usize>>> {
    let written = written(outputs, copies)?;
    let pairs = outputs.named().zip(written.named());
    let wide = pairs.filter(|(_, (_, written))| written.wide);
    let most = wide.map(|((name, layout), _)| scratch_rows(row_width(name, layout), target));
    let outputs = outputs.named().filter(|(name, _)| copies.has(name));
    let arrays = outputs.chain([("projected", &inputs.projected)]);
    let cuts = arrays.map(|(name, layout)| layout.cuts(name, row_axes(name)));
    let cuts = cuts.collect::<Result<Vec<_>>>()?;
    Ok(windows(geometry.rows, most.min().unwrap_or(usize::MAX), cuts))
}

/// Elements of a row of an array.
pub(super) fn row_width(array: &str, layout: &Layout<'_>) -> usize {
    let axes = layout.shape();
    count(&axes[axes.len().saturating_sub(row_axes(array))..]) as usize
}

/// Where each output is written.
fn written(
    outputs: &ForwardOutputs<Layout<'_>>,
    copies: Copies,
) -> Result<ForwardOutputs<Written>> {
    outputs.try_map(|name, layout| match copies.has(name) {
        true => Written::new(name, &layout, layout.shape().last().copied()),
        false => Ok(Written::dense(false)),
    })
}

/// The packing of the outputs that are written in f32: of all that they have, or of so many rows.
fn packs(
    outputs: &ForwardOutputs<Layout<'_>>,
    written: &ForwardOutputs<Written>,
    rows: Option<usize>,
    target: Target,
) -> Result<Vec<Launch>> {
    let packed = outputs.named().zip(written.named()).filter(|(_, (_, written))| written.wide);
    let packs = packed.map(|((name, layout), _)| {
        // An empty axis may stand beside axes of any size.
        let elements = match rows {
            Some(rows) => count(&[rows, row_width(name, layout)]),
            None => count(layout.shape()),
        };
        fits("elements of an output", elements)?;
        pack::launch(name, layout.dtype(), elements as usize, false, target)
    });
    packs.collect()
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
        let written = written(outputs, copies)?;
        let from = inputs.try_map(|name, layout| place(name, &layout))?;
        let dtype = inputs.projected.dtype();
        let parts = Parts::new(geometry, dtype, [copies.z, copies.x, copies.angle], target)?;
        let preprocess = Launch {
            kernel: for_dtype(&mamba3_preprocess::F32, "projected", dtype)?,
            constants: constants(geometry, dtype, &from, &written, copies, target),
            groups: [parts.groups(geometry.filled_rows(), target)?, 1],
        };
        let packs = packs(outputs, &written, None, target)?;
        Ok(Self { copies, parts, written, preprocess, packs })
    }
}

fn constants(
    geometry: &Geometry,
    dtype: Dtype,
    from: &ForwardInputs<Rows>,
    to: &ForwardOutputs<Written>,
    copies: Copies,
    target: Target,
) -> Vec<u32> {
    let slices = geometry.slices();
    let (inner, row) = (geometry.inner_size, geometry.projected_width());
    let at = |words, rows, width, within: &[usize]| {
        at_multiples(words * per_word(dtype), rows, width, within)
    };
    let read =
        [slices.x.start, slices.b.start, geometry.state_size, slices.c.start, slices.angle.start];
    // Of z and of x, where they are copied.
    let quads = |copied: bool, written: Written, slice: &Range<usize>| {
        !copied
            || !written.wide
                && at(4, written.rows, inner, &[inner])
                && at(4, from.projected, row, &[slice.start])
    };
    let whole_quads = (copies.z || copies.x)
        && quads(copies.z, to.z, &slices.z)
        && quads(copies.x, to.x, &slices.x);
    mamba3_preprocess::Constants {
        lanes: target.lanes,
        copy_quads: COPY_QUADS,
        whole_words: at(1, from.projected, row, &read),
        state_slots: state_slots(geometry, dtype, target),
        whole_quads,
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

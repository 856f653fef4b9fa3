//! What a backward launches.

use std::ops::Range;

use super::super::parts::{COPY_QUADS, Parts, at_multiples, per_word, state_slots, workgroup_size};
use super::super::preprocess::{BackwardInputs, BackwardOutputs, Geometry, dtype_of};
use super::super::rows::{Copies, Written, place, row_axes};
use super::{Accumulate, DT_BIAS_CHUNK_ROWS};
use crate::error::Result;
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::windows::{scratch_bytes, scratch_rows, windows};
use crate::kernels::{Launch, Layout, Target, for_dtype, pack};
use crate::manifest::{mamba3_dt_bias_gradient, mamba3_preprocess_backward};

/// What runs over a window of rows, in that order.
pub(super) struct Launches {
    pub(super) copies: Copies,
    pub(super) parts: Parts,
    pub(super) preprocess: Launch,
    pub(super) pack: Option<Launch>,
}

/// The sum of the dt_bias terms: of chunks of rows, then of the chunks.
pub(super) struct Sums {
    pub(super) chunks: Launch,
    pub(super) total: Launch,
}

/// Bytes that a call on arrays without gaps allocates beside its results.
pub(super) fn scratch_on_dense(geometry: &Geometry, dtype: Dtype, target: Target) -> Result<u64> {
    let dense = |name: &str, shape| Layout::dense(shape, dtype_of(name, dtype)).on(target);
    let (inputs, outputs) = (geometry.backward_inputs(), geometry.backward_outputs());
    let inputs = inputs.as_ref().map(|name, shape| dense(name, shape));
    let outputs = outputs.as_ref().map(|name, shape| dense(name, shape));
    let windows = windows_of(geometry, &inputs, &outputs, target)?;
    let wide = written(geometry, &outputs)?.wide;
    let packed = if wide { scratch_bytes(&windows, geometry.projected_width()) } else { 0 };
    let chunks = geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS) as u64;
    Ok(packed + 4 * chunks * geometry.heads as u64)
}

/// Those on arrays without gaps, in the order in which they run.
pub(super) fn on_dense(
    geometry: &Geometry,
    dtype: Dtype,
    accumulate: Accumulate,
    target: Target,
) -> Result<Vec<Launch>> {
    let dense = |name: &str, shape| Layout::dense(shape, dtype_of(name, dtype)).on(target);
    let (inputs, outputs) = (geometry.backward_inputs(), geometry.backward_outputs());
    let (inputs, outputs) =
        (inputs.as_ref().map(|n, s| dense(n, s)), outputs.as_ref().map(|n, s| dense(n, s)));
    let launches = Launches::new(geometry, &inputs, &outputs, Copies::ALL, accumulate, target)?;
    let mut all = Vec::new();
    for rows in windows_of(geometry, &inputs, &outputs, target)? {
        let part = Geometry { rows: rows.len(), ..geometry.clone() };
        let groups = [launches.parts.groups(part.filled_rows(), target)?, 1];
        all.push(Launch { groups, ..launches.preprocess.clone() });
        if launches.pack.is_some() {
            all.push(pack_launch(&part, dtype, accumulate, target)?);
        }
    }
    outputs.dt_bias_partial.parts("dt_bias_partial", 1)?;
    let Sums { chunks, total } = Sums::new(geometry, accumulate, target);
    all.extend([chunks, total]);
    Ok(all)
}

/// The rows that are under way at a time.
pub(super) fn windows_of(
    geometry: &Geometry,
    inputs: &BackwardInputs<Layout<'_>>,
    outputs: &BackwardOutputs<Layout<'_>>,
    target: Target,
) -> Result<Vec<Range<usize>>> {
    let wide = written(geometry, outputs)?.wide;
    let most = if wide { scratch_rows(geometry.projected_width(), target) } else { usize::MAX };
    let of_rows =
        |(name, _): &(&str, &Layout<'_>)| !matches!(*name, "dt_bias" | "dt_bias_gradient");
    let arrays = inputs.named().chain(outputs.named()).filter(of_rows);
    let cuts = arrays.map(|(name, layout)| layout.cuts(name, row_axes(name)));
    Ok(windows(geometry.rows, most, cuts.collect::<Result<Vec<_>>>()?))
}

/// Where the packed gradient is written.
fn written(geometry: &Geometry, outputs: &BackwardOutputs<Layout<'_>>) -> Result<Written> {
    let Geometry { inner_size, state_size, heads, rope_angles, .. } = *geometry;
    let slices = [inner_size, state_size, heads, rope_angles];
    Written::new("projected_gradient", &outputs.projected_gradient, slices)
}

fn pack_launch(
    geometry: &Geometry,
    dtype: Dtype,
    accumulate: Accumulate,
    target: Target,
) -> Result<Launch> {
    let elements = geometry.rows.saturating_mul(geometry.projected_width());
    pack::launch("projected", dtype, elements, accumulate.projected_gradient, target)
}

impl Launches {
    pub(super) fn new(
        geometry: &Geometry,
        inputs: &BackwardInputs<Layout<'_>>,
        outputs: &BackwardOutputs<Layout<'_>>,
        copies: Copies,
        accumulate: Accumulate,
        target: Target,
    ) -> Result<Self> {
        narrow("rows", geometry.rows)?;
        let dtype = inputs.projected.dtype();
        let from = inputs.try_map(|name, layout| place(name, &layout))?;
        let to = outputs.try_map(|name, layout| place(name, &layout))?;
        let packed = written(geometry, outputs)?;
        // What lies in its slice goes through the scratch as all else, but is not added to itself.
        let all = packed.wide && !accumulate.projected_gradient;
        let copies = if all { Copies::ALL } else { copies };
        let to = BackwardOutputs { projected_gradient: packed.rows, ..to };
        let through = [copies.z, copies.x, copies.angle].map(|copied| copied || packed.wide);
        let parts = Parts::new(geometry, dtype, through, target)?;
        let pack = packed.wide.then(|| pack_launch(geometry, dtype, accumulate, target));
        Ok(Self {
            copies,
            parts,
            preprocess: Launch {
                kernel: for_dtype(&mamba3_preprocess_backward::F32, "projected", dtype)?,
                constants: mamba3_preprocess_backward::Constants {
                    accumulate: accumulate.projected_gradient,
                    ..constants(geometry, dtype, &from, &to, packed.wide, copies, target)
                }
                .words(),
                groups: [parts.groups(geometry.filled_rows(), target)?, 1],
            },
            pack: pack.transpose()?,
        })
    }
}

impl Sums {
    pub(super) fn new(geometry: &Geometry, accumulate: Accumulate, target: Target) -> Self {
        let lanes = target.lanes;
        let row_sum = |chunks, accumulate| Launch {
            kernel: &mamba3_dt_bias_gradient::F32,
            constants: mamba3_dt_bias_gradient::Constants { lanes, accumulate }.words(),
            groups: [chunks, geometry.heads.div_ceil(lanes as usize)],
        };
        Self {
            chunks: row_sum(geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS), false),
            total: row_sum(1, accumulate.dt_bias_gradient),
        }
    }
}

fn constants(
    geometry: &Geometry,
    dtype: Dtype,
    from: &BackwardInputs<Rows>,
    to: &BackwardOutputs<Rows>,
    wide_gradient: bool,
    copies: Copies,
    target: Target,
) -> mamba3_preprocess_backward::Constants {
    let slices = geometry.slices();
    let (inner, state) = (geometry.inner_size, geometry.state_size);
    let at = |words, rows, width, within: &[usize]| {
        at_multiples(words * per_word(dtype), rows, width, within)
    };
    let row = geometry.projected_width();
    let whole_words = at(1, from.projected, row, &[slices.b.start, slices.c.start, state])
        && at(1, from.z_gradient, inner, &[])
        && at(1, from.x_gradient, inner, &[])
        && at(1, from.bh_gradient, slices.b.len(), &[state])
        && at(1, from.ch_gradient, slices.c.len(), &[state])
        && at(1, from.angle_gradient, geometry.rope_angles, &[]);
    // Of z and of x, where they are copied.
    let quads = |copied: bool, gradient: Rows, slice: &Range<usize>| {
        !copied
            || at(4, gradient, inner, &[inner]) && at(4, to.projected_gradient, row, &[slice.start])
    };
    let whole_quads = (copies.z || copies.x)
        && !wide_gradient
        && quads(copies.z, from.z_gradient, &slices.z)
        && quads(copies.x, from.x_gradient, &slices.x);
    mamba3_preprocess_backward::Constants {
        lanes: target.lanes,
        copy_quads: COPY_QUADS,
        whole_words,
        state_slots: state_slots(geometry, dtype, target),
        whole_quads,
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

//! The `tiled` algorithm: the launches on matrix units, where a call and a device allow them.
//!
//! The query kernel owns tiles of rows and walks over tokens, the history kernel owns tiles of slots and walks over rows.
//! Both need complete statistics, which the ordered query kernel makes where they are not given.

use super::super::bound::Bound;
use super::super::{Algorithm, BackwardInputs, Gradient, Gradients, Plan, load};
use super::bind::Binding;
use super::call::{Call, Step};
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Target, for_dtype};
use crate::manifest::{gradient_scale, history_backward_tiled, query_backward_tiled, tiled_items};
use crate::runtime::{Recorder, Runtime, Tensor};

/// Rows of a piece of a tile, those that a subgroup owns: what the devices' matrices have.
const PIECE: usize = 16;
/// The widest rows that subgroups keep in registers.
const MAX_DIM: usize = 128;
/// Words of an item of `tiled_items`.
const ITEM_WORDS: usize = 8;
/// Most workgroups of the first pass over the output gradient, of so many invocations.
const SCALE_GROUPS: usize = 1024;
const SCALE_WORKGROUP: u32 = 256;
/// Invocations of the subgroups that multiply matrices.
const MATRIX_LANES: u32 = 32;
/// Most subgroups where matrices are emulated, which is slow.
const EMULATED_SUBGROUPS: u32 = 2;

/// What the launches of one call share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiled {
    /// Whether sums become operands element by element: what the device's probe found.
    pub(super) copies_elements: bool,
    history: Shape,
    query: Shape,
}

/// A workgroup's subgroups and the rows of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    subgroups: u32,
    step_rows: u32,
}

impl Shape {
    /// Rows that a workgroup owns.
    fn own_rows(self) -> usize {
        PIECE * self.subgroups as usize
    }

    /// Invocations: those of the subgroups that own rows, and as many as there are rows.
    fn workgroup_size(self, target: Target) -> u32 {
        let rows = (self.own_rows() as u32).max(self.step_rows);
        (self.subgroups * target.lanes).max(rows.next_multiple_of(target.lanes))
    }

    /// Bytes of groupshared memory for rows of such widths: the larger of own rows and steps, what goes out, and the rest.
    fn shared_bytes(self, key_dim: usize, value_dim: usize) -> usize {
        let pitch = |dim: usize| 2 * dim.div_ceil(PIECE) + 1;
        let (own, step) = (self.own_rows(), self.step_rows as usize);
        let tile = (own * pitch(key_dim).max(pitch(value_dim)))
            .max(step * (pitch(key_dim) + pitch(value_dim)))
            .max(own * 16);
        16 * tile + 24 * own + 64 * step + 768 * self.subgroups as usize
    }

    /// The largest of so many subgroups at most that fits into so many bytes.
    fn within(subgroups: u32, (key_dim, value_dim): (usize, usize), bytes: u32) -> Option<Self> {
        let shapes = [(8, 32), (4, 32), (4, 16), (2, 16), (1, 16)];
        let shapes = shapes.map(|(subgroups, step_rows)| Self { subgroups, step_rows });
        let fits = |s: &Self| s.shared_bytes(key_dim, value_dim) <= bytes as usize;
        shapes.into_iter().filter(|s| s.subgroups <= subgroups).find(fits)
    }
}

/// Scratch of one call's launches.
pub(super) struct Scratch {
    items: Tensor,
    largest: Tensor,
    scale: Tensor,
}

impl Tiled {
    /// The launches of a call on such a device, or why there are none.
    pub(super) fn new(
        call: &Call,
        inputs: &BackwardInputs<Layout<'_>>,
        gradients: &[(Gradient, Layout<'_>)],
        target: Target,
    ) -> std::result::Result<Self, String> {
        let geometry = &call.geometry;
        if !target.matrices.of(call.dtype) {
            return Err(format!(
                "f16 or bf16 on a device that multiplies matrices of them, not {}",
                call.dtype.name()
            ));
        }
        if geometry.is_mla() {
            return Err("keys and values of their own, no latent".into());
        }
        let dims = [geometry.key_dim, geometry.value_dim];
        if dims.iter().any(|dim| dim % 8 != 0 || *dim > MAX_DIM) {
            return Err(format!(
                "key_dim and value_dim that are multiples of 8 up to {MAX_DIM}, not {dims:?}"
            ));
        }
        if call.is_divided() {
            return Err("arrays that one binding holds each".into());
        }
        let mut misplaced = Vec::new();
        let mut place = |name: &'static str, layout: &Layout<'_>| {
            let aligned = layout.rows(name, 2).is_ok_and(is_aligned);
            if !aligned {
                misplaced.push(name);
            }
        };
        place("q", &inputs.q);
        place("output_gradient", &inputs.output_gradient);
        for (g, layout) in gradients.iter().filter(|(g, _)| !g.is_history()) {
            place(g.output_name(), layout);
        }
        if let Some(name) = misplaced.first() {
            return Err(format!("rows of `{name}` that begin at multiples of 8 elements"));
        }
        let items = geometry.queries.saturating_mul(geometry.heads).saturating_mul(4 * ITEM_WORDS);
        if items as u64 > target.max_binding {
            return Err("fewer rows and heads".into());
        }
        let widths = (geometry.key_dim, geometry.value_dim);
        let shared = target.shared_bytes;
        let own = call.unit_rows.saturating_mul(geometry.group()).div_ceil(PIECE);
        let most = if target.lanes < MATRIX_LANES { EMULATED_SUBGROUPS } else { u32::MAX };
        let query = match own {
            0..=1 => 1,
            2..=3 => 2,
            4..=7 => 4,
            _ => 8,
        };
        let shape = |subgroups: u32| {
            Shape::within(subgroups.min(most), widths, shared)
                .ok_or_else(|| "groupshared memory for 16 rows".to_owned())
        };
        Ok(Self { copies_elements: true, history: shape(4)?, query: shape(query)? })
    }

    /// Tiles of a unit of the query kernel.
    fn query_tiles(&self, call: &Call, plan: &Plan) -> usize {
        let items = plan.unit_rows().saturating_mul(call.geometry.group());
        items.div_ceil(self.query.own_rows())
    }
}

/// Whether every row begins at a multiple of eight elements, where its width is one.
fn is_aligned(rows: Rows) -> bool {
    rows.first.is_multiple_of(8) && rows.stride.is_multiple_of(8)
}

impl Call {
    /// Finds out whether the call goes on matrix units, which it need not where it asks for the order of the schedule.
    pub(super) fn choose_algorithm(
        &mut self,
        inputs: &BackwardInputs<Layout<'_>>,
        gradients: &[(Gradient, Layout<'_>)],
        target: Target,
    ) -> Result<()> {
        self.tiled = match self.options.algorithm {
            Algorithm::Ordered => None,
            // Other subgroups have their matrices emulated, for tests.
            Algorithm::Auto if target.lanes != MATRIX_LANES => None,
            Algorithm::Auto => Tiled::new(self, inputs, gradients, target).ok(),
            Algorithm::Tiled => {
                Some(Tiled::new(self, inputs, gradients, target).map_err(|why| refused(&why))?)
            }
        };
        Ok(())
    }

    /// Asks the device what the launches of a call on matrix units depend on, and allocates their scratch.
    pub(super) fn prepare_tiled(&mut self, runtime: &Runtime) -> Result<Option<Scratch>> {
        let Some(tiled) = &mut self.tiled else { return Ok(None) };
        tiled.copies_elements = runtime.copies_elements(self.dtype)?;
        Scratch::new(runtime, self).map(Some)
    }

    /// What goes before either kernel: the scale of f16 output gradients.
    pub(super) fn scale_launches(&self, target: Target) -> Result<Vec<(Step, Launch)>> {
        // Statistics alone have no ds to scale.
        if self.dtype != Dtype::F16 || self.gradients == Gradients::NONE {
            return Ok(Vec::new());
        }
        let workgroup_size = SCALE_WORKGROUP.min(target.max_workgroup);
        let launch = |ends: bool, groups: usize| Launch {
            kernel: &gradient_scale::F16,
            constants: gradient_scale::Constants {
                lanes: target.lanes,
                workgroup_size,
                first: if ends { 0 } else { self.rows.output_gradient.first },
                stride: if ends { 0 } else { self.rows.output_gradient.stride },
                ends,
            }
            .words(),
            groups: [groups, self.geometry.kv_heads],
        };
        let groups = self.scale_groups(target);
        Ok(vec![
            (Step::LargestGradient, launch(false, groups)),
            (Step::GradientScale, launch(true, 1)),
        ])
    }

    /// Chunks of eight output gradients of a key/value head.
    fn gradient_chunks(&self) -> usize {
        self.geometry.queries * self.geometry.group() * self.geometry.value_dim / 8
    }

    fn scale_groups(&self, target: Target) -> usize {
        let workgroup = SCALE_WORKGROUP.min(target.max_workgroup) as usize;
        self.gradient_chunks().div_ceil(workgroup).clamp(1, SCALE_GROUPS)
    }

    pub(super) fn tiled_query(&self, tiled: Tiled, plan: &Plan, target: Target) -> Result<Launch> {
        let geometry = &self.geometry;
        let constants = query_backward_tiled::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: 1,
            mla: false,
            causal: self.options.causal,
            accumulate_q: self.adds(Gradient::Q),
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            output_gradient_first: self.rows.output_gradient.first,
            output_gradient_stride: self.rows.output_gradient.stride,
            q_gradient_first: self.rows.q_gradient.first,
            q_gradient_stride: self.rows.q_gradient.stride,
            workgroup_size: tiled.query.workgroup_size(target),
            step_rows: tiled.query.step_rows,
            own_subgroups: tiled.query.subgroups,
            copies_elements: tiled.copies_elements,
        };
        let units = if geometry.queries == 0 { 0 } else { plan.row_units().len() };
        Ok(Launch {
            kernel: for_dtype(&query_backward_tiled::F16, "q", self.dtype)?,
            constants: constants.words(),
            groups: [units.saturating_mul(tiled.query_tiles(self, plan)), geometry.kv_heads],
        })
    }

    pub(super) fn tiled_items(&self, target: Target) -> Result<Launch> {
        let workgroup_size = 128.min(target.max_workgroup / target.lanes * target.lanes);
        let geometry = &self.geometry;
        let constants = tiled_items::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: 1,
            mla: false,
            causal: self.options.causal,
            workgroup_size,
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            output_gradient_first: self.rows.output_gradient.first,
            output_gradient_stride: self.rows.output_gradient.stride,
        };
        let items = geometry.queries.saturating_mul(geometry.group());
        Ok(Launch {
            kernel: &tiled_items::F32,
            constants: constants.words(),
            groups: [items.div_ceil(workgroup_size as usize), geometry.kv_heads],
        })
    }

    pub(super) fn tiled_history(
        &self,
        tiled: Tiled,
        plan: &Plan,
        target: Target,
    ) -> Result<Launch> {
        let geometry = &self.geometry;
        let constants = history_backward_tiled::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: 1,
            mla: false,
            causal: self.options.causal,
            need_key: self.gradients.contains(Gradient::K),
            need_value: self.gradients.contains(Gradient::V),
            accumulate_key: self.adds(Gradient::K),
            accumulate_value: self.adds(Gradient::V),
            workgroup_size: tiled.history.workgroup_size(target),
            step_rows: tiled.history.step_rows,
            own_subgroups: tiled.history.subgroups,
            copies_elements: tiled.copies_elements,
        };
        let units = plan.launched_units(self.options.compact_history);
        let tiles = plan.unit_slots() / tiled.history.own_rows();
        Ok(Launch {
            kernel: for_dtype(&history_backward_tiled::F16, "q", self.dtype)?,
            constants: constants.words(),
            groups: [units.saturating_mul(tiles), geometry.kv_heads],
        })
    }
}

impl Scratch {
    /// Allocates it.
    pub(super) fn new(runtime: &Runtime, call: &Call) -> Result<Self> {
        let words = |name, words: usize| runtime.tensor(name, Dtype::U32, &[words]);
        let items = call.geometry.queries * call.geometry.heads * ITEM_WORDS;
        Ok(Self {
            items: words("items", items)?,
            largest: words("largest gradients", SCALE_GROUPS * call.geometry.kv_heads)?,
            scale: runtime.tensor("gradient scale", Dtype::F32, &[call.geometry.kv_heads])?,
        })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(call: &Call) -> u64 {
        let items = call.geometry.queries * call.geometry.heads * ITEM_WORDS;
        4 * (items + (SCALE_GROUPS + 1) * call.geometry.kv_heads) as u64
    }
}

impl Binding<'_> {
    /// Records the launches of this file.
    pub(super) fn record_tiled(
        &self,
        recorder: &mut Recorder<'_>,
        step: Step,
        launch: &Launch,
        scratch: &Scratch,
    ) -> Result<()> {
        let target = Target::of(recorder.runtime());
        match step {
            Step::LargestGradient => self.largest_gradient(recorder, launch, scratch),
            Step::GradientScale => self.gradient_scale(recorder, launch, scratch, target),
            Step::TiledQuery(tiled) => self.tiled_query(recorder, launch, scratch, tiled),
            Step::TiledItems => self.tiled_items(recorder, launch, scratch),
            _ => self.tiled_history(recorder, launch, scratch),
        }
    }

    fn largest_gradient(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        scratch: &Scratch,
    ) -> Result<()> {
        let Self { call, inputs, .. } = self;
        let push = gradient_scale::Push {
            width: narrow("heads", call.geometry.heads * call.geometry.value_dim)?,
            head_width: narrow("heads", call.geometry.group() * call.geometry.value_dim)?,
            count: narrow("elements of an array", call.gradient_chunks())?,
            groups: narrow("workgroups", launch.groups[0])?,
            ..<_>::default()
        };
        launch.record(recorder, |access| gradient_scale::Push {
            source_index: access.read(&inputs.output_gradient),
            target_index: access.write(&scratch.largest),
            ..push
        })
    }

    fn gradient_scale(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        scratch: &Scratch,
        target: Target,
    ) -> Result<()> {
        let count = narrow("workgroups", self.call.scale_groups(target))?;
        launch.record(recorder, |access| gradient_scale::Push {
            source_index: access.read(&scratch.largest),
            target_index: access.write(&scratch.scale),
            width: 8,
            head_width: 8,
            count,
            groups: 1,
            ..<_>::default()
        })
    }

    fn tiled_query(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        scratch: &Scratch,
        tiled: Tiled,
    ) -> Result<()> {
        use query_backward_tiled::Push;
        let Self { call, inputs, plan, outputs, .. } = self;
        let geometry = &call.geometry;
        let bound = Bound::new(&inputs.history);
        let tiles = tiled.query_tiles(call, &plan.plan);
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            page_size: narrow("page_size", geometry.page_size)?,
            heads: narrow("heads", geometry.heads)?,
            kv_heads: narrow("kv_heads", geometry.kv_heads)?,
            unit_tiles: narrow("tiles of a unit", tiles)?,
            scale: call.options.scale,
            ..Push::default()
        };
        let sizes = [tiles, tiled.query.own_rows()];
        let (causal, rows) = (call.options.causal, 0..geometry.queries);
        let load = || load::of_row_tiles(&plan.plan, causal, geometry, sizes, &rows);
        launch.record_loaded(recorder, load, |access| Push {
            q_index: access.read(&inputs.q),
            k_index: access.read(bound.k),
            v_index: access.read(bound.v),
            output_gradient_index: access.read(&inputs.output_gradient),
            metadata_index: access.read(&plan.metadata),
            inverse_index: access.read(&plan.inverse),
            row_units_index: access.read(&plan.row_units),
            statistics_index: access.read(&outputs.statistics),
            gradient_scale_index: access.read(&scratch.scale),
            q_gradient_index: access.write_if(self.gradient(&[Gradient::Q])),
            ..push
        })
    }

    fn tiled_items(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        scratch: &Scratch,
    ) -> Result<()> {
        use tiled_items::Push;
        let Self { call, plan, outputs, .. } = self;
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            heads: narrow("heads", call.geometry.heads)?,
            kv_heads: narrow("kv_heads", call.geometry.kv_heads)?,
            scale: call.options.scale,
            ..Push::default()
        };
        launch.record(recorder, |access| Push {
            metadata_index: access.read(&plan.metadata),
            inverse_index: access.read(&plan.inverse),
            statistics_index: access.read(&outputs.statistics),
            items_index: access.write(&scratch.items),
            ..push
        })
    }

    fn tiled_history(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        scratch: &Scratch,
    ) -> Result<()> {
        use history_backward_tiled::Push;
        let Self { call, inputs, plan, .. } = self;
        let geometry = &call.geometry;
        let bound = Bound::new(&inputs.history);
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            page_size: narrow("page_size", geometry.page_size)?,
            unit_slots: narrow("slots of a unit", plan.plan.unit_slots())?,
            heads: narrow("heads", geometry.heads)?,
            kv_heads: narrow("kv_heads", geometry.kv_heads)?,
            scale: call.options.scale,
            ..Push::default()
        };
        let units = plan.plan.launched_units(call.options.compact_history);
        let tiles = (launch.groups[0] / units.max(1)) as u32;
        let load = || load::of_tiles(&plan.plan, &call.options, geometry, tiles, &self.window);
        launch.record_loaded(recorder, load, |access| Push {
            q_index: access.read(&inputs.q),
            k_index: access.read(bound.k),
            v_index: access.read(bound.v),
            output_gradient_index: access.read(&inputs.output_gradient),
            metadata_index: access.read(&plan.metadata),
            inverse_index: access.read(&plan.inverse),
            units_index: access.read(&plan.units),
            items_index: access.read(&scratch.items),
            gradient_scale_index: access.read(&scratch.scale),
            k_gradient_index: access.write_if(self.gradient(&[Gradient::K])),
            v_gradient_index: access.write_if(self.gradient(&[Gradient::V])),
            ..push
        })
    }
}

/// The error of a call that asked for this algorithm.
pub(super) fn refused(why: &str) -> Error {
    Error::Parameter {
        name: "algorithm",
        expected: format!("for `tiled`: {why}"),
        found: "tiled".into(),
    }
}

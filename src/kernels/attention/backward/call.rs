//! A checked call, and the launches that it comes to.

use std::ops::Range;

use super::super::row_tile::RowTile;
use super::super::slot_tile::SlotTile;
use super::super::{BackwardInputs, BackwardOutputs, Geometry, Gradient, Gradients, Options, Plan};
use super::tiled::{self, Tiled};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::windows::{check_scratch, scratch_bytes, scratch_rows, windows};
use crate::kernels::{Launch, Layout, Target, expect_dtype, expect_tensor, for_dtype, pack};
use crate::manifest::{clear_pages, history_backward, query_backward};
use crate::runtime::{Runtime, Tensor};

/// One checked call.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) geometry: Geometry,
    pub(super) options: Options,
    /// Of all arrays but the statistics, which are f32.
    pub(super) dtype: Dtype,
    pub(super) gradients: Gradients,
    /// Those of them that are added to what their tensors hold.
    accumulate: Gradients,
    given_output: bool,
    pub(super) rows: RowsOf,
    parts: PartsOf,
    /// The rows, and the pages, that are under way at a time.
    windows: Windows,
    /// The most rows of a unit of the plan.
    pub(super) unit_rows: usize,
    /// Of a call on matrix units.
    pub(super) tiled: Option<Tiled>,
}

/// What the launches go over: the query kernel over rows, the history kernel over pages.
#[derive(Debug, Clone, Default)]
pub(super) struct Windows {
    pub(super) rows: Vec<Range<usize>>,
    pub(super) pages: Vec<Range<usize>>,
}

/// Rows that each binding shows of what a kernel finds anywhere, 0 where one shows all: rows of the cache of keys, values
/// and their positions, rows of queries of all else.
#[derive(Clone, Copy, Default)]
struct PartsOf {
    k: u32,
    v: u32,
    k_position: u32,
    q: u32,
    q_position: u32,
    output_gradient: u32,
    statistics: u32,
}

/// How the arrays that may be views lie. What the call lacks is nowhere.
#[derive(Clone, Copy, Default)]
pub(super) struct RowsOf {
    pub(super) q: Rows,
    q_position: Rows,
    pub(super) output_gradient: Rows,
    output: Rows,
    pub(super) q_gradient: Rows,
    q_position_gradient: Rows,
}

/// The last axes that are a row of queries, [heads, dim], and a page, [page_size, kv_heads, dim].
pub(super) const ROW: usize = 2;
pub(super) const PAGE: usize = 3;

/// Whether an array has a row a query; the others have pages.
pub(super) fn has_rows(array: &str) -> bool {
    matches!(array, "q" | "q_position" | "output_gradient" | "output" | "statistics")
}

/// What a launch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Row statistics and query gradients.
    Query,
    /// Zeros for the pages that a compacted launch leaves out.
    Clear(Gradient),
    /// History gradients.
    History,
    /// A gradient of halves from its f32 scratch.
    Pack(Gradient),
    /// The largest f16 output gradients, then the powers of two that scale ds.
    LargestGradient,
    /// See [`Step::LargestGradient`].
    GradientScale,
    /// Query gradients on matrix units.
    TiledQuery(Tiled),
    /// What [`Step::TiledHistory`] reads of rows and heads.
    TiledItems,
    /// History gradients on matrix units.
    TiledHistory,
}

impl Call {
    pub(super) fn new(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        Self::computing(inputs, plan, options, |mla| options.resolve(|g| g.exists(mla)))
    }

    /// The call that computes the statistics alone.
    pub(super) fn of_statistics(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        Self::computing(inputs, plan, options, |_| Ok((Gradients::NONE, Gradients::NONE)))
    }

    /// `resolve` says which gradients there are to compute, and which of them are added to old ones.
    fn computing(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
        resolve: impl FnOnce(bool) -> Result<(Gradients, Gradients)>,
    ) -> Result<Self> {
        let dtype = inputs.q.dtype();
        for_dtype(&query_backward::F32, "q", dtype)?;
        inputs.try_map(|name, layout| {
            let expected = if name == "statistics" { Dtype::F32 } else { dtype };
            expect_dtype(name, layout.dtype(), expected)
        })?;
        let geometry = Geometry::of_backward(&inputs.map(|_, layout| layout.shape()))?;
        options.check()?;
        plan.check_call("paged-attention-backward", &geometry, options.causal)?;
        let (gradients, accumulate) = resolve(geometry.is_mla())?;
        let given_output = inputs.output.is_some();
        let (parts, windows) = (PartsOf::default(), Windows::default());
        let (rows, options) = (RowsOf::new(inputs, &geometry)?, *options);
        Ok(Self {
            geometry,
            options,
            dtype,
            gradients,
            accumulate,
            given_output,
            rows,
            parts,
            windows,
            unit_rows: plan.unit_rows(),
            tiled: None,
        })
    }

    /// As [`Call::new`], with outputs of their own.
    pub(super) fn on_own_outputs(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
        target: Target,
    ) -> Result<Self> {
        let inputs = inputs.map(|_, layout| layout.on(target));
        Self::new(&inputs, plan, options)?.with_own_outputs(&inputs, target)
    }

    /// As [`Call::of_statistics`], with outputs of their own.
    pub(super) fn statistics_on_own_outputs(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
        target: Target,
    ) -> Result<Self> {
        let inputs = inputs.map(|_, layout| layout.on(target));
        Self::of_statistics(&inputs, plan, options)?.with_own_outputs(&inputs, target)
    }

    fn with_own_outputs(self, inputs: &BackwardInputs<Layout<'_>>, target: Target) -> Result<Self> {
        let mut call = self;
        let shape = |g| (g, call.geometry.gradient_shape(g));
        let shapes: Vec<_> = call.gradients.iter().map(shape).collect();
        let own = |dtype, shape| Layout::dense(shape, dtype).on(target);
        let gradients: Vec<_> = shapes.iter().map(|(g, s)| (*g, own(call.dtype, s))).collect();
        let shape = call.geometry.statistics_shape();
        let statistics = match inputs.statistics {
            Some(complete) if call.geometry.statistics_columns == 3 => complete,
            _ => own(Dtype::F32, &shape),
        };
        call.divide(inputs, &gradients, statistics, target)?;
        Ok(call)
    }

    /// Divides the work where bindings end, and where scratch would be large.
    fn divide(
        &mut self,
        inputs: &BackwardInputs<Layout<'_>>,
        gradients: &[(Gradient, Layout<'_>)],
        statistics: Layout<'_>,
        target: Target,
    ) -> Result<()> {
        self.parts = PartsOf::new(inputs, statistics)?;
        let Geometry { heads, kv_heads, page_size, queries, pages, .. } = self.geometry;
        let Geometry { key_dim, value_dim, position_dim, .. } = self.geometry;
        let mut rows = vec![statistics.cuts("statistics", ROW)?];
        let mut cuts = Vec::new();
        inputs.try_map(|name, layout| {
            match has_rows(name) {
                true => rows.push(layout.cuts(name, ROW)?),
                false => cuts.push(layout.cuts(name, PAGE)?),
            }
            Ok(())
        })?;
        for (g, layout) in gradients {
            match g.is_history() {
                true => cuts.push(layout.cuts(g.output_name(), PAGE)?),
                false => rows.push(layout.cuts(g.output_name(), ROW)?),
            }
        }
        let most = |width: usize| match self.is_wide() {
            true => scratch_rows(width, target),
            false => usize::MAX,
        };
        let page = page_size.saturating_mul(kv_heads);
        let widest = key_dim.max(value_dim).max(position_dim);
        self.windows = Windows {
            rows: windows(queries, most(heads.saturating_mul(widest)), rows),
            pages: windows(pages, most(page.saturating_mul(widest)), cuts),
        };
        self.choose_algorithm(inputs, gradients, target)
    }

    /// Whether bindings or scratch divide the work.
    pub(super) fn is_divided(&self) -> bool {
        let PartsOf { k, v, q, output_gradient, statistics, .. } = self.parts;
        let parts = [k, v, q, output_gradient, statistics];
        parts.iter().any(|&rows| rows > 0)
            || self.windows.rows.len() > 1
            || self.windows.pages.len() > 1
    }

    /// The query kernel, of which nothing but missing statistics is left where matrix units compute the gradients.
    fn query_launches(&self, plan: &Plan, target: Target) -> Result<Vec<(Step, Launch)>> {
        let Some(tiled) = self.tiled else {
            return Ok(vec![(Step::Query, self.query(plan, target)?)]);
        };
        let mut launches = Vec::new();
        if self.geometry.statistics_columns < 3 {
            let gradients = Gradients::NONE;
            launches.push((Step::Query, Self { gradients, ..self.clone() }.query(plan, target)?));
        }
        launches.extend(self.scale_launches(target)?);
        if self.gradients.any_query() {
            launches.push((Step::TiledQuery(tiled), self.tiled_query(tiled, plan, target)?));
        }
        Ok(launches)
    }

    /// What the query kernel goes over, where there is something for it to do: not when the statistics are complete and
    /// no gradient of its own is asked for.
    pub(super) fn row_windows(&self) -> &[Range<usize>] {
        let needed = self.geometry.statistics_columns < 3
            || self.gradients.any_query()
            || self.tiled.is_some();
        if needed { &self.windows.rows } else { &[] }
    }

    /// What the history kernel goes over, where a gradient of its own is asked for.
    pub(super) fn page_windows(&self) -> &[Range<usize>] {
        if self.gradients.any_history() { &self.windows.pages } else { &[] }
    }

    /// Whether the kernels leave f32 gradients to be packed: a row of halves that is no whole number of words shares
    /// one with the next row, which another subgroup owns.
    pub(super) fn is_wide(&self) -> bool {
        let Geometry { key_dim, value_dim, position_dim, .. } = self.geometry;
        self.dtype.is_half() && [key_dim, value_dim, position_dim].iter().any(|d| d % 2 == 1)
    }

    /// Whether the outputs are those of this call; from here on the launches write to where they lie.
    pub(super) fn set_outputs(
        &mut self,
        inputs: &BackwardInputs<Tensor>,
        outputs: &BackwardOutputs<Tensor>,
        target: Target,
    ) -> Result<()> {
        let listed = outputs.gradients.iter().map(|&(g, _)| g).collect::<Vec<_>>();
        if Gradients::only(&listed) != self.gradients
            || listed.len() != self.gradients.iter().count()
        {
            return Err(Error::Parameter {
                name: "gradients",
                expected: format!("outputs for {:?}", self.gradients.iter().collect::<Vec<_>>()),
                found: format!("{listed:?}"),
            });
        }
        for (g, tensor) in &outputs.gradients {
            let (name, layout) = (g.output_name(), Layout::from(tensor));
            self.check_gradient(*g, layout)?;
            if self.is_wide() && layout.expect_dense(name).is_err() {
                return Err(layout.refuse(name, "no gaps, as halves of odd widths are packed"));
            }
            if g.is_history() || self.is_wide() {
                layout.expect_dense(name)?;
                continue;
            }
            if !layout.is_whole_words(layout.rows(name, ROW)?, ROW) {
                return Err(layout.refuse(name, "rows of halves that are whole words"));
            }
        }
        let complete = inputs.statistics.as_ref().filter(|_| self.geometry.statistics_columns == 3);
        if complete.is_some_and(|given| !given.is_same(&outputs.statistics)) {
            return Err(Error::Parameter {
                name: "statistics",
                expected: "as output the given tensor, for what is complete is not computed".into(),
                found: format!("{:?}", outputs.statistics),
            });
        }
        let shape = self.geometry.statistics_shape();
        expect_tensor("statistics", &outputs.statistics, Dtype::F32, &shape)?;
        self.rows.set_gradients(&outputs.gradients)?;
        let layouts = inputs.as_ref().map(|_, t| t.into());
        let gradients: Vec<_> = outputs.gradients.iter().map(|(g, t)| (*g, t.into())).collect();
        self.divide(&layouts, &gradients, (&outputs.statistics).into(), target)
    }

    /// The same call of a window of rows, which has these tensors, for the query kernel.
    pub(super) fn of_rows(
        &self,
        rows: &Range<usize>,
        inputs: &BackwardInputs<Tensor>,
        outputs: &BackwardOutputs<Tensor>,
    ) -> Result<Self> {
        let mut call = Self { geometry: self.rows_of(rows), ..self.clone() };
        call.rows = RowsOf::new(&inputs.as_ref().map(|_, t| t.into()), &call.geometry)?;
        call.rows.set_gradients(&outputs.gradients)?;
        Ok(call)
    }

    fn rows_of(&self, rows: &Range<usize>) -> Geometry {
        Geometry { queries: rows.len(), ..self.geometry }
    }

    /// Whether an array can be a gradient of this call.
    fn check_gradient(&self, gradient: Gradient, layout: Layout<'_>) -> Result<()> {
        let (array, expected) = (gradient.output_name(), self.geometry.gradient_shape(gradient));
        expect_dtype(array, layout.dtype(), self.dtype)?;
        if layout.shape() == expected {
            return Ok(());
        }
        let (expected, found) = (format!("{expected:?}"), layout.shape().to_vec());
        Err(Error::Shape { array, expected, found })
    }

    /// Whether a gradient can be added to an array.
    pub(super) fn check_old(&self, gradient: Gradient, old: &HostTensor) -> Result<()> {
        self.check_gradient(gradient, old.into())
    }

    /// Whether the device can hold what the call allocates beside its inputs.
    pub(super) fn check_sizes(&self, runtime: &Runtime, plan: &Plan) -> Result<()> {
        for (name, words) in plan.parts() {
            runtime.check_binding(name, Dtype::U32, &[words.len()])?;
        }
        for g in self.gradients.iter() {
            let shape = self.geometry.gradient_shape(g);
            runtime.check_size(g.output_name(), self.dtype, &shape)?;
            if self.is_wide() {
                let width = shape[1..].iter().product();
                check_scratch(runtime, g.output_name(), shape[0], width)?;
            }
        }
        runtime.check_size("statistics", Dtype::F32, &self.geometry.statistics_shape())
    }

    /// Bytes of the scratch.
    pub(super) fn scratch_bytes(&self) -> u64 {
        let of = |g: Gradient| {
            let width = self.geometry.gradient_shape(g)[1..].iter().product();
            match g.is_history() {
                true => scratch_bytes(self.page_windows(), width),
                false => scratch_bytes(self.row_windows(), width),
            }
        };
        let tiled = self.tiled.map_or(0, |_| tiled::Scratch::bytes(self));
        if self.is_wide() { self.gradients.iter().map(of).sum() } else { tiled }
    }

    /// The launches in order, of all windows.
    pub(super) fn all_launches(&self, plan: &Plan, target: Target) -> Result<Vec<Launch>> {
        let mut launches = Vec::new();
        for rows in self.row_windows() {
            let call = Self { geometry: self.rows_of(rows), ..self.clone() };
            launches.extend(call.row_launches(plan, target)?);
        }
        for pages in self.page_windows() {
            launches.extend(self.page_launches(plan, pages, target)?);
        }
        Ok(launches.into_iter().map(|(_, launch)| launch).collect())
    }

    /// The launches of a window of rows in order.
    pub(super) fn row_launches(&self, plan: &Plan, target: Target) -> Result<Vec<(Step, Launch)>> {
        let mut launches = self.query_launches(plan, target)?;
        launches.extend(self.packs(|g| !g.is_history(), None, target)?);
        Ok(launches)
    }

    /// The launches of a window of pages in order.
    pub(super) fn page_launches(
        &self,
        plan: &Plan,
        pages: &Range<usize>,
        target: Target,
    ) -> Result<Vec<(Step, Launch)>> {
        let mut launches = Vec::new();
        if self.options.compact_history {
            let cleared = |g: &Gradient| g.is_history() && !self.adds(*g);
            let launch = clear(within(plan.inactive_pages(), pages).len(), target);
            let cleared = self.gradients.iter().filter(cleared);
            launches.extend(cleared.map(|g| (Step::Clear(g), launch.clone())));
        }
        match self.tiled {
            None => launches.push((Step::History, self.history(plan, target)?)),
            Some(tiled) => {
                launches.push((Step::TiledItems, self.tiled_items(target)?));
                launches.push((Step::TiledHistory, self.tiled_history(tiled, plan, target)?));
            }
        }
        launches.extend(self.packs(Gradient::is_history, Some(pages.len()), target)?);
        Ok(launches)
    }

    /// The packing of some gradients, of so many pages.
    fn packs(
        &self,
        which: impl Fn(Gradient) -> bool,
        pages: Option<usize>,
        target: Target,
    ) -> Result<Vec<(Step, Launch)>> {
        let geometry = Geometry { pages: pages.unwrap_or(0), ..self.geometry };
        let packed = self.gradients.iter().filter(|g| self.is_wide() && which(*g));
        let packs = packed.map(|g| {
            let elements = geometry.gradient_shape(g).iter().product();
            let (name, accumulate) = (g.output_name(), self.accumulate.contains(g));
            Ok((Step::Pack(g), pack::launch(name, self.dtype, elements, accumulate, target)?))
        });
        packs.collect()
    }

    /// Whether the kernel that sums a gradient adds it to what is there; in f32 scratch there is nothing.
    pub(super) fn adds(&self, gradient: Gradient) -> bool {
        self.accumulate.contains(gradient) && !self.is_wide()
    }

    /// Words of one page of a gradient, as the kernels write it.
    pub(super) fn page_words(&self, gradient: Gradient) -> Result<u32> {
        let page: usize = self.geometry.gradient_shape(gradient).into_iter().skip(1).product();
        let halves = self.dtype.is_half() && !self.is_wide();
        narrow("words of a page", if halves { page / 2 } else { page })
    }

    /// How the query kernel divides its work, and the tiles of a unit of rows.
    pub(super) fn row_tiles(&self, plan: &Plan, target: Target) -> (RowTile, usize) {
        let unit_rows = plan.row_units().iter().map(|[_, _, count]| *count).max().unwrap_or(0);
        let tile = RowTile::new(&self.geometry, unit_rows, target);
        let items = self.geometry.group().saturating_mul(unit_rows as usize);
        (tile, items.div_ceil(tile.items() as usize))
    }

    fn query(&self, plan: &Plan, target: Target) -> Result<Launch> {
        let geometry = &self.geometry;
        let (tile, tiles) = self.row_tiles(plan, target);
        let constants = query_backward::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: self.position_dim()?,
            mla: geometry.is_mla(),
            causal: self.options.causal,
            wide_gradients: self.is_wide(),
            given_columns: narrow("statistics columns", geometry.statistics_columns)?,
            given_output: self.given_output,
            need_q: self.gradients.contains(Gradient::Q),
            need_q_position: self.gradients.contains(Gradient::QPosition),
            accumulate_q: self.adds(Gradient::Q),
            accumulate_q_position: self.adds(Gradient::QPosition),
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            q_position_first: self.rows.q_position.first,
            q_position_stride: self.rows.q_position.stride,
            output_gradient_first: self.rows.output_gradient.first,
            output_gradient_stride: self.rows.output_gradient.stride,
            output_first: self.rows.output.first,
            output_stride: self.rows.output.stride,
            q_gradient_first: self.rows.q_gradient.first,
            q_gradient_stride: self.rows.q_gradient.stride,
            q_position_gradient_first: self.rows.q_position_gradient.first,
            q_position_gradient_stride: self.rows.q_position_gradient.stride,
            k_part_rows: self.parts.k,
            v_part_rows: self.parts.v,
            k_position_part_rows: self.parts.k_position,
            threads: tile.threads,
            group_lanes: tile.group_lanes,
            group_items: tile.group_items,
            batch: tile.batch,
            staged_tokens: tile.staged_tokens,
            has_position: u32::from(geometry.is_mla()),
        };
        let units = if geometry.queries == 0 { 0 } else { plan.row_units().len() };
        Ok(Launch {
            kernel: for_dtype(&query_backward::F32, "q", self.dtype)?,
            constants: constants.words(),
            groups: [units.saturating_mul(tiles), geometry.kv_heads],
        })
    }

    fn history(&self, plan: &Plan, target: Target) -> Result<Launch> {
        let (geometry, options) = (&self.geometry, &self.options);
        let need = |g| self.gradients.contains(g);
        let tile = SlotTile::new(geometry, target);
        let constants = history_backward::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: self.position_dim()?,
            mla: geometry.is_mla(),
            has_position: u32::from(geometry.is_mla()),
            causal: options.causal,
            wide_gradients: self.is_wide(),
            need_key: need(Gradient::K) || need(Gradient::Latent),
            need_value: need(Gradient::V),
            need_position: need(Gradient::KPosition),
            prune_queries: options.prune_queries,
            query_block_rows: plan.query_block_rows(),
            accumulate_key: self.adds(Gradient::K) || self.adds(Gradient::Latent),
            accumulate_value: self.adds(Gradient::V),
            accumulate_position: self.adds(Gradient::KPosition),
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            q_position_first: self.rows.q_position.first,
            q_position_stride: self.rows.q_position.stride,
            output_gradient_first: self.rows.output_gradient.first,
            output_gradient_stride: self.rows.output_gradient.stride,
            q_part_rows: self.parts.q,
            q_position_part_rows: self.parts.q_position,
            output_gradient_part_rows: self.parts.output_gradient,
            statistics_part_rows: self.parts.statistics,
            threads: tile.threads,
            group_lanes: tile.group_lanes,
            group_slots: tile.group_slots,
            batch: tile.batch,
            staged_items: tile.staged_items,
            stages: tile.stages,
            keep_batch: false,
        };
        let units = plan.launched_units(options.compact_history);
        let tiles = self.unit_tiles(plan, target) as usize;
        Ok(Launch {
            kernel: for_dtype(&history_backward::F32, "q", self.dtype)?,
            constants: constants.words(),
            groups: [units.saturating_mul(tiles), geometry.kv_heads],
        })
    }

    /// Tiles of the history kernel in a unit of the plan.
    pub(super) fn unit_tiles(&self, plan: &Plan, target: Target) -> u32 {
        plan.unit_slots() as u32 / SlotTile::new(&self.geometry, target).slots()
    }

    /// Without positions the kernels still need a legal array size.
    fn position_dim(&self) -> Result<u32> {
        narrow("position_dim", self.geometry.position_dim.max(1))
    }
}

impl RowsOf {
    /// The inputs as they lie, and outputs of their own.
    fn new(inputs: &BackwardInputs<Layout<'_>>, geometry: &Geometry) -> Result<Self> {
        let mut rows = Self::default();
        inputs.try_map(|name, layout| {
            let place = match name {
                "q" => &mut rows.q,
                "q_position" => &mut rows.q_position,
                "output_gradient" => &mut rows.output_gradient,
                "output" => &mut rows.output,
                _ => return layout.expect_dense(name),
            };
            *place = layout.rows(name, 2)?;
            Ok(())
        })?;
        let own = |g: Gradient| {
            // One row stands for all: how many there are is for the windows.
            let row = geometry.gradient_shape(g);
            Layout::dense(&row[1..], Dtype::F32).rows(g.output_name(), ROW)
        };
        rows.q_gradient = own(Gradient::Q)?;
        rows.q_position_gradient = own(Gradient::QPosition)?;
        Ok(rows)
    }

    /// The query kernel's gradients where they lie; what is packed later is written without gaps.
    fn set_gradients(&mut self, gradients: &[(Gradient, Tensor)]) -> Result<()> {
        for (g, tensor) in gradients {
            let place = match g {
                Gradient::Q => &mut self.q_gradient,
                Gradient::QPosition => &mut self.q_position_gradient,
                _ => continue,
            };
            *place = Layout::from(tensor).rows(g.output_name(), ROW)?;
        }
        Ok(())
    }
}

impl PartsOf {
    fn new(inputs: &BackwardInputs<Layout<'_>>, statistics: Layout<'_>) -> Result<Self> {
        let mut parts = Self::default();
        parts.statistics = statistics.parts("statistics", ROW)?.1;
        inputs.try_map(|name, layout| {
            let (place, inner) = match name {
                "q" => (&mut parts.q, ROW),
                "q_position" => (&mut parts.q_position, ROW),
                "output_gradient" => (&mut parts.output_gradient, ROW),
                "k" | "latent" => (&mut parts.k, 1),
                "v" => (&mut parts.v, 1),
                "k_position" => (&mut parts.k_position, 1),
                _ => return Ok(()),
            };
            *place = layout.parts(name, inner)?.1;
            Ok(())
        })?;
        if inputs.is_mla() {
            parts.v = parts.k;
        }
        Ok(parts)
    }
}

/// Where in a list of increasing pages those of a window are.
pub(super) fn within(list: &[u32], pages: &Range<usize>) -> Range<usize> {
    let place = |end: usize| list.partition_point(|&page| (page as usize) < end);
    place(pages.start)..place(pages.end)
}

fn clear(pages: usize, target: Target) -> Launch {
    Launch {
        kernel: &clear_pages::F32,
        constants: clear_pages::Constants { lanes: target.lanes }.words(),
        groups: [pages, 1],
    }
}

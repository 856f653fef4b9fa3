//! Key/value heads × query rows, and key/value heads × pages, of the attention backward.

use std::ops::Range;

use super::cost::{self, Division};
use super::engine::Named;
use super::forward::units_of_rows;
use super::slices::{Block, blocks, compact, of_rows, reaching, replace, select};
use super::{Divide, Engine, Output, PartArray, Shard, Source, Units};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::{
    BackwardInputs, Geometry, Gradient, Gradients, Options, Plan, Schedule,
};

/// A call of [`backward::run_onto`](crate::kernels::attention::backward::run_onto).
#[derive(Debug, Clone, Copy)]
pub struct AttentionBackward<'a> {
    /// What it reads.
    pub inputs: &'a BackwardInputs<HostTensor>,
    /// Who sees what.
    pub schedule: &'a Schedule,
    /// Its options.
    pub options: Options,
    /// What to add to.
    pub onto: &'a [(Gradient, HostTensor)],
    /// Whether the row statistics are an output too.
    pub save_statistics: bool,
}

impl Divide for AttentionBackward<'_> {
    fn outputs(&self) -> Result<Vec<Output>> {
        let call = Call::new(self)?;
        let geometry = &call.geometry;
        let gradient = |g: Gradient| Output {
            name: g.output_name().into(),
            shape: geometry.gradient_shape(g),
            dtype: self.inputs.q.dtype(),
            source: Source::Placed(units_of(geometry, g)),
        };
        let statistics = self.save_statistics.then(|| Output {
            name: "statistics".into(),
            shape: geometry.statistics_shape(),
            dtype: Dtype::F32,
            source: Source::Placed(units_of_rows(geometry, 3)),
        });
        Ok(call.gradients.iter().map(gradient).chain(statistics).collect())
    }

    fn part(&self, shard: Shard, engine: &mut Engine<'_>) -> Result<Vec<PartArray>> {
        let mut call = Call::new(self)?;
        let (geometry, schedule, options) = (&call.geometry, self.schedule, &self.options);
        options.check()?;
        let plan = Plan::new(schedule, geometry, options.query_block_rows)?;
        plan.check_call("paged-attention-backward", geometry, options.causal)?;
        let heads = geometry.kv_heads;
        let rows = match call.gradients.any_query() || self.save_statistics {
            true => Division::by_cost(heads, &cost::of_rows(schedule, options)).units(shard),
            false => 0..0,
        };
        let pages = match call.gradients.any_history() && heads > 0 {
            true => {
                let costs = cost::of_pages(schedule, geometry, options);
                Division::by_cost(heads, &costs).units(shard)
            }
            false => 0..0,
        };
        let (queries, all_pages) = (geometry.queries, geometry.pages);
        let mut parts: Vec<(&str, HostTensor)> = Vec::new();
        for block in blocks(rows.clone(), queries) {
            parts.extend(call.query(&block, engine)?);
        }
        for block in blocks(pages.clone(), all_pages) {
            parts.extend(call.history(&block, engine)?);
        }
        let outputs = self.outputs()?;
        let history =
            |name: &str| Gradient::ALL.iter().any(|g| g.is_history() && g.output_name() == name);
        let join = |output: &Output| {
            let own = parts.extract_if(.., |(name, _)| *name == output.name);
            let blocks = own.map(|(_, tensor)| tensor).collect();
            output.join(if history(&output.name) { &pages } else { &rows }, blocks)
        };
        Ok(outputs.iter().map(join).collect())
    }
}

/// The units of a gradient.
fn units_of(geometry: &Geometry, gradient: Gradient) -> Units {
    let shape = geometry.gradient_shape(gradient);
    match gradient.is_history() {
        true => Units::of_heads(shape, 2),
        false => units_of_rows(geometry, shape[2]),
    }
}

/// A checked call, and the statistics that are known so far.
struct Call<'a> {
    of: &'a AttentionBackward<'a>,
    geometry: Geometry,
    gradients: Gradients,
    /// `[queries, heads, 3]`.
    statistics: HostTensor,
    /// `[queries, kv_heads]`: whether they are known.
    known: Vec<bool>,
}

impl<'a> Call<'a> {
    fn new(of: &'a AttentionBackward<'a>) -> Result<Self> {
        let geometry = Geometry::of_backward(&of.inputs.as_ref().map(|_, t| t.shape()))?;
        let gradients = of.options.gradients.resolve(|g| g.exists(geometry.is_mla()))?;
        let complete = of.inputs.statistics.as_ref().filter(|_| geometry.statistics_columns == 3);
        let zeros = || HostTensor::zeros(Dtype::F32, &geometry.statistics_shape());
        let known = vec![complete.is_some(); geometry.queries * geometry.kv_heads];
        let statistics = complete.map_or_else(zeros, HostTensor::clone);
        Ok(Self { of, geometry, gradients, statistics, known })
    }

    /// The query kernel's results of a block of rows, units after units.
    fn query(&mut self, block: &Block, engine: &mut Engine<'_>) -> Result<Parts> {
        let rows = block.places.clone().collect::<Vec<_>>();
        let wanted = self.gradients.iter().filter(|g| !g.is_history()).collect::<Vec<_>>();
        let gradients = self.statistics_and(&rows, &block.heads, &wanted, engine)?;
        let mut parts = self.taken(&block.heads, rows.len(), gradients);
        if self.of.save_statistics {
            let tensor = select(&self.statistics, &rows, 1, &self.query_heads(&block.heads));
            let units = units_of_rows(&self.part(&block.heads, rows.len()), 3);
            parts.push(("statistics", units.take(&tensor, 0..units.count())));
        }
        Ok(parts)
    }

    /// The history kernel's results of a block of pages, units after units.
    fn history(&mut self, block: &Block, engine: &mut Engine<'_>) -> Result<Parts> {
        let (of, heads) = (self.of, &block.heads);
        let wanted = self.gradients.iter().filter(|g| g.is_history()).collect::<Vec<_>>();
        let rows = reaching(of.schedule, &self.geometry, &block.places);
        let schedule = of_rows(of.schedule, &rows);
        let gradients = if engine.is_reference() {
            let (schedule, pages) = compact(schedule, &self.geometry, block.places.clone());
            let inputs = self.inputs(&rows, &pages, heads);
            let (options, onto) = self.onto(&wanted, &rows, &pages, heads);
            let (gradients, _) = engine.backward(&inputs, &schedule, &options, &onto, None)?;
            let here = |page: usize| pages.partition_point(|&other| other < page);
            let places = block.places.clone().map(here).collect::<Vec<_>>();
            let pick = |t: &HostTensor| select(t, &places, 2, &(0..heads.len()));
            gradients.iter().map(|(g, tensor)| (*g, pick(tensor))).collect()
        } else {
            let known = |row: &&usize| heads.clone().all(|head| self.is_known(**row, head));
            let unknown = rows.iter().filter(|row| !known(row)).copied().collect::<Vec<_>>();
            if !unknown.is_empty() {
                self.statistics_and(&unknown, heads, &[], engine)?;
            }
            let pages = block.places.clone().collect::<Vec<_>>();
            let complete = select(&self.statistics, &rows, 1, &self.query_heads(heads));
            let inputs = self.inputs(&rows, &pages, heads);
            let inputs = BackwardInputs { statistics: Some(complete), output: None, ..inputs };
            let (options, onto) = self.onto(&wanted, &rows, &pages, heads);
            let here = (block.places.clone(), self.geometry.pages);
            engine.history(&inputs, &schedule, &options, &onto, here)?
        };
        Ok(self.taken(heads, rows.len(), gradients))
    }

    /// These gradients of rows and heads; their statistics are known from here on.
    fn statistics_and(
        &mut self,
        rows: &[usize],
        heads: &Range<usize>,
        wanted: &[Gradient],
        engine: &mut Engine<'_>,
    ) -> Result<Named> {
        if wanted.is_empty() && self.geometry.statistics_columns == 3 {
            return Ok(Vec::new());
        }
        let schedule = of_rows(self.of.schedule, rows);
        let (schedule, pages) = compact(schedule, &self.geometry, 0..0);
        let inputs = self.inputs(rows, &pages, heads);
        let (options, onto) = self.onto(wanted, rows, &pages, heads);
        let (gradients, statistics) = engine.query(&inputs, &schedule, &options, &onto)?;
        let query_heads = self.query_heads(heads);
        replace(&mut self.statistics, rows, 1, &query_heads, &statistics);
        for &row in rows {
            let first = row * self.geometry.kv_heads;
            self.known[first + heads.start..first + heads.end].fill(true);
        }
        Ok(gradients)
    }

    fn is_known(&self, row: usize, head: usize) -> bool {
        self.known[row * self.geometry.kv_heads + head]
    }

    /// The query heads that read these key/value heads.
    fn query_heads(&self, heads: &Range<usize>) -> Range<usize> {
        let group = self.geometry.group();
        heads.start * group..heads.end * group
    }

    /// The sizes of a part that has so many rows.
    fn part(&self, heads: &Range<usize>, queries: usize) -> Geometry {
        let (kv_heads, heads) = (heads.len(), self.query_heads(heads).len());
        Geometry { queries, kv_heads, heads, ..self.geometry }
    }

    fn inputs(
        &self,
        rows: &[usize],
        pages: &[usize],
        heads: &Range<usize>,
    ) -> BackwardInputs<HostTensor> {
        let query_heads = self.query_heads(heads);
        self.of.inputs.as_ref().map(|name, tensor| match name {
            "k" | "v" | "latent" | "k_position" => select(tensor, pages, 2, heads),
            _ => select(tensor, rows, 1, &query_heads),
        })
    }

    /// The options for these gradients, and what to add them to.
    fn onto(
        &self,
        wanted: &[Gradient],
        rows: &[usize],
        pages: &[usize],
        heads: &Range<usize>,
    ) -> (Options, Named) {
        let old = self.of.onto.iter().filter(|(g, _)| wanted.contains(g));
        let old = old.map(|(g, tensor)| match g.is_history() {
            true => (*g, select(tensor, pages, 2, heads)),
            false => (*g, select(tensor, rows, 1, &self.query_heads(heads))),
        });
        let old: Named = old.collect();
        let added = old.iter().map(|(g, _)| *g).collect::<Vec<_>>();
        let gradients = Gradients::only(wanted);
        (Options { gradients, accumulate: Gradients::only(&added), ..self.of.options }, old)
    }

    /// The units of a block's gradients, which it has in the order of arrays.
    fn taken(&self, heads: &Range<usize>, queries: usize, gradients: Named) -> Parts {
        let taken = gradients.into_iter().map(|(g, tensor)| {
            let pages = if g.is_history() { tensor.shape()[0] } else { self.geometry.pages };
            let units = units_of(&Geometry { pages, ..self.part(heads, queries) }, g);
            (g.output_name(), units.take(&tensor, 0..units.count()))
        });
        taken.collect()
    }
}

/// Arrays by name.
type Parts = Vec<(&'static str, HostTensor)>;

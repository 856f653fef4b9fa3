//! Key/value heads × query rows of attention.

use std::ops::Range;

use super::cost::{self, Division};
use super::slices::{blocks, compact, joined, of_rows, select};
use super::{Divide, Engine, Output, PartArray, Shard, Source, Units};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::forward::Split;
use crate::kernels::attention::{ForwardInputs, Geometry, Options, Plan, Schedule};

/// A call of [`forward::run`](crate::kernels::attention::forward::run).
#[derive(Debug, Clone, Copy)]
pub struct AttentionForward<'a> {
    /// What it reads.
    pub inputs: &'a ForwardInputs<HostTensor>,
    /// Who sees what.
    pub schedule: &'a Schedule,
    /// Its options.
    pub options: Options,
}

impl AttentionForward<'_> {
    fn geometry(&self) -> Result<Geometry> {
        Geometry::of_forward(&self.inputs.as_ref().map(|_, t| t.shape()))
    }
}

/// The units of `[queries, heads, width]`.
pub(super) fn units_of_rows(geometry: &Geometry, width: usize) -> Units {
    Units::of_heads(vec![geometry.queries, geometry.kv_heads, geometry.group(), width], 1)
}

impl Divide for AttentionForward<'_> {
    fn outputs(&self) -> Result<Vec<Output>> {
        let geometry = self.geometry()?;
        let output = |name: &str, dtype, shape: Vec<usize>| Output {
            name: name.into(),
            dtype,
            source: Source::Placed(units_of_rows(&geometry, shape[2])),
            shape,
        };
        Ok(vec![
            output("output", self.inputs.q.dtype(), geometry.output_shape()),
            output("statistics", Dtype::F32, geometry.forward_statistics_shape()),
        ])
    }

    fn part(&self, shard: Shard, engine: &mut Engine<'_>) -> Result<Vec<PartArray>> {
        let (geometry, schedule, options) = (self.geometry()?, self.schedule, &self.options);
        options.check()?;
        let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
        plan.check_call("paged-attention", &geometry, options.causal)?;
        // All parts round as the whole call does.
        let split = Split::of(&geometry, &plan, options);
        let costs = cost::of_rows(schedule, options);
        let units = Division::by_cost(geometry.kv_heads, &costs).units(shard);
        let group = geometry.group();
        let mut parts = [Vec::new(), Vec::new()];
        for block in blocks(units.clone(), geometry.queries) {
            let rows = block.places.collect::<Vec<_>>();
            let heads = block.heads.start * group..block.heads.end * group;
            let (schedule, pages) = compact(of_rows(schedule, &rows), &geometry, 0..0);
            let inputs = self.inputs.as_ref().map(|name, tensor| match name {
                "q" | "q_position" => select(tensor, &rows, 1, &heads),
                _ => select(tensor, &pages, 2, &block.heads),
            });
            let outputs = engine.attention(&inputs, &schedule, options, split)?;
            let [queries, kv_heads, heads] = [rows.len(), block.heads.len(), heads.len()];
            let part = Geometry { queries, kv_heads, heads, ..geometry };
            for (parts, tensor) in parts.iter_mut().zip([&outputs.output, &outputs.statistics]) {
                let local = units_of_rows(&part, tensor.shape()[2]);
                parts.push(local.take(tensor, 0..local.count()));
            }
        }
        let outputs = self.outputs()?;
        let join = |(output, parts): (&Output, _)| output.join(&units, parts);
        Ok(outputs.iter().zip(parts).map(join).collect())
    }
}

impl Output {
    /// The array of a part that has these units, from the blocks that it was computed in.
    pub(super) fn join(&self, units: &Range<usize>, mut blocks: Vec<HostTensor>) -> PartArray {
        let whole = match blocks.pop() {
            Some(block) if blocks.is_empty() => block,
            last => {
                blocks.extend(last);
                joined(self.dtype, &self.part_shape(0), &blocks)
            }
        };
        PartArray::new(self.array(), units.clone(), whole)
    }
}

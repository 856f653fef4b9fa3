//! Pages of an append.

use super::cost::Division;
use super::slices::select;
use super::{Divide, Engine, Output, PartArray, Shard, Source, Units};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::attention::append::{AppendInputs, AppendPlan};
use crate::kernels::attention::{Geometry, Schedule};

/// A call of [`append::run`](crate::kernels::attention::append::run).
#[derive(Debug, Clone, Copy)]
pub struct Append<'a> {
    /// The cache and the new rows.
    pub inputs: &'a AppendInputs<HostTensor>,
    /// Where the rows go.
    pub schedule: &'a Schedule,
}

impl Divide for Append<'_> {
    fn outputs(&self) -> Result<Vec<Output>> {
        let output = |(name, cache): (&str, &&HostTensor)| Output {
            name: name.into(),
            shape: cache.shape().to_vec(),
            dtype: cache.dtype(),
            source: Source::Placed(Units::of_rows(cache.shape().to_vec())),
        };
        Ok(self.inputs.cache().named().map(|(name, cache)| output((name, cache))).to_vec())
    }

    fn part(&self, shard: Shard, engine: &mut Engine<'_>) -> Result<Vec<PartArray>> {
        let geometry = Geometry::of_append(&self.inputs.as_ref().map(|_, t| t.shape()))?;
        let plan = AppendPlan::new(self.schedule, &geometry)?;
        let pages = Division::even(geometry.pages).units(shard);
        if pages.is_empty() {
            return Ok(self.outputs()?.iter().map(|output| output.nothing(engine)).collect());
        }
        let page_size = geometry.page_size;
        let slots = pages.start * page_size..pages.end * page_size;
        let slot = |row: &usize| plan.slots()[*row] as usize;
        let rows = (0..geometry.queries).filter(|row| slots.contains(&slot(row)));
        let rows = rows.collect::<Vec<_>>();
        let listed = pages.clone().collect::<Vec<_>>();
        let heads = 0..geometry.kv_heads;
        let inputs = self.inputs.as_ref().map(|name, tensor| match name {
            "k" | "v" | "latent" | "k_position" => select(tensor, &listed, 2, &heads),
            _ => select(tensor, &rows, 1, &heads),
        });
        // To the rows' slots all the same: of one sequence that has these pages in their order.
        let schedule = Schedule {
            block_table: (0..pages.len() as i128).collect(),
            table_width: pages.len(),
            sequence_lengths: vec![slots.len() as i128],
            sequence_ids: vec![0; rows.len()],
            positions: Some(rows.iter().map(|row| (slot(row) - slots.start) as i128).collect()),
        };
        let cache = engine.append(&inputs, &schedule)?;
        let array = |(name, t): (&str, &HostTensor)| PartArray::new(name, pages.clone(), t.clone());
        Ok(cache.named().map(array).to_vec())
    }
}

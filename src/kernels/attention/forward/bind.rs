//! The push constants of each launch: which tensor goes where.

use super::super::bound::Bound;
use super::super::{DevicePlan, ForwardInputs, ForwardOutputs, load};
use super::call::{Call, Step};
use crate::error::Result;
use crate::kernels::Launch;
use crate::kernels::index_range::narrow;
use crate::manifest::{paged_attention, paged_attention_merge};
use crate::runtime::{Recorder, Tensor};

/// A call and its tensors.
pub(super) struct Binding<'a> {
    pub(super) call: &'a Call,
    pub(super) inputs: &'a ForwardInputs<Tensor>,
    pub(super) plan: &'a DevicePlan,
    pub(super) outputs: &'a ForwardOutputs<Tensor>,
    /// What the chunks come to, in f32, as [`Call::scratch`] lists it: where results are merged.
    pub(super) scratch: Option<&'a ForwardOutputs<Tensor>>,
}

impl Binding<'_> {
    pub(super) fn record(
        &self,
        recorder: &mut Recorder<'_>,
        step: Step,
        launch: &Launch,
    ) -> Result<()> {
        match (step, self.scratch) {
            (Step::Attend, scratch) => {
                self.attend(recorder, launch, scratch.unwrap_or(self.outputs))
            }
            (Step::Merge, Some(scratch)) => self.merge(recorder, launch, scratch),
            (Step::Merge, None) => Ok(()),
        }
    }

    fn attend(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        written: &ForwardOutputs<Tensor>,
    ) -> Result<()> {
        use paged_attention::Push;
        let Self { call, inputs, plan, .. } = self;
        let geometry = &call.geometry;
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            page_size: narrow("page_size", geometry.page_size)?,
            heads: narrow("heads", geometry.heads)?,
            kv_heads: narrow("kv_heads", geometry.kv_heads)?,
            chunks: narrow("chunks", call.split.chunks)?,
            chunk_tokens: narrow("tokens of a chunk", call.split.tokens)?,
            first_row: narrow("queries", call.first_row)?,
            scale: call.options.scale,
            ..Push::default()
        };
        let bound = Bound::new(&inputs.history);
        let [chunks, tokens] = match call.is_partial() {
            true => [call.split.chunks, call.split.tokens],
            false => [1, usize::MAX],
        };
        let pair = geometry.pair_elements();
        let rows = call.first_row..call.first_row + geometry.queries;
        let load =
            || load::of_chunks(&plan.plan, call.options.causal, pair, [chunks, tokens], &rows);
        launch.record_loaded(recorder, load, |access| Push {
            q_index: access.read(&inputs.q),
            k_index: access.read_parts(bound.k),
            v_index: access.read_parts(bound.v),
            q_position_index: access.read_if(bound.q_position),
            k_position_index: access.read_parts_if(bound.k_position),
            metadata_index: access.read(&plan.metadata),
            output_index: access.write(&written.output),
            statistics_index: access.write(&written.statistics),
            ..push
        })
    }

    fn merge(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        scratch: &ForwardOutputs<Tensor>,
    ) -> Result<()> {
        use paged_attention_merge::Push;
        let Self { call, plan, outputs, .. } = self;
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            heads: narrow("heads", call.geometry.heads)?,
            chunks: narrow("chunks", call.split.chunks)?,
            chunk_tokens: narrow("tokens of a chunk", call.split.tokens)?,
            first_row: narrow("queries", call.first_row)?,
            rows: narrow("queries", call.geometry.queries)?,
            ..Push::default()
        };
        launch.record(recorder, |access| Push {
            chunk_sums_index: access.read(&scratch.output),
            chunk_statistics_index: access.read(&scratch.statistics),
            metadata_index: access.read(&plan.metadata),
            output_index: access.write(&outputs.output),
            statistics_index: access.write(&outputs.statistics),
            ..push
        })
    }
}

//! The push constants of each launch: which tensor goes where.

use std::ops::Range;

use super::super::bound::Bound;
use super::super::{BackwardInputs, BackwardOutputs, DevicePlan, Gradient, load};
use super::call::{Call, Step, within};
use super::tiled;
use crate::error::Result;
use crate::kernels::index_range::narrow;
use crate::kernels::pack;
use crate::kernels::{Launch, Target};
use crate::manifest::{clear_pages, history_backward, query_backward};
use crate::runtime::{Recorder, Tensor};

/// A call and its tensors.
pub(super) struct Binding<'a> {
    pub(super) call: &'a Call,
    pub(super) inputs: &'a BackwardInputs<Tensor>,
    pub(super) plan: &'a DevicePlan,
    pub(super) outputs: &'a BackwardOutputs<Tensor>,
    /// The gradients as the kernels write them: the outputs, or f32 scratch to be packed into those.
    pub(super) written: &'a [(Gradient, Tensor)],
    /// The rows, or the pages, that the tensors have of all.
    pub(super) window: Range<usize>,
    /// Of a call on matrix units.
    pub(super) scratch: Option<&'a tiled::Scratch>,
}

fn find<'a>(gradients: &'a [(Gradient, Tensor)], wanted: &[Gradient]) -> Option<&'a Tensor> {
    gradients.iter().find(|(g, _)| wanted.contains(g)).map(|(_, tensor)| tensor)
}

impl Binding<'_> {
    pub(super) fn record(
        &self,
        recorder: &mut Recorder<'_>,
        step: Step,
        launch: &Launch,
    ) -> Result<()> {
        match step {
            Step::Query => self.query(recorder, launch),
            Step::Clear(gradient) => self.clear(recorder, launch, gradient),
            Step::History => self.history(recorder, launch),
            Step::Pack(gradient) => self.pack(recorder, launch, gradient),
            tiled => match self.scratch {
                Some(scratch) => self.record_tiled(recorder, tiled, launch, scratch),
                None => Ok(()),
            },
        }
    }

    pub(super) fn gradient(&self, wanted: &[Gradient]) -> Option<&Tensor> {
        find(self.written, wanted)
    }

    fn query(&self, recorder: &mut Recorder<'_>, launch: &Launch) -> Result<()> {
        use query_backward::Push;
        let Self { call, inputs, plan, outputs, .. } = self;
        let geometry = &call.geometry;
        let (tile, tiles) = call.row_tiles(&plan.plan, Target::of(recorder.runtime()));
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            page_size: narrow("page_size", geometry.page_size)?,
            heads: narrow("heads", geometry.heads)?,
            kv_heads: narrow("kv_heads", geometry.kv_heads)?,
            unit_tiles: narrow("tiles of a unit", tiles)?,
            first_row: narrow("queries", self.window.start)?,
            rows: narrow("queries", self.window.len())?,
            scale: call.options.scale,
            ..Push::default()
        };
        let bound = Bound::new(&inputs.history);
        let statistics = (geometry.statistics_columns < 3).then_some(&outputs.statistics);
        let sizes = [tiles, tile.items() as usize];
        let causal = call.options.causal;
        let load = || load::of_row_tiles(&plan.plan, causal, geometry, sizes, &self.window);
        launch.record_loaded(recorder, load, |access| Push {
            q_index: access.read(&inputs.q),
            k_index: access.read_parts(bound.k),
            v_index: access.read_parts(bound.v),
            q_position_index: access.read_if(bound.q_position),
            k_position_index: access.read_parts_if(bound.k_position),
            output_gradient_index: access.read(&inputs.output_gradient),
            output_index: access.read_if(inputs.output.as_ref()),
            metadata_index: access.read(&plan.metadata),
            inverse_index: access.read(&plan.inverse),
            row_units_index: access.read(&plan.row_units),
            given_statistics_index: access.read_if(inputs.statistics.as_ref()),
            statistics_index: access.write_if(statistics),
            q_gradient_index: access.write_if(self.gradient(&[Gradient::Q])),
            q_position_gradient_index: access.write_if(self.gradient(&[Gradient::QPosition])),
            ..push
        })
    }

    fn history(&self, recorder: &mut Recorder<'_>, launch: &Launch) -> Result<()> {
        use history_backward::Push;
        let Self { call, inputs, plan, outputs, .. } = self;
        let geometry = &call.geometry;
        let tiles = call.unit_tiles(&plan.plan, Target::of(recorder.runtime()));
        let push = Push {
            queries: plan.plan.queries(),
            sequences: plan.plan.sequences(),
            table_width: plan.plan.table_width(),
            page_size: narrow("page_size", geometry.page_size)?,
            heads: narrow("heads", geometry.heads)?,
            kv_heads: narrow("kv_heads", geometry.kv_heads)?,
            unit_tiles: tiles,
            base_page: narrow("pages", self.window.start)?,
            window_pages: narrow("pages", self.window.len())?,
            scale: call.options.scale,
            ..Push::default()
        };
        let bound = Bound::new(&inputs.history);
        let load = || load::of_tiles(&plan.plan, &call.options, geometry, tiles, &self.window);
        launch.record_loaded(recorder, load, |access| Push {
            q_index: access.read_parts(&inputs.q),
            k_index: access.read(bound.k),
            v_index: access.read(bound.v),
            q_position_index: access.read_parts_if(bound.q_position),
            k_position_index: access.read_if(bound.k_position),
            output_gradient_index: access.read_parts(&inputs.output_gradient),
            metadata_index: access.read(&plan.metadata),
            inverse_index: access.read(&plan.inverse),
            units_index: access.read(&plan.units),
            statistics_index: access.read_parts(&outputs.statistics),
            k_gradient_index: access.write_if(self.gradient(&[Gradient::K, Gradient::Latent])),
            v_gradient_index: access.write_if(self.gradient(&[Gradient::V])),
            k_position_gradient_index: access.write_if(self.gradient(&[Gradient::KPosition])),
            ..push
        })
    }

    fn pack(&self, recorder: &mut Recorder<'_>, launch: &Launch, gradient: Gradient) -> Result<()> {
        let target = find(&self.outputs.gradients, &[gradient]);
        match self.gradient(&[gradient]).zip(target) {
            Some((source, target)) => {
                pack::record(recorder, launch, source, (gradient.output_name(), target))
            }
            None => Ok(()),
        }
    }

    fn clear(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        gradient: Gradient,
    ) -> Result<()> {
        use clear_pages::Push;
        let page_words = self.call.page_words(gradient)?;
        let base = narrow("pages", self.window.start)?;
        let first = within(self.plan.plan.inactive_pages(), &self.window).start;
        let first = narrow("pages", first)?;
        launch.record(recorder, |access| Push {
            pages_index: access.read(&self.plan.inactive_pages),
            target_index: access.write_if(self.gradient(&[gradient])),
            page_words,
            base_page: base,
            first_page: first,
            ..Push::default()
        })
    }
}

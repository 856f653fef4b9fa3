//! The backward of a problem, and what it is held to.

use super::cases::{Case, Ways};
use super::problem::Problem;
use crate::check::random::Random;
use crate::check::trial::{Expected, Output, Trial};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::attention::backward::{allocate, record};
use crate::kernels::attention::{DevicePlan, Gradient, Gradients, Options, Plan};
use crate::reference;
use crate::runtime::{Recorder, Tensor};

/// A call of the backward.
pub(super) struct Backward {
    problem: Problem,
    options: Options,
    ways: Ways,
    /// What gradients are added to.
    onto: Vec<(Gradient, HostTensor)>,
}

impl Backward {
    /// That of the case; `history_only` leaves out what the query kernel computes.
    pub(super) fn new(problem: Problem, case: &Case, history_only: bool) -> Result<Self> {
        let mla = problem.geometry.is_mla();
        let asked = |g: &Gradient| g.exists(mla) && (g.is_history() || !history_only);
        let gradients = Gradient::ALL.into_iter().filter(asked).collect::<Vec<_>>();
        let added = if case.accumulate { &gradients[..] } else { &[] };
        let options = Options {
            gradients: Gradients::only(&gradients),
            accumulate: Gradients::only(added),
            ..problem.options
        };
        let (random, dtype) = (&mut Random::new(added.len() as u64), problem.inputs.q.dtype());
        let old = |g: &Gradient| {
            let old = random.normals(&problem.geometry.gradient_shape(*g))?;
            Ok((*g, HostTensor::from_f64(dtype, &old.to_f64())?))
        };
        let onto = added.iter().map(old).collect::<Result<_>>()?;
        Ok(Self { problem, options, ways: case.ways, onto })
    }

    /// Whether the statistics are complete among the inputs, hence no output.
    fn has_statistics(&self) -> bool {
        self.problem.geometry.statistics_columns == 3
    }
}

impl Trial for Backward {
    type Way = Options;

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        let Problem { inputs, schedule, .. } = &self.problem;
        let plain = inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let onto = self.onto.iter().map(|(g, old)| (*g, old.to_f64())).collect::<Vec<_>>();
        let outputs = reference::attention::backward_onto(&plain, schedule, &self.options, &onto)?;
        let gradients = outputs.gradients.into_iter().map(|(g, array)| (g.output_name(), array));
        let statistics = (!self.has_statistics()).then_some(("statistics", outputs.statistics));
        let named = gradients.chain(statistics);
        Ok(named.map(|(name, array)| (name, Expected::Near(array))).collect())
    }

    fn growth(&self) -> f64 {
        self.problem.growth()
    }

    fn ways(&self) -> Vec<(String, Options)> {
        let usual = ("usually".into(), self.options);
        let others = match self.ways {
            Ways::Usual | Ways::Views => Vec::new(),
            Ways::Settings => settings(&self.options),
            Ways::Alone => alone(&self.options),
        };
        [vec![usual], others].concat()
    }

    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        options: &Options,
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>> {
        let Problem { inputs, schedule, geometry, .. } = &self.problem;
        let runtime = recorder.runtime();
        let plan = Plan::new(schedule, geometry, options.query_block_rows)?;
        let plan = DevicePlan::upload(runtime, plan)?;
        let inputs = inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
        let outputs = allocate(runtime, &inputs, options)?;
        let gradients = outputs.gradients.iter().map(|(g, t)| (g.output_name(), t.clone()));
        let statistics =
            (!self.has_statistics()).then(|| ("statistics", outputs.statistics.clone()));
        let named = gradients.chain(statistics).collect::<Vec<_>>();
        for (name, tensor) in &named {
            match self.onto.iter().find(|(g, _)| g.output_name() == *name) {
                Some((_, old)) => runtime.write(tensor, old.bytes())?,
                None => recorder.fill(tensor, poison)?,
            }
        }
        record(recorder, &inputs, &plan, options, &outputs)?;
        Ok(named)
    }
}

/// All eight settings, and other blocks of rows.
fn settings(options: &Options) -> Vec<(String, Options)> {
    let setting = |bits: u32| {
        let [prune_queries, cache_history, compact_history] = [1, 2, 4].map(|bit| bits & bit != 0);
        let query_block_rows = if bits & 8 == 0 { options.query_block_rows } else { 3 };
        let words = [
            (prune_queries, "pruned"),
            (cache_history, "cached"),
            (compact_history, "compacted"),
            (bits & 8 != 0, "in blocks of 3 rows"),
        ];
        let words = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect::<Vec<_>>();
        let words = if words.is_empty() { "plain".into() } else { words.join(", ") };
        let options =
            Options { prune_queries, cache_history, compact_history, query_block_rows, ..*options };
        (format!("when {words}"), options)
    };
    // The first one, pruned alone, is the usual one.
    [0, 2, 3, 4, 5, 6, 7, 9].map(setting).into()
}

/// Each gradient without the others.
fn alone(options: &Options) -> Vec<(String, Options)> {
    let alone = |g: Gradient| {
        (format!("without other gradients than that of {}", g.name()), {
            Options { gradients: Gradients::only(&[g]), ..*options }
        })
    };
    options.gradients.iter().map(alone).collect()
}

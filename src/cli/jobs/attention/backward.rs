//! `paged-attention-backward` and `history-backward`.

use backslang::kernels::Target;
use backslang::kernels::attention::{
    Algorithm, BackwardInputs, BackwardOutputs, Geometry, Gradient, Gradients, Options, Plan,
    Schedule, backward,
};
use backslang::runtime::{Execution, Timing};
use backslang::shard::{AttentionBackward, Divide};
use backslang::{Dtype, HostTensor, reference};

use super::{
    INDICES, PARAMETERS, causal, history, history_names, identity, is_mla, plan_bytes, scale,
};
use crate::cli::args::{BackwardArgs, HistoryArgs};
use crate::cli::failure::{Failure, Result};
use crate::cli::inputs::Inputs;
use crate::cli::jobs::{Job, Resolved, Results, Spellings, expect_shape};
use crate::cli::plan::{Outline, bytes, bytes_of};
use crate::cli::shards::Identity;
use crate::cli::talk::Talk;

const ARRAYS: [&str; 4] = ["q", "output_gradient", "statistics", "output"];

/// The resolved call.
#[derive(Debug)]
pub(crate) struct AttentionBackwardJob {
    inputs: BackwardInputs<HostTensor>,
    schedule: Schedule,
    options: Options,
    geometry: Geometry,
    plan: Plan,
    /// The gradients to add to.
    onto: Vec<(Gradient, HostTensor)>,
    /// Whether the row statistics are an output too.
    save_statistics: bool,
    spellings: Spellings,
}

impl AttentionBackwardJob {
    /// Loads and checks everything that `paged-attention-backward` needs.
    pub(crate) fn resolve(args: &BackwardArgs, talk: &Talk) -> Resolved<Self> {
        Self::with(&args.shared, args.save_statistics, false, talk)
    }

    /// The same of `history-backward`, which leaves the query kernel's gradients out.
    pub(crate) fn resolve_history(args: &HistoryArgs, talk: &Talk) -> Resolved<Self> {
        Self::with(args, false, true, talk)
    }

    fn with(
        args: &HistoryArgs,
        save_statistics: bool,
        history_only: bool,
        talk: &Talk,
    ) -> Resolved<Self> {
        let mut found = Inputs::open(&args.files.input, talk)?;
        let mla = is_mla(&found)?;
        let gradients =
            args.gradients.resolve(|g| g.exists(mla) && (g.is_history() || !history_only))?;
        let old: Vec<_> = gradients.iter().filter(|_| args.accumulate).collect();
        let names: Vec<_> = old.iter().map(|g| g.output_name()).collect();
        let known = [&ARRAYS, history_names(mla), &INDICES, &PARAMETERS, &names].concat();
        let causal = causal(&args.scores, &found)?;
        let inputs = arrays(&mut found, mla, &known)?;
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let onto = onto(&mut found, &old, &geometry)?;
        let listed: Vec<_> = onto.iter().map(|(g, _)| *g).collect();
        let options = Options {
            algorithm: args.algorithm.into(),
            causal,
            accumulate: Gradients::only(&listed),
            gradients,
            prune_queries: !args.no_prune_queries,
            cache_history: args.cache_history,
            compact_history: args.compact_history,
            query_block_rows: args.query_block_rows,
            ..Options::new(scale(&args.scores, &found, &geometry)?)
        };
        options.check()?;
        let schedule = super::schedule(&found, causal, &known)?;
        let plan = Plan::new(&schedule, &geometry, args.query_block_rows)?;
        let mut pairs = Gradient::ALL.map(|g| (g.output_name(), g.name())).to_vec();
        pairs.push(("statistics", "statistics"));
        let spellings = Spellings::new(&found, &pairs);
        let ignored = found.ignored(&known);
        let job =
            Self { inputs, schedule, options, geometry, plan, onto, save_statistics, spellings };
        Ok((job, ignored))
    }

    fn results(&self, outputs: BackwardOutputs<HostTensor>) -> Results {
        let gradients = outputs.gradients.into_iter().map(|(g, tensor)| (g.output_name(), tensor));
        let statistics = self.save_statistics.then_some(("statistics", outputs.statistics));
        gradients.chain(statistics).collect()
    }
}

impl Job for AttentionBackwardJob {
    fn output_names(&self) -> Vec<&'static str> {
        let gradients = self.options.gradients.iter().map(|gradient| gradient.output_name());
        gradients.chain(self.save_statistics.then_some("statistics")).collect()
    }

    fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    fn on_device(&self, execution: Execution<'_>) -> Result<(Results, Vec<Timing>)> {
        let Self { inputs, schedule, options, onto, .. } = self;
        let run = backward::run_onto(execution, inputs, schedule, options, onto)?;
        Ok((self.results(run.outputs), run.timings))
    }

    fn on_reference(&self) -> Result<Results> {
        if self.options.algorithm == Algorithm::Tiled {
            let message = "--algorithm: expected `auto` or `ordered`, for the reference has no matrix units, found `tiled`";
            return Err(Failure::usage(message));
        }
        let inputs = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let onto: Vec<_> = self.onto.iter().map(|(g, old)| (*g, old.to_f64())).collect();
        let Self { schedule, options, .. } = self;
        let outputs = reference::attention::backward_onto(&inputs, schedule, options, &onto)?;
        let dtype = self.inputs.q.dtype();
        let gradients = outputs.gradients.iter();
        let gradients = gradients.map(|(g, array)| Ok((*g, HostTensor::from_f64(dtype, array)?)));
        Ok(self.results(BackwardOutputs {
            gradients: gradients.collect::<Result<_>>()?,
            statistics: HostTensor::from_f64(Dtype::F32, &outputs.statistics)?,
        }))
    }

    fn call(&self) -> Box<dyn Divide + '_> {
        let Self { inputs, schedule, options, onto, save_statistics, .. } = self;
        let (options, save_statistics) = (*options, *save_statistics);
        Box::new(AttentionBackward { inputs, schedule, options, onto, save_statistics })
    }

    fn identity(&self) -> Identity {
        let mut arrays = Vec::new();
        self.inputs.as_ref().map(|name, tensor| arrays.push((name, tensor)));
        let old = self.onto.iter().map(|(g, old)| (g.output_name(), old));
        arrays.extend(old);
        identity(arrays, &self.schedule, &self.options)
    }

    fn outline(&self, target: Target) -> Result<Outline> {
        let (g, dtype) = (&self.geometry, self.inputs.q.dtype());
        let Self { plan, options, .. } = self;
        let layouts = self.inputs.as_ref().map(|_, tensor| tensor.into());
        let mut inputs = Vec::new();
        self.inputs.as_ref().map(|name, tensor| inputs.push(bytes(name, tensor)));
        let gradients = options.gradients.iter();
        let gradients =
            gradients.map(|of| bytes_of(of.output_name(), dtype, &g.gradient_shape(of)));
        let statistics = (g.statistics_columns < 3)
            .then(|| bytes_of("statistics", Dtype::F32, &g.statistics_shape()));
        Ok(Outline {
            sizes: super::sizes(g, &self.schedule, plan),
            launches: backward::launches(&layouts, plan, options, target)?,
            inputs,
            outputs: gradients.chain(statistics).collect(),
            schedule: Some(plan_bytes(plan)),
            scratch: backward::scratch_bytes(&layouts, plan, options, target)?,
            ..Outline::default()
        })
    }
}

fn arrays(found: &mut Inputs, mla: bool, known: &[&str]) -> Result<BackwardInputs<HostTensor>> {
    Ok(BackwardInputs {
        q: found.floats("q", known)?,
        history: history(found, mla, known)?,
        output_gradient: found.floats("output_gradient", known)?,
        statistics: found.optional_singles("statistics")?,
        output: found.optional_floats("output")?,
    })
}

/// Those of the gradients to add to that there are, of which there must be one.
fn onto(
    found: &mut Inputs,
    gradients: &[Gradient],
    geometry: &Geometry,
) -> Result<Vec<(Gradient, HostTensor)>> {
    let mut onto = Vec::new();
    for &gradient in gradients {
        let array = gradient.output_name();
        let Some(tensor) = found.optional_floats(array)? else { continue };
        expect_shape(array, &tensor, &geometry.gradient_shape(gradient))?;
        onto.push((gradient, tensor));
    }
    if onto.is_empty() && !gradients.is_empty() {
        let names: Vec<_> = gradients.iter().map(|g| g.output_name()).collect();
        return Err(found.nothing_to_add_to(&names));
    }
    Ok(onto)
}

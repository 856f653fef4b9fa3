//! `paged-attention`.

use backslang::kernels::Target;
use backslang::kernels::attention::{
    ForwardInputs, ForwardOutputs, Geometry, Options, Plan, Schedule, forward,
};
use backslang::runtime::{Execution, Timing};
use backslang::shard::{AttentionForward, Divide};
use backslang::{Dtype, HostTensor, reference};

use super::{
    INDICES, PARAMETERS, causal, history, history_names, identity, is_mla, plan_bytes, scale,
};
use crate::cli::args::AttentionArgs;
use crate::cli::failure::Result;
use crate::cli::inputs::Inputs;
use crate::cli::jobs::{Job, Resolved, Results, Spellings};
use crate::cli::plan::{Outline, bytes, bytes_of};
use crate::cli::shards::Identity;
use crate::cli::talk::Talk;

/// The resolved call.
#[derive(Debug)]
pub(crate) struct AttentionJob {
    inputs: ForwardInputs<HostTensor>,
    schedule: Schedule,
    options: Options,
    geometry: Geometry,
    plan: Plan,
    spellings: Spellings,
}

impl AttentionJob {
    /// Loads and checks everything that the call needs.
    pub(crate) fn resolve(args: &AttentionArgs, talk: &Talk) -> Resolved<Self> {
        let mut found = Inputs::open(&args.files.input, talk)?;
        let mla = is_mla(&found)?;
        let known = [&["q"], history_names(mla), &INDICES, &PARAMETERS].concat();
        let causal = causal(&args.scores, &found)?;
        let q = found.floats("q", &known)?;
        let inputs = ForwardInputs { q, history: history(&mut found, mla, &known)? };
        let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let options = Options { causal, ..Options::new(scale(&args.scores, &found, &geometry)?) };
        options.check()?;
        let schedule = super::schedule(&found, causal, &known)?;
        let plan = Plan::new(&schedule, &geometry, options.query_block_rows)?;
        let spellings = Spellings::new(&found, &[("output", "q"), ("statistics", "q")]);
        let ignored = found.ignored(&known);
        Ok((Self { inputs, schedule, options, geometry, plan, spellings }, ignored))
    }
}

impl Job for AttentionJob {
    fn output_names(&self) -> Vec<&'static str> {
        vec!["output", "statistics"]
    }

    fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    fn on_device(&self, execution: Execution<'_>) -> Result<(Results, Vec<Timing>)> {
        let run = forward::run(execution, &self.inputs, &self.schedule, &self.options)?;
        Ok((results(run.outputs), run.timings))
    }

    fn on_reference(&self) -> Result<Results> {
        let inputs = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::attention::forward(&inputs, &self.schedule, &self.options)?;
        Ok(results(ForwardOutputs {
            output: HostTensor::from_f64(self.inputs.q.dtype(), &outputs.output)?,
            statistics: HostTensor::from_f64(Dtype::F32, &outputs.statistics)?,
        }))
    }

    fn call(&self) -> Box<dyn Divide + '_> {
        let Self { inputs, schedule, options, .. } = self;
        Box::new(AttentionForward { inputs, schedule, options: *options })
    }

    fn identity(&self) -> Identity {
        let mut arrays = Vec::new();
        self.inputs.as_ref().map(|name, tensor| arrays.push((name, tensor)));
        identity(arrays, &self.schedule, &self.options)
    }

    fn outline(&self, target: Target) -> Result<Outline> {
        let Geometry { queries, heads, value_dim, .. } = self.geometry;
        let Self { plan, options, .. } = self;
        let layouts = self.inputs.as_ref().map(|_, tensor| tensor.into());
        let mut inputs = Vec::new();
        self.inputs.as_ref().map(|name, tensor| inputs.push(bytes(name, tensor)));
        Ok(Outline {
            sizes: super::sizes(&self.geometry, &self.schedule, plan),
            launches: forward::launches(&layouts, plan, options, target)?,
            inputs,
            outputs: vec![
                bytes_of("output", self.inputs.q.dtype(), &[queries, heads, value_dim]),
                bytes_of("statistics", Dtype::F32, &[queries, heads, 2]),
            ],
            schedule: Some(plan_bytes(plan)),
            scratch: forward::scratch_bytes(&layouts, plan, options, target)?,
            ..Outline::default()
        })
    }
}

fn results(outputs: ForwardOutputs<HostTensor>) -> Results {
    vec![("output", outputs.output), ("statistics", outputs.statistics)]
}

//! `paged-append`.

use backslang::kernels::Target;
use backslang::kernels::attention::append::{self, AppendInputs, AppendPlan, Cache};
use backslang::kernels::attention::{Geometry, Schedule};
use backslang::runtime::{Execution, Timing};
use backslang::shard::{Append, Divide};
use backslang::{HostTensor, reference};

use super::{INDICES, is_mla, schedule};
use crate::cli::args::AppendArgs;
use crate::cli::failure::Result;
use crate::cli::inputs::Inputs;
use crate::cli::jobs::{Job, Resolved, Results, Spellings};
use crate::cli::plan::{Outline, bytes};
use crate::cli::shards::Identity;
use crate::cli::talk::Talk;

/// The resolved call.
#[derive(Debug)]
pub(crate) struct AppendJob {
    inputs: AppendInputs<HostTensor>,
    schedule: Schedule,
    geometry: Geometry,
    plan: AppendPlan,
    spellings: Spellings,
}

impl AppendJob {
    /// Loads and checks everything that the call needs.
    pub(crate) fn resolve(args: &AppendArgs, talk: &Talk) -> Resolved<Self> {
        let mut found = Inputs::open(&args.files.input, talk)?;
        let mla = is_mla(&found)?;
        let arrays: [_; 4] = match mla {
            true => ["new_latent", "new_k_position", "latent", "k_position"],
            false => ["new_k", "new_v", "k", "v"],
        };
        let known = [arrays, INDICES].concat();
        let inputs = if mla {
            AppendInputs::Latent {
                latent: found.floats("latent", &known)?,
                k_position: found.floats("k_position", &known)?,
                new_latent: found.floats("new_latent", &known)?,
                new_k_position: found.floats("new_k_position", &known)?,
            }
        } else {
            AppendInputs::Separate {
                k: found.floats("k", &known)?,
                v: found.floats("v", &known)?,
                new_k: found.floats("new_k", &known)?,
                new_v: found.floats("new_v", &known)?,
            }
        };
        let geometry = Geometry::of_append(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let schedule = schedule(&found, true, &known)?;
        let plan = AppendPlan::new(&schedule, &geometry)?;
        let spellings = Spellings::new(&found, &arrays.map(|name| (name, name)));
        let ignored = found.ignored(&known);
        Ok((Self { inputs, schedule, geometry, plan, spellings }, ignored))
    }
}

impl Job for AppendJob {
    fn output_names(&self) -> Vec<&'static str> {
        self.inputs.cache().named().map(|(name, _)| name).to_vec()
    }

    fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    fn on_device(&self, execution: Execution<'_>) -> Result<(Results, Vec<Timing>)> {
        let run = append::run(execution, &self.inputs, &self.schedule)?;
        Ok((results(&run.outputs), run.timings))
    }

    fn on_reference(&self) -> Result<Results> {
        Ok(results(&reference::attention::append(&self.inputs, &self.schedule)?))
    }

    fn call(&self) -> Box<dyn Divide + '_> {
        Box::new(Append { inputs: &self.inputs, schedule: &self.schedule })
    }

    fn identity(&self) -> Identity {
        let mut arrays = Vec::new();
        self.inputs.as_ref().map(|name, tensor| arrays.push((name, tensor)));
        Identity::default().arrays(arrays).schedule(&self.schedule)
    }

    fn outline(&self, target: Target) -> Result<Outline> {
        let Geometry { queries, kv_heads, key_dim, value_dim, position_dim, .. } = self.geometry;
        let Geometry { page_size, pages, .. } = self.geometry;
        let layouts = self.inputs.as_ref().map(|_, tensor| tensor.into());
        let mut inputs = Vec::new();
        self.inputs.as_ref().map(|name, tensor| inputs.push(bytes(name, tensor)));
        Ok(Outline {
            sizes: vec![
                ("queries", queries),
                ("kv_heads", kv_heads),
                ("key_dim", key_dim),
                ("value_dim", value_dim),
                ("position_dim", position_dim),
                ("page_size", page_size),
                ("pages", pages),
                ("sequences", self.schedule.sequence_lengths.len()),
            ],
            launches: append::launches(&layouts, &self.plan, target)?,
            inputs,
            // The cache is written in place.
            outputs: Vec::new(),
            schedule: Some(self.plan.bytes()),
            ..Outline::default()
        })
    }
}

fn results(cache: &Cache<HostTensor>) -> Results {
    cache.named().map(|(name, tensor)| (name, tensor.clone())).to_vec()
}

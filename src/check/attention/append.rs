//! The append to a paged cache and its adjoint: copies, so exact whatever the bits.

use super::problem::Problem;
use crate::check::random::Random;
use crate::check::trial::{Expected, Output, Trial};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::append::{
    AppendInputs, AppendPlan, Cache, DevicePlan, allocate_backward, record, record_backward,
};
use crate::kernels::attention::{Geometry, Schedule};
use crate::reference;
use crate::runtime::{Recorder, Tensor};

/// An append to a cache of random bits.
pub(super) struct Append {
    inputs: AppendInputs<HostTensor>,
    schedule: Schedule,
}

impl Append {
    /// With the schedule and the sizes of the problem.
    pub(super) fn new(problem: Problem, dtype: Dtype, random: &mut Random) -> Result<Self> {
        let Geometry { queries, pages, page_size, kv_heads, key_dim, value_dim, .. } =
            problem.geometry;
        let position_dim = problem.geometry.position_dim;
        let mut new = |dim| random.any(dtype, &[queries, kv_heads, dim]);
        let (new_key, new_value, new_position) =
            (new(key_dim)?, new(value_dim)?, new(position_dim)?);
        let mut cache = |dim| random.any(dtype, &[pages, page_size, kv_heads, dim]);
        let inputs = if problem.geometry.is_mla() {
            AppendInputs::Latent {
                new_latent: new_key,
                new_k_position: new_position,
                latent: cache(key_dim)?,
                k_position: cache(position_dim)?,
            }
        } else {
            AppendInputs::Separate {
                new_k: new_key,
                new_v: new_value,
                k: cache(key_dim)?,
                v: cache(value_dim)?,
            }
        };
        Ok(Self { inputs, schedule: problem.schedule })
    }

    fn plan(&self) -> Result<AppendPlan> {
        let geometry = Geometry::of_append(&self.inputs.as_ref().map(|_, t| t.shape()))?;
        AppendPlan::new(&self.schedule, &geometry)
    }

    /// The inputs with `poison` in the slots that are written.
    fn poisoned(&self, poison: u32) -> Result<AppendInputs<HostTensor>> {
        let rows = self.inputs.as_ref().map(|name, tensor| {
            let mut tensor = tensor.clone();
            if name.starts_with("new_") {
                let bytes = poison.to_ne_bytes();
                tensor.bytes_mut().iter_mut().zip(bytes.iter().cycle()).for_each(|(b, p)| *b = *p);
            }
            tensor
        });
        let poisoned = reference::attention::append(&rows, &self.schedule)?;
        let poisoned = poisoned.named();
        Ok(self.inputs.as_ref().map(|name, tensor| {
            let cache = poisoned.iter().find(|(cache, _)| *cache == name);
            cache.map_or(tensor, |(_, tensor)| tensor).clone()
        }))
    }
}

impl Trial for Append {
    type Way = ();

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        exact(&reference::attention::append(&self.inputs, &self.schedule)?)
    }

    fn ways(&self) -> Vec<(String, ())> {
        vec![("usually".into(), ())]
    }

    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        (): &(),
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>> {
        let runtime = recorder.runtime();
        let plan = DevicePlan::upload(runtime, self.plan()?)?;
        let inputs = self.poisoned(poison)?.try_map(|name, t| runtime.upload(name, &t))?;
        record(recorder, &inputs, &plan)?;
        Ok(inputs.cache().named().map(|(name, tensor)| (name, (*tensor).clone())).into())
    }
}

/// The adjoint of an append: the cache's random bits are the gradients.
pub(super) struct Adjoint(pub(super) Append);

impl Trial for Adjoint {
    type Way = ();

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        let Append { inputs, schedule } = &self.0;
        let gradients = inputs.cache().try_map(|_, tensor| Ok(tensor.clone()))?;
        exact(&reference::attention::append_backward(&gradients, schedule)?)
    }

    fn ways(&self) -> Vec<(String, ())> {
        vec![("usually".into(), ())]
    }

    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        (): &(),
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>> {
        let runtime = recorder.runtime();
        let plan = DevicePlan::upload(runtime, self.0.plan()?)?;
        let cache = self.0.inputs.cache().try_map(|name, t| runtime.upload(name, t))?;
        let gradients = allocate_backward(runtime, cache, plan.plan().queries())?;
        let outputs = gradients.new_rows().named().map(|(name, t)| (name, (*t).clone()));
        for (_, tensor) in &outputs {
            recorder.fill(tensor, poison)?;
        }
        record_backward(recorder, &gradients, &plan)?;
        Ok(outputs.into())
    }
}

/// All of it, to the bit.
fn exact(cache: &Cache<HostTensor>) -> Result<Vec<Output<Expected>>> {
    Ok(cache.named().map(|(name, tensor)| (name, Expected::Exact(tensor.clone()))).into())
}

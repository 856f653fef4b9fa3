//! The forward of a problem, and what it is held to.

use super::cases::{Case, Ways};
use super::problem::Problem;
use crate::check::trial::{Expected, Output, Trial};
use crate::check::views;
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::attention::forward::{allocate, record};
use crate::kernels::attention::{DevicePlan, ForwardInputs, Plan};
use crate::reference;
use crate::runtime::{Recorder, Tensor};

/// A call of the forward.
pub(super) struct Forward {
    inputs: ForwardInputs<HostTensor>,
    problem: Problem,
    ways: Ways,
}

impl Forward {
    /// Of which the problem is the backward.
    pub(super) fn new(problem: Problem, case: &Case) -> Self {
        let (q, history) = (problem.inputs.q.clone(), problem.inputs.history.clone());
        Self { inputs: ForwardInputs { q, history }, problem, ways: case.ways }
    }
}

/// Where q, its position part and the output lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Dense,
    /// Row by row, with gaps.
    Apart,
}

impl Trial for Forward {
    type Way = Place;

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        let Problem { schedule, options, .. } = &self.problem;
        let plain = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::attention::forward(&plain, schedule, options)?;
        let named = [("output", outputs.output), ("statistics", outputs.statistics)];
        Ok(named.map(|(name, array)| (name, Expected::Near(array))).into())
    }

    fn growth(&self) -> f64 {
        self.problem.growth()
    }

    fn ways(&self) -> Vec<(String, Place)> {
        let dense = ("usually".into(), Place::Dense);
        match self.ways {
            Ways::Views => vec![dense, ("on views".into(), Place::Apart)],
            _ => vec![dense],
        }
    }

    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        place: &Place,
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>> {
        let Problem { schedule, geometry, options, .. } = &self.problem;
        let runtime = recorder.runtime();
        let plan = DevicePlan::upload(runtime, Plan::new(schedule, geometry, 32)?)?;
        let apart = *place == Place::Apart;
        let inputs = self.inputs.as_ref().try_map(|name, tensor| match name {
            "q" | "q_position" if apart => views::upload(runtime, name, tensor),
            _ => runtime.upload(name, tensor),
        })?;
        let mut outputs = allocate(runtime, &inputs)?;
        if apart {
            let (dtype, shape) = (outputs.output.dtype(), outputs.output.shape().to_vec());
            outputs.output = views::filled(recorder, "output", dtype, &shape, poison)?;
        } else {
            recorder.fill(&outputs.output, poison)?;
        }
        recorder.fill(&outputs.statistics, poison)?;
        record(recorder, &inputs, &plan, options, &outputs)?;
        Ok(vec![("output", outputs.output), ("statistics", outputs.statistics)])
    }
}

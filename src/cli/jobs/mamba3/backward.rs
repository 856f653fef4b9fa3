//! `mamba3-preprocess-backward`.

use backslang::kernels::Target;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters, dtype_of,
};
use backslang::kernels::mamba3::preprocess_backward::{self, Onto};
use backslang::runtime::{Execution, Timing};
use backslang::shard::{Divide, PreprocessBackward};
use backslang::{HostTensor, reference};

use super::{PARAMETERS, array, options, parameters, sizes};
use crate::cli::args::Mamba3BackwardArgs;
use crate::cli::failure::Result;
use crate::cli::inputs::Inputs;
use crate::cli::jobs::{Job, Resolved, Results, Spellings, expect_shape};
use crate::cli::plan::{Outline, bytes, bytes_of};
use crate::cli::shards::Identity;
use crate::cli::talk::Talk;

/// The outputs that can be added to.
const SUMS: [&str; 2] = ["projected_gradient", "dt_bias_gradient"];

/// The resolved call.
#[derive(Debug)]
pub(crate) struct Mamba3BackwardJob {
    inputs: BackwardInputs<HostTensor>,
    parameters: Parameters,
    geometry: Geometry,
    /// What to add to.
    onto: Onto,
    spellings: Spellings,
}

impl Mamba3BackwardJob {
    /// Loads and checks everything that the call needs.
    pub(crate) fn resolve(args: &Mamba3BackwardArgs, talk: &Talk) -> Resolved<Self> {
        let sums: &[_] = if args.accumulate { &SUMS } else { &[] };
        let known = [BackwardInputs::<()>::NAMES, &PARAMETERS, sums].concat();
        let mut found = Inputs::open(&args.files.input, talk)?;
        let parameters = parameters(&args.parameters, &found)?;
        let inputs = BackwardInputs::try_build(|name| array(&mut found, name, &known))?;
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let onto = if args.accumulate { onto(&mut found, &geometry)? } else { Onto::default() };
        let spellings = Spellings::new(
            &found,
            &[
                ("projected_gradient", "projected"),
                ("dt_bias_partial", "dt_bias"),
                ("dt_bias_gradient", "dt_bias"),
            ],
        );
        let ignored = found.ignored(&known);
        Ok((Self { inputs, parameters, geometry, onto, spellings }, ignored))
    }
}

impl Job for Mamba3BackwardJob {
    fn output_names(&self) -> Vec<&'static str> {
        BackwardOutputs::<()>::NAMES.to_vec()
    }

    fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    fn on_device(&self, execution: Execution<'_>) -> Result<(Results, Vec<Timing>)> {
        let Self { inputs, parameters, onto, .. } = self;
        let run = preprocess_backward::run_onto(execution, inputs, parameters, onto)?;
        Ok((results(run.outputs), run.timings))
    }

    fn on_reference(&self) -> Result<Results> {
        let inputs = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let mut outputs = reference::mamba3::preprocess_backward(&inputs, &self.parameters)?;
        for (old, sum) in [
            (&self.onto.projected_gradient, &mut outputs.projected_gradient),
            (&self.onto.dt_bias_gradient, &mut outputs.dt_bias_gradient),
        ] {
            if let Some(old) = old {
                *sum += &old.to_f64();
            }
        }
        let dtype = self.inputs.projected.dtype();
        let round = |name, array| HostTensor::from_f64(dtype_of(name, dtype), array);
        Ok(results(outputs.as_ref().try_map(round)?))
    }

    fn call(&self) -> Box<dyn Divide + '_> {
        let Self { inputs, parameters, onto, .. } = self;
        Box::new(PreprocessBackward { inputs, parameters: *parameters, onto })
    }

    fn identity(&self) -> Identity {
        let Onto { projected_gradient, dt_bias_gradient } = &self.onto;
        let old = SUMS.into_iter().zip([projected_gradient, dt_bias_gradient]);
        Identity::default()
            .arrays(self.inputs.named())
            .arrays(old.filter_map(|(name, old)| Some((name, old.as_ref()?))))
            .options(options(&self.parameters))
    }

    fn outline(&self, target: Target) -> Result<Outline> {
        let (dtype, accumulate) = (self.inputs.projected.dtype(), self.onto.accumulate());
        let outputs = self.geometry.backward_outputs();
        let output = |(name, shape): (_, &Vec<usize>)| bytes_of(name, dtype_of(name, dtype), shape);
        Ok(Outline {
            sizes: sizes(&self.geometry),
            launches: preprocess_backward::launches(&self.geometry, dtype, accumulate, target)?,
            inputs: self.inputs.named().map(|(name, tensor)| bytes(name, tensor)).collect(),
            outputs: outputs.named().map(output).collect(),
            scratch: preprocess_backward::scratch_bytes(&self.geometry, dtype, target)?,
            ..Outline::default()
        })
    }
}

/// The gradients to add to that there are, of which there must be one.
fn onto(found: &mut Inputs, geometry: &Geometry) -> Result<Onto> {
    let [packed, bias] = SUMS;
    let onto = Onto {
        projected_gradient: found.optional_floats(packed)?,
        dt_bias_gradient: found.optional_singles(bias)?,
    };
    let shapes = geometry.backward_outputs();
    if let Some(old) = &onto.projected_gradient {
        expect_shape(packed, old, &shapes.projected_gradient)?;
    }
    if let Some(old) = &onto.dt_bias_gradient {
        expect_shape(bias, old, &shapes.dt_bias_gradient)?;
    }
    match onto {
        Onto { projected_gradient: None, dt_bias_gradient: None } => {
            Err(found.nothing_to_add_to(&SUMS))
        }
        onto => Ok(onto),
    }
}

fn results(outputs: BackwardOutputs<HostTensor>) -> Results {
    let mut results = Vec::new();
    outputs.map(|name, tensor| results.push((name, tensor)));
    results
}

//! `mamba3-preprocess`.

use backslang::kernels::Target;
use backslang::kernels::mamba3::preprocess::{
    ForwardInputs, ForwardOutputs, Geometry, Parameters, Widths, dtype_of,
};
use backslang::kernels::mamba3::preprocess_forward;
use backslang::runtime::{Execution, Timing};
use backslang::shard::{Divide, PreprocessForward};
use backslang::{HostTensor, reference};

use super::{PARAMETERS, array, options, parameters, sizes};
use crate::cli::args::Mamba3ForwardArgs;
use crate::cli::failure::Result;
use crate::cli::inputs::Inputs;
use crate::cli::jobs::{Job, Resolved, Results, Spellings};
use crate::cli::plan::{Outline, bytes, bytes_of};
use crate::cli::shards::Identity;
use crate::cli::talk::Talk;

const WIDTHS: [&str; 4] = ["inner_size", "bc_rows", "state_size", "rope_angles"];

/// The resolved call.
#[derive(Debug)]
pub(crate) struct Mamba3Job {
    inputs: ForwardInputs<HostTensor>,
    widths: Widths,
    parameters: Parameters,
    geometry: Geometry,
    spellings: Spellings,
}

impl Mamba3Job {
    /// Loads and checks everything that the call needs.
    pub(crate) fn resolve(args: &Mamba3ForwardArgs, talk: &Talk) -> Resolved<Self> {
        let known = [ForwardInputs::<()>::NAMES, &WIDTHS, &PARAMETERS].concat();
        let mut found = Inputs::open(&args.files.input, talk)?;
        let parameters = parameters(&args.parameters, &found)?;
        let inputs = ForwardInputs::try_build(|name| array(&mut found, name, &known))?;
        let widths = Widths {
            inner_size: found.size("inner_size", "--inner-size", args.inner_size)?,
            bc_rows: found.size("bc_rows", "--bc-rows", args.bc_rows)?,
            state_size: found.size("state_size", "--state-size", args.state_size)?,
            rope_angles: found.size("rope_angles", "--rope-angles", args.rope_angles)?,
        };
        let shapes = inputs.as_ref().map(|_, tensor| tensor.shape());
        let geometry = Geometry::of_forward(&shapes, &widths)?;
        let spelled: Vec<_> =
            ForwardOutputs::<()>::NAMES.iter().map(|&name| (name, "projected")).collect();
        let spellings = Spellings::new(&found, &spelled);
        let ignored = found.ignored(&known);
        Ok((Self { inputs, widths, parameters, geometry, spellings }, ignored))
    }
}

impl Job for Mamba3Job {
    fn output_names(&self) -> Vec<&'static str> {
        ForwardOutputs::<()>::NAMES.to_vec()
    }

    fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    fn on_device(&self, execution: Execution<'_>) -> Result<(Results, Vec<Timing>)> {
        let run = preprocess_forward::run(execution, &self.inputs, &self.widths, &self.parameters)?;
        Ok((results(run.outputs), run.timings))
    }

    fn on_reference(&self) -> Result<Results> {
        let inputs = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::mamba3::preprocess(&inputs, &self.widths, &self.parameters)?;
        let dtype = self.inputs.projected.dtype();
        let round = |name, array| HostTensor::from_f64(dtype_of(name, dtype), array);
        Ok(results(outputs.as_ref().try_map(round)?))
    }

    fn call(&self) -> Box<dyn Divide + '_> {
        let Self { inputs, widths, parameters, .. } = self;
        Box::new(PreprocessForward { inputs, widths: *widths, parameters: *parameters })
    }

    fn identity(&self) -> Identity {
        let Widths { inner_size, bc_rows, state_size, rope_angles } = self.widths;
        Identity::default()
            .arrays(self.inputs.named())
            .options(options(&self.parameters))
            .options(WIDTHS.into_iter().zip([inner_size, bc_rows, state_size, rope_angles]))
    }

    fn outline(&self, target: Target) -> Result<Outline> {
        let dtype = self.inputs.projected.dtype();
        let outputs = self.geometry.forward_outputs();
        let output = |(name, shape): (_, &Vec<usize>)| bytes_of(name, dtype_of(name, dtype), shape);
        Ok(Outline {
            sizes: sizes(&self.geometry),
            launches: preprocess_forward::launches(&self.geometry, dtype, target)?,
            inputs: self.inputs.named().map(|(name, tensor)| bytes(name, tensor)).collect(),
            outputs: outputs.named().map(output).collect(),
            scratch: preprocess_forward::scratch_bytes(&self.geometry, dtype, target)?,
            ..Outline::default()
        })
    }
}

fn results(outputs: ForwardOutputs<HostTensor>) -> Results {
    let mut results = Vec::new();
    outputs.map(|name, tensor| results.push((name, tensor)));
    results
}

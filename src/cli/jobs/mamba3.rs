//! Resolving `mamba3-preprocess-backward`.

use backslang::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters, dtype_of};
use backslang::{Dtype, HostTensor};

use super::{Resolved, Spellings};
use crate::cli::args::Mamba3Args;
use crate::cli::failure::Result;
use crate::cli::inputs::Inputs;
use crate::cli::talk::Talk;

const PARAMETERS: [&str; 4] = ["epsilon", "dt_min", "dt_max", "a_floor"];

/// The resolved call.
#[derive(Debug)]
pub(crate) struct Mamba3Job {
    /// The arrays.
    pub(crate) inputs: BackwardInputs<HostTensor>,
    /// Checked.
    pub(crate) parameters: Parameters,
    /// The sizes.
    pub(crate) geometry: Geometry,
    pub(super) spellings: Spellings,
}

impl Mamba3Job {
    /// Loads and checks everything that the call needs.
    pub(crate) fn resolve(args: &Mamba3Args, talk: &Talk) -> Resolved<Self> {
        let known = [BackwardInputs::<()>::NAMES, &PARAMETERS].concat();
        let mut found = Inputs::open(&args.input, talk)?;
        let parameters = parameters(args, &found)?;
        parameters.check()?;
        let inputs = BackwardInputs::try_build(|name| match dtype_of(name, Dtype::F16) {
            Dtype::F32 => found.singles(name, &known),
            _ => found.floats(name, &known),
        })?;
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let spellings = Spellings::new(
            &found,
            &[
                ("projected_gradient", "projected"),
                ("dt_bias_partial", "dt_bias"),
                ("dt_bias_gradient", "dt_bias"),
            ],
        );
        let ignored = found.ignored(&known);
        Ok((Self { inputs, parameters, geometry, spellings }, ignored))
    }
}

fn parameters(args: &Mamba3Args, found: &Inputs) -> Result<Parameters> {
    let default = Parameters::default();
    Ok(Parameters {
        epsilon: found.float("epsilon", args.epsilon)?.unwrap_or(default.epsilon),
        dt_min: found.float("dt_min", args.dt_min)?.unwrap_or(default.dt_min),
        dt_max: found.float("dt_max", args.dt_max)?.unwrap_or(default.dt_max),
        a_floor: found.float("a_floor", args.a_floor)?.unwrap_or(default.a_floor),
    })
}

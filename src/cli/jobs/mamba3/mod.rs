//! The Mamba-3 commands.

mod backward;
mod forward;

use backslang::Dtype;
use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{Geometry, Parameters, dtype_of};

use crate::cli::args::ParameterArgs;
use crate::cli::failure::Result;
use crate::cli::inputs::Inputs;

pub(crate) use backward::Mamba3BackwardJob;
pub(crate) use forward::Mamba3Job;

const PARAMETERS: [&str; 4] = ["epsilon", "dt_min", "dt_max", "a_floor"];

/// The parameters, checked.
fn parameters(args: &ParameterArgs, found: &Inputs) -> Result<Parameters> {
    let default = Parameters::default();
    let parameters = Parameters {
        epsilon: found.float("epsilon", args.epsilon)?.unwrap_or(default.epsilon),
        dt_min: found.float("dt_min", args.dt_min)?.unwrap_or(default.dt_min),
        dt_max: found.float("dt_max", args.dt_max)?.unwrap_or(default.dt_max),
        a_floor: found.float("a_floor", args.a_floor)?.unwrap_or(default.a_floor),
    };
    parameters.check()?;
    Ok(parameters)
}

/// The parameters by name.
fn options(parameters: &Parameters) -> [(&'static str, f32); 4] {
    let Parameters { epsilon, dt_min, dt_max, a_floor } = *parameters;
    [("epsilon", epsilon), ("dt_min", dt_min), ("dt_max", dt_max), ("a_floor", a_floor)]
}

/// An array of the call's element type, or of float32 where it belongs to a head alone.
fn array(found: &mut Inputs, name: &'static str, known: &[&str]) -> Result<HostTensor> {
    match dtype_of(name, Dtype::F16) {
        Dtype::F32 => found.singles(name, known),
        _ => found.floats(name, known),
    }
}

/// The sizes by name.
fn sizes(geometry: &Geometry) -> Vec<(&'static str, usize)> {
    vec![
        ("rows", geometry.rows),
        ("inner_size", geometry.inner_size),
        ("bc_rows", geometry.bc_rows),
        ("state_size", geometry.state_size),
        ("heads", geometry.heads),
        ("rope_angles", geometry.rope_angles),
        ("projected_width", geometry.projected_width()),
    ]
}

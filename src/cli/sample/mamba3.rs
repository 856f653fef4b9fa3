//! Inputs of the Mamba-3 preprocess backward.

use backslang::Dtype;
use backslang::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters, dtype_of};

use super::random::Random;
use super::{floats, parameter};
use crate::cli::args::Mamba3Sizes;
use crate::cli::failure::Result;
use crate::cli::files::OutputArray;

/// The names of the arrays.
pub(super) fn names() -> Vec<&'static str> {
    let parameters = parameters().map(|(name, _)| name);
    BackwardInputs::<()>::NAMES.iter().copied().chain(parameters).collect()
}

fn parameters() -> [(&'static str, f32); 4] {
    let Parameters { epsilon, dt_min, dt_max, a_floor } = Parameters::default();
    [("epsilon", epsilon), ("dt_min", dt_min), ("dt_max", dt_max), ("a_floor", a_floor)]
}

/// Random arrays of the sizes asked for, and the default parameters.
pub(super) fn arrays(
    sizes: &Mamba3Sizes,
    dtype: Dtype,
    random: &mut Random,
) -> Result<Vec<OutputArray>> {
    let geometry = Geometry {
        leading: vec![sizes.rows],
        rows: sizes.rows,
        inner_size: sizes.inner_size,
        bc_rows: sizes.bc_rows,
        state_size: sizes.state_size,
        heads: sizes.heads,
        rope_angles: sizes.rope_angles,
    };
    let inputs = geometry.backward_inputs().try_map(|name, shape| match name {
        // So that softplus falls on both sides of both default clamps.
        "dt_bias" => random.map_normals(name, Dtype::F32, &shape, |x| 1.5 * x - 4.0),
        _ => random.normals(name, dtype_of(name, dtype), &shape),
    })?;
    let mut arrays: Vec<_> =
        inputs.named().map(|(name, tensor)| floats(name, tensor.clone())).collect();
    for (name, value) in parameters() {
        arrays.push(parameter(name, value)?);
    }
    Ok(arrays)
}

//! Inputs of the Mamba-3 preprocess, forward and backward.

use backslang::Dtype;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, ForwardInputs, Geometry, Parameters, dtype_of,
};

use super::random::Random;
use super::{floats, parameter, size};
use crate::cli::args::Mamba3Sizes;
use crate::cli::failure::Result;
use crate::cli::files::OutputArray;

/// The names of the forward's arrays.
pub(super) fn forward_names(sizes: &Mamba3Sizes) -> Vec<&'static str> {
    let widths = widths(sizes).map(|(name, _)| name);
    let parameters = parameters().map(|(name, _)| name);
    ForwardInputs::<()>::NAMES.iter().copied().chain(widths).chain(parameters).collect()
}

/// The names of the backward's arrays.
pub(super) fn backward_names() -> Vec<&'static str> {
    let parameters = parameters().map(|(name, _)| name);
    BackwardInputs::<()>::NAMES.iter().copied().chain(parameters).collect()
}

/// Random arrays of the sizes asked for, the widths, and the default parameters.
pub(super) fn forward(
    sizes: &Mamba3Sizes,
    dtype: Dtype,
    random: &mut Random,
) -> Result<Vec<OutputArray>> {
    let BackwardInputs { projected, dt_bias, .. } = geometry(sizes).backward_inputs();
    let mut arrays = Vec::new();
    for (name, shape) in (ForwardInputs { projected, dt_bias }).named() {
        arrays.push(array(name, dtype, shape, random)?);
    }
    for (name, width) in widths(sizes) {
        arrays.push(size(name, width)?);
    }
    with_parameters(arrays)
}

/// Random arrays of the sizes asked for, and the default parameters.
pub(super) fn backward(
    sizes: &Mamba3Sizes,
    dtype: Dtype,
    random: &mut Random,
) -> Result<Vec<OutputArray>> {
    let shapes = geometry(sizes).backward_inputs();
    let mut arrays = Vec::new();
    for (name, shape) in shapes.named() {
        arrays.push(array(name, dtype, shape, random)?);
    }
    with_parameters(arrays)
}

fn geometry(sizes: &Mamba3Sizes) -> Geometry {
    Geometry {
        leading: vec![sizes.rows],
        rows: sizes.rows,
        inner_size: sizes.inner_size,
        bc_rows: sizes.bc_rows,
        state_size: sizes.state_size,
        heads: sizes.heads,
        rope_angles: sizes.rope_angles,
    }
}

fn array(
    name: &'static str,
    dtype: Dtype,
    shape: &[usize],
    random: &mut Random,
) -> Result<OutputArray> {
    let dtype = dtype_of(name, dtype);
    let tensor = match name {
        // So that softplus falls on both sides of both default clamps.
        "dt_bias" => random.map_normals(name, dtype, shape, |x| 1.5 * x - 4.0)?,
        _ => random.normals(name, dtype, shape)?,
    };
    Ok(floats(name, tensor))
}

fn with_parameters(mut arrays: Vec<OutputArray>) -> Result<Vec<OutputArray>> {
    for (name, value) in parameters() {
        arrays.push(parameter(name, value)?);
    }
    Ok(arrays)
}

fn widths(sizes: &Mamba3Sizes) -> [(&'static str, usize); 4] {
    [
        ("inner_size", sizes.inner_size),
        ("bc_rows", sizes.bc_rows),
        ("state_size", sizes.state_size),
        ("rope_angles", sizes.rope_angles),
    ]
}

fn parameters() -> [(&'static str, f32); 4] {
    let Parameters { epsilon, dt_min, dt_max, a_floor } = Parameters::default();
    [("epsilon", epsilon), ("dt_min", dt_min), ("dt_max", dt_max), ("a_floor", a_floor)]
}

//! Inputs of the append to a paged cache.

use backslang::Dtype;
use backslang::kernels::attention::Geometry;
use backslang::kernels::attention::append::AppendInputs;

use super::floats;
use super::random::Random;
use super::schedule::{NAMES, arrays_of, schedule};
use crate::cli::args::AppendSizes;
use crate::cli::failure::Result;
use crate::cli::files::OutputArray;

/// The names of the arrays, where there can be arrays of such sizes.
pub(super) fn names(sizes: &AppendSizes) -> Result<Vec<&'static str>> {
    let shapes = shapes(sizes);
    Geometry::of_append(&shapes.as_ref().map(|_, shape| shape.as_slice()))?;
    let mut names = Vec::new();
    shapes.map(|name, _| names.push(name));
    names.extend(NAMES);
    Ok(names)
}

/// Random arrays of the sizes asked for.
pub(super) fn arrays(
    sizes: &AppendSizes,
    dtype: Dtype,
    random: &mut Random,
) -> Result<Vec<OutputArray>> {
    let schedule = schedule(&sizes.cache, true, random)?;
    let inputs = shapes(sizes).try_map(|name, shape| random.normals(name, dtype, &shape))?;
    let mut arrays = Vec::new();
    inputs.map(|name, tensor| arrays.push(floats(name, tensor)));
    arrays.extend(arrays_of(&schedule)?);
    Ok(arrays)
}

fn shapes(sizes: &AppendSizes) -> AppendInputs<Vec<usize>> {
    let cache = &sizes.cache;
    let kv_heads = sizes.kv_heads.unwrap_or(if cache.mla { 1 } else { 2 });
    let rows = |dim| vec![cache.queries, kv_heads, dim];
    let paged = |dim| vec![cache.pages, cache.page_size, kv_heads, dim];
    let (key_dim, value_dim) = (cache.key_dim, cache.value_dim());
    if cache.mla {
        let position_dim = cache.position_dim();
        AppendInputs::Latent {
            new_latent: rows(key_dim),
            new_k_position: rows(position_dim),
            latent: paged(key_dim),
            k_position: paged(position_dim),
        }
    } else {
        AppendInputs::Separate {
            new_k: rows(key_dim),
            new_v: rows(value_dim),
            k: paged(key_dim),
            v: paged(value_dim),
        }
    }
}

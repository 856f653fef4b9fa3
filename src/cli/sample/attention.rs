//! Inputs of the attention forward, of its backward and of the history kernel alone.

use backslang::kernels::attention::Schedule;
use backslang::kernels::attention::{
    BackwardInputs, ForwardInputs, Geometry, Gradient, Gradients, History, Options,
};
use backslang::{Dtype, HostTensor, reference};

use super::random::Random;
use super::schedule::{NAMES, arrays_of, schedule};
use super::{flag, floats, parameter};
use crate::cli::args::AttentionSizes;
use crate::cli::failure::Result;
use crate::cli::files::OutputArray;

/// Whose inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Of `paged-attention`.
    Forward,
    /// Of `paged-attention-backward`.
    Backward,
    /// Of `history-backward`: with statistics.
    History,
}

/// The names of the arrays, where there can be arrays of such sizes.
pub(super) fn names(sizes: &AttentionSizes, pass: Pass) -> Result<Vec<&'static str>> {
    let shapes = shapes(sizes);
    Geometry::of_forward(&shapes.as_ref().map(|_, shape| shape.as_slice()))?;
    let mut names = Vec::new();
    shapes.map(|name, _| names.push(name));
    names.extend((pass != Pass::Forward).then_some("output_gradient"));
    names.extend((pass == Pass::History).then_some("statistics"));
    names.extend(NAMES);
    names.extend(["scale", "causal"]);
    Ok(names)
}

/// Random arrays of the sizes asked for: the forward's are the first of the backward's.
pub(super) fn arrays(
    sizes: &AttentionSizes,
    dtype: Dtype,
    random: &mut Random,
    pass: Pass,
) -> Result<Vec<OutputArray>> {
    let schedule = schedule(&sizes.cache, false, random)?;
    let inputs = shapes(sizes).try_map(|name, shape| random.normals(name, dtype, &shape))?;
    let position_dim = if sizes.cache.mla { sizes.cache.position_dim() } else { 0 };
    let score_width = sizes.cache.key_dim + position_dim;
    let scale = (1.0 / (score_width as f64).sqrt()) as f32;
    let mut arrays = Vec::new();
    let push = |name, tensor| arrays.push(floats(name, tensor));
    if pass == Pass::Forward {
        inputs.map(push);
    } else {
        let output_gradient = random.normals("output_gradient", dtype, &output_shape(sizes))?;
        let ForwardInputs { q, history } = inputs;
        let mut inputs =
            BackwardInputs { q, history, output_gradient, statistics: None, output: None };
        if pass == Pass::History {
            inputs.statistics = Some(row_statistics(&inputs, &schedule, scale)?);
        }
        inputs.map(push);
    }
    arrays.extend(arrays_of(&schedule)?);
    arrays.push(parameter("scale", scale)?);
    arrays.push(flag("causal", true));
    Ok(arrays)
}

fn shapes(sizes: &AttentionSizes) -> ForwardInputs<Vec<usize>> {
    let even = sizes.heads.is_multiple_of(2);
    let cache = &sizes.cache;
    let kv_heads = sizes.kv_heads.unwrap_or(if even && !cache.mla { 2 } else { 1 });
    let rows = |dim| vec![cache.queries, sizes.heads, dim];
    let paged = |dim| vec![cache.pages, cache.page_size, kv_heads, dim];
    let history = if cache.mla {
        History::Latent {
            latent: paged(cache.key_dim),
            q_position: rows(cache.position_dim()),
            k_position: paged(cache.position_dim()),
        }
    } else {
        History::Separate { k: paged(cache.key_dim), v: paged(cache.value_dim()) }
    };
    ForwardInputs { q: rows(cache.key_dim), history }
}

fn output_shape(sizes: &AttentionSizes) -> [usize; 3] {
    [sizes.cache.queries, sizes.heads, sizes.cache.value_dim()]
}

/// Maximum, denominator and delta, as a forward and the query kernel would have saved them.
fn row_statistics(
    inputs: &BackwardInputs<HostTensor>,
    schedule: &Schedule,
    scale: f32,
) -> Result<HostTensor> {
    let options = Options { gradients: Gradients::only(&[Gradient::Q]), ..Options::new(scale) };
    let inputs = inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let outputs = reference::attention::backward(&inputs, schedule, &options)?;
    Ok(HostTensor::from_f64(Dtype::F32, &outputs.statistics)?)
}

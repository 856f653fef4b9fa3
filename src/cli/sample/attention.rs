//! Inputs of the attention backward and of its history kernel alone.

use backslang::kernels::attention::{
    BackwardInputs, Geometry, Gradient, Gradients, History, Options, Schedule,
};
use backslang::{Dtype, HostTensor, reference};

use super::random::Random;
use super::schedule::schedule;
use super::{flag, floats, integers, parameter};
use crate::cli::args::AttentionSizes;
use crate::cli::failure::{Failure, Result};
use crate::cli::files::OutputArray;

/// The names of the arrays, where there can be arrays of such sizes.
pub(super) fn names(sizes: &AttentionSizes, statistics: bool) -> Result<Vec<&'static str>> {
    let shapes = shapes(sizes);
    Geometry::of_backward(&shapes.as_ref().map(|_, shape| shape.as_slice()))?;
    let mut names = Vec::new();
    shapes.map(|name, _| names.push(name));
    names.extend(statistics.then_some("statistics"));
    names.extend(["block_table", "sequence_lengths", "sequence_ids", "positions"]);
    names.extend(["scale", "causal"]);
    Ok(names)
}

/// Random arrays of the sizes asked for; with `statistics`, those of the rows too.
pub(super) fn arrays(
    sizes: &AttentionSizes,
    dtype: Dtype,
    random: &mut Random,
    statistics: bool,
) -> Result<Vec<OutputArray>> {
    let schedule = schedule(sizes, random)?;
    let mut inputs = shapes(sizes).try_map(|name, shape| random.normals(name, dtype, &shape))?;
    let score_width = sizes.key_dim + if sizes.mla { position_dim(sizes) } else { 0 };
    let scale = (1.0 / (score_width as f64).sqrt()) as f32;
    if statistics {
        inputs.statistics = Some(row_statistics(&inputs, &schedule, scale)?);
    }
    let mut arrays = Vec::new();
    inputs.map(|name, tensor| arrays.push(floats(name, tensor)));
    arrays.extend(index_arrays(&schedule)?);
    arrays.push(parameter("scale", scale)?);
    arrays.push(flag("causal", true));
    Ok(arrays)
}

fn position_dim(sizes: &AttentionSizes) -> usize {
    sizes.position_dim.unwrap_or(16)
}

fn shapes(sizes: &AttentionSizes) -> BackwardInputs<Vec<usize>> {
    let even = sizes.heads.is_multiple_of(2);
    let kv_heads = sizes.kv_heads.unwrap_or(if even && !sizes.mla { 2 } else { 1 });
    let value_dim = sizes.value_dim.unwrap_or(sizes.key_dim);
    let rows = |dim| vec![sizes.queries, sizes.heads, dim];
    let cache = |dim| vec![sizes.pages, sizes.page_size, kv_heads, dim];
    let history = if sizes.mla {
        History::Latent {
            latent: cache(sizes.key_dim),
            q_position: rows(position_dim(sizes)),
            k_position: cache(position_dim(sizes)),
        }
    } else {
        History::Separate { k: cache(sizes.key_dim), v: cache(value_dim) }
    };
    BackwardInputs {
        q: rows(sizes.key_dim),
        history,
        output_gradient: rows(value_dim),
        statistics: None,
        output: None,
    }
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

fn index_arrays(schedule: &Schedule) -> Result<Vec<OutputArray>> {
    let sequences = schedule.sequence_lengths.len();
    let table = [sequences, schedule.table_width];
    let queries = [schedule.sequence_ids.len()];
    let positions = schedule.positions.as_deref().unwrap_or_default();
    Ok(vec![
        integers("block_table", &table, narrow("block_table", &schedule.block_table)?),
        integers(
            "sequence_lengths",
            &[sequences],
            narrow("sequence_lengths", &schedule.sequence_lengths)?,
        ),
        integers("sequence_ids", &queries, narrow("sequence_ids", &schedule.sequence_ids)?),
        integers("positions", &queries, narrow("positions", positions)?),
    ])
}

fn narrow(name: &str, values: &[i128]) -> Result<Vec<i32>> {
    let narrow = |&value: &i128| {
        i32::try_from(value).map_err(|_| {
            let message =
                format!("array `{name}`: expected values that fit 32 bits, found {value}");
            Failure::input("too-large", message)
        })
    };
    values.iter().map(narrow).collect()
}

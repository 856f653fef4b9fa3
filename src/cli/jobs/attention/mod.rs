//! The attention commands.

mod append;
mod backward;
mod forward;

use backslang::HostTensor;
use backslang::kernels::attention::{Geometry, History, Options, Plan, Schedule};

use crate::cli::args::ScoreArgs;
use crate::cli::failure::{Failure, Result};
use crate::cli::inputs::Inputs;
use crate::cli::shards::Identity;

pub(crate) use append::AppendJob;
pub(crate) use backward::AttentionBackwardJob;
pub(crate) use forward::AttentionJob;

const INDICES: [&str; 4] = ["block_table", "sequence_lengths", "sequence_ids", "positions"];
const PARAMETERS: [&str; 2] = ["scale", "causal"];

/// The names of the history's arrays.
fn history_names(mla: bool) -> &'static [&'static str] {
    if mla { &["latent", "q_position", "k_position"] } else { &["k", "v"] }
}

/// Whether the history is latent, which the arrays decide.
fn is_mla(found: &Inputs) -> Result<bool> {
    if !found.has("latent") {
        return Ok(false);
    }
    match ["k", "v"].into_iter().find(|name| found.has(name)) {
        Some(other) => {
            let message = format!(
                "array `latent`: expected without `k` and `v`, found beside `{other}` (`latent` is both key and value)"
            );
            Err(Failure::input("array", message))
        }
        None => Ok(true),
    }
}

fn history(found: &mut Inputs, mla: bool, known: &[&str]) -> Result<History<HostTensor>> {
    Ok(if mla {
        History::Latent {
            latent: found.floats("latent", known)?,
            q_position: found.floats("q_position", known)?,
            k_position: found.floats("k_position", known)?,
        }
    } else {
        History::Separate { k: found.floats("k", known)?, v: found.floats("v", known)? }
    })
}

/// The index arrays; without `need_positions` there may be none.
fn schedule(found: &Inputs, need_positions: bool, known: &[&str]) -> Result<Schedule> {
    let (table, block_table) = found.indices("block_table", "[sequences, table_width]", known)?;
    let (_, sequence_lengths) = found.indices("sequence_lengths", "[sequences]", known)?;
    let (_, sequence_ids) = found.indices("sequence_ids", "[queries]", known)?;
    let positions = if need_positions || found.has("positions") {
        Some(found.indices("positions", "[queries]", known)?.1)
    } else {
        None
    };
    if table[0] != sequence_lengths.len() {
        let message = format!(
            "array `block_table`: expected [{}, table_width] as `sequence_lengths` has {0} sequences, found shape {table:?}",
            sequence_lengths.len()
        );
        return Err(Failure::input("shape", message));
    }
    Ok(Schedule { block_table, table_width: table[1], sequence_lengths, sequence_ids, positions })
}

fn causal(args: &ScoreArgs, found: &Inputs) -> Result<bool> {
    Ok(found.boolean("causal", args.causal_flag())?.unwrap_or(true))
}

/// The scale given, else that of plain attention; MLA has no default.
fn scale(args: &ScoreArgs, found: &Inputs, geometry: &Geometry) -> Result<f32> {
    match found.float("scale", args.scale)? {
        Some(scale) => Ok(scale),
        None if geometry.is_mla() => {
            let message =
                "`scale` is missing: with `latent` it has no default (give --scale or a 0-d array)";
            Err(Failure::input("parameter", message))
        }
        None => Ok((1.0 / (geometry.key_dim as f64).sqrt()) as f32),
    }
}

/// What the results depend on.
fn identity<'a>(
    arrays: impl IntoIterator<Item = (&'static str, &'a HostTensor)>,
    schedule: &Schedule,
    options: &Options,
) -> Identity {
    Identity::default()
        .arrays(arrays)
        .schedule(schedule)
        .options([("causal", options.causal.to_string()), ("scale", options.scale.to_string())])
}

/// The sizes by name.
fn sizes(geometry: &Geometry, schedule: &Schedule, plan: &Plan) -> Vec<(&'static str, usize)> {
    vec![
        ("queries", geometry.queries),
        ("heads", geometry.heads),
        ("kv_heads", geometry.kv_heads),
        ("key_dim", geometry.key_dim),
        ("value_dim", geometry.value_dim),
        ("position_dim", geometry.position_dim),
        ("page_size", geometry.page_size),
        ("pages", geometry.pages),
        ("active_pages", plan.active_pages().len()),
        ("sequences", schedule.sequence_lengths.len()),
    ]
}

/// Bytes of a plan's words.
fn plan_bytes(plan: &Plan) -> u64 {
    let pages = [plan.units(), plan.inactive_pages(), plan.row_units().as_flattened()];
    let words = [plan.metadata(), plan.inverse()].into_iter().chain(pages);
    4 * words.map(|words| words.len() as u64).sum::<u64>()
}

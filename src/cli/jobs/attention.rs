//! Resolving `paged-attention-backward` and `history-backward`.

use backslang::HostTensor;
use backslang::kernels::attention::{
    BackwardInputs, Geometry, Gradient, History, Options, Plan, Schedule,
};

use super::{Resolved, Spellings};
use crate::cli::args::{Algorithm, HistoryArgs};
use crate::cli::failure::{Failure, Result};
use crate::cli::inputs::Inputs;
use crate::cli::talk::Talk;

const SHARED: [&str; 10] = [
    "q",
    "output_gradient",
    "block_table",
    "sequence_lengths",
    "sequence_ids",
    "positions",
    "statistics",
    "output",
    "scale",
    "causal",
];

/// The resolved call.
#[derive(Debug)]
pub(crate) struct AttentionJob {
    /// The arrays.
    pub(crate) inputs: BackwardInputs<HostTensor>,
    /// The index arrays.
    pub(crate) schedule: Schedule,
    /// Checked.
    pub(crate) options: Options,
    /// The sizes.
    pub(crate) geometry: Geometry,
    /// The schedule, checked and laid out.
    pub(crate) plan: Plan,
    /// Whether the row statistics are an output too.
    pub(crate) save_statistics: bool,
    pub(super) spellings: Spellings,
}

impl AttentionJob {
    /// Loads and checks everything that the call needs; `history_only` leaves the query kernel's gradients out.
    pub(crate) fn resolve(
        args: &HistoryArgs,
        save_statistics: bool,
        history_only: bool,
        talk: &Talk,
    ) -> Resolved<Self> {
        if args.algorithm == Algorithm::Tiled {
            let message =
                "--algorithm: expected `auto` or `ordered`, found `tiled`, which there is not yet";
            return Err(Failure::usage(message));
        }
        let mut found = Inputs::open(&args.input, talk)?;
        let mla = is_mla(&found)?;
        let history: &[_] = if mla { &["latent", "q_position", "k_position"] } else { &["k", "v"] };
        let known = [SHARED.as_slice(), history].concat();
        let gradients =
            args.gradients.resolve(|g| g.exists(mla) && (g.is_history() || !history_only))?;
        let causal = found.boolean("causal", args.causal_flag())?.unwrap_or(true);
        let scale = found.float("scale", args.scale)?;
        let inputs = arrays(&mut found, mla, &known)?;
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let options = Options {
            causal,
            scale: default_scale(scale, &geometry)?,
            gradients,
            prune_queries: !args.no_prune_queries,
            cache_history: args.cache_history,
            compact_history: args.compact_history,
            query_block_rows: args.query_block_rows,
        };
        options.check()?;
        let schedule = schedule(&found, causal, &known)?;
        let plan = Plan::new(&schedule, &geometry, args.query_block_rows)?;
        let mut pairs = Gradient::ALL.map(|g| (g.output_name(), g.name())).to_vec();
        pairs.push(("statistics", "statistics"));
        let spellings = Spellings::new(&found, &pairs);
        let ignored = found.ignored(&known);
        Ok((
            Self { inputs, schedule, options, geometry, plan, save_statistics, spellings },
            ignored,
        ))
    }
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

fn arrays(found: &mut Inputs, mla: bool, known: &[&str]) -> Result<BackwardInputs<HostTensor>> {
    let q = found.floats("q", known)?;
    let history = if mla {
        History::Latent {
            latent: found.floats("latent", known)?,
            q_position: found.floats("q_position", known)?,
            k_position: found.floats("k_position", known)?,
        }
    } else {
        History::Separate { k: found.floats("k", known)?, v: found.floats("v", known)? }
    };
    Ok(BackwardInputs {
        q,
        history,
        output_gradient: found.floats("output_gradient", known)?,
        statistics: found.optional_singles("statistics")?,
        output: found.optional_floats("output")?,
    })
}

fn schedule(found: &Inputs, causal: bool, known: &[&str]) -> Result<Schedule> {
    let (table, block_table) = found.indices("block_table", "[sequences, table_width]", known)?;
    let (_, sequence_lengths) = found.indices("sequence_lengths", "[sequences]", known)?;
    let (_, sequence_ids) = found.indices("sequence_ids", "[queries]", known)?;
    let positions = if causal || found.has("positions") {
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

/// The scale given, else that of plain attention; MLA has no default.
fn default_scale(scale: Option<f32>, geometry: &Geometry) -> Result<f32> {
    match scale {
        Some(scale) => Ok(scale),
        None if geometry.is_mla() => {
            let message =
                "`scale` is missing: with `latent` it has no default (give --scale or a 0-d array)";
            Err(Failure::input("parameter", message))
        }
        None => Ok((1.0 / (geometry.key_dim as f64).sqrt()) as f32),
    }
}

//! The flags of the attention commands.

use backslang::kernels::attention::{self, Gradients};
use clap::{Args, ValueEnum};

use super::files::FileArgs;
use super::values;

pub(super) const FORWARD_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16: all of one type, but for statistics,
which are float32, and index arrays, of any integer type):
  in   q [queries, heads, key_dim],
       k [pages, page_size, kv_heads, key_dim], v [pages, page_size, kv_heads, value_dim],
       block_table [sequences, table_width], sequence_lengths [sequences],
       sequence_ids, positions [queries]; positions may be left out with --no-causal
  MLA  instead of k and v: latent [pages, page_size, 1, key_dim],
       q_position [queries, heads, position_dim], k_position [pages, page_size, 1, position_dim]
  out  output [queries, heads, value_dim],
       statistics [queries, heads, 2] (maximum, denominator), which the backward takes
  0-d arrays scale and causal set those parameters; a flag overrides them.

Token t of sequence s lies in page block_table[s, t / page_size], slot t % page_size; pages may be
shared, and entries beyond a sequence's length are ignored. Row i belongs to sequence
s = sequence_ids[i] and sees the tokens t < sequence_lengths[s] with t <= positions[i] (counted
from 0). Its head h reads key/value head h / (heads / kv_heads):
  score   scale * (q . k), MLA scale * (q . latent + q_position . k_position)
  output  sum of softmax(score) * v, MLA of softmax(score) * latent, so that value_dim = key_dim
Statistics a row and head: the largest score; the sum of exp(score - maximum). A row that sees
nothing has zeros.

Examples:
  backslang sample paged-attention -o inputs --seed 1
  backslang paged-attention -i inputs -o outputs
  backslang paged-attention -i inputs -o outputs.npz --no-causal";

pub(super) const APPEND_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16: all of one type, but for index arrays,
of any integer type):
  in   new_k [queries, kv_heads, key_dim], new_v [queries, kv_heads, value_dim],
       k [pages, page_size, kv_heads, key_dim], v [pages, page_size, kv_heads, value_dim],
       block_table [sequences, table_width], sequence_lengths [sequences],
       sequence_ids, positions [queries]
  MLA  instead of these: new_latent [queries, 1, key_dim], new_k_position [queries, 1, position_dim],
       latent [pages, page_size, 1, key_dim], k_position [pages, page_size, 1, position_dim]
  out  k and v, MLA latent and k_position: with the new rows in them, all else as it was

Row i goes to token positions[i] of sequence s = sequence_ids[i]: to page
block_table[s, positions[i] / page_size], slot positions[i] % page_size. The lengths count the new
rows in. A slot that two rows go to, and a page written to that is in use elsewhere, are errors.

Examples:
  backslang sample paged-append -o inputs --seed 1
  backslang paged-append -i inputs -o cache
  backslang paged-append -i inputs -o cache.npz";

pub(super) const BACKWARD_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16: all of one type, but for statistics,
which are float32, and index arrays, of any integer type):
  in   those of paged-attention (its --help describes them),
       output_gradient [queries, heads, value_dim]
  opt  statistics [queries, heads, 2 or 3] (maximum, denominator, delta),
       output [queries, heads, value_dim]: both as paged-attention gives them;
       with --accumulate the gradients to add to, under the names of the outputs
  out  a NAME_gradient like NAME for each gradient: q, k, v, MLA q, latent, q_position, k_position;
       statistics with --save-statistics
  0-d arrays scale and causal set those parameters; a flag overrides them.

The forward whose gradients these are is paged-attention; its --help has the formulas. Delta is the
sum of output * output_gradient of a row and head. Statistics are used as given; a log-sum-exp
serves as the pair (lse, 1). What is not given is computed.

Examples:
  backslang sample paged-attention-backward -o inputs.npz --seed 1
  backslang paged-attention-backward -i inputs.npz -o gradients
  backslang paged-attention-backward -i inputs.npz -o some.npz --gradients q,k";

pub(super) const HISTORY_ARRAYS: &str = "\
Arrays: as for paged-attention-backward (see its --help). Without `statistics` they are computed
first.

Examples:
  backslang sample history-backward -o inputs --seed 1
  backslang history-backward -i inputs -o gradients.npz --compact-history
  backslang history-backward -i inputs --plan";

/// Flags of `paged-attention`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttentionArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    #[command(flatten)]
    pub(crate) scores: ScoreArgs,
}

/// Flags of `paged-append`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AppendArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

/// Flags of `paged-attention-backward`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BackwardArgs {
    #[command(flatten)]
    pub(crate) shared: HistoryArgs,

    /// Write the row statistics too, as `statistics` [queries, heads, 3]
    #[arg(long)]
    pub(crate) save_statistics: bool,
}

/// Flags of `history-backward`, which `paged-attention-backward` has too.
#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    #[command(flatten)]
    pub(crate) scores: ScoreArgs,

    /// `all`, or a comma-separated list of q, k, v, q_position, latent, k_position
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = values::gradients)]
    pub(crate) gradients: Gradients,
    /// Add to the gradients that the inputs hold under their outputs' names, such as k_gradient; one rounding at the end
    #[arg(long)]
    pub(crate) accumulate: bool,
    /// Order of the sums
    #[arg(long, value_enum, default_value_t = Algorithm::Auto)]
    pub(crate) algorithm: Algorithm,

    /// Visit also the rows that cannot see a token; same bits
    #[arg(long)]
    pub(crate) no_prune_queries: bool,
    /// Keep a slot's key, value and position row in registers, which the kernel always does: changes nothing
    #[arg(long)]
    pub(crate) cache_history: bool,
    /// Launch only over pages that a query can reach, and zero the rest; same bits
    #[arg(long)]
    pub(crate) compact_history: bool,
    /// Query rows per block of the maxima by which unsorted sequences are pruned; same bits
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) query_block_rows: u32,
}

/// Which tokens a row sees, and how they are scored.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScoreArgs {
    /// Factor of the scores; a finite number > 0 [default: 1/sqrt(key_dim); none with `latent`]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) scale: Option<f32>,
    /// Rows see every token of their sequence, not only those up to their position
    #[arg(long, overrides_with = "causal")]
    pub(crate) no_causal: bool,
    /// Rows see tokens up to their position (the default; overrides a 0-d array `causal`)
    #[arg(long, overrides_with = "no_causal")]
    pub(crate) causal: bool,
}

/// The order in which contributions are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// The best one for the device and the types
    Auto,
    /// In the order of the schedule: the same bits for every setting
    Ordered,
    /// f16 and bf16 by matrix units, 16 rows at a time, in an order of its own
    Tiled,
}

impl From<Algorithm> for attention::Algorithm {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Auto => Self::Auto,
            Algorithm::Ordered => Self::Ordered,
            Algorithm::Tiled => Self::Tiled,
        }
    }
}

impl ScoreArgs {
    /// What the flags say of `causal`, if anything.
    pub(crate) fn causal_flag(&self) -> Option<bool> {
        match (self.causal, self.no_causal) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

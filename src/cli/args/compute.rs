//! The flags of the commands that compute.

use std::path::PathBuf;

use backslang::Dtype;
use backslang::kernels::attention::Gradients;
use clap::{Args, ValueEnum};

use super::values;

pub(super) const MAMBA3_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16: all of one type, but for dt_bias, the
gradients of dt, adt and trap, and the results for dt_bias, which are float32; any number of
leading axes may stand for rows):
  in   projected [rows, projected_width], dt_bias [heads],
       z_gradient, x_gradient [rows, inner_size],
       bh_gradient, ch_gradient [rows, bc_rows, state_size],
       dt_gradient, adt_gradient, trap_gradient [rows, heads],
       angle_gradient [rows, rope_angles]
  out  projected_gradient [rows, projected_width],
       dt_bias_partial [rows, heads], dt_bias_gradient [heads]
  0-d arrays epsilon, dt_min, dt_max and a_floor set those parameters; a flag overrides them.

A row of projected holds z | x | B | C | dd_dt | dd_A | trap | angle, whose widths are inner_size,
inner_size, bc_rows * state_size (twice), heads (three times) and rope_angles. The forward whose
gradients these are:
  z, x, trap, angle  as they are
  bh, ch             B and C, each state row v as v / sqrt(mean(v^2) + epsilon)
  dt                 clamp(softplus(dd_dt + dt_bias), dt_min, dt_max)
  adt                -dt * max(h, a_floor), with h = 1 + dd_A where dd_A >= 0, else 1 / (1 - dd_A)
dt_bias_partial is the gradient of dt_bias row by row; dt_bias_gradient is its sum over the rows.

Examples:
  backslang sample mamba3-preprocess-backward -o inputs --seed 1
  backslang mamba3-preprocess-backward -i inputs -o gradients
  backslang mamba3-preprocess-backward -i inputs -o wide.npz --dt-max 0.2";

pub(super) const ATTENTION_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16: all of one type, but for statistics,
which are float32, and index arrays, of any integer type):
  in   q [queries, heads, key_dim], output_gradient [queries, heads, value_dim],
       k [pages, page_size, kv_heads, key_dim], v [pages, page_size, kv_heads, value_dim],
       block_table [sequences, table_width], sequence_lengths [sequences],
       sequence_ids, positions [queries]
  MLA  instead of k and v: latent [pages, page_size, 1, key_dim],
       q_position [queries, heads, position_dim], k_position [pages, page_size, 1, position_dim]
  opt  statistics [queries, heads, 2 or 3] (maximum, denominator, delta),
       output [queries, heads, value_dim]; positions may be left out with --no-causal
  out  a NAME_gradient like NAME for each gradient; statistics with --save-statistics
  0-d arrays scale and causal set those parameters; a flag overrides them.

Token t of sequence s lies in page block_table[s, t / page_size], slot t % page_size; pages may be
shared, and entries beyond a sequence's length are ignored. Row i belongs to sequence
s = sequence_ids[i] and sees the tokens t < sequence_lengths[s] with t <= positions[i] (counted
from 0). Its head h reads key/value head h / (heads / kv_heads). The forward whose gradients these
are:
  score   scale * (q . k), MLA scale * (q . latent + q_position . k_position)
  output  sum of softmax(score) * v, MLA of softmax(score) * latent, so that value_dim = key_dim
Statistics a row and head: the largest score; the sum of exp(score - maximum); the sum of
output * output_gradient. They are used as given; a log-sum-exp serves as the pair (lse, 1).

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

/// Where the arrays come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Input and output")]
pub(crate) struct InputArgs {
    /// A folder of NAME.npy files, or a .npz archive; repeatable, a later one wins [default: none]
    #[arg(short, long = "input", value_name = "PATH")]
    pub(crate) inputs: Vec<PathBuf>,

    /// A single array; repeatable, wins over --input [default: none]
    #[arg(long = "in", value_name = "NAME=FILE.npy")]
    pub(crate) arrays: Vec<String>,

    /// Element type of the arrays, but for those that always are float32 [default: that of the first one]
    ///
    /// bf16 must be asked for: NumPy has it as two bytes (V2) or as 16-bit words (uint16), which may hold anything.
    /// Arrays are not converted.
    #[arg(long, value_name = "TYPE", value_parser = values::dtype())]
    pub(crate) dtype: Option<Dtype>,
}

/// Where the results go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Input and output")]
pub(crate) struct OutputArgs {
    /// A folder for NAME.npy files (made when missing; other files in it stay), or a .npz archive
    ///
    /// Needed unless --plan is given. All files are complete, or nothing is changed. A link in the place of a file is
    /// replaced; what it points to stays. Archives are not compressed, like those of `numpy.savez`.
    #[arg(short, long, value_name = "PATH", required_unless_present = "plan")]
    pub(crate) output: Option<PathBuf>,

    /// Say what would run, and run nothing; needs no device
    #[arg(long)]
    pub(crate) plan: bool,
}

/// Flags of `mamba3-preprocess-backward`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mamba3Args {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Added to the mean square of a state row; a finite number > 0 [default: 1e-5]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) epsilon: Option<f32>,
    /// Lower clamp of dt; a number with 0 ≤ dt_min ≤ dt_max [default: 0.001]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) dt_min: Option<f32>,
    /// Upper clamp of dt; a number, may be inf [default: 0.1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) dt_max: Option<f32>,
    /// Least magnitude of the decay; a number ≥ 0 [default: 1e-4]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) a_floor: Option<f32>,
}

/// Flags of `paged-attention-backward`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttentionArgs {
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
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Factor of the scores; a finite number > 0 [default: 1/sqrt(key_dim); none with `latent`]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) scale: Option<f32>,
    /// Rows see every token of their sequence, not only those up to their position
    #[arg(long, overrides_with = "causal")]
    pub(crate) no_causal: bool,
    /// Rows see tokens up to their position (the default; overrides a 0-d array `causal`)
    #[arg(long, overrides_with = "no_causal")]
    pub(crate) causal: bool,
    /// `all`, or a comma-separated list of q, k, v, q_position, latent, k_position
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = values::gradients)]
    pub(crate) gradients: Gradients,
    /// Order of the sums
    #[arg(long, value_enum, default_value_t = Algorithm::Auto)]
    pub(crate) algorithm: Algorithm,

    /// Visit also the rows that cannot see a token; same bits
    #[arg(long)]
    pub(crate) no_prune_queries: bool,
    /// Keep a slot's key, value and position row in registers; same bits
    #[arg(long)]
    pub(crate) cache_history: bool,
    /// Launch only over pages that a query can reach, and zero the rest; same bits
    #[arg(long)]
    pub(crate) compact_history: bool,
    /// Query rows per block of the maxima by which unsorted sequences are pruned; same bits
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) query_block_rows: u32,
}

/// The order in which contributions are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// The best one for the device and the types
    Auto,
    /// In the order of the schedule: the same bits for every setting
    Ordered,
    /// By matrix units; not available yet
    Tiled,
}

impl HistoryArgs {
    /// What the flags say of `causal`, if anything.
    pub(crate) fn causal_flag(&self) -> Option<bool> {
        match (self.causal, self.no_causal) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

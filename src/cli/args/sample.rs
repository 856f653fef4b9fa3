//! The flags of `sample`: sizes of the random inputs.

use std::path::PathBuf;

use backslang::Dtype;
use clap::{Args, Subcommand};

use super::values::{self, size};

pub(super) const EXAMPLES: &str = "\
Examples:
  backslang sample paged-attention-backward -o inputs --seed 1
  backslang sample mamba3-preprocess-backward -o inputs.npz --rows 1000";

const MAMBA3: &str = "\
Example:
  backslang sample mamba3-preprocess -o inputs --rows 1000 --seed 1

The same seed and sizes give the backward the same projected and dt_bias.";

const MAMBA3_BACKWARD: &str = "\
Example:
  backslang sample mamba3-preprocess-backward -o inputs --rows 1000 --seed 1";

const ATTENTION: &str = "\
Examples:
  backslang sample paged-attention -o inputs --queries 100 --seed 1
  backslang sample paged-attention -o halves.npz --dtype bf16

The same seed and sizes give the backward the same arrays.";

const APPEND: &str = "\
Example:
  backslang sample paged-append -o inputs.npz --queries 9 --dtype f16";

const BACKWARD: &str = "\
Examples:
  backslang sample paged-attention-backward -o inputs --queries 100 --seed 1
  backslang sample paged-attention-backward -o latent.npz --mla";

const HISTORY: &str = "\
Example:
  backslang sample history-backward -o inputs.npz --pages 100 --sequences 7";

/// The commands that random inputs can be written for.
#[derive(Debug, Subcommand)]
pub(crate) enum SampleCommand {
    /// Inputs of mamba3-preprocess
    #[command(name = "mamba3-preprocess", after_long_help = MAMBA3)]
    Mamba3(SampleArgs<Mamba3Sizes>),
    /// Inputs of mamba3-preprocess-backward
    #[command(name = "mamba3-preprocess-backward", after_long_help = MAMBA3_BACKWARD)]
    Mamba3Backward(SampleArgs<Mamba3Sizes>),
    /// Inputs of paged-attention
    #[command(name = "paged-attention", after_long_help = ATTENTION)]
    Attention(SampleArgs<AttentionSizes>),
    /// Inputs of paged-append
    #[command(name = "paged-append", after_long_help = APPEND)]
    Append(SampleArgs<AppendSizes>),
    /// Inputs of paged-attention-backward
    #[command(name = "paged-attention-backward", after_long_help = BACKWARD)]
    Backward(SampleArgs<AttentionSizes>),
    /// Inputs of history-backward, saved statistics among them
    #[command(name = "history-backward", after_long_help = HISTORY)]
    History(SampleArgs<AttentionSizes>),
}

/// Flags of every `sample` command.
#[derive(Debug, Clone, Args)]
pub(crate) struct SampleArgs<Sizes: Args> {
    /// A folder for NAME.npy files (made when missing; other files in it stay), or a .npz archive
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Start of the random numbers; the same seed and sizes give the same arrays
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Element type of the arrays, but for those that always are float32
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = values::dtype())]
    pub(crate) dtype: Dtype,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
}

/// Sizes of the Mamba-3 preprocess.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct Mamba3Sizes {
    /// Tokens, one row of every array each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = size())]
    pub(crate) rows: usize,
    /// Width of z and of x
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = size())]
    pub(crate) inner_size: usize,
    /// State rows of B and of C a token: groups · mimo_rank
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = size())]
    pub(crate) bc_rows: usize,
    /// Width of one state row
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = size())]
    pub(crate) state_size: usize,
    /// Heads, each with a dt and a decay
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = size())]
    pub(crate) heads: usize,
    /// Rotary angles a token
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = size())]
    pub(crate) rope_angles: usize,
}

/// Sizes of paged attention.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct AttentionSizes {
    /// Query heads; a multiple of the key/value heads
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = size())]
    pub(crate) heads: usize,
    /// Key/value heads [default: 2; with --mla or an odd number of heads 1]
    #[arg(long, value_name = "N", value_parser = size())]
    pub(crate) kv_heads: Option<usize>,
    #[command(flatten)]
    pub(crate) cache: CacheSizes,
}

/// Sizes of an append.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct AppendSizes {
    /// Key/value heads [default: 2; with --mla 1]
    #[arg(long, value_name = "N", value_parser = size())]
    pub(crate) kv_heads: Option<usize>,
    #[command(flatten)]
    pub(crate) cache: CacheSizes,
}

/// Sizes of a paged cache and of the rows that are packed beside it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct CacheSizes {
    /// Packed rows, spread over the sequences
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = size())]
    pub(crate) queries: usize,
    /// Width of a key (with --mla of a latent row), 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = size())]
    pub(crate) key_dim: usize,
    /// Width of a value, 1 to 1024 [default: that of a key]
    #[arg(long, value_name = "N", conflicts_with = "mla", value_parser = size())]
    pub(crate) value_dim: Option<usize>,
    /// Slots a page, one token each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = size())]
    pub(crate) page_size: usize,
    /// Physical pages; some of them shared by the sequences, the last one spare
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = size())]
    pub(crate) pages: usize,
    /// Sequences in the cache
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = size())]
    pub(crate) sequences: usize,
    /// Latent history (MLA) instead of keys and values
    #[arg(long)]
    pub(crate) mla: bool,
    /// Width of MLA's position part, 1 to 256 [default: 16]
    #[arg(long, value_name = "N", requires = "mla", value_parser = size())]
    pub(crate) position_dim: Option<usize>,
}

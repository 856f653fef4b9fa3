//! The flags of `bench`.

use backslang::Dtype;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, Subcommand, ValueEnum};

use super::Algorithm;
use crate::cli::bench::{CASES, SWEEPS};

pub(super) const ABOUT: &str = "\
Cases, each with its sizes in docs/bench.md of the sources; those that end in -forward are the
forward of the same sizes, those that end in -in-place have the gradients of z and x where they
are to go:
  attention-a   4 x 2048 tokens, all of them queries
  attention-b   the last 2048 tokens of 16384
  attention-c   64 x 4096 tokens, one query each: decoding
  attention-d   MLA: 2 x 2048 tokens, latent rows of 512 with 64 positions
  attention-e   32 x 64 tokens after a prefix of 2048 that all share
  mamba3-1      32768 packed rows of 4480 elements
  mamba3-2      the same with 4 state rows
  mamba3-3      262144 packed rows

Inputs are random, and sets of them larger than caches take turns. Shown are the median and the
quartiles of the time on the device, of the whole call and of each kernel. Of the attention, all
products are counted: 3 in the query kernel, 4 in the history kernel. Bytes are those of each input
read once and each output written once. Both are held against what the device did just before:
a product of matrices (of the arrays' type where the device multiplies such, else of f32), a copy.

Examples:
  backslang bench
  backslang bench attention-a mamba3-1 --dtype all
  backslang bench attention-c --forward --repeats 50 --json
  backslang bench host";

const HOST: &str = "\
Measured, each after a run to warm up:
  record, submit and wait   one dispatch, from the recorder to the end of the wait
  of that in the driver     handing it to the queue and waiting, without recording it
  dispatches, recorded      each waits for the one before: as many a second as are recorded
  dispatches, run           and as many as run in one submission
  copy in host memory       what the transfers can be held against
  upload, download          between the device and host memory that is there already
  download to new memory    which the system still has to bring
  kernels and an upload     that take about as long, one after the other, over both at once: 2 is best
  cold start                of a process up to a first result, with nothing compiled before
  warm start                the same with what the processes before it left: see --pipeline-cache

Examples:
  backslang bench host
  backslang bench host --size 1024 --json";

const SCALING: &str = "\
Each sweep varies one size and keeps the others. Shown are the median and the quartiles of the time
on the device, and what that comes to for each visible (row, head, token) triple and for each byte
of inputs and outputs.

Examples:
  backslang bench scaling
  backslang bench scaling mamba3-rows queries --dtype bf16 --json";

/// Flags of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) kernels: KernelBenchArgs,
    #[command(subcommand)]
    pub(crate) other: Option<BenchCommand>,
}

/// What of the kernels is measured. All is left out by default, so that it can be told from what was given.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct KernelBenchArgs {
    /// The cases to measure; all whose arrays the device has memory for when left out
    #[arg(value_name = "CASE", value_parser = PossibleValuesParser::new(CASES.map(|case| case.name)), hide_possible_values = true)]
    pub(crate) cases: Vec<String>,

    /// The element type of the arrays [default: f32]
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) dtype: Option<BenchDtype>,

    /// The order in which the attention backward sums contributions [default: auto]
    #[arg(long, value_enum)]
    pub(crate) algorithm: Option<Algorithm>,

    /// How often each call is repeated, after some to warm up [default: 15]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(crate) repeats: Option<usize>,

    /// Measure the forward of the same sizes as well
    #[arg(long)]
    pub(crate) forward: bool,

    /// For tests: lengths so many times shorter [default: 1]
    #[arg(long, hide = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub(crate) shrink: Option<usize>,
}

/// Which element types are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchDtype {
    /// binary32
    F32,
    /// binary16
    F16,
    /// bfloat16
    Bf16,
    /// One after the other
    All,
}

impl BenchDtype {
    /// The types.
    pub(crate) const fn dtypes(self) -> &'static [Dtype] {
        match self {
            Self::F32 => &[Dtype::F32],
            Self::F16 => &[Dtype::F16],
            Self::Bf16 => &[Dtype::Bf16],
            Self::All => &[Dtype::F32, Dtype::F16, Dtype::Bf16],
        }
    }
}

/// What else can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// How the time of the backwards grows with each of their sizes
    #[command(after_long_help = SCALING)]
    Scaling(ScalingBenchArgs),
    /// What the host adds to the device's work: starts, submissions, transfers
    #[command(after_long_help = HOST)]
    Host(HostBenchArgs),
    /// Compute something small, and say that it is there
    #[command(hide = true)]
    FirstResult,
}

/// Flags of `bench scaling`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScalingBenchArgs {
    /// The sweeps to measure; all when left out
    #[arg(value_name = "SWEEP", value_parser = PossibleValuesParser::new(SWEEPS.map(|(name, _)| name)))]
    pub(crate) sweeps: Vec<String>,

    /// The element type of the arrays [default: f32]
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) dtype: Option<BenchDtype>,

    /// How often each call is repeated, after some to warm up
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(crate) repeats: usize,

    /// For tests: lengths so many times shorter
    #[arg(long, hide = true, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub(crate) shrink: usize,
}

/// Flags of `bench host`.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostBenchArgs {
    /// How often each measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(crate) repeats: usize,
    /// MiB of the array that is uploaded and downloaded [default: 256, or as many as the device gives an array]
    #[arg(long, value_name = "MIB", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub(crate) size: Option<usize>,
}

//! The flags of `bench`.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

pub(super) const EXAMPLES: &str = "\
Examples:
  backslang bench host
  backslang bench host --device 0 --json";

const HOST: &str = "\
Measured, each after a run to warm up:
  record, submit and wait   one dispatch, from the recorder to the end of the wait
  of that in the driver     handing it to the queue and waiting, without recording it
  dispatches, recorded      each waits for the one before: as many a second as are recorded
  dispatches, run           and as many as run in one submission
  copy in host memory       what the transfers can be held against
  upload, download          between the device and host memory that is there already
  download to new memory    which the system still has to bring
  cold start                of a process up to a first result, with nothing compiled before
  warm start                the same with what the processes before it left: see --pipeline-cache

Examples:
  backslang bench host
  backslang bench host --size 1024 --json";

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What the host adds to the device's work: starts, submissions, transfers
    #[command(after_long_help = HOST)]
    Host(HostBenchArgs),
    /// Compute something small, and say that it is there
    #[command(hide = true)]
    FirstResult,
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

//! The flags that say where arrays come from, of which type they are, and where results go.

use std::path::PathBuf;
use std::time::Duration;

use backslang::Dtype;
use backslang::shard::Shard;
use clap::Args;

use super::values;

/// Where arrays come from, and where they go.
#[derive(Debug, Clone, Args)]
pub(crate) struct FileArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) device: DeviceWorkArgs,
}

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

    /// Compute part I of N, counted from 0, and write it for `backslang merge` to join [default: all of the work]
    ///
    /// The N parts, 0/N to N-1/N, may be computed anywhere and in any order; merged, their arrays are those of one run, to
    /// the byte, if the devices are alike. Beside the arrays of a part lies its manifest, shard.json.
    #[arg(long, value_name = "I/N", value_parser = values::shard)]
    pub(crate) shard: Option<Shard>,

    /// Say what would run, and run nothing; needs no device
    #[arg(long)]
    pub(crate) plan: bool,
}

/// How the device is used.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device work")]
pub(crate) struct DeviceWorkArgs {
    /// Most milliseconds that the device is given to do at a time; 0 for all at once
    ///
    /// Where a GPU drives a display too, the system resets it after a few seconds on one piece of work. Results are the
    /// same whatever the pieces. Progress is told, and Ctrl-C heeded, between them.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) slice_ms: u64,
}

impl DeviceWorkArgs {
    /// How long a submission may take.
    pub(crate) fn bound(&self) -> Duration {
        Duration::from_millis(self.slice_ms)
    }
}

pub(super) const MERGE: &str = "\
All N parts are needed, of one command on the same inputs and by the same version; their order does
not matter. Parts are checked against their manifests (shard.json), and nothing is written unless
everything fits.

Examples:
  backslang sample history-backward -o inputs --seed 1
  backslang history-backward -i inputs -o part.0 --shard 0/2
  backslang history-backward -i inputs -o part.1 --shard 1/2
  backslang merge part.0 part.1 -o gradients";

/// Flags of `merge`.
#[derive(Debug, Clone, Args)]
pub(crate) struct MergeArgs {
    /// The parts: folders or .npz archives
    #[arg(value_name = "PART", required = true)]
    pub(crate) parts: Vec<PathBuf>,

    /// A folder for NAME.npy files (made when missing; other files in it stay), or a .npz archive
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
}

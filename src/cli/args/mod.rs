//! The flags, as clap reads them. Help texts are the documentation of each.

mod attention;
mod bench;
mod files;
mod mamba3;
mod run;
mod sample;
mod values;

use std::path::PathBuf;

use backslang::runtime::Validation;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

pub(crate) use attention::{
    Algorithm, AppendArgs, AttentionArgs, BackwardArgs, HistoryArgs, ScoreArgs,
};
pub(crate) use bench::{
    BenchArgs, BenchCommand, BenchDtype, HostBenchArgs, KernelBenchArgs, ScalingBenchArgs,
};
pub(crate) use files::{FileArgs, InputArgs, MergeArgs};
pub(crate) use mamba3::{Mamba3BackwardArgs, Mamba3ForwardArgs, ParameterArgs};
pub(crate) use run::RunArgs;
pub(crate) use sample::{
    AppendSizes, AttentionSizes, CacheSizes, Mamba3Sizes, SampleArgs, SampleCommand,
};

/// Exact, deterministic kernels on any Vulkan GPU, forward and backward.
///
/// Arrays come from .npy files, folders of them, or .npz archives, and go back to such.
#[derive(Debug, Parser)]
#[command(name = "backslang", version, after_long_help = EXAMPLES, max_term_width = 100, disable_help_subcommand = true, arg_required_else_help = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Make random inputs, and compute their gradients on the default GPU:
    backslang sample paged-attention-backward -o inputs --seed 1
    backslang paged-attention-backward -i inputs -o gradients

  The same in float64 on the CPU, to compare with:
    backslang --device reference paged-attention-backward -i inputs -o expected

  What would run, without running it:
    backslang paged-attention-backward -i inputs --plan

Exit codes: 0 done; 2 something wrong in flags or inputs; 1 device, validation, memory, output, or
a failed check; 128 + N ended by signal N, such as 130 by Ctrl-C, with nothing half-written left.";

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Where to compute: an index, a UUID or a part of a name that `backslang devices` lists, `all`, or `reference`
    ///
    /// `all` spreads the work over all GPUs (where there is none, over all software drivers), with the bits of one if they
    /// are alike. `reference` computes in float64 on the CPU and rounds once. By default a real GPU is taken before a software driver.
    /// The environment variable BACKSLANG_DEVICE says the same; the flag overrides it.
    #[arg(
        long, global = true, value_name = "DEVICE", value_parser = NonEmptyStringValueParser::new(),
        value_hint = ValueHint::Other
    )]
    pub(crate) device: Option<String>,

    /// Run under the Vulkan validation layer; any message of it is an error [default: without]
    ///
    /// A list of core, sync and gpu; core,sync when none is given, as in `--validate` alone. The environment variable
    /// BACKSLANG_VALIDATE says the same; the flag overrides it. No layer is an error too.
    #[arg(
        long, global = true, value_name = "WHAT", num_args = 0..=1, require_equals = true,
        default_missing_value = "core,sync", value_parser = values::validation, value_hint = ValueHint::Other
    )]
    pub(crate) validate: Option<Validation>,

    /// Where the driver's compiled kernels are kept from one run to the next; `none` keeps none
    ///
    /// By default backslang/pipelines in the user's cache folder. The environment variable BACKSLANG_PIPELINE_CACHE says the
    /// same; the flag overrides it. Files there may be deleted at any time.
    #[arg(long, global = true, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) pipeline_cache: Option<PathBuf>,

    /// Print one JSON object to standard output, also on failure
    ///
    /// Its keys are command, device, outputs, gpu_ms, wall_ms, error {kind, message} and, depending on the command, plan,
    /// devices, kernels, checks, benches, kernel_benches, scaling, shard, completions, help or version. They are described in
    /// docs/json.md of the sources.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say more, such as which arrays are ignored; repeat for the library's own log
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Flags of `check`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {
    /// The commands to check; all when left out
    #[arg(value_name = "COMMAND", value_parser = values::checked_command())]
    pub(crate) commands: Vec<backslang::check::Command>,

    /// Check arrays of this element type alone [default: f32, f16 and bf16 in turn]
    #[arg(long, value_name = "TYPE", value_parser = values::dtype())]
    pub(crate) dtype: Option<backslang::Dtype>,
}

/// Flags of `completions`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to write for
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

const DEVICES: &str = "\
Examples:
  backslang devices
  backslang devices --json";

const KERNELS: &str = "\
Examples:
  backslang kernels
  backslang kernels --json";

const CHECK: &str = "\
Examples:
  backslang check
  backslang check history-backward --dtype bf16 --device 0";

const COMPLETIONS: &str = "\
Where shells look for the script:
  backslang completions bash > ~/.local/share/bash-completion/completions/backslang
  backslang completions fish > ~/.config/fish/completions/backslang.fish
  backslang completions zsh > FOLDER/_backslang       # FOLDER being one of $fpath
  backslang completions elvish >> ~/.config/elvish/rc.elv
  backslang completions powershell >> $PROFILE

Example:
  source <(backslang completions bash)";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The Mamba-3 projection preprocess
    #[command(name = "mamba3-preprocess", after_long_help = mamba3::FORWARD_ARRAYS)]
    Mamba3Preprocess(Mamba3ForwardArgs),
    /// Gradients of the Mamba-3 projection preprocess
    #[command(name = "mamba3-preprocess-backward", after_long_help = mamba3::BACKWARD_ARRAYS)]
    Mamba3PreprocessBackward(Mamba3BackwardArgs),
    /// Attention over a paged KV cache
    #[command(after_long_help = attention::FORWARD_ARRAYS)]
    PagedAttention(AttentionArgs),
    /// Write new rows to their slots of a paged KV cache
    #[command(after_long_help = attention::APPEND_ARRAYS)]
    PagedAppend(AppendArgs),
    /// Gradients of paged attention: the query kernel, then the history kernel
    #[command(after_long_help = attention::BACKWARD_ARRAYS)]
    PagedAttentionBackward(BackwardArgs),
    /// Gradients of the KV cache alone, from saved statistics when given
    #[command(after_long_help = attention::HISTORY_ARRAYS)]
    HistoryBackward(HistoryArgs),
    /// Run a kernel of your own: compile its Slang file, and bind its parameters by name
    #[command(after_long_help = run::ABOUT, hide = !cfg!(feature = "slang"))]
    Run(RunArgs),
    /// List the Vulkan devices, and what each lacks
    #[command(after_long_help = DEVICES)]
    Devices,
    /// List the kernels of this build
    #[command(after_long_help = KERNELS)]
    Kernels,
    /// Write valid random inputs of a command
    #[command(subcommand, arg_required_else_help = false, after_long_help = sample::EXAMPLES)]
    Sample(SampleCommand),
    /// Check this device against the float64 reference, poisoned memory and its own bits
    ///
    /// Every case runs on inputs made up here and rounded to the type, which float64 gets too. Its error is the relative
    /// Frobenius norm of the difference from float64, that of the output nearest to what is allowed. Outputs begin as
    /// NaN, and so does what no kernel may use; repeated runs and settings that do not change the mathematics must give
    /// the same bits. Takes seconds on a GPU and a minute or two on a CPU.
    #[command(after_long_help = CHECK)]
    Check(CheckArgs),
    /// Measure this device: the kernels at sizes of real use, or what the host adds
    #[command(after_long_help = bench::ABOUT)]
    Bench(BenchArgs),
    /// Join the parts that --shard wrote: the arrays of one run
    #[command(after_long_help = files::MERGE)]
    Merge(MergeArgs),
    /// Print the script by which a shell completes the words of this command
    #[command(after_long_help = COMPLETIONS)]
    Completions(CompletionsArgs),
}

impl Command {
    /// The name as it is typed.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Mamba3Preprocess(_) => "mamba3-preprocess",
            Self::Mamba3PreprocessBackward(_) => "mamba3-preprocess-backward",
            Self::PagedAttention(_) => "paged-attention",
            Self::PagedAppend(_) => "paged-append",
            Self::PagedAttentionBackward(_) => "paged-attention-backward",
            Self::HistoryBackward(_) => "history-backward",
            Self::Run(_) => "run",
            Self::Devices => "devices",
            Self::Kernels => "kernels",
            Self::Sample(_) => "sample",
            Self::Check(_) => "check",
            Self::Bench(_) => "bench",
            Self::Merge(_) => "merge",
            Self::Completions(_) => "completions",
        }
    }
}

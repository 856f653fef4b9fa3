//! The flags of `run`.

use std::path::PathBuf;

use clap::Args;

use super::FileArgs;

/// Flags of `run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// The Slang file with the kernel
    #[arg(value_name = "FILE.slang")]
    pub(crate) file: PathBuf,

    /// The entry point: a function with [shader("compute")] [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) entry: Option<String>,

    /// A push or specialization constant; repeatable [default: what the file gives the constant]
    ///
    /// Push constants have no default. `first_group_x`, `first_group_y` and the constant `lanes`, the subgroup size,
    /// are filled in.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) values: Vec<String>,

    /// Workgroups along x, or along x and y, such as rows/64,heads [default: 1]
    ///
    /// Whole numbers and names of values, multiplied with * and divided with / from left to right; every division
    /// rounds up.
    #[arg(long, value_name = "X[,Y]", default_value = "1", hide_default_value = true)]
    pub(crate) groups: String,

    /// An array that the kernel writes, such as y=[64,32]:f32; repeatable [default: none]
    ///
    /// The type is f32, f16, bf16, u32 or i32; an axis may be written as in --groups. It begins as what --in gives under
    /// its name, else as NaN (all bits set), so that an element which the kernel leaves out shows.
    #[arg(long = "out", value_name = "NAME=[AXES]:TYPE")]
    pub(crate) outs: Vec<String>,

    #[command(flatten)]
    pub(crate) files: FileArgs,
}

pub(super) const ABOUT: &str = "\
Arrays are of float32, float16, integers that fit 32 bits or, with --dtype bf16, bfloat16. An array
NAME goes to the tensor whose place in the heap is the push constant NAME_index. How a kernel is
written, with an example to copy, is in docs/user-kernels.md of the sources.

Nobody checks that the kernel stays within its arrays: what it does beyond them is undefined. The
layer sees it, with --validate=core,gpu.

Example:
  backslang run --help";

//! Whether a device computes what it should: the kernels against the float64 reference, and against their own bits.
//!
//! Every case runs for each element type on inputs rounded to it, which the reference gets too. Outputs hold NaN
//! before, and so does whatever of the inputs may not be read. Results must be within a tolerance of the reference,
//! the same bits on every run, and the same bits under every setting that may not change them.

mod attention;
mod mamba3;
mod random;
mod report;
mod trial;
mod views;

use std::str::FromStr;

pub use report::{CaseReport, TOLERANCE};

use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::runtime::Runtime;

/// The element types that cases run for.
pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// A computation that can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Command {
    /// The Mamba-3 preprocess.
    Mamba3Preprocess,
    /// Its backward.
    Mamba3PreprocessBackward,
    /// The attention forward.
    PagedAttention,
    /// Rows appended to a paged cache, and the gradients of these.
    PagedAppend,
    /// The attention backward: query kernel and history kernel.
    PagedAttentionBackward,
    /// The history kernel with statistics given, and with statistics computed first.
    HistoryBackward,
}

impl Command {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Mamba3Preprocess,
        Self::Mamba3PreprocessBackward,
        Self::PagedAttention,
        Self::PagedAppend,
        Self::PagedAttentionBackward,
        Self::HistoryBackward,
    ];

    /// The name that the command line has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mamba3Preprocess => "mamba3-preprocess",
            Self::Mamba3PreprocessBackward => "mamba3-preprocess-backward",
            Self::PagedAttention => "paged-attention",
            Self::PagedAppend => "paged-append",
            Self::PagedAttentionBackward => "paged-attention-backward",
            Self::HistoryBackward => "history-backward",
        }
    }

    const fn is_mamba3(self) -> bool {
        matches!(self, Self::Mamba3Preprocess | Self::Mamba3PreprocessBackward)
    }
}

impl FromStr for Command {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|command| command.name() == text).ok_or_else(|| {
            Error::Parameter {
                name: "command",
                expected: Self::ALL.map(Self::name).join(", "),
                found: text.into(),
            }
        })
    }
}

/// The names of a command's cases, in the order in which they run.
pub fn cases(command: Command) -> Vec<&'static str> {
    if command.is_mamba3() { mamba3::names(command) } else { attention::names(command) }
}

/// Checks the commands for the element types, case after case; `seen` hears of each. Cases whose results a type cannot
/// hold are left out.
///
/// # Errors
/// What keeps a case from running at all. A wrong result is not an error but a report with faults.
pub fn run(
    runtime: &Runtime,
    commands: &[Command],
    dtypes: &[Dtype],
    mut seen: impl FnMut(&CaseReport),
) -> Result<Vec<CaseReport>> {
    let mut reports = Vec::new();
    let mut add = |report| {
        seen(&report);
        reports.push(report);
    };
    for &command in commands {
        for &dtype in dtypes {
            let check = if command.is_mamba3() { mamba3::check } else { attention::check };
            check(runtime, command, dtype, &mut add)?;
        }
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_names_of_the_command_line() {
        for command in Command::ALL {
            assert_eq!(command.name().parse::<Command>().unwrap(), command);
        }
        assert!("history".parse::<Command>().unwrap_err().is_input());
    }
}

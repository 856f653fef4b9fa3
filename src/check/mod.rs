//! Whether a device computes what it should: the kernels against the float64 reference, and against their own bits.
//!
//! Every case runs on outputs that hold NaN, with NaN wherever the inputs may not be read. Its results must be
//! within a tolerance of the reference, the same bits on every run, and, for the history kernel, the same bits
//! under every setting.

mod attention;
mod mamba3;
mod random;

use std::str::FromStr;
use std::time::Duration;

use ndarray::ArrayD;

use crate::error::{Error, Result};
use crate::host::HostTensor;
use crate::runtime::{Runtime, Submission};

/// Largest relative Frobenius error of a float32 kernel whose scores stay within 8.
pub const TOLERANCE: f64 = 2e-6;

/// What fills outputs before a run, one word a run: different kinds of NaN.
const POISON: [u32; 2] = [0x7fc0_0000, 0xffff_ffff];

/// A computation that can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Command {
    /// The backward of the Mamba-3 preprocess.
    Mamba3PreprocessBackward,
    /// The attention backward: query kernel and history kernel.
    PagedAttentionBackward,
    /// The history kernel with statistics given, and with statistics computed first.
    HistoryBackward,
}

impl Command {
    /// All of them.
    pub const ALL: [Self; 3] =
        [Self::Mamba3PreprocessBackward, Self::PagedAttentionBackward, Self::HistoryBackward];

    /// The name that the command line has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mamba3PreprocessBackward => "mamba3-preprocess-backward",
            Self::PagedAttentionBackward => "paged-attention-backward",
            Self::HistoryBackward => "history-backward",
        }
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

/// How one case went.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CaseReport {
    /// The computation.
    pub command: Command,
    /// What the case is about.
    pub case: &'static str,
    /// The largest relative Frobenius error of an output; NaN when an element was not written.
    pub error: f64,
    /// The largest error that is allowed.
    pub tolerance: f64,
    /// Time of the second run, with everything compiled, on the GPU; `None` where the queue has no timestamps.
    pub gpu: Option<Duration>,
    /// What went wrong, each in a few words; empty when the case passed.
    pub faults: Vec<String>,
}

impl CaseReport {
    /// Whether all is as it should be.
    pub fn passed(&self) -> bool {
        self.faults.is_empty()
    }

    fn new(command: Command, case: &'static str, tolerance: f64) -> Self {
        Self { command, case, error: 0.0, tolerance, gpu: None, faults: Vec::new() }
    }

    /// Holds an output to the reference.
    fn compare(&mut self, output: &str, found: &HostTensor, expected: &ArrayD<f64>) {
        if found.shape() != expected.shape() {
            let shapes = format!("{:?}, not {:?}", found.shape(), expected.shape());
            self.faults.push(format!("{output} has the shape {shapes}"));
            return;
        }
        let error = relative_error(&found.to_f64(), expected);
        // A NaN is larger than any number, and stays.
        if error.is_nan() || error > self.error {
            self.error = error;
        }
        if error.is_nan() || error > self.tolerance {
            self.faults.push(format!("{output} is off by {error:.1e}"));
        }
    }

    /// Holds an output to the bits of an earlier run.
    fn compare_bits(&mut self, output: &str, found: &HostTensor, first: &HostTensor, run: &str) {
        if found.bytes() != first.bytes() {
            self.faults.push(format!("{output} has other bits {run}"));
        }
    }
}

/// The names of a command's cases, in the order in which they run.
pub fn cases(command: Command) -> Vec<&'static str> {
    match command {
        Command::Mamba3PreprocessBackward => mamba3::names(),
        Command::PagedAttentionBackward | Command::HistoryBackward => attention::names(command),
    }
}

/// Checks the commands, case after case; `seen` hears of each.
///
/// # Errors
/// What keeps a case from running at all. A wrong result is not an error but a report with faults.
pub fn run(
    runtime: &Runtime,
    commands: &[Command],
    mut seen: impl FnMut(&CaseReport),
) -> Result<Vec<CaseReport>> {
    let mut reports = Vec::new();
    for &command in commands {
        let mut add = |report| {
            seen(&report);
            reports.push(report);
        };
        match command {
            Command::Mamba3PreprocessBackward => mamba3::check(runtime, &mut add)?,
            Command::PagedAttentionBackward | Command::HistoryBackward => {
                attention::check(runtime, command, &mut add)?;
            }
        }
    }
    Ok(reports)
}

/// ‖found − expected‖ / ‖expected‖; 0 when both are zero, NaN when one has a NaN.
fn relative_error(found: &ArrayD<f64>, expected: &ArrayD<f64>) -> f64 {
    let norm = |squares: f64| squares.sqrt();
    let error = norm(found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum());
    if error == 0.0 { 0.0 } else { error / norm(expected.iter().map(|x| x * x).sum()) }
}

/// Time on the GPU, summed over the dispatches; a queue without timestamps gives none.
fn gpu_time(submission: &Submission) -> Result<Option<Duration>> {
    let timings = submission.timings()?;
    Ok((!timings.is_empty()).then(|| timings.iter().map(|timing| timing.gpu).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CaseReport {
        CaseReport::new(Command::HistoryBackward, "case", TOLERANCE)
    }

    fn tensor(values: &[f32]) -> HostTensor {
        HostTensor::from_f32(&[values.len()], values.to_vec()).unwrap()
    }

    #[test]
    fn what_is_right_passes() {
        let mut report = report();
        report.compare("x", &tensor(&[1.0, -3.0]), &tensor(&[1.0, -3.0]).to_f64());
        report.compare("zeros", &tensor(&[0.0]), &tensor(&[0.0]).to_f64());
        report.compare("nothing", &tensor(&[]), &tensor(&[]).to_f64());
        report.compare_bits("x", &tensor(&[f32::NAN]), &tensor(&[f32::NAN]), "again");
        assert!(report.passed() && report.error == 0.0, "{report:?}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let expected = tensor(&[1.0, -3.0]).to_f64();
        for found in [&[1.0, -3.00002][..], &[1.0, f32::NAN], &[0.0, 0.0], &[1.0]] {
            let mut report = report();
            report.compare("x", &tensor(found), &expected);
            report.compare("later", &tensor(&[1.0, -3.0]), &expected);
            assert!(report.faults.len() == 1 && report.faults[0].starts_with("x "), "{report:?}");
        }
        let mut report = report();
        report.compare("x", &tensor(&[1e-30]), &tensor(&[0.0]).to_f64());
        report.compare_bits("y", &tensor(&[0.0]), &tensor(&[-0.0]), "again");
        assert_eq!(report.faults, ["x is off by inf", "y has other bits again"]);
    }

    #[test]
    fn commands_have_the_names_of_the_command_line() {
        for command in Command::ALL {
            assert_eq!(command.name().parse::<Command>().unwrap(), command);
        }
        assert!("history".parse::<Command>().unwrap_err().is_input());
    }
}

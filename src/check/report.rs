//! How a case went, and what results are held to.

use std::time::Duration;

use ndarray::ArrayD;

use super::Command;
use crate::host::{Dtype, HostTensor};

/// Largest relative Frobenius error of an f32 output where scores stay within 8; in proportion above.
pub const TOLERANCE: f64 = 2e-6;

/// Largest relative Frobenius error of an output of `dtype`: for halves mostly that of the one rounding at the end.
/// `growth` is how much more than [`TOLERANCE`] f32 arithmetic may be off.
pub(super) fn tolerance(dtype: Dtype, growth: f64) -> f64 {
    let rounding: f64 = match dtype {
        Dtype::F16 => 1e-3,
        Dtype::Bf16 => 8e-3,
        _ => 0.0,
    };
    rounding.max(TOLERANCE * growth.max(1.0))
}

/// How one case went.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CaseReport {
    /// The computation.
    pub command: Command,
    /// The element type of the arrays that are not f32 in any case.
    pub dtype: Dtype,
    /// What the case is about.
    pub case: &'static str,
    /// The relative Frobenius error of the output that comes nearest to what is allowed; NaN when an element was not
    /// written.
    pub error: f64,
    /// The largest error that is allowed for that output; 0 where all must be exact.
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

    pub(super) fn new(command: Command, dtype: Dtype, case: &'static str) -> Self {
        Self { command, dtype, case, error: 0.0, tolerance: 0.0, gpu: None, faults: Vec::new() }
    }

    /// Holds an output to the reference.
    pub(super) fn compare(
        &mut self,
        output: &str,
        found: &HostTensor,
        expected: &ArrayD<f64>,
        growth: f64,
    ) {
        if found.shape() != expected.shape() {
            let shapes = format!("{:?}, not {:?}", found.shape(), expected.shape());
            self.faults.push(format!("{output} has the shape {shapes}"));
            return;
        }
        let tolerance = tolerance(found.dtype(), growth);
        let error = relative_error(&found.to_f64(), expected);
        let first = self.tolerance == 0.0;
        // A NaN is nearer than any number, and stays.
        if first || error.is_nan() || error / tolerance > self.error / self.tolerance {
            (self.error, self.tolerance) = (error, tolerance);
        }
        if error.is_nan() || error > tolerance {
            self.faults.push(format!("{output} is off by {error:.1e}"));
        } else if !is_rounded_to_nearest(found, expected) {
            self.faults.push(format!("{output} is not rounded to nearest"));
        }
    }

    /// Holds an output to the bits of another, which `when` says.
    pub(super) fn compare_bits(
        &mut self,
        output: &str,
        found: &HostTensor,
        expected: &HostTensor,
        when: &str,
    ) {
        if found.dtype() != expected.dtype() || found.bytes() != expected.bytes() {
            self.faults.push(format!("{output} has other bits {when}"));
        }
    }
}

/// Whether three quarters of the halves are the reference rounded to nearest. The errors of f32 before the rounding
/// change few; truncation changes every other one and is well within the tolerance.
fn is_rounded_to_nearest(found: &HostTensor, expected: &ArrayD<f64>) -> bool {
    if !found.dtype().is_half() {
        return true;
    }
    let Ok(nearest) = HostTensor::from_f64(found.dtype(), expected) else { return true };
    let (found, nearest) = (found.to_f64(), nearest.to_f64());
    let others = found.iter().zip(&nearest).filter(|(a, b)| a != b).count();
    // Of a few elements, chance may have it that more are others.
    found.len() < 64 || 4 * others <= found.len()
}

/// ‖found − expected‖ / ‖expected‖; 0 when both are zero, NaN when one has a NaN.
fn relative_error(found: &ArrayD<f64>, expected: &ArrayD<f64>) -> f64 {
    let norm = |squares: f64| squares.sqrt();
    let error = norm(found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum());
    if error == 0.0 { 0.0 } else { error / norm(expected.iter().map(|x| x * x).sum()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CaseReport {
        CaseReport::new(Command::HistoryBackward, Dtype::F32, "case")
    }

    fn tensor(values: &[f32]) -> HostTensor {
        HostTensor::from_f32(&[values.len()], values.to_vec()).unwrap()
    }

    #[test]
    fn what_is_right_passes() {
        let mut report = report();
        report.compare("x", &tensor(&[1.0, -3.0]), &tensor(&[1.0, -3.0]).to_f64(), 1.0);
        report.compare("zeros", &tensor(&[0.0]), &tensor(&[0.0]).to_f64(), 1.0);
        report.compare("nothing", &tensor(&[]), &tensor(&[]).to_f64(), 1.0);
        report.compare_bits("x", &tensor(&[f32::NAN]), &tensor(&[f32::NAN]), "again");
        assert!(report.passed() && report.error == 0.0, "{report:?}");
        assert_eq!(report.tolerance, TOLERANCE);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let expected = tensor(&[1.0, -3.0]).to_f64();
        for found in [&[1.0, -3.00002][..], &[1.0, f32::NAN], &[0.0, 0.0], &[1.0]] {
            let mut report = report();
            report.compare("x", &tensor(found), &expected, 1.0);
            report.compare("later", &tensor(&[1.0, -3.0]), &expected, 1.0);
            assert!(report.faults.len() == 1 && report.faults[0].starts_with("x "), "{report:?}");
        }
        let mut report = report();
        report.compare("x", &tensor(&[1e-30]), &tensor(&[0.0]).to_f64(), 1.0);
        report.compare_bits("y", &tensor(&[0.0]), &tensor(&[-0.0]), "again");
        assert_eq!(report.faults, ["x is off by inf", "y has other bits again"]);
    }

    /// An f32 output that is far off its own tolerance tells more than a half that is further off in itself.
    #[test]
    fn the_error_is_that_of_the_output_nearest_to_its_tolerance() {
        let expected = tensor(&[1.0, -3.0]).to_f64();
        let half = |x: f64| HostTensor::from_f64(Dtype::F16, &(&expected * x)).unwrap();
        let mut report = report();
        report.compare("half", &half(1.0), &expected, 1.0);
        assert!(report.passed() && report.tolerance == 1e-3, "{report:?}");
        report.compare("single", &tensor(&[1.00001, -3.00003]), &expected, 1.0);
        assert_eq!(report.tolerance, TOLERANCE);
        assert!(report.faults.len() == 1 && report.error < 1e-4, "{report:?}");
        report.compare("other half", &half(1.01), &expected, 1.0);
        assert_eq!((report.tolerance, report.faults.len()), (1e-3, 2));
    }

    #[test]
    fn halves_that_are_truncated_are_a_fault() {
        let expected = ArrayD::from_shape_fn(vec![100], |i| ((i[0] + 1) as f64).sin());
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let nearest = HostTensor::from_f64(dtype, &expected).unwrap();
            let mut truncated = nearest.to_f64();
            for (found, exact) in truncated.iter_mut().zip(&expected) {
                if found.abs() > exact.abs() {
                    let below =
                        *found * (1.0 - 0.5 / if dtype == Dtype::F16 { 1024.0 } else { 128.0 });
                    *found = below;
                }
            }
            let truncated = HostTensor::from_f64(dtype, &truncated).unwrap();
            let mut report = report();
            report.compare("nearest", &nearest, &expected, 1.0);
            report.compare("truncated", &truncated, &expected, 1.0);
            assert_eq!(report.faults, ["truncated is not rounded to nearest"], "{dtype}");
        }
    }

    #[test]
    fn tolerances_follow_the_type_and_the_scores() {
        assert_eq!(tolerance(Dtype::F32, 0.5), TOLERANCE);
        assert_eq!(tolerance(Dtype::F32, 7.0), 7.0 * TOLERANCE);
        assert_eq!(tolerance(Dtype::F16, 7.0), 1e-3);
        assert!((0.19..0.21).contains(&tolerance(Dtype::Bf16, 1e5)));
    }
}

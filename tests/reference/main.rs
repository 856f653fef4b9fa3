//! The float64 reference: golden cases, finite differences, and the cases that its formulas must survive.

#[path = "../common/golden.rs"]
mod golden;
#[path = "../common/random.rs"]
mod random;

mod attention;
mod finite_differences;
mod golden_cases;
mod mamba3;

use ndarray::ArrayD;

/// The elements as bits, to compare NaN and signed zeros too.
fn bits(array: &ArrayD<f64>) -> Vec<u64> {
    array.iter().map(|x| x.to_bits()).collect()
}

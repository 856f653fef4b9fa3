//! Comparisons that a NaN cannot pass.
#![allow(dead_code, unreachable_pub, reason = "each test binary includes it and uses its share")]

use backslang::HostTensor;
use ndarray::ArrayD;

use super::golden::relative_error;

/// Holds the relative Frobenius error.
pub fn assert_close(found: &HostTensor, expected: &ArrayD<f64>, tolerance: f64, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let error = relative_error(&found.to_f64(), expected);
    assert!(error <= tolerance, "{what}: relative error {error:e}, at most {tolerance:e}");
}

/// Holds every bit.
pub fn assert_same_bits(found: &HostTensor, expected: &HostTensor, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    let size = found.dtype().size();
    let pairs = found.bytes().chunks(size).zip(expected.bytes().chunks(size));
    if let Some(at) = pairs.into_iter().position(|(a, b)| a != b) {
        let [a, b] = [found, expected].map(|tensor| *tensor.to_f64().iter().nth(at).unwrap());
        panic!("{what}: element {at} is {a:e}, not {b:e}");
    }
}

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
    let bits = |tensor: &HostTensor| {
        tensor.as_f32().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let (found, expected) = (bits(found), bits(expected));
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    if let Some(at) = differs {
        let [a, b] = [found[at], expected[at]].map(f32::from_bits);
        panic!("{what}: element {at} is {a:e}, not {b:e}");
    }
}

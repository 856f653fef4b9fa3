//! Float64 on the CPU: an independent twin of every kernel, written straight from the formulas.
//!
//! Inputs are float64 arrays of any memory order, usually widened from what the device gets
//! ([`HostTensor::to_f64`](crate::HostTensor::to_f64)); parameters are the f32 values that the
//! device gets, widened. Every sum runs in float64. Non-finite values propagate as IEEE arithmetic has it.

use std::borrow::Cow;

use ndarray::{ArrayD, IxDyn};

use crate::error::{Error, Result};

pub mod attention;
pub mod mamba3;

/// The elements in row-major order, copied only when the array is laid out otherwise.
fn row_major(array: &ArrayD<f64>) -> Cow<'_, [f64]> {
    match array.as_slice() {
        Some(elements) => Cow::Borrowed(elements),
        None => Cow::Owned(array.iter().copied().collect()),
    }
}

/// The array of `elements` in row-major order.
fn array(name: &'static str, shape: &[usize], elements: Vec<f64>) -> Result<ArrayD<f64>> {
    let found = vec![elements.len()];
    ArrayD::from_shape_vec(IxDyn(shape), elements).map_err(|_| Error::Shape {
        array: name,
        expected: format!("{shape:?}"),
        found,
    })
}

/// `Σ a·b`, in eight interleaved partial sums so that it vectorises.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>();
    sums.iter().sum::<f64>() + rest
}

/// `sums += factor · values`.
fn add_scaled(sums: &mut [f64], factor: f64, values: &[f64]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

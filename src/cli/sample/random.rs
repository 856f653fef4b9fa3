//! Normally distributed arrays.

use std::f64::consts::TAU;

use backslang::{Dtype, HostTensor};

use crate::cli::failure::{Failure, Result};

/// A source of random numbers that repeats for the same seed.
#[derive(Debug)]
pub(super) struct Random {
    uniform: fastrand::Rng,
    spare: Option<f64>,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { uniform: fastrand::Rng::with_seed(seed), spare: None }
    }

    /// Independent standard normals.
    pub(super) fn normals(
        &mut self,
        array: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<HostTensor> {
        self.map_normals(array, dtype, shape, |x| x)
    }

    /// Independent standard normals, each mapped, then rounded to the element type.
    pub(super) fn map_normals(
        &mut self,
        array: &str,
        dtype: Dtype,
        shape: &[usize],
        map: impl Fn(f32) -> f32,
    ) -> Result<HostTensor> {
        let too_large = || {
            let message =
                format!("array `{array}`: expected a shape that fits memory, found {shape:?}");
            Failure::input("too-large", message)
        };
        let count = shape.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis));
        let count = count.ok_or_else(too_large)?;
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| too_large())?;
        values.extend((0..count).map(|_| map(self.normal() as f32)));
        let tensor = HostTensor::from_f32(shape, values)?;
        Ok(if dtype == Dtype::F32 {
            tensor
        } else {
            HostTensor::from_f64(dtype, &tensor.to_f64())?
        })
    }

    /// A whole number below `limit`, or 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { self.uniform.usize(..limit) }
    }

    /// `0..count` in random order.
    pub(super) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        self.uniform.shuffle(&mut order);
        order
    }

    /// Box and Muller's pair, one at a time.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        // In (0, 1]: the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.uniform.f64()).ln()).sqrt();
        let (sine, cosine) = (TAU * self.uniform.f64()).sin_cos();
        self.spare = Some(radius * sine);
        radius * cosine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_repeat_and_have_the_moments_of_normals() {
        let draw =
            |seed| Random::new(seed).normals("x", Dtype::F32, &[40, 501]).map(|x| x.to_f64());
        let x = draw(7).unwrap();
        assert_eq!(x, draw(7).unwrap());
        assert_ne!(x, draw(8).unwrap());
        let mean = x.mean().unwrap();
        let variance = x.mapv(|x| (x - mean) * (x - mean)).mean().unwrap();
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let failure = Random::new(0).normals("q", Dtype::F16, &[1 << 40, 1 << 40]).unwrap_err();
        assert!(failure.input && failure.message.contains("`q`"), "{failure:?}");
    }
}

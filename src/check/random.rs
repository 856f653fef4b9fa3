//! Random numbers for the cases: the same on every machine.

use std::f64::consts::TAU;

use crate::error::Result;
use crate::host::{Dtype, HostTensor};

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// Normally distributed (Box and Muller).
    pub(super) fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        (radius * (TAU * self.uniform()).cos()) as f32
    }

    /// A tensor of normals.
    pub(super) fn normals(&mut self, shape: &[usize]) -> Result<HostTensor> {
        let count = shape.iter().product();
        HostTensor::from_f32(shape, (0..count).map(|_| self.normal()).collect())
    }

    /// A tensor of any bits.
    pub(super) fn any(&mut self, dtype: Dtype, shape: &[usize]) -> Result<HostTensor> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let bytes = (0..bytes).map(|_| self.bits() as u8).collect::<Vec<_>>();
        HostTensor::from_bytes(dtype, shape, &bytes)
    }

    /// `0..count` in random order.
    pub(super) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

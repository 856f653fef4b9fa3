//! Random tensors, quickly: one block of values serves all, from another place on each time.

use std::cell::{Cell, OnceCell};

use backslang::Dtype;
use backslang::kernels::attention::Algorithm;
use backslang::runtime::{Runtime, Tensor};

use crate::cli::failure::Result;

/// Values of the block.
const BLOCK: usize = 1 << 22;
/// Between the places where tensors begin in it: prime, so that they differ.
const STEP: usize = 1_000_003;
/// Bytes that a case's input sets come to together: more than caches hold.
const ROTATED: u64 = 256 << 20;
/// Most sets of inputs.
const MOST_SETS: u64 = 32;

/// Where the values come from.
pub(super) struct Data<'a> {
    pub(super) runtime: &'a Runtime,
    shrink: usize,
    /// Of the attention backward.
    pub(super) algorithm: Algorithm,
    values: Vec<f32>,
    halves: [OnceCell<Vec<u16>>; 2],
    next: Cell<usize>,
}

impl<'a> Data<'a> {
    /// Values with mean 0 and variance 1.
    pub(super) fn new(runtime: &'a Runtime, shrink: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        let reach = 3f32.sqrt();
        let values = (0..(BLOCK / shrink).max(1 << 12)).map(|_| (2.0 * random.f32() - 1.0) * reach);
        let values = values.collect();
        let algorithm = Algorithm::Auto;
        Self { runtime, shrink, algorithm, values, halves: <_>::default(), next: Cell::new(0) }
    }

    /// A tensor of random values.
    pub(super) fn tensor(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.runtime.tensor(name, dtype, shape)?;
        self.fill(&tensor)?;
        Ok(tensor)
    }

    /// Random values for all of a tensor without gaps.
    pub(super) fn fill(&self, tensor: &Tensor) -> Result<()> {
        let block = self.bytes(tensor.dtype());
        let (size, all) = (tensor.dtype().size(), self.values.len());
        let count = tensor.bytes() as usize / size;
        let flat = tensor.reshape(&[count])?;
        let mut done = 0;
        while done < count {
            let from = self.next.get();
            let part = (all - from).min(count - done);
            let view = flat.narrow(0, done..done + part)?;
            self.runtime.write(&view, &block[from * size..(from + part) * size])?;
            done += part;
            // Even, so that parts of halves are whole words.
            self.next.set((from + part + STEP) % all / 2 * 2);
        }
        Ok(())
    }

    /// How many sets of inputs of so many bytes calls take turns with, where so many bytes are free for them.
    pub(super) fn sets(&self, bytes: u64, free: u64) -> u64 {
        let rotated = ROTATED / self.shrink as u64;
        let enough = rotated.div_ceil(bytes.max(1)).min(MOST_SETS);
        enough.min(free / bytes.max(1)).max(1)
    }

    fn bytes(&self, dtype: Dtype) -> &[u8] {
        let halves = |place: usize, round: fn(f32) -> u16| {
            let made = || self.values.iter().map(|&value| round(value)).collect();
            bytemuck::cast_slice(self.halves[place].get_or_init(made))
        };
        match dtype {
            Dtype::F16 => halves(0, |value| half::f16::from_f32(value).to_bits()),
            Dtype::Bf16 => halves(1, |value| half::bf16::from_f32(value).to_bits()),
            _ => bytemuck::cast_slice(&self.values),
        }
    }
}

//! The kernel families: their arrays, shapes, options and how they are recorded on a device.

mod index_range;
mod launch;
mod layout;
mod tensors;
mod windows;

pub mod attention;
#[doc(hidden)]
pub mod ceilings;
pub mod mamba3;
#[doc(hidden)]
pub mod matrix_rate;
mod pack;

pub use launch::{Launch, Target, prepare};
pub use layout::Layout;

use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::manifest::{self, Kernel};
use crate::runtime::{Tensor, Timing};

/// What a call on host arrays gives back.
#[derive(Debug, Clone)]
pub struct Run<T> {
    /// The outputs, downloaded.
    pub outputs: T,
    /// The time of every dispatch on the GPU, in order; empty where the queue has no timestamps.
    pub timings: Vec<Timing>,
}

fn expect_dtype(array: &str, found: Dtype, expected: Dtype) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Dtype {
        array: array.to_owned(),
        expected: expected.name(),
        found: found.to_string(),
    })
}

/// The kernel for tensors of another element type.
fn for_dtype(kernel: &'static Kernel, array: &str, dtype: Dtype) -> Result<&'static Kernel> {
    manifest::kernel(kernel.name, dtype.name()).ok_or_else(|| Error::Dtype {
        array: array.to_owned(),
        expected: "f32, f16 or bf16",
        found: dtype.to_string(),
    })
}

fn expect_tensor(
    array: &'static str,
    tensor: &Tensor,
    dtype: Dtype,
    shape: &[usize],
) -> Result<()> {
    expect_dtype(array, tensor.dtype(), dtype)?;
    expect_shape(array, tensor, shape)?;
    Layout::from(tensor).expect_dense(array)
}

fn expect_shape(array: &'static str, tensor: &Tensor, shape: &[usize]) -> Result<()> {
    if tensor.shape() == shape {
        return Ok(());
    }
    Err(Error::Shape { array, expected: format!("{shape:?}"), found: tensor.shape().to_vec() })
}

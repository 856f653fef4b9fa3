#![doc = include_str!("../README.md")]

pub mod check;
pub mod error;
pub mod host;
pub mod kernels;
pub mod manifest;
pub mod raw;
pub mod reference;
pub mod runtime;
pub mod shard;
#[cfg(feature = "slang")]
pub mod slang;

pub use error::{Error, Rejected, Result};
pub use host::{Dtype, HostTensor};

//! The kernel families: their arrays, shapes, options and how they are recorded on a device.

mod index_range;
mod tensors;

pub mod attention;
pub mod mamba3;

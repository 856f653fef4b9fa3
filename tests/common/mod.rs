//! What the test binaries share.

pub mod compare;
pub mod fence;
pub mod golden;
pub mod gpu;
pub mod random;

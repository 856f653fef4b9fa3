//! Counts against the kernels' 32-bit indices.

use crate::error::{Error, Result};

/// The number of elements of a shape; saturates, and is 0 when any axis is.
pub(crate) fn count(axes: &[usize]) -> u128 {
    axes.iter().fold(1, |n, &axis| n.saturating_mul(axis as u128))
}

/// Fails when a count is beyond the kernels' indices.
pub(crate) fn fits(what: &'static str, found: u128) -> Result<()> {
    let limit = u128::from(u32::MAX);
    if found <= limit { Ok(()) } else { Err(Error::TooLarge { what, found, limit }) }
}

/// A size as the kernels hold it.
pub(crate) fn narrow(what: &'static str, size: usize) -> Result<u32> {
    fits(what, size as u128)?;
    Ok(size as u32)
}

//! How arrays of rows lie, and which slices that pass through are in their place already.

use super::preprocess::Slices;
use crate::error::Result;
use crate::kernels::Layout;
use crate::kernels::layout::Rows;
use crate::runtime::Tensor;

/// Of an array that a kernel reads or writes, its constants `first` and `stride`.
pub(super) fn place(array: &'static str, layout: &Layout<'_>) -> Result<Rows> {
    layout.rows(array, row_axes(array))
}

/// Of how many of the last axes a row is made.
pub(super) fn row_axes(array: &str) -> usize {
    match array {
        "bh" | "ch" | "bh_gradient" | "ch_gradient" => 2,
        _ => 1,
    }
}

/// Where a kernel writes an array.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) rows: Rows,
    /// To f32 scratch, which is packed into halves later: where these do not lie in whole words, two rows share one.
    pub(super) wide: bool,
}

impl Written {
    /// What is not written, or dense f32 scratch.
    pub(super) fn dense(wide: bool) -> Self {
        Self { rows: Rows { first: 0, stride: 0 }, wide }
    }

    /// `widths` are those of the parts of a row that kernels write on their own.
    pub(super) fn new(
        array: &'static str,
        layout: &Layout<'_>,
        widths: impl IntoIterator<Item = usize>,
    ) -> Result<Self> {
        let rows = place(array, layout)?;
        let even = widths.into_iter().all(|width| width.is_multiple_of(2));
        if !layout.dtype().is_half() || even && layout.is_whole_words(rows, row_axes(array)) {
            return Ok(Self { rows, wide: false });
        }
        if layout.expect_dense(array).is_err() {
            return Err(
                layout.refuse(array, "slices of whole words, or no gaps from an aligned start on")
            );
        }
        Ok(Self::dense(true))
    }
}

/// Whether each slice that passes through is to be copied: not where its array is the slice itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copies {
    pub(super) z: bool,
    pub(super) x: bool,
    pub(super) trap: bool,
    pub(super) angle: bool,
}

impl Copies {
    pub(super) const ALL: Self = Self { z: true, x: true, trap: true, angle: true };

    /// Of z, x, trap and angle beside the slices of the packed rows.
    pub(super) fn new(slices: &Slices<Tensor>, [z, x, trap, angle]: [&Tensor; 4]) -> Self {
        Self {
            z: !z.is_same(&slices.z),
            x: !x.is_same(&slices.x),
            trap: !trap.is_same(&slices.trap),
            angle: !angle.is_same(&slices.angle),
        }
    }

    /// Whether the array of this name is to be copied, or is none that passes through.
    pub(super) fn has(&self, array: &str) -> bool {
        match array {
            "z" => self.z,
            "x" => self.x,
            "trap" => self.trap,
            "angle" => self.angle,
            _ => true,
        }
    }
}

//! How the arrays of a call lie in memory, before there need be any memory.

use super::index_range::narrow;
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::runtime::Tensor;
use crate::runtime::strided::{self, Run};

/// Shape, element type and place of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout<'a> {
    shape: &'a [usize],
    dtype: Dtype,
    /// `None` without gaps.
    strides: Option<&'a [usize]>,
    /// In elements from the start of the binding.
    first: usize,
}

/// An array as rows at one distance, each without gaps; in elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// Where the first row begins in its binding.
    pub(super) first: u32,
    /// From one row's start to the next one's: 0 where rows follow each other, so that one variant of a pipeline serves
    /// all widths (`row_begin` in the shaders).
    pub(super) stride: u32,
}

impl<'a> Layout<'a> {
    /// An array without gaps in memory of its own.
    pub fn dense(shape: &'a [usize], dtype: Dtype) -> Self {
        Self { shape, dtype, strides: None, first: 0 }
    }

    /// The shape.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The array as rows, where the last `inner` axes are a row.
    ///
    /// # Errors
    /// [`Error::Layout`] when it has gaps within a row or rows at several distances.
    pub(super) fn rows(&self, array: &'static str, inner: usize) -> Result<Rows> {
        let (outer_shape, row) = self.shape.split_at(self.shape.len().saturating_sub(inner));
        let width = row.iter().product();
        let Some(strides) = self.strides else {
            return Rows::new(0, width, width);
        };
        if self.shape.contains(&0) {
            return Rows::new(0, width, width);
        }
        let (outer, inner) = strides.split_at(outer_shape.len());
        let stride = match strided::runs(outer_shape, outer)[..] {
            [] => width,
            [Run { stride, .. }] => stride,
            _ => return Err(self.refuse(array, "one distance between rows")),
        };
        if !strided::is_dense(row, inner) {
            return Err(self.refuse(array, "rows without gaps"));
        }
        narrow(
            "elements of a view",
            self.first.saturating_add(strided::span(self.shape, strides)),
        )?;
        Rows::new(self.first, stride, width)
    }

    /// Whether rows of halves begin and end at whole words, where the last `inner` axes are a row.
    pub(super) fn is_whole_words(&self, rows: Rows, inner: usize) -> bool {
        let row = &self.shape[self.shape.len().saturating_sub(inner)..];
        let ends = [rows.first as usize, rows.stride as usize, row.iter().product()];
        !self.dtype.is_half() || ends.iter().all(|end| end.is_multiple_of(2))
    }

    /// Fails unless the array has no gaps and begins where its binding does.
    ///
    /// # Errors
    /// [`Error::Layout`].
    pub(super) fn expect_dense(&self, array: &'static str) -> Result<()> {
        let dense = self.strides.is_none_or(|strides| strided::is_dense(self.shape, strides));
        if dense && (self.first == 0 || self.shape.contains(&0)) {
            return Ok(());
        }
        Err(self.refuse(array, "no gaps, from an aligned start on"))
    }

    /// The error for an array that does not lie as it must.
    pub(super) fn refuse(&self, array: &'static str, expected: &str) -> Error {
        let strides = self.strides.map_or_else(|| strided::dense(self.shape), <[usize]>::to_vec);
        Error::Layout {
            array,
            expected: expected.into(),
            found: format!("{:?} with strides {strides:?} at {}", self.shape, self.first),
        }
    }
}

impl<'a> From<&'a Tensor> for Layout<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            strides: Some(tensor.strides()),
            first: tensor.binding_offset(),
        }
    }
}

impl<'a> From<&'a HostTensor> for Layout<'a> {
    fn from(tensor: &'a HostTensor) -> Self {
        Self::dense(tensor.shape(), tensor.dtype())
    }
}

impl Rows {
    fn new(first: usize, stride: usize, width: usize) -> Result<Self> {
        let (first, stride) =
            (narrow("offset of a view", first)?, narrow("stride of a view", stride)?);
        Ok(Self { first, stride: if stride as usize == width { 0 } else { stride } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout<'a>(shape: &'a [usize], strides: &'a [usize], first: usize) -> Layout<'a> {
        Layout { shape, dtype: Dtype::F16, strides: Some(strides), first }
    }

    #[test]
    fn rows_have_one_stride_and_no_gaps() {
        let rows =
            |layout: Layout<'_>| layout.rows("x", 2).map(|rows| (rows.first, rows.stride)).ok();
        assert_eq!(rows(Layout::dense(&[5, 4, 2, 3], Dtype::F32)), Some((0, 0)));
        assert_eq!(rows(layout(&[5, 4, 2, 3], &[24, 6, 3, 1], 7)), Some((7, 0)));
        assert_eq!(rows(layout(&[5, 4, 2, 3], &[40, 10, 3, 1], 7)), Some((7, 10)));
        // Of a single row any distance does.
        assert_eq!(rows(layout(&[1, 2, 3], &[40, 3, 1], 7)), Some((7, 0)));
        assert_eq!(rows(layout(&[2, 3], &[3, 1], 7)), Some((7, 0)));
        assert_eq!(rows(layout(&[5, 4, 2, 3], &[50, 10, 3, 1], 0)), None);
        assert_eq!(rows(layout(&[5, 2, 3], &[40, 4, 1], 0)), None);
        assert_eq!(rows(layout(&[0, 2, 3], &[40, 4, 1], 9)), Some((0, 0)));
        assert_eq!(rows(layout(&[usize::MAX >> 33, 2, 2], &[4, 2, 1], 4)), None);
    }

    #[test]
    fn halves_lie_in_whole_words() {
        let whole = |stride, first, width| {
            let (shape, strides) = ([3, width], [stride, 1]);
            let layout = layout(&shape, &strides, first);
            layout.is_whole_words(layout.rows("x", 1).unwrap(), 1)
        };
        assert!(whole(8, 2, 4));
        assert!(!whole(7, 2, 4) && !whole(8, 1, 4) && !whole(8, 2, 3));
    }

    #[test]
    fn what_must_be_dense_is_held_to_it() {
        assert!(layout(&[3, 4], &[4, 1], 0).expect_dense("k").is_ok());
        let error = layout(&[3, 4], &[5, 1], 2).expect_dense("k").unwrap_err().to_string();
        assert!(error.contains("`k`") && error.contains("[5, 1] at 2"), "{error}");
    }
}

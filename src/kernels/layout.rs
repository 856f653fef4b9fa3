//! How the arrays of a call lie in memory, before there need be any memory.

use super::index_range::narrow;
use super::launch::Target;
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::runtime::Tensor;
use crate::runtime::parts;
use crate::runtime::strided::{self, Run};

/// Shape, element type and place of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout<'a> {
    shape: &'a [usize],
    dtype: Dtype,
    /// `None` without gaps.
    strides: Option<&'a [usize]>,
    /// In elements from the start of the first binding.
    first: usize,
    /// Elements of each binding but the last, where there are several.
    part: Option<usize>,
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

/// The same before it is held against the kernels' indices.
#[derive(Debug, Clone, Copy)]
struct Walk {
    first: usize,
    stride: usize,
    width: usize,
    rows: usize,
}

impl<'a> Layout<'a> {
    /// An array without gaps in memory of its own, which one binding shows.
    pub fn dense(shape: &'a [usize], dtype: Dtype) -> Self {
        Self { shape, dtype, strides: None, first: 0, part: None }
    }

    /// The layout on a device whose bindings are as large as the target's: an array without gaps that is larger lies in
    /// several buffers there.
    #[must_use]
    pub fn on(self, target: Target) -> Self {
        let most = target.max_binding as usize / self.dtype.size();
        let elements = strided::count(self.shape).unwrap_or(usize::MAX);
        match self.strides {
            None if elements > most => {
                Self { part: Some(parts::elements(self.shape, most)), ..self }
            }
            _ => self,
        }
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
        let walk = self.walk(array, inner)?;
        let end = match self.part {
            // Each binding is held against its limit, which is within the indices.
            Some(_) => walk.first.saturating_add(walk.width),
            None => walk.end(),
        };
        narrow("elements of an array", end)?;
        Rows::new(walk.first, walk.stride, walk.width)
    }

    /// The array as rows, and how many each of its bindings shows, 0 where one shows all: of those that a kernel finds
    /// anywhere.
    ///
    /// # Errors
    /// As [`Layout::rows`]; [`Error::Layout`] also when a binding does not begin with a row.
    pub(super) fn parts(&self, array: &'static str, inner: usize) -> Result<(Rows, u32)> {
        let rows = self.rows(array, inner)?;
        let Some(part) = self.part else { return Ok((rows, 0)) };
        let Walk { first, stride, width, .. } = self.walk(array, inner)?;
        if part % stride != 0 || first + width > stride {
            return Err(self.refuse(array, WHOLE_ROWS));
        }
        Ok((rows, narrow("rows of a buffer", part / stride)?))
    }

    /// The rows that other bindings begin with than the rows before them.
    ///
    /// # Errors
    /// [`Error::Layout`] when the array is no rows, or one of them is in two bindings.
    pub(super) fn cuts(&self, array: &'static str, inner: usize) -> Result<Vec<usize>> {
        let Some(part) = self.part else { return Ok(Vec::new()) };
        let Walk { first, stride, width, rows } = self.walk(array, inner)?;
        let of = |element: usize| (first + element) / part;
        let mut cuts = Vec::new();
        let mut row = 0;
        while row < rows {
            let next = ((of(row * stride) + 1) * part - first).div_ceil(stride).min(rows);
            let last = (next - 1) * stride;
            if of(last) != of(last + width - 1) {
                return Err(self.refuse(array, WHOLE_ROWS));
            }
            cuts.push(next);
            row = next;
        }
        cuts.pop();
        Ok(cuts)
    }

    fn walk(&self, array: &'static str, inner: usize) -> Result<Walk> {
        let (outer_shape, row) = self.shape.split_at(self.shape.len().saturating_sub(inner));
        let width = row.iter().fold(1usize, |n, &axis| n.saturating_mul(axis));
        let rows = strided::count(outer_shape).unwrap_or(usize::MAX);
        let dense = Walk { first: 0, stride: width, width, rows };
        let Some(strides) = self.strides else { return Ok(dense) };
        if self.shape.contains(&0) {
            return Ok(dense);
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
        Ok(Walk { first: self.first, stride, width, rows })
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
        let mut found = format!("{:?} with strides {strides:?} at {}", self.shape, self.first);
        if let Some(part) = self.part {
            found += &format!(" in buffers of {part} elements, as a binding holds no more");
        }
        Error::Layout { array, expected: expected.into(), found }
    }
}

impl<'a> From<&'a Tensor> for Layout<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            strides: Some(tensor.strides()),
            first: tensor.binding_offset(),
            part: tensor.binding_elements(),
        }
    }
}

impl<'a> From<&'a HostTensor> for Layout<'a> {
    fn from(tensor: &'a HostTensor) -> Self {
        Self::dense(tensor.shape(), tensor.dtype())
    }
}

/// What is asked of an array in several buffers.
const WHOLE_ROWS: &str = "whole rows, or pages, in each of its buffers";

impl Walk {
    /// Behind the last element.
    fn end(&self) -> usize {
        match self.rows.checked_sub(1) {
            Some(last) if self.width > 0 => {
                last.saturating_mul(self.stride).saturating_add(self.width + self.first)
            }
            _ => 0,
        }
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
        Layout { shape, dtype: Dtype::F16, strides: Some(strides), first, part: None }
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
    fn rows_are_cut_where_buffers_end() {
        let parted = |shape, strides, first, part| Layout {
            part: Some(part),
            ..layout(shape, strides, first)
        };
        let cuts = |layout: Layout<'_>| layout.cuts("x", 1).ok();
        let parts = |layout: Layout<'_>| layout.parts("x", 1).ok().map(|(_, rows)| rows);
        assert_eq!(cuts(layout(&[9, 4], &[4, 1], 0)), Some(vec![]));
        assert_eq!(cuts(parted(&[9, 4], &[4, 1], 0, 16)), Some(vec![4, 8]));
        assert_eq!(cuts(parted(&[8, 4], &[4, 1], 0, 16)), Some(vec![4]));
        // Columns of wider rows; from the second row of a buffer on.
        assert_eq!(cuts(parted(&[9, 4], &[8, 1], 4, 16)), Some(vec![2, 4, 6, 8]));
        assert_eq!(cuts(parted(&[9, 4], &[8, 1], 12, 16)), Some(vec![1, 3, 5, 7]));
        assert_eq!(cuts(parted(&[9, 4], &[4, 1], 0, 18)), None);
        assert_eq!(parts(layout(&[9, 4], &[4, 1], 0)), Some(0));
        assert_eq!(parts(parted(&[9, 4], &[8, 1], 4, 16)), Some(2));
        assert_eq!(parts(parted(&[9, 4], &[8, 1], 12, 16)), None);
        assert_eq!(parts(parted(&[9, 4], &[4, 1], 0, 18)), None);
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

//! Arrays whose outer axes may lie apart: arithmetic of shapes and strides, both in elements.

use std::ops::Range;

/// Elements that follow each other at one distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) length: usize,
    pub(crate) stride: usize,
}

/// The strides of a row-major array without gaps.
pub(crate) fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// The fewest runs, outermost first, that walk the array in row-major order: none for a single element.
pub(crate) fn runs(shape: &[usize], strides: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (&length, &stride) in shape.iter().zip(strides).filter(|(length, _)| **length != 1) {
        match runs.last_mut() {
            Some(outer) if outer.stride == stride.saturating_mul(length) => {
                *outer = Run { length: outer.length.saturating_mul(length), stride };
            }
            _ => runs.push(Run { length, stride }),
        }
    }
    runs
}

/// The number of elements; `None` beyond what can be counted.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |n, &length| n.checked_mul(length))
}

/// Width and distance of the rows, where the array is rows without gaps at one distance of at least their width.
pub(crate) fn rows(shape: &[usize], strides: &[usize]) -> Option<[usize; 2]> {
    match runs(shape, strides)[..] {
        [Run { length, stride: 1 }] => Some([length, length]),
        [Run { stride, .. }] => Some([1, stride]),
        [Run { stride, .. }, Run { length, stride: 1 }] if stride >= length => {
            Some([length, stride])
        }
        _ => None,
    }
}

/// Whether the array has no gaps; so has one without elements.
pub(crate) fn is_dense(shape: &[usize], strides: &[usize]) -> bool {
    shape.contains(&0) || matches!(runs(shape, strides)[..], [] | [Run { stride: 1, .. }])
}

/// From the first element to behind the last.
pub(crate) fn span(shape: &[usize], strides: &[usize]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    1 + shape.iter().zip(strides).map(|(length, stride)| (length - 1) * stride).sum::<usize>()
}

/// The strides under which the same elements in the same order have another shape; `None` where none are: an axis
/// would need two. The shapes have the same number of elements.
pub(crate) fn reshape(shape: &[usize], strides: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    if to.contains(&0) {
        return Some(dense(to));
    }
    let mut left = runs(shape, strides);
    let mut run = left.pop().unwrap_or(Run { length: 1, stride: 1 });
    let mut found = vec![run.stride; to.len()];
    for (stride, &length) in found.iter_mut().zip(to).rev() {
        if run.length == 1
            && let Some(next) = left.pop()
        {
            run = next;
        }
        *stride = run.stride;
        if !run.length.is_multiple_of(length) {
            return None;
        }
        run = Run { length: run.length / length, stride: run.stride.saturating_mul(length) };
    }
    Some(found)
}

/// The elements in row-major order, as ranges without gaps of at most `most` elements each.
pub(crate) fn pieces(
    shape: &[usize],
    strides: &[usize],
    most: usize,
) -> impl Iterator<Item = Range<usize>> {
    let empty = shape.contains(&0);
    let mut outer = runs(shape, strides);
    let inner = match outer.last() {
        Some(&Run { length, stride: 1 }) => {
            outer.pop();
            length
        }
        _ => 1,
    };
    let rows = if empty { 0 } else { outer.iter().map(|run| run.length).product() };
    (0..rows).flat_map(move |row| {
        let mut rest = row;
        let start = outer.iter().rev().fold(0, |start, run| {
            let index = rest % run.length;
            rest /= run.length;
            start + index * run.stride
        });
        (0..inner).step_by(most).map(move |i| start + i..start + inner.min(i + most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_change_where_strides_allow() {
        assert_eq!(reshape(&[2, 6], &dense(&[2, 6]), &[4, 3]), Some(vec![3, 1]));
        // Columns of a packed array: split and join within a row, not over rows.
        assert_eq!(reshape(&[5, 6], &[10, 1], &[5, 2, 3]), Some(vec![10, 3, 1]));
        assert_eq!(reshape(&[5, 2, 3], &[10, 3, 1], &[1, 5, 6]), Some(vec![50, 10, 1]));
        assert_eq!(reshape(&[5, 6], &[10, 1], &[30]), None);
        assert_eq!(reshape(&[5, 6], &[10, 1], &[10, 3]), None);
        assert_eq!(reshape(&[4, 5, 6], &[50, 10, 1], &[20, 6]), Some(vec![10, 1]));
        assert_eq!(reshape(&[4, 1], &[7, 1], &[4]), Some(vec![7]));
        assert_eq!(reshape(&[1], &[1], &[]), Some(vec![]));
        assert_eq!(reshape(&[0, 3], &[3, 1], &[7, 0]), Some(vec![0, 1]));
    }

    #[test]
    fn pieces_cover_every_element_in_order() {
        let (shape, strides) = ([2, 3, 4], [100, 10, 1]);
        let all: Vec<_> = pieces(&shape, &strides, 3).flatten().collect();
        let expected: Vec<_> = (0..24).map(|i| i / 12 * 100 + i / 4 % 3 * 10 + i % 4).collect();
        assert_eq!(all, expected);
        assert!(pieces(&shape, &dense(&shape), 100).eq(std::iter::once(0..24)));
        assert_eq!(pieces(&[3, 1], &[5, 1], 9).collect::<Vec<_>>(), [0..1, 5..6, 10..11]);
        assert_eq!(pieces(&[3, 0], &[5, 1], 9).count(), 0);
        assert!(pieces(&[], &[], 9).eq(std::iter::once(0..1)));
        assert_eq!(span(&shape, &strides), 124);
        assert!(is_dense(&[1, 4], &[9, 1]) && !is_dense(&[2, 4], &[9, 1]));
    }
}

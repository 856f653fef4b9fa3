//! Calls on tensors beyond one binding: each launch that owns rows goes over windows of them, each of which one binding
//! shows of every tensor.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::Target;
use crate::error::Result;
use crate::host::Dtype;
use crate::runtime::{Runtime, Tensor};

/// Bytes of scratch of a kernel that works in windows.
const SCRATCH: u64 = 64 << 20;

/// Rows of any width and of any element type begin where bindings may, when they are so many from another one that does.
const ROWS: usize = 128;

/// All of `rows`, cut where a tensor's binding ends and into windows of at most `most` rows.
pub(super) fn windows(
    rows: usize,
    most: usize,
    cuts: impl IntoIterator<Item = Vec<usize>>,
) -> Vec<Range<usize>> {
    let mut ends: BTreeSet<_> = cuts.into_iter().flatten().collect();
    ends.insert(rows);
    let mut start = 0;
    let mut windows = Vec::new();
    for end in ends {
        while end - start > most {
            windows.push(start..start + most);
            start += most;
        }
        windows.push(start..end);
        start = end;
    }
    windows
}

/// Rows of f32 scratch at a time, of `width` elements each.
pub(super) fn scratch_rows(width: usize, target: Target) -> usize {
    let rows = SCRATCH.min(target.max_binding) as usize / width.saturating_mul(4).max(1);
    (rows / ROWS * ROWS).max(ROWS)
}

/// These rows of a tensor, of which the last `inner` axes are a row. What is all of it stays as it is.
pub(super) fn narrow(tensor: &Tensor, inner: usize, rows: &Range<usize>) -> Result<Tensor> {
    let (outer, row) = tensor.shape().split_at(tensor.shape().len().saturating_sub(inner));
    let all = outer.iter().product();
    if *rows == (0..all) {
        return Ok(tensor.clone());
    }
    tensor.reshape(&[&[all], row].concat())?.narrow(0, rows.clone())
}

/// f32 scratch of windows, the same memory for all of them.
pub(super) struct Scratch {
    largest: usize,
    kept: HashMap<&'static str, Tensor>,
}

impl Scratch {
    /// For these windows.
    pub(super) fn new(windows: &[Range<usize>]) -> Self {
        let largest = windows.iter().map(Range::len).max().unwrap_or(0);
        Self { largest, kept: HashMap::new() }
    }

    /// Scratch of this shape, that of one of the windows, which has `rows` rows.
    pub(super) fn get(
        &mut self,
        runtime: &Runtime,
        name: &'static str,
        rows: usize,
        shape: &[usize],
    ) -> Result<Tensor> {
        let elements = shape.iter().product::<usize>();
        let all = match self.kept.entry(name) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(place) => {
                let most = elements / rows.max(1) * self.largest.max(1);
                place.insert(runtime.tensor(name, Dtype::F32, &[most])?)
            }
        };
        all.narrow(0, 0..elements)?.reshape(shape)
    }
}

/// Bytes of scratch of a call in these windows, where a row has so many elements of it.
pub(super) fn scratch_bytes(windows: &[Range<usize>], width: usize) -> u64 {
    let largest = windows.iter().map(Range::len).max().unwrap_or(0);
    (largest as u64).saturating_mul(width as u64).saturating_mul(4)
}

/// Fails where a binding cannot hold the scratch of a call of so many rows.
pub(super) fn check_scratch(
    runtime: &Runtime,
    name: &str,
    rows: usize,
    width: usize,
) -> Result<()> {
    let most = scratch_rows(width, Target::of(runtime));
    runtime.check_binding(name, Dtype::F32, &[rows.min(most), width])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_the_rows() {
        assert!(windows(10, 100, []).into_iter().eq(std::iter::once(0..10)));
        assert!(windows(0, 100, []).into_iter().eq(std::iter::once(0..0)));
        assert_eq!(windows(10, 100, [vec![4, 8], vec![], vec![5]]), [0..4, 4..5, 5..8, 8..10]);
        assert_eq!(windows(300, 128, [vec![150]]), [0..128, 128..150, 150..278, 278..300]);
    }

    #[test]
    fn scratch_is_bounded() {
        let target = Target::TYPICAL;
        assert_eq!(scratch_rows(64, target), (64 << 20) / 256);
        assert_eq!(scratch_rows(1 << 20, target), 128);
        assert_eq!(scratch_rows(100, Target { max_binding: 100_000, ..target }), 128);
        assert_eq!(scratch_rows(0, target), 64 << 20);
    }
}

//! Parts of arrays in host memory, and of the schedules that go with them.

use std::ops::Range;

use super::cost::used_pages;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::{Geometry, Schedule};

/// The places of the first axis that are listed, and of axis `axis` a range.
pub(super) fn select(
    tensor: &HostTensor,
    places: &[usize],
    axis: usize,
    range: &Range<usize>,
) -> HostTensor {
    let mut shape = tensor.shape().to_vec();
    (shape[0], shape[axis]) = (places.len(), range.len());
    let mut part = HostTensor::zeros(tensor.dtype(), &shape);
    let (from, to) = (tensor.bytes(), part.bytes_mut());
    for_each_run(tensor.shape(), tensor.dtype().size(), places, axis, range, |at, place| {
        to[place].copy_from_slice(&from[at]);
    });
    part
}

/// Puts back what [`select`] gives.
pub(super) fn replace(
    tensor: &mut HostTensor,
    places: &[usize],
    axis: usize,
    range: &Range<usize>,
    part: &HostTensor,
) {
    let (shape, size) = (tensor.shape().to_vec(), tensor.dtype().size());
    let (from, to) = (part.bytes(), tensor.bytes_mut());
    for_each_run(&shape, size, places, axis, range, |at, place| {
        to[at].copy_from_slice(&from[place]);
    });
}

/// Runs of bytes, in the whole and in the part.
fn for_each_run(
    shape: &[usize],
    size: usize,
    places: &[usize],
    axis: usize,
    range: &Range<usize>,
    mut copy: impl FnMut(Range<usize>, Range<usize>),
) {
    let middle: usize = shape[1..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product::<usize>() * size;
    let (row, length) = (shape[axis] * inner, range.len() * inner);
    if length == 0 {
        return;
    }
    let mut place = 0;
    for &outer in places {
        for i in 0..middle {
            let at = (outer * middle + i) * row + range.start * inner;
            copy(at..at + length, place..place + length);
            place += length;
        }
    }
}

/// Rows of an array whose first `leading` axes count `total` rows, as `[rows, …]`.
pub(super) fn rows(
    tensor: &HostTensor,
    total: usize,
    leading: usize,
    range: &Range<usize>,
) -> Result<HostTensor> {
    let shape = [&[range.len()], &tensor.shape()[leading..]].concat();
    let bytes = tensor.bytes().len() / total.max(1);
    let part = &tensor.bytes()[range.start * bytes..range.end * bytes];
    HostTensor::from_bytes(tensor.dtype(), &shape, part)
}

/// The arrays one after the other, along the first axis; `shape` is that of none of them.
pub(super) fn joined(dtype: Dtype, shape: &[usize], parts: &[HostTensor]) -> HostTensor {
    let mut shape = shape.to_vec();
    shape[0] = parts.iter().map(|part| part.shape()[0]).sum();
    let mut whole = HostTensor::zeros(dtype, &shape);
    let mut rest = whole.bytes_mut();
    for part in parts {
        let (head, tail) = rest.split_at_mut(part.bytes().len());
        head.copy_from_slice(part.bytes());
        rest = tail;
    }
    whole
}

/// The schedule of these rows alone. A sequence without any of them has no tokens.
pub(super) fn of_rows(schedule: &Schedule, rows: &[usize]) -> Schedule {
    let pick = |values: &[i128]| rows.iter().map(|&row| values[row]).collect::<Vec<_>>();
    let sequence_ids = pick(&schedule.sequence_ids);
    let mut sequence_lengths = vec![0; schedule.sequence_lengths.len()];
    for &sequence in &sequence_ids {
        sequence_lengths[sequence as usize] = schedule.sequence_lengths[sequence as usize];
    }
    Schedule {
        block_table: schedule.block_table.clone(),
        table_width: schedule.table_width,
        sequence_lengths,
        positions: schedule.positions.as_deref().map(pick),
        sequence_ids,
    }
}

/// The pages that a schedule uses and those of a range, increasing; and the schedule on these alone.
pub(super) fn compact(
    mut schedule: Schedule,
    geometry: &Geometry,
    range: Range<usize>,
) -> (Schedule, Vec<usize>) {
    let mut pages = range.collect::<Vec<_>>();
    for sequence in 0..schedule.sequence_lengths.len() {
        pages.extend(used_pages(&schedule, geometry, sequence).iter().map(|&page| page as usize));
    }
    pages.sort_unstable();
    pages.dedup();
    for sequence in 0..schedule.sequence_lengths.len() {
        let used = used_pages(&schedule, geometry, sequence).len();
        let begin = sequence * schedule.table_width;
        for entry in &mut schedule.block_table[begin..begin + used] {
            *entry = pages.partition_point(|&page| (page as i128) < *entry) as i128;
        }
    }
    (schedule, pages)
}

/// Whether each sequence's pages have one of a range in them.
pub(super) fn reaching(
    schedule: &Schedule,
    geometry: &Geometry,
    pages: &Range<usize>,
) -> Vec<usize> {
    let reaches = (0..schedule.sequence_lengths.len()).map(|sequence| {
        let mut used = used_pages(schedule, geometry, sequence).iter();
        used.any(|&page| pages.contains(&(page as usize)))
    });
    let reaches = reaches.collect::<Vec<_>>();
    let rows = 0..schedule.sequence_ids.len();
    rows.filter(|&row| reaches[schedule.sequence_ids[row] as usize]).collect()
}

/// Units in a row as blocks: whole heads of `length` units each, and parts of heads before and after.
pub(super) fn blocks(units: Range<usize>, length: usize) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut at = units.start;
    while at < units.end {
        let (head, first) = (at / length, at % length);
        let heads = if first == 0 { ((units.end - at) / length).max(1) } else { 1 };
        let last = length.min(first + units.end - at);
        blocks.push(Block { heads: head..head + heads, places: first..last });
        at += heads * (last - first);
    }
    blocks
}

/// Some key/value heads, of each the same rows or pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) heads: Range<usize>,
    pub(super) places: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(heads: Range<usize>, places: Range<usize>) -> Block {
        Block { heads, places }
    }

    #[test]
    fn units_are_at_most_three_blocks() {
        assert_eq!(blocks(0..12, 4), [block(0..3, 0..4)]);
        assert_eq!(blocks(5..7, 4), [block(1..2, 1..3)]);
        assert_eq!(blocks(3..5, 4), [block(0..1, 3..4), block(1..2, 0..1)]);
        let three = [block(0..1, 2..4), block(1..3, 0..4), block(3..4, 0..1)];
        assert_eq!(blocks(2..13, 4), three);
        assert_eq!(blocks(3..3, 4), []);
        assert_eq!(blocks(0..0, 0), []);
    }

    #[test]
    fn what_is_selected_can_be_put_back() {
        let data = (0..48).map(|n| n as f32).collect();
        let whole = HostTensor::from_f32(&[4, 2, 3, 2], data).unwrap();
        let part = select(&whole, &[3, 1], 2, &(1..3));
        assert_eq!(part.shape(), [2, 2, 2, 2]);
        assert_eq!(part.as_f32().unwrap()[..4], [38.0, 39.0, 40.0, 41.0]);
        let mut again = HostTensor::zeros(Dtype::F32, &[4, 2, 3, 2]);
        replace(&mut again, &[3, 1], 2, &(1..3), &part);
        assert_eq!(select(&again, &[3, 1], 2, &(1..3)), part);
        assert_eq!(select(&whole, &[0, 1, 2, 3], 1, &(0..2)), whole);
        assert_eq!(select(&whole, &[], 2, &(0..0)).shape(), [0, 2, 0, 2]);
    }
}

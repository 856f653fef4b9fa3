//! The units of an array that shards are dealt.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};

/// How an array falls into units: some of its axes count them, the others are what a unit is made of.
///
/// A part has its units one after the other, `[units, the other axes]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Units {
    view: Vec<usize>,
    axes: Vec<usize>,
}

/// A run of elements: where it begins in the whole and in the part, and how long it is.
type Copied = (usize, usize, usize);

impl Units {
    /// Of an array seen as one of shape `view`, whose axes `axes` count the units, the first one slowest.
    ///
    /// # Errors
    /// [`Error::Parameter`] for axes that are not there, or twice, and for a shape beyond what can be counted.
    pub fn new(view: &[usize], axes: &[usize]) -> Result<Self> {
        let distinct = (0..view.len()).filter(|axis| axes.contains(axis)).count();
        let counted = view.iter().try_fold(1usize, |n, &length| n.checked_mul(length.max(1)));
        if distinct == axes.len() && counted.is_some_and(|n| n <= isize::MAX as usize / 8) {
            return Ok(Self { view: view.to_vec(), axes: axes.to_vec() });
        }
        Err(Error::Parameter {
            name: "units",
            expected: format!("different axes of a shape that memory can hold, {view:?}"),
            found: format!("{axes:?}"),
        })
    }

    /// The units of the first axis.
    pub(super) fn of_rows(view: Vec<usize>) -> Self {
        Self { view, axes: vec![0] }
    }

    /// Key/value heads × the first axis, where `view` has the key/value heads at `axis`.
    pub(super) fn of_heads(view: Vec<usize>, axis: usize) -> Self {
        Self { view, axes: vec![axis, 0] }
    }

    /// The shape of the whole array, an axis of it divided in two perhaps.
    pub fn view(&self) -> &[usize] {
        &self.view
    }

    /// The axes that count the units, the slowest one first.
    pub fn axes(&self) -> &[usize] {
        &self.axes
    }

    /// How many units there are.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|&axis| self.view[axis]).product()
    }

    /// The elements of the whole.
    pub fn elements(&self) -> usize {
        self.view.iter().product()
    }

    /// The shape of a part of so many units.
    pub fn part_shape(&self, units: usize) -> Vec<usize> {
        std::iter::once(units).chain(self.unit_axes().map(|axis| self.view[axis])).collect()
    }

    /// Copies units out of the whole array.
    pub(super) fn take(&self, whole: &HostTensor, units: Range<usize>) -> HostTensor {
        let mut part = HostTensor::zeros(whole.dtype(), &self.part_shape(units.len()));
        let (size, from) = (whole.dtype().size(), whole.bytes());
        let to = part.bytes_mut();
        self.for_each_run(units, |(at, place, length)| {
            to[place * size..][..length * size]
                .copy_from_slice(&from[at * size..][..length * size]);
        });
        part
    }

    /// Copies the units of a part to their places in the whole array.
    pub(super) fn put(&self, whole: &mut HostTensor, units: Range<usize>, part: &HostTensor) {
        let size = whole.dtype().size();
        let (to, from) = (whole.bytes_mut(), part.bytes());
        self.for_each_run(units, |(at, place, length)| {
            to[at * size..][..length * size]
                .copy_from_slice(&from[place * size..][..length * size]);
        });
    }

    /// Whether `part` can be these units of `whole`.
    pub(super) fn check(
        &self,
        array: &str,
        dtype: Dtype,
        units: &Range<usize>,
        part: &HostTensor,
    ) -> Result<()> {
        let within = units.start <= units.end && units.end <= self.count();
        let expected = self.part_shape(units.len());
        if within && part.dtype() == dtype && part.shape() == expected {
            return Ok(());
        }
        Err(Error::Parameter {
            name: "part",
            expected: format!(
                "{dtype} {expected:?} for units {units:?} of {} of `{array}`",
                self.count()
            ),
            found: format!("{} {:?}", part.dtype(), part.shape()),
        })
    }

    /// The axes that a unit is made of.
    fn unit_axes(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.view.len()).filter(|axis| !self.axes.contains(axis))
    }

    fn for_each_run(&self, units: Range<usize>, mut copy: impl FnMut(Copied)) {
        let strides = crate::runtime::strided::dense(&self.view);
        // The last axes of a unit that are the last ones of the whole, too, lie together.
        let outer = self.axes.iter().max().map_or(0, |&last| last + 1);
        let length: usize = self.view[outer..].iter().product();
        let inner: Vec<usize> = self.unit_axes().filter(|&axis| axis < outer).collect();
        let runs: usize = inner.iter().map(|&axis| self.view[axis]).product();
        let place = |axes: &[usize], index: usize| {
            let mut rest = index;
            axes.iter().rev().fold(0, |sum, &axis| {
                let here = rest % self.view[axis];
                rest /= self.view[axis];
                sum + here * strides[axis]
            })
        };
        if length == 0 || runs == 0 {
            return;
        }
        for (n, unit) in units.enumerate() {
            let base = place(&self.axes, unit);
            for run in 0..runs {
                copy((base + place(&inner, run), (n * runs + run) * length, length));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(shape: &[usize]) -> HostTensor {
        let data = (0..shape.iter().product::<usize>()).map(|n| n as f32).collect();
        HostTensor::from_f32(shape, data).unwrap()
    }

    #[test]
    fn parts_are_put_back_where_they_were() {
        for (view, axes) in [
            (vec![5, 3], vec![0]),
            (vec![3, 2, 4, 5], vec![2, 0]),
            (vec![3, 4, 2, 5], vec![1, 0]),
            (vec![3, 4], vec![1, 0]),
            (vec![3, 0, 2], vec![1, 0]),
            (vec![3, 2, 0], vec![1, 0]),
        ] {
            let units = Units::new(&view, &axes).unwrap();
            let whole = counting(&view);
            let mut again = HostTensor::zeros(Dtype::F32, &view);
            let middle = units.count() / 3;
            for range in [0..middle, middle..units.count()] {
                let part = units.take(&whole, range.clone());
                units.check("a", Dtype::F32, &range, &part).unwrap();
                units.put(&mut again, range, &part);
            }
            assert_eq!(again, whole, "{view:?}");
        }
    }

    #[test]
    fn heads_go_before_rows() {
        let units = Units::of_heads(vec![3, 2, 2], 1);
        let part = units.take(&counting(&[3, 2, 2]), 2..4);
        // Row 2 of head 0, row 0 of head 1.
        assert_eq!(part.as_f32().unwrap(), [8.0, 9.0, 2.0, 3.0]);
        assert_eq!(part.shape(), [2, 2]);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Units::new(&[2, 3], &[0, 0]).is_err());
        assert!(Units::new(&[2, 3], &[2]).is_err());
        assert!(Units::new(&[usize::MAX, 3], &[0]).is_err());
        let units = Units::new(&[2, 3], &[0]).unwrap();
        for (range, shape) in [(0..2, [1, 3]), (1..3, [2, 3]), (0..1, [1, 2])] {
            assert!(units.check("a", Dtype::F32, &range, &counting(&shape)).is_err());
        }
        assert!(units.check("a", Dtype::F16, &(0..1), &counting(&[1, 3])).is_err());
    }
}

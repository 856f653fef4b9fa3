//! How packed rows are shared out to subgroups, and by how much at a time they are read and written.

use super::preprocess::Geometry;
use crate::error::Result;
use crate::host::Dtype;
use crate::kernels::Target;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::runtime::Load;

/// Most invocations of a workgroup; fewer where the device allows fewer.
const WORKGROUP_SIZE: u32 = 512;

/// Quads of words that a lane has of a part of a copy, all under way at once.
pub(super) const COPY_QUADS: u32 = 2;

/// Most words of a state row that a lane has in registers at a time.
const STATE_SLOTS: u32 = 8;

/// Invocations of a workgroup: whole subgroups.
pub(super) fn workgroup_size(Target { lanes, max_workgroup, .. }: Target) -> u32 {
    (WORKGROUP_SIZE.min(max_workgroup) / lanes).max(1) * lanes
}

/// Words of a state row that a lane has in registers at a time: as many as it has of it, in few variants.
pub(super) fn state_slots(geometry: &Geometry, dtype: Dtype, target: Target) -> u32 {
    let words = geometry.state_size.div_ceil(per_word(dtype));
    let slots = words.div_ceil(target.lanes as usize).min(STATE_SLOTS as usize);
    (slots.max(1) as u32).next_power_of_two()
}

/// The parts of a row, of which a subgroup has one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// Of the z slice.
    pub(super) z: u32,
    /// Of the x slice.
    pub(super) x: u32,
    /// Of the heads; the first has the angles.
    pub(super) heads: u32,
    /// All of them, the state rows among them.
    all: usize,
}

impl Parts {
    /// Of a row of these sizes, in which z, x and the angles are copied or not.
    pub(super) fn new(
        geometry: &Geometry,
        dtype: Dtype,
        [z, x, angle]: [bool; 3],
        target: Target,
    ) -> Result<Self> {
        let lanes = target.lanes as usize;
        let words = geometry.inner_size.div_ceil(per_word(dtype));
        let inner = words.div_ceil(4 * COPY_QUADS as usize * lanes);
        let heads = geometry.heads.div_ceil(lanes);
        let angles = usize::from(angle && geometry.rope_angles > 0);
        let parts = |of: usize| narrow("parts of a row", of);
        let (z, x) = (if z { inner } else { 0 }, if x { inner } else { 0 });
        let heads = heads.max(angles);
        let states = geometry.filled_bc_rows().saturating_mul(2);
        let all = z.saturating_add(x).saturating_add(heads).saturating_add(states);
        Ok(Self { z: parts(z)?, x: parts(x)?, heads: parts(heads)?, all })
    }

    /// Workgroups of so many rows.
    pub(super) fn groups(&self, rows: usize, target: Target) -> Result<usize> {
        let parts = rows.saturating_mul(self.all);
        // The kernel counts through them.
        narrow("parts of rows", parts)?;
        Ok(parts.div_ceil(subgroups(target)))
    }

    /// What a workgroup costs, where a row comes to so many elements that are read or written.
    pub(super) fn load(&self, elements: usize, target: Target) -> Load {
        let cost = elements.saturating_mul(subgroups(target)) / self.all.max(1);
        Load::Even(cost as u64)
    }
}

fn subgroups(target: Target) -> usize {
    (workgroup_size(target) / target.lanes) as usize
}

/// Elements of a word.
pub(super) fn per_word(dtype: Dtype) -> usize {
    4 / dtype.size()
}

/// Whether rows of `width` elements begin at multiples of `of` elements, and what begins or ends in them at the places
/// `within` does, too. A binding is as aligned as its device wants accesses of 16 bytes to be.
pub(super) fn at_multiples(of: usize, rows: Rows, width: usize, within: &[usize]) -> bool {
    let Rows { first, stride } = rows;
    let stride = if stride == 0 { width } else { stride as usize };
    [first as usize, stride].iter().chain(within).all(|place| place.is_multiple_of(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            leading: vec![3],
            rows: 3,
            inner_size: 2048,
            bc_rows: 2,
            state_size: 128,
            heads: 33,
            rope_angles: 5,
        }
    }

    #[test]
    fn parts_cover_a_row() {
        let target = Target::TYPICAL;
        let parts = |geometry: &Geometry, dtype, copied| {
            Parts::new(geometry, dtype, copied, target).unwrap()
        };
        let all = parts(&geometry(), Dtype::F32, [true; 3]);
        assert_eq!((all.z, all.x, all.heads, all.all), (8, 8, 2, 22));
        assert_eq!(all.groups(3, target).unwrap(), 66usize.div_ceil(16));
        let halves = parts(&geometry(), Dtype::F16, [true, false, true]);
        assert_eq!((halves.z, halves.x, halves.all), (4, 0, 10));
        // Angles without heads; nothing at all.
        let few = Geometry { heads: 0, bc_rows: 0, ..geometry() };
        assert_eq!(parts(&few, Dtype::F32, [false, false, true]).all, 1);
        let none = parts(&few, Dtype::F32, [false; 3]);
        assert_eq!(none.groups(3, target).unwrap(), 0);
        assert_eq!(none.load(100, target), Load::Even(1600));
        assert!(all.groups(1 << 31, target).is_err());
    }

    #[test]
    fn state_rows_are_kept_in_few_variants() {
        let slots = |state_size, dtype| {
            state_slots(&Geometry { state_size, ..geometry() }, dtype, Target::TYPICAL)
        };
        assert_eq!(
            [0, 1, 32, 33, 64, 65, 128, 129].map(|n| slots(n, Dtype::F32)),
            [1, 1, 1, 2, 2, 4, 4, 8]
        );
        assert_eq!(slots(128, Dtype::F16), 2);
        assert_eq!(slots(1000, Dtype::F32), 8);
    }

    #[test]
    fn places_decide_what_is_moved_at_once() {
        // Dense, from an aligned start on; from others; rows at other distances; a slice elsewhere.
        for (first, stride, width, within, f32, halves) in [
            (0, 0, 64, 32, [true, true], [true, true]),
            (4, 0, 64, 0, [true, true], [true, false]),
            (3, 0, 64, 0, [true, false], [false, false]),
            (2, 0, 64, 0, [true, false], [true, false]),
            (0, 72, 63, 0, [true, true], [true, true]),
            (0, 70, 64, 0, [true, false], [true, false]),
            (0, 0, 63, 0, [true, false], [false, false]),
            (0, 0, 64, 12, [true, true], [true, false]),
            (0, 0, 64, 13, [true, false], [false, false]),
        ] {
            let rows = Rows { first, stride };
            let of = |dtype| {
                [1, 4].map(|words| at_multiples(words * per_word(dtype), rows, width, &[within]))
            };
            let what = format!("{rows:?} of {width}, {within} within");
            assert_eq!((of(Dtype::F32), of(Dtype::Bf16)), (f32, halves), "{what}");
        }
    }
}

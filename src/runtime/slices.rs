//! Grids cut into slices of a bounded time, each a submission of its own.

use std::ops::Range;
use std::time::Duration;

use super::grid::{self, Piece};
use crate::error::Result;

/// What the workgroups of a grid cost against each other: array elements that each reads or writes, roughly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Load {
    /// As much for each workgroup.
    Even(u64),
    /// Along x only.
    Columns {
        /// Workgroups next to each other along x that cost the same.
        run: u32,
        /// What the workgroups of all runs before cost, one of each run; one more than there are runs.
        before: Vec<u64>,
    },
}

impl Load {
    /// Each of `costs` is that of a workgroup of `run` next to each other along x.
    pub(crate) fn columns(run: u32, costs: impl IntoIterator<Item = u64>) -> Self {
        let mut before = vec![0u64];
        let mut total = 0u64;
        before.extend(costs.into_iter().map(|cost| {
            total = total.saturating_add(cost.max(1));
            total
        }));
        Self::Columns { run: run.max(1), before }
    }

    /// Of one workgroup in column `x`.
    fn of(&self, x: u32) -> u64 {
        match self {
            Self::Even(cost) => (*cost).max(1),
            Self::Columns { run, before } => {
                let at = (x / run) as usize;
                before.get(at..at + 2).map_or(1, |ends| (ends[1] - ends[0]).max(1))
            }
        }
    }

    /// Of one workgroup of each column before `x`.
    fn before(&self, x: u32) -> u64 {
        match self {
            Self::Even(cost) => (*cost).max(1).saturating_mul(x.into()),
            Self::Columns { run, before } => {
                let whole = before.get((x / run) as usize).or(before.last()).copied().unwrap_or(0);
                let rest = u64::from(x % run);
                let rest = if rest == 0 { 0 } else { rest.saturating_mul(self.of(x)) };
                whole.saturating_mul((*run).into()).saturating_add(rest)
            }
        }
    }

    /// The most that one workgroup of these columns costs.
    fn heaviest(&self, columns: Range<u32>) -> u64 {
        match self {
            Self::Even(cost) => (*cost).max(1),
            Self::Columns { run, .. } => {
                let runs = columns.start / run..columns.end.div_ceil(*run);
                runs.map(|at| self.of(at * run)).max().unwrap_or(1)
            }
        }
    }
}

/// A grid that is cut into slices. Its workgroups are in order of their columns, and within one of y.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    grid: [u32; 2],
    load: &'a Load,
    /// Workgroups that are in slices already.
    done: u64,
}

/// Workgroups of a grid that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    workgroups: Range<u64>,
    /// What they cost together.
    pub(super) cost: u64,
    /// What all of the grid to their end costs.
    pub(super) reached: u64,
    /// The most that one of them costs.
    pub(super) heaviest: u64,
    /// Whether the grid ends with them.
    pub(super) last: bool,
}

/// How much a slice may be. It always has a workgroup.
#[derive(Debug, Clone, Copy)]
pub(super) enum Size {
    /// All that is left.
    Whole,
    /// So many workgroups.
    Workgroups(u64),
    /// As many as cost so much.
    Cost(u64),
}

impl<'a> Cut<'a> {
    pub(super) fn new(grid: [u32; 2], load: &'a Load) -> Self {
        Self { grid, load, done: 0 }
    }

    /// What the whole grid costs.
    pub(super) fn cost(&self) -> u64 {
        self.reached(self.workgroups())
    }

    fn workgroups(&self) -> u64 {
        u64::from(self.grid[0]) * u64::from(self.grid[1])
    }

    fn place(&self, workgroup: u64) -> [u32; 2] {
        let rows = u64::from(self.grid[1].max(1));
        // Within the grid, so within 32 bits.
        [(workgroup / rows) as u32, (workgroup % rows) as u32]
    }

    /// What the workgroups before this one cost.
    fn reached(&self, workgroup: u64) -> u64 {
        let [x, y] = self.place(workgroup);
        let columns = self.load.before(x).saturating_mul(self.grid[1].into());
        let rest = if y == 0 { 0 } else { self.load.of(x).saturating_mul(y.into()) };
        columns.saturating_add(rest)
    }

    /// The next slice, until there is none.
    pub(super) fn next(&mut self, size: Size) -> Option<Slice> {
        let (start, all) = (self.done, self.workgroups());
        if start >= all {
            return None;
        }
        let end = match size {
            Size::Whole => all,
            Size::Workgroups(count) => all.min(start.saturating_add(count.max(1))),
            Size::Cost(cost) => self.end(self.reached(start).saturating_add(cost)),
        };
        self.done = end;
        let (begun, reached) = (self.reached(start), self.reached(end));
        Some(Slice {
            workgroups: start..end,
            cost: reached - begun,
            reached,
            heaviest: self.load.heaviest(self.place(start)[0]..self.place(end - 1)[0] + 1),
            last: end == all,
        })
    }

    /// The end of the workgroups that together with all before cost no more than `limit`, and of one at least.
    fn end(&self, limit: u64) -> u64 {
        let (mut low, mut high) = (self.done + 1, self.workgroups());
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.reached(middle) <= limit { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// The dispatches of a slice: the rest of a column, whole columns, and the start of one, each of at most `limit`
    /// workgroups an axis.
    pub(super) fn pieces(&self, slice: &Slice, limit: [u32; 2]) -> Result<Vec<Piece>> {
        let rows = self.grid[1];
        let [mut x, y] = self.place(slice.workgroups.start);
        let [end, rest] = self.place(slice.workgroups.end);
        let mut pieces = Vec::new();
        let mut add = |first: [u32; 2], count: [u32; 2]| -> Result<()> {
            for piece in grid::split(count.map(u64::from), limit)? {
                let [x, y] = piece.first;
                pieces.push(Piece { first: [first[0] + x, first[1] + y], count: piece.count });
            }
            Ok(())
        };
        if x == end {
            add([x, y], [1, rest - y])?;
            return Ok(pieces);
        }
        if y > 0 {
            add([x, y], [1, rows - y])?;
            x += 1;
        }
        if x < end {
            add([x, 0], [end - x, rows])?;
        }
        if rest > 0 {
            add([end, 0], [1, rest])?;
        }
        Ok(pieces)
    }
}

impl Slice {
    pub(super) fn count(&self) -> u64 {
        self.workgroups.end - self.workgroups.start
    }
}

/// How much of a kernel fits a submission, learned from the submissions before.
#[derive(Debug)]
pub(super) struct Pace {
    /// What the next slice may cost.
    cost: u64,
    /// Seconds for each unit of cost that a workgroup alone takes, or less: no slice is done sooner than its heaviest.
    alone: f64,
    /// Whether the first slice, in which a software driver compiles the kernel, is over.
    warm: bool,
    /// Whether it was said that even one workgroup takes too long.
    told: bool,
}

/// The most that a slice may be larger than one that was timed: the next workgroups may be of another kind.
const GROWTH: f64 = 8.0;

impl Pace {
    /// Begins with a single workgroup: its time bounds from below what cutting can reach.
    pub(super) fn new() -> Self {
        Self { cost: 0, alone: f64::INFINITY, warm: false, told: false }
    }

    pub(super) fn size(&self) -> Size {
        Size::Cost(self.cost)
    }

    /// Takes in what a slice took. The next ones aim at a quarter of `bound`: those after it may be heavier than they
    /// look. Where one workgroup alone takes longer, they are as large as take twice its time, within the bound if that
    /// can be: with fewer workgroups a device would idle.
    pub(super) fn learn(&mut self, kernel: &str, slice: &Slice, took: Duration, bound: Duration) {
        if !std::mem::replace(&mut self.warm, true) {
            return;
        }
        let took = took.as_secs_f64().max(1e-9);
        let bound = bound.as_secs_f64();
        let (cost, heaviest) = (slice.cost as f64, slice.heaviest as f64);
        self.alone = self.alone.min(took / heaviest);
        let alone = self.alone * heaviest;
        if slice.count() == 1 && took > bound && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                "a workgroup of `{kernel}` alone takes {took:.1} s: no submission of it can be shorter"
            );
        }
        let goal = (bound / 4.0).max((2.0 * alone).min(bound.max(1.25 * alone)));
        let factor = (goal / took).min(GROWTH);
        if factor < 1.0 {
            self.cost = (cost * factor) as u64;
            return;
        }
        // One more workgroup at least.
        let next = (cost * factor + heaviest) as u64;
        // The end of a grid says nothing against more.
        self.cost = if slice.last { self.cost.max(next) } else { next };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All slices of a grid, and the workgroups of each.
    fn slices(
        grid: [u32; 2],
        load: &Load,
        mut size: impl FnMut() -> Size,
    ) -> Vec<(Slice, Vec<[u32; 2]>)> {
        let mut cut = Cut::new(grid, load);
        let mut slices = Vec::new();
        while let Some(slice) = cut.next(size()) {
            let mut places = Vec::new();
            for Piece { first: [x, y], count: [columns, rows] } in
                cut.pieces(&slice, [3, 2]).unwrap()
            {
                assert!((1..=3).contains(&columns) && (1..=2).contains(&rows));
                places.extend((x..x + columns).flat_map(|x| (y..y + rows).map(move |y| [x, y])));
            }
            assert_eq!(places.len() as u64, slice.count());
            slices.push((slice, places));
        }
        slices
    }

    fn loads() -> [Load; 3] {
        [Load::Even(5), Load::columns(1, [0, 9, 1, 1, 40, 2, 3]), Load::columns(3, [7, 100, 1])]
    }

    #[test]
    fn every_workgroup_is_in_one_slice() {
        for grid in [[7, 1], [1, 7], [7, 3], [2, 9], [1, 1]] {
            let mut all: Vec<_> =
                (0..grid[0]).flat_map(|x| (0..grid[1]).map(move |y| [x, y])).collect();
            all.sort_unstable();
            for load in loads() {
                let sizes = (1..30).flat_map(|n| [Size::Workgroups(n), Size::Cost(3 * n)]);
                for size in sizes.chain([Size::Whole, Size::Cost(0), Size::Cost(u64::MAX)]) {
                    let slices = slices(grid, &load, || size);
                    let mut seen: Vec<_> =
                        slices.iter().flat_map(|(_, places)| places.clone()).collect();
                    seen.sort_unstable();
                    assert_eq!(seen, all, "{grid:?} {load:?} {size:?}");
                    let last: Vec<_> = slices.iter().map(|(slice, _)| slice.last).collect();
                    assert_eq!(last.iter().rposition(|last| !last), last.len().checked_sub(2));
                }
            }
        }
    }

    #[test]
    fn costs_are_those_of_the_workgroups() {
        for load in loads() {
            let grid = [7, 3];
            let total = Cut::new(grid, &load).cost();
            let mut reached = 0;
            for (slice, places) in slices(grid, &load, || Size::Cost(60)) {
                let costs: Vec<_> = places.iter().map(|&[x, _]| load.of(x)).collect();
                reached += slice.cost;
                assert_eq!(slice.cost, costs.iter().sum::<u64>());
                assert_eq!(slice.reached, reached);
                assert!(slice.heaviest >= *costs.iter().max().unwrap());
                assert!(slice.cost <= 60 || slice.count() == 1, "{slice:?}");
            }
            assert_eq!(reached, total);
        }
    }

    #[test]
    fn vast_costs_and_grids_do_not_overflow() {
        let load = Load::columns(1, [u64::MAX, u64::MAX]);
        let all = slices([2, 2], &load, || Size::Cost(u64::MAX));
        assert_eq!(all.iter().map(|(slice, _)| slice.count()).sum::<u64>(), 4);
        let even = Load::Even(u64::MAX);
        let mut cut = Cut::new([u32::MAX; 2], &even);
        assert_eq!(cut.cost(), u64::MAX);
        assert_eq!(cut.next(Size::Cost(5)).unwrap().count(), 1);
        let rest = cut.next(Size::Whole).unwrap();
        assert_eq!(rest.count(), u64::from(u32::MAX).pow(2) - 1);
        assert!(cut.next(Size::Whole).is_none());
    }

    const BOUND: Duration = Duration::from_secs(1);

    /// The times of slices of a grid on a device that runs `width` workgroups at a time, each taking `unit` seconds a
    /// unit of cost.
    fn times(grid: [u32; 2], load: &Load, width: f64, unit: f64, compiled: f64) -> Vec<f64> {
        let (mut cut, mut pace) = (Cut::new(grid, load), Pace::new());
        let mut times = Vec::new();
        // As on a device, a slice is sent before the one before it was timed.
        let mut sent: Option<(Slice, f64)> = None;
        while let Some(slice) = cut.next(pace.size()) {
            let first = if times.is_empty() { compiled } else { 0.0 };
            let took = first + (slice.cost as f64 / width).max(slice.heaviest as f64) * unit;
            if let Some((slice, took)) = sent.replace((slice, took)) {
                pace.learn("k", &slice, Duration::from_secs_f64(took), BOUND);
            }
            times.push(took);
        }
        times
    }

    #[test]
    fn slices_grow_until_they_take_a_quarter_of_the_bound() {
        for (width, unit) in [(1.0, 1e-5), (100.0, 1e-4), (4000.0, 1e-3), (4000.0, 1e-6)] {
            let times = times([2_000_000, 4], &Load::Even(1), width, unit, 9.0);
            let (all, longest) = (
                times.iter().skip(1).sum::<f64>(),
                times.iter().skip(1).copied().fold(0.0, f64::max),
            );
            assert!(longest < 0.3, "{width} {unit}: {longest}");
            // No more of them than it takes, but for those at the start.
            assert!(
                (times.len() as f64) < 30.0 + all / 0.2,
                "{width} {unit}: {} in {all}",
                times.len()
            );
        }
    }

    #[test]
    fn a_workgroup_longer_than_the_goal_does_not_leave_the_device_idle() {
        for alone in [0.2, 0.4, 0.8, 3.0] {
            let times = times([100_000, 1], &Load::Even(1), 1000.0, alone, 0.0);
            let longest = times.iter().copied().fold(0.0, f64::max);
            assert!(longest <= f64::max(1.0, 1.3 * alone), "{alone}: {longest}");
            let least = 100.0 * alone;
            let all = times.iter().sum::<f64>();
            assert!(all < 2.0 * least, "{alone}: {all} for {least}");
        }
    }

    /// Free pages, then those of a long sequence, which cost 100,000 times as much.
    #[test]
    fn known_costs_keep_the_bound_where_they_jump() {
        let light = std::iter::repeat_n(1, 500_000);
        let load =
            Load::columns(16, light.clone().chain(std::iter::repeat_n(100_000, 500)).chain(light));
        let times = times([16 * 1_000_500, 2], &load, 100.0, 1e-6, 0.0);
        assert!(times.iter().all(|&took| took < 0.5), "{times:?}");
        // Unknown, the jump is seen when it is too late, and once only.
        let mut pace = Pace::new();
        let even = Load::Even(1);
        let mut cut = Cut::new([u32::MAX, 1], &even);
        let mut over = 0;
        for round in 0..100 {
            let slice = cut.next(pace.size()).unwrap();
            let unit = if round < 50 { 1e-7 } else { 1e-5 };
            let took = slice.cost as f64 * unit;
            over += u32::from(took > 1.0);
            pace.learn("k", &slice, Duration::from_secs_f64(took), BOUND);
        }
        assert_eq!(over, 1);
    }
}

//! What the kernels read of a plan: their index arithmetic, word for word, over bounded memory.

use backslang::kernels::attention::{Geometry, Plan, Schedule};
use fastrand::Rng;

use crate::random::{ScheduleCase, for_seeds};

use crate::geometry;

/// A 32-bit index as kernels compute it; an overflow panics.
#[derive(Clone, Copy)]
struct Index(u32);

impl std::ops::Add<u32> for Index {
    type Output = Self;
    fn add(self, other: u32) -> Self {
        Self(self.0.checked_add(other).unwrap())
    }
}

impl std::ops::Mul<u32> for Index {
    type Output = Self;
    fn mul(self, other: u32) -> Self {
        Self(self.0.checked_mul(other).unwrap())
    }
}

/// The words of a plan as the kernels of one call see them.
struct Kernels<'a> {
    plan: &'a Plan,
    metadata: &'a [u32],
    inverse: &'a [u32],
    units: &'a [u32],
    queries: u32,
    sequences: u32,
    table_width: u32,
    page_size: u32,
    kv_heads: u32,
    /// Elements of the cache, by its wider row.
    elements: u64,
    width: u32,
    pages: u32,
}

impl<'a> Kernels<'a> {
    fn new(plan: &'a Plan, geometry: &Geometry) -> Self {
        let width = geometry.key_dim.max(geometry.value_dim) as u32;
        Self {
            plan,
            metadata: plan.metadata(),
            inverse: plan.inverse(),
            units: plan.units(),
            queries: plan.queries(),
            sequences: plan.sequences(),
            table_width: plan.table_width(),
            page_size: geometry.page_size as u32,
            kv_heads: geometry.kv_heads as u32,
            elements: (geometry.slots() * geometry.kv_heads) as u64 * u64::from(width),
            width,
            pages: geometry.pages as u32,
        }
    }

    fn word(words: &[u32], at: Index) -> u32 {
        words[at.0 as usize]
    }

    fn sequence_id(&self, row: u32) -> u32 {
        let sequence = Self::word(self.metadata, Index(row));
        assert!(sequence < self.sequences);
        sequence
    }

    fn position(&self, row: u32) -> u32 {
        assert!(row < self.queries);
        Self::word(self.metadata, Index(self.queries) + row)
    }

    fn length(&self, sequence: u32) -> u32 {
        assert!(sequence < self.sequences);
        Self::word(self.metadata, Index(2) * self.queries + sequence)
    }

    fn page(&self, sequence: u32, logical: u32) -> u32 {
        let table = (Index(2) * self.queries + self.sequences).0;
        let page = Self::word(self.metadata, Index(sequence) * self.table_width + logical + table);
        assert!(logical < self.table_width && page < self.pages);
        page
    }

    /// The elements of a row of the cache are there.
    fn touch_cache(&self, page: u32, offset: u32) {
        for kv_head in [0, self.kv_heads - 1] {
            let row = (Index(page) * self.page_size + offset) * self.kv_heads + kv_head;
            assert!(u64::from((row * self.width + (self.width - 1)).0) < self.elements);
        }
    }

    /// The query kernel: the first and last tokens that each row sees, and some between.
    fn queries(&self, causal: bool, rng: &mut Rng) {
        for row in 0..self.queries {
            let sequence = self.sequence_id(row);
            let (length, position) = (self.length(sequence), self.position(row));
            let visible = if causal && position < length { position + 1 } else { length };
            for _ in 0..8 {
                let Some(last) = visible.checked_sub(1) else { break };
                let token = [0, last, rng.u32(0..=last)][rng.usize(0..3)];
                self.touch_cache(
                    self.page(sequence, token / self.page_size),
                    token % self.page_size,
                );
            }
        }
    }

    /// The history kernel: the first and last slots of a unit, and some between.
    fn history(&self, compact: bool, rng: &mut Rng) {
        let count = if compact { self.plan.active_unit_count() } else { self.plan.unit_count() };
        let unit_slots = self.plan.unit_slots() as u32;
        for unit in 0..count as u32 {
            let [begin, pages, first] =
                [0, 1, 2].map(|i| Self::word(self.units, Index(3) * unit + i));
            let slots = (Index(pages) * self.page_size).0;
            let last = unit_slots.min(slots - first) - 1;
            for _ in 0..4 {
                let slot = first + [0, last, rng.u32(0..=last)][rng.usize(0..3)];
                let page = Self::word(self.units, Index(begin) + slot / self.page_size);
                self.touch_cache(page, slot % self.page_size);
                self.slot(page, slot % self.page_size);
                // Its links run beside those of the tile's first page.
                let other = Self::word(self.units, Index(begin) + first / self.page_size);
                assert!(self.sequences_of(page).eq(self.sequences_of(other)));
            }
        }
    }

    fn sequences_of(&self, page: u32) -> impl Iterator<Item = u32> {
        let links = Self::word(self.inverse, Index(0));
        let ends = [0, 1].map(|i| Self::word(self.inverse, Index(3) + page + i));
        (ends[0]..ends[1]).map(move |link| Self::word(self.inverse, Index(2) * link + links))
    }

    fn slot(&self, page: u32, offset: u32) {
        let links = Self::word(self.inverse, Index(0));
        let begin = Self::word(self.inverse, Index(3) + page);
        let end = Self::word(self.inverse, Index(3) + page + 1);
        for link in begin..end {
            let sequence = Self::word(self.inverse, Index(2) * link + links);
            let logical = Self::word(self.inverse, Index(2) * link + links + 1);
            let token = (Index(logical) * self.page_size + offset).0;
            if token < self.length(sequence) {
                self.rows(sequence, token);
            }
        }
    }

    /// All that pruning may look at, whichever kind applies.
    fn rows(&self, sequence: u32, token: u32) {
        let at = |base: u32, more: u32| Self::word(self.inverse, Index(base) + more);
        let (offsets, ids) = (at(1, 0), at(2, 0));
        let nondecreasing = (Index(ids) + self.queries).0;
        let maxima = (Index(nondecreasing) + self.sequences).0;
        let block_offsets = (Index(maxima) + self.sequences).0;
        let block_maxima = (Index(block_offsets) + self.sequences + 1).0;
        let (begin, end) = (at(offsets, sequence), (Index(offsets) + sequence + 1).0);
        let end = Self::word(self.inverse, Index(end));
        assert!(begin <= end && end <= self.queries);
        assert!(at(nondecreasing, sequence) <= 1);
        let largest = at(maxima, sequence);
        for place in begin..end {
            let position = self.position(at(ids, place));
            assert!(position <= largest);
            let block = (place - begin) / self.plan.query_block_rows();
            let first = at(block_offsets, sequence);
            let maximum = Self::word(self.inverse, Index(block_maxima) + first + block);
            // Otherwise a row that sees the token would be passed over.
            assert!(position <= maximum && (token > largest || maximum <= largest));
        }
    }
}

fn check(plan: &Plan, geometry: &Geometry, rng: &mut Rng) {
    let kernels = Kernels::new(plan, geometry);
    for flag in [false, true] {
        kernels.queries(flag, rng);
        kernels.history(flag, rng);
    }
    assert!(plan.inactive_pages().iter().all(|&page| page < kernels.pages));
}

fn block_rows(rng: &mut Rng) -> u32 {
    [1, 2, 32, u32::MAX][rng.usize(0..4)]
}

#[test]
fn kernels_stay_within_the_plan_and_the_cache() {
    for_seeds(5000, |rng| {
        let case = ScheduleCase::random(rng);
        let schedule = case.schedule(rng);
        let geometry = geometry(schedule.sequence_ids.len(), case.pages, case.page_size);
        let plan = Plan::new(&schedule, &geometry, block_rows(rng)).unwrap();
        check(&plan, &geometry, rng);
    });
}

/// Sizes at the end of what 32 bits index, where sums and products of the largest indices come close to overflow.
#[test]
fn kernels_stay_within_32_bits() {
    for_seeds(5000, |rng| {
        let pages = rng.usize(1..=5);
        let row = [1, 2, 3, 1024][rng.usize(0..4)];
        let kv_heads = [1, 3][rng.usize(0..2)];
        let most = u32::MAX as usize / (pages * kv_heads * row);
        let page_size = if rng.bool() { most } else { rng.usize(1..=most) };
        let geometry = Geometry {
            kv_heads,
            heads: kv_heads,
            key_dim: row,
            value_dim: 1,
            ..geometry(6, pages, page_size)
        };
        let table_width = rng.usize(1..=4);
        let sequences = rng.usize(1..=3);
        let room = (table_width * page_size) as u64;
        let length = |rng: &mut Rng| if rng.bool() { room } else { rng.u64(0..=room) };
        let position = |rng: &mut Rng| if rng.bool() { u32::MAX } else { rng.u32(..) };
        let schedule = Schedule {
            block_table: (0..sequences * table_width)
                .map(|_| rng.usize(0..pages) as i128)
                .collect(),
            table_width,
            sequence_lengths: (0..sequences).map(|_| length(rng).into()).collect(),
            sequence_ids: (0..6).map(|_| rng.usize(0..sequences) as i128).collect(),
            positions: Some((0..6).map(|_| position(rng).into()).collect()),
        };
        let whole_pages = (u32::MAX as usize / page_size * page_size) as i128;
        match Plan::new(&schedule, &geometry, block_rows(rng)) {
            Ok(plan) => check(&plan, &geometry, rng),
            Err(error) => {
                let longest = schedule.sequence_lengths.iter().max();
                assert!(longest.is_some_and(|&length| length > whole_pages), "{error}");
            }
        }
    });
}

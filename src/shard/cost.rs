//! How units are dealt to shards.

use std::ops::Range;

use super::Shard;
use crate::kernels::attention::{Geometry, Options, Schedule};

/// Units in a row: `copies` times the same costs, one copy after the other.
pub(super) struct Division {
    copies: usize,
    /// The costs of all units of a copy before each, and of all: `[units + 1]`.
    before: Vec<u64>,
}

impl Division {
    /// Units that cost the same.
    pub(super) fn even(units: usize) -> Self {
        Self { copies: units, before: vec![0, 1] }
    }

    /// `copies` of units of these costs, each at least 1.
    pub(super) fn by_cost(copies: usize, costs: &[u64]) -> Self {
        let mut total = 0u64;
        let ends = costs.iter().map(|&cost| {
            total = total.saturating_add(cost.max(1));
            total
        });
        Self { copies, before: std::iter::once(0).chain(ends).collect() }
    }

    /// The units of a shard: its share of the costs, to the nearest unit.
    pub(super) fn units(&self, shard: Shard) -> Range<usize> {
        self.cut(shard.index(), shard.count())..self.cut(shard.index() + 1, shard.count())
    }

    /// Where `index / count` of the costs lie before. It depends on that fraction alone, so that parts of parts are parts.
    fn cut(&self, index: usize, count: usize) -> usize {
        let (units, copy) = (self.before.len() - 1, self.before[self.before.len() - 1]);
        if copy == 0 {
            return 0;
        }
        let costs = self.copies as u128 * u128::from(copy);
        let target = costs.saturating_mul(index as u128) / count as u128;
        let (whole, rest) = (target / u128::from(copy), (target % u128::from(copy)) as u64);
        let at = self.before.partition_point(|&before| before <= rest) - 1;
        let nearer = rest - self.before[at] > self.before[at + 1] - rest;
        whole as usize * units + at + usize::from(nearer)
    }
}

/// What each query row costs: the tokens that it sees.
pub(super) fn of_rows(schedule: &Schedule, options: &Options) -> Vec<u64> {
    (0..schedule.sequence_ids.len()).map(|row| visible(schedule, options, row) + 1).collect()
}

/// What each page costs: its slots, and the pairs of rows and tokens in it that see each other.
pub(super) fn of_pages(schedule: &Schedule, geometry: &Geometry, options: &Options) -> Vec<u64> {
    let page_size = geometry.page_size as u64;
    let mut costs = vec![page_size; geometry.pages];
    let mut rows = vec![Vec::new(); schedule.sequence_lengths.len()];
    for (row, &sequence) in schedule.sequence_ids.iter().enumerate() {
        rows[sequence as usize].push(visible(schedule, options, row));
    }
    for (sequence, rows) in rows.iter().enumerate() {
        let pages = used_pages(schedule, geometry, sequence);
        // Rows whose last token is in a page, and the tokens that they see there.
        let (mut last, mut partial) = (vec![0u64; pages.len() + 1], vec![0u64; pages.len() + 1]);
        for &visible in rows {
            last[(visible / page_size) as usize] += 1;
            partial[(visible / page_size) as usize] += visible % page_size;
        }
        let mut beyond = rows.len() as u64;
        for (logical, &page) in pages.iter().enumerate() {
            beyond -= last[logical];
            let pairs = beyond.saturating_mul(page_size).saturating_add(partial[logical]);
            let cost = pairs.saturating_mul(geometry.group().max(1) as u64);
            costs[page as usize] = costs[page as usize].saturating_add(cost);
        }
    }
    costs
}

/// How many tokens a row sees. The schedule has been checked.
fn visible(schedule: &Schedule, options: &Options, row: usize) -> u64 {
    let length = schedule.sequence_lengths[schedule.sequence_ids[row] as usize] as u64;
    match &schedule.positions {
        Some(positions) if options.causal => length.min(positions[row] as u64 + 1),
        _ => length,
    }
}

/// The used entries of a sequence's table. The schedule has been checked.
pub(super) fn used_pages<'a>(
    schedule: &'a Schedule,
    geometry: &Geometry,
    sequence: usize,
) -> &'a [i128] {
    let used = (schedule.sequence_lengths[sequence] as usize).div_ceil(geometry.page_size);
    &schedule.block_table[sequence * schedule.table_width..][..used]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(division: &Division, count: usize) -> Vec<Range<usize>> {
        (0..count).map(|index| division.units(Shard::new(index, count).unwrap())).collect()
    }

    #[test]
    fn every_unit_is_in_one_shard() {
        let divisions = [
            Division::even(0),
            Division::even(10),
            Division::by_cost(3, &[5, 1, 1, 9]),
            Division::by_cost(0, &[5]),
            Division::by_cost(3, &[]),
            Division::by_cost(2, &[0, 0, u64::MAX]),
        ];
        for division in divisions {
            let units = division.copies * (division.before.len() - 1);
            for count in [1, 2, 3, 7, 100, Shard::MOST] {
                let some = if count > 100 { 100 } else { count };
                let mut end = 0;
                for index in 0..some {
                    let range = division.units(Shard::new(index, count).unwrap());
                    assert!(range.start == end && range.end >= end);
                    end = range.end;
                }
                assert!(some < count || end == units, "{count}");
            }
        }
    }

    #[test]
    fn shards_cost_alike_and_heads_stay_whole() {
        let costs = [100, 1, 1, 1, 97, 3];
        assert_eq!(ranges(&Division::by_cost(4, &costs), 4), [0..6, 6..12, 12..18, 18..24]);
        assert_eq!(ranges(&Division::by_cost(4, &costs), 2), [0..12, 12..24]);
        assert_eq!(ranges(&Division::by_cost(1, &costs), 2), [0..2, 2..6]);
        assert_eq!(ranges(&Division::even(5), 2), [0..2, 2..5]);
    }

    #[test]
    fn parts_of_parts_are_parts() {
        let division = Division::by_cost(3, &[7, 2, 9, 4, 4]);
        for count in [1, 2, 5] {
            for (index, range) in ranges(&division, count).into_iter().enumerate() {
                let shard = Shard::new(index, count).unwrap();
                let parts = [0, 1, 2].map(|part| division.units(shard.divided(part, 3)));
                assert_eq!(parts[0].start..parts[2].end, range);
                assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
            }
        }
    }

    #[test]
    fn pages_cost_their_visible_pairs() {
        let schedule = Schedule {
            block_table: vec![2, 0, 2, -1],
            table_width: 2,
            sequence_lengths: vec![3, 2],
            sequence_ids: vec![0, 1, 0],
            positions: Some(vec![0, 7, 9]),
        };
        let geometry = Geometry {
            queries: 3,
            heads: 4,
            kv_heads: 2,
            pages: 3,
            page_size: 2,
            key_dim: 1,
            value_dim: 1,
            position_dim: 0,
            statistics_columns: 0,
        };
        let options = Options::new(1.0);
        assert_eq!(of_rows(&schedule, &options), [2, 3, 4]);
        // Page 2: row 0 sees one token, row 2 two, and row 1 of the other sequence two; page 0: row 2 sees one.
        assert_eq!(of_pages(&schedule, &geometry, &options), [2 + 2, 2, 2 + 2 * 5]);
        let all = Options { causal: false, ..options };
        assert_eq!(of_pages(&schedule, &geometry, &all), [2 + 2 * 2, 2, 2 + 2 * 6]);
    }
}

//! What the workgroups of a launch cost, in elements of q, k and v read: so that slices of a long call last equally long
//! although some rows see much more than others.

use std::ops::Range;

use super::{Geometry, Options, Plan};
use crate::runtime::Load;

impl Geometry {
    /// What a row's head and a token that it sees have in elements.
    pub(super) fn pair_elements(&self) -> u64 {
        (self.key_dim + self.value_dim + self.position_dim) as u64
    }
}

/// A workgroup a tile of so many items, the heads of one key/value head in some rows of a unit, which goes through the
/// tokens that any of these rows sees; so many tiles a unit.
pub(super) fn of_row_tiles(
    plan: &Plan,
    causal: bool,
    geometry: &Geometry,
    [tiles, items]: [usize; 2],
    rows: &Range<usize>,
) -> Load {
    let visible: Vec<_> = plan.visible(causal).collect();
    let seen = |row: &u32| match rows.contains(&(*row as usize)) {
        true => visible[*row as usize],
        false => 0,
    };
    let (group, pair) = (geometry.group().max(1), geometry.pair_elements());
    let tile = |unit: &[u32], index: usize| {
        let begin = (index * items / group).min(unit.len());
        let end = ((index + 1) * items).div_ceil(group).min(unit.len());
        let tokens = unit[begin..end].iter().map(seen).max().unwrap_or(0);
        cost(pair, tokens.into())
    };
    let units = plan.row_units().iter().map(|unit| plan.rows_of(*unit));
    Load::columns(1, units.flat_map(|unit| (0..tiles).map(move |index| tile(unit, index))))
}

/// A workgroup a row, chunk of `tokens` tokens, and head; of these rows.
pub(super) fn of_chunks(
    plan: &Plan,
    causal: bool,
    pair: u64,
    [chunks, tokens]: [usize; 2],
    rows: &Range<usize>,
) -> Load {
    let of_row = |visible: u32| {
        let visible = visible as usize;
        (0..chunks).map(move |i| visible.saturating_sub(i.saturating_mul(tokens)).min(tokens))
    };
    let visible = plan.visible(causal).skip(rows.start).take(rows.len());
    let seen = visible.flat_map(of_row);
    Load::columns(1, seen.map(|tokens| cost(pair, tokens as u64)))
}

/// A workgroup a tile of slots, of which a unit has so many, and key/value head, with all rows that see the unit; of these
/// pages.
pub(super) fn of_tiles(
    plan: &Plan,
    options: &Options,
    geometry: &Geometry,
    tiles: u32,
    pages: &Range<usize>,
) -> Load {
    let heads = (geometry.heads / geometry.kv_heads.max(1)) as u64;
    let slots = (plan.unit_slots() as u64 / u64::from(tiles)).max(1);
    let pair = geometry.pair_elements();
    let launched = plan.launched_units(options.compact_history);
    let unit = |(own, rows): (&[u32], u64)| {
        let shown = own.iter().any(|&page| pages.contains(&(page as usize)));
        let pairs = if shown { rows.saturating_mul(heads).saturating_mul(slots) } else { 0 };
        cost(pair, pairs)
    };
    Load::columns(tiles, plan.unit_readers(options.causal).take(launched).map(unit))
}

/// Of so many pairs, and of what is loaded and stored without any.
fn cost(pair: u64, pairs: u64) -> u64 {
    pair.saturating_mul(pairs.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::Schedule;

    const GEOMETRY: Geometry = Geometry {
        queries: 7,
        heads: 4,
        kv_heads: 2,
        pages: 5,
        page_size: 2,
        key_dim: 6,
        value_dim: 3,
        position_dim: 1,
        statistics_columns: 0,
    };

    /// Sequences of 4, 3 and 1 tokens, which share page 3; rows in no order; the last has none.
    fn schedule() -> Schedule {
        Schedule {
            block_table: vec![3, 1, 3, 0, 4, -1],
            table_width: 2,
            sequence_lengths: vec![4, 3, 1],
            sequence_ids: vec![1, 0, 0, 1, 0, 1, 0],
            positions: Some(vec![2, 3, 1, 0, 0, 9, 2]),
        }
    }

    fn plan() -> Plan {
        Plan::new(&schedule(), &GEOMETRY, 32).unwrap()
    }

    #[test]
    fn readers_are_the_rows_that_see_a_unit() {
        let Schedule { block_table, sequence_ids, positions, sequence_lengths, .. } = schedule();
        let positions = positions.unwrap();
        for causal in [false, true] {
            let mut expected = [0; 5];
            for (sequence, length) in sequence_lengths.iter().enumerate() {
                for logical in 0..(*length as usize).div_ceil(2) {
                    let page = block_table[2 * sequence + logical] as usize;
                    let sees = |row: &usize| {
                        sequence_ids[*row] == sequence as i128
                            && (!causal || positions[*row] >= 2 * logical as i128)
                    };
                    expected[page] += (0..7).filter(sees).count() as u64;
                }
            }
            let plan = plan();
            for (pages, rows) in plan.unit_readers(causal) {
                assert_eq!(rows, expected[pages[0] as usize], "{causal}");
            }
        }
        // Each page has readers of its own; page 2 has none, and the sequence of page 4 no rows.
        let plan = plan();
        let units: Vec<_> = plan.unit_readers(true).collect();
        assert_eq!(units[..3], [(&[3][..], 7), (&[0][..], 2), (&[1][..], 2)]);
        assert!(units[3..].iter().all(|&(_, rows)| rows == 0));
        assert_eq!(plan.active_unit_count(), 3);
    }

    #[test]
    fn workgroups_cost_the_pairs_that_they_go_through() {
        let options = Options::new(1.0);
        // 10 elements a pair, two heads a key/value head, 16 slots a tile.
        let of = |pages: Range<usize>, options: &Options| {
            of_tiles(&plan(), options, &GEOMETRY, 4, &pages)
        };
        let tiles = |rows: &[u64]| Load::columns(4, rows.iter().map(|rows| 10 * (1 + 32 * rows)));
        assert_eq!(of(0..5, &options), tiles(&[7, 2, 2, 0, 0]));
        assert_eq!(of(1..4, &options), tiles(&[7, 0, 2, 0, 0]));
        let compact = Options { compact_history: true, ..options };
        assert_eq!(of(0..5, &compact), tiles(&[7, 2, 2]));
        assert_eq!(of(0..2, &compact), tiles(&[0, 2, 2]));
        // Units of the rows 1, 2, 4, 6, which see 4, 2, 1, 3 tokens, and 0, 3, 5, which see 3, 1, 3; two heads a row.
        let row_tiles = |sizes, rows| of_row_tiles(&plan(), true, &GEOMETRY, sizes, &rows);
        let seen = |tokens: &[u64]| Load::columns(1, tokens.iter().map(|seen| 10 * (1 + seen)));
        assert_eq!(row_tiles([1, 8], 0..7), seen(&[4, 3]));
        assert_eq!(row_tiles([2, 4], 0..7), seen(&[4, 3, 3, 3]));
        assert_eq!(row_tiles([3, 3], 0..7), seen(&[4, 2, 3, 3, 3, 0]));
        assert_eq!(row_tiles([2, 4], 1..4), seen(&[4, 0, 1, 0]));
        let chunks = [2, 1, 2, 2, 2, 0, 1, 0, 1, 0, 2, 1, 2, 1];
        let chunks = Load::columns(1, chunks.map(|seen| 10 * (1 + seen)));
        assert_eq!(of_chunks(&plan(), true, 10, [2, 2], &(0..7)), chunks);
    }
}

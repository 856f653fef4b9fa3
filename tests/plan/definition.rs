//! Random schedules: every word of their plans against the definition.

use backslang::kernels::attention::{Geometry, Plan, Schedule};
use fastrand::Rng;

use crate::random::{ScheduleCase, for_seeds};
use crate::words::{Mode, Words};

use crate::geometry;

/// The rows that add to a slot, in order, straight from the definition.
pub(crate) fn contributors(
    schedule: &Schedule,
    geometry: &Geometry,
    slot: usize,
    causal: bool,
) -> Vec<u32> {
    let mut rows = Vec::new();
    for sequence in 0..schedule.sequence_lengths.len() {
        for logical in 0..schedule.table_width {
            let token = (logical * geometry.page_size + slot % geometry.page_size) as i128;
            let entry = schedule.block_table[sequence * schedule.table_width + logical];
            if token >= schedule.sequence_lengths[sequence]
                || entry != (slot / geometry.page_size) as i128
            {
                continue;
            }
            rows.extend((0..geometry.queries as u32).filter(|&row| {
                let seen = schedule.positions.as_ref().is_none_or(|p| token <= p[row as usize]);
                schedule.sequence_ids[row as usize] == sequence as i128 && (!causal || seen)
            }));
        }
    }
    rows
}

/// The (sequence, logical page) pairs that read a page, in order, straight from the definition.
fn links(schedule: &Schedule, geometry: &Geometry, page: usize) -> Vec<[u32; 2]> {
    let mut links = Vec::new();
    for (sequence, &length) in schedule.sequence_lengths.iter().enumerate() {
        for logical in 0..schedule.table_width {
            let used = ((logical * geometry.page_size) as i128) < length;
            let entry = schedule.block_table[sequence * schedule.table_width + logical];
            if used && entry == page as i128 {
                links.push([sequence as u32, logical as u32]);
            }
        }
    }
    links
}

fn check_metadata(schedule: &Schedule, words: &Words, page_size: usize) {
    let wide = |words: &[u32]| words.iter().map(|&word| i128::from(word)).collect::<Vec<_>>();
    assert_eq!(wide(words.sequence_ids), schedule.sequence_ids);
    assert_eq!(wide(words.lengths), schedule.sequence_lengths);
    match &schedule.positions {
        Some(positions) => assert_eq!(&wide(words.positions), positions),
        None => assert!(words.positions.iter().all(|&position| position == 0)),
    }
    for (sequence, &length) in schedule.sequence_lengths.iter().enumerate() {
        for logical in 0..schedule.table_width {
            let entry = sequence * schedule.table_width + logical;
            let used = ((logical * page_size) as i128) < length;
            let expected = if used { schedule.block_table[entry] } else { 0 };
            assert_eq!(i128::from(words.block_table[entry]), expected);
        }
    }
}

fn check_sequences(words: &Words) {
    for sequence in 0..words.lengths.len() {
        let of_sequence = |row: &u32| words.sequence_ids[*row as usize] == sequence as u32;
        let rows = (0..words.sequence_ids.len() as u32).filter(of_sequence).collect::<Vec<_>>();
        assert_eq!(words.rows(sequence), rows);
        let positions = rows.iter().map(|&row| words.positions[row as usize]).collect::<Vec<_>>();
        let sorted = positions.windows(2).all(|pair| pair[0] <= pair[1]);
        assert_eq!(words.nondecreasing[sequence], u32::from(sorted));
        assert_eq!(words.maxima[sequence], positions.iter().copied().max().unwrap_or(0));
        let blocks = words.block_offsets[sequence] as usize..;
        let expected = positions.chunks(words.query_block_rows).map(|b| *b.iter().max().unwrap());
        let expected = expected.collect::<Vec<_>>();
        assert_eq!(words.block_maxima[blocks][..expected.len()], expected);
        let end = words.block_offsets[sequence] as usize + expected.len();
        assert_eq!(words.block_offsets[sequence + 1] as usize, end);
    }
    assert_eq!(words.block_offsets.last().map(|&n| n as usize), Some(words.block_maxima.len()));
}

fn check_pages(schedule: &Schedule, plan: &Plan, geometry: &Geometry, words: &Words) {
    assert_eq!(words.link_offsets.last().map(|&n| n as usize), Some(words.links.len()));
    for page in 0..geometry.pages {
        let own = words.link_offsets[page] as usize..words.link_offsets[page + 1] as usize;
        assert_eq!(words.links[own], links(schedule, geometry, page));
        let first = page * geometry.page_size;
        // Each used page holds at least its first token.
        let active = !contributors(schedule, geometry, first, false).is_empty();
        assert_eq!(plan.active_pages().contains(&(page as u32)), active);
        assert_eq!(plan.inactive_pages().contains(&(page as u32)), !active);
    }
    assert!(plan.active_pages().is_sorted() && plan.inactive_pages().is_sorted());
    assert_eq!(plan.active_pages().len() + plan.inactive_pages().len(), geometry.pages);
}

/// Every row is in one unit, with others of its sequence alone.
fn check_row_units(plan: &Plan, words: &Words) {
    let mut units = vec![0; words.row_ids.len()];
    for &[sequence, first, count] in plan.row_units() {
        assert!((1..=64).contains(&count));
        for &row in &words.row_ids[first as usize..][..count as usize] {
            assert_eq!(words.sequence_ids[row as usize], sequence);
            units[row as usize] += 1;
        }
    }
    assert!(units.iter().all(|&units| units == 1));
}

pub(crate) fn check_plan(schedule: &Schedule, geometry: &Geometry, query_block_rows: u32) {
    let plan = Plan::new(schedule, geometry, query_block_rows).unwrap();
    assert_eq!(plan.has_positions(), schedule.positions.is_some());
    let words = Words::of(&plan, geometry.pages);
    check_metadata(schedule, &words, geometry.page_size);
    check_sequences(&words);
    check_pages(schedule, &plan, geometry, &words);
    check_row_units(&plan, &words);
    for slot in 0..geometry.slots() {
        for mode in [Mode::NotCausal, Mode::Causal, Mode::Pruned] {
            let causal = mode != Mode::NotCausal;
            if causal && schedule.positions.is_none() {
                continue;
            }
            let (page, offset) = (slot / geometry.page_size, slot % geometry.page_size);
            let walked = words.walk(page, offset, geometry.page_size, mode);
            assert_eq!(walked, contributors(schedule, geometry, slot, causal), "{slot} {mode:?}");
        }
    }
}

#[test]
fn random_schedules_agree_with_the_definition() {
    for_seeds(600, |rng| {
        let case = ScheduleCase::random(rng);
        let schedule = case.schedule(rng);
        let geometry = geometry(schedule.sequence_ids.len(), case.pages, case.page_size);
        for query_block_rows in [1, 2, 3, 32, u32::MAX] {
            check_plan(&schedule, &geometry, query_block_rows);
        }
    });
}

#[test]
fn many_blocks_of_unsorted_rows_agree_with_the_definition() {
    let mut rng = Rng::with_seed(2);
    for _ in 0..20 {
        let case = ScheduleCase {
            sequences: 2,
            queries: 150,
            pages: 9,
            page_size: 4,
            max_length: 40,
            shared: true,
            unsorted: true,
            packed: false,
            positions: true,
        };
        let schedule = case.schedule(&mut rng);
        check_plan(&schedule, &geometry(150, 9, 4), 32);
    }
}

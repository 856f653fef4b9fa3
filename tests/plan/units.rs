//! Which slots the history kernel takes together: every slot once, and only pages whose links run side by side.

use std::collections::HashSet;

use backslang::kernels::attention::{Geometry, Plan, Schedule};
use fastrand::Rng;

use crate::random::{ScheduleCase, for_seeds};
use crate::words::Words;

use crate::{geometry, small};

/// A unit as the words have it: the group's pages, and the first of its slots.
struct Unit<'a> {
    pages: &'a [u32],
    first_slot: usize,
}

fn units<'a>(plan: &'a Plan, geometry: &Geometry) -> Vec<Unit<'a>> {
    let words = plan.units();
    assert_eq!(words.len(), 3 * plan.unit_count() + geometry.pages);
    let table = words[..3 * plan.unit_count()].as_chunks::<3>().0;
    let unit = |&[begin, pages, first_slot]: &[u32; 3]| Unit {
        pages: &words[begin as usize..(begin + pages) as usize],
        first_slot: first_slot as usize,
    };
    table.iter().map(unit).collect()
}

/// All that is promised of the units of a plan; how many groups there are.
fn check(schedule: &Schedule, geometry: &Geometry) -> usize {
    let plan = Plan::new(schedule, geometry, 32).unwrap();
    let words = Words::of(&plan, geometry.pages);
    let links = |page: u32| {
        let ends = [0, 1].map(|i| words.link_offsets[page as usize + i] as usize);
        &words.links[ends[0]..ends[1]]
    };
    let sequences = |page: u32| links(page).iter().map(|&[sequence, _]| sequence);
    let units = units(&plan, geometry);
    let mut seen = vec![0; geometry.slots()];
    let mut groups = HashSet::new();
    for (i, unit) in units.iter().enumerate() {
        let Unit { pages, first_slot } = *unit;
        let first = pages[0];
        if groups.insert(first) {
            assert!(pages.iter().all(|&page| sequences(page).eq(sequences(first))));
            let key = |page: u32| (links(page).first().map(|&[_, logical]| logical), page);
            assert!(pages.is_sorted_by_key(|&page| key(page)));
            let active = plan.active_pages().binary_search(&first).is_ok();
            assert_eq!(active, i < plan.active_unit_count());
        }
        assert_eq!(first_slot % plan.unit_slots(), 0);
        let slots = pages.len() * geometry.page_size;
        assert!(first_slot < slots);
        for slot in first_slot..slots.min(first_slot + plan.unit_slots()) {
            let page = pages[slot / geometry.page_size] as usize;
            seen[page * geometry.page_size + slot % geometry.page_size] += 1;
        }
    }
    assert!(seen.iter().all(|&times| times == 1));
    assert_eq!(plan.unit_slots() % 64, 0);
    groups.len()
}

#[test]
fn units_have_each_slot_once() {
    for_seeds(600, |rng| {
        let case = ScheduleCase::random(rng);
        let schedule = case.schedule(rng);
        check(&schedule, &geometry(schedule.sequence_ids.len(), case.pages, case.page_size));
    });
}

#[test]
fn words_of_units_lie_as_documented() {
    let (schedule, geometry) = small();
    let plan = Plan::new(&schedule, &geometry, 1).unwrap();
    // Page 2 is read by both sequences, page 0 by the first, page 1 by none.
    assert_eq!(plan.units(), [9, 1, 0, 10, 1, 0, 11, 1, 0, 2, 0, 1]);
    assert_eq!((plan.unit_count(), plan.active_unit_count(), plan.unit_slots()), (3, 2, 64));
}

/// Two sequences that share a prefix, one of which has its last page twice, on pages of any size.
#[test]
fn pages_of_the_same_readers_are_together() {
    for page_size in [1, 5, 16, 256, 4097] {
        let length = |pages: usize| (pages * page_size) as i128;
        let schedule = Schedule {
            block_table: vec![9, 3, 4, 7, 7, 9, 3, 4, 8, -1],
            table_width: 5,
            sequence_lengths: vec![length(5), length(4) - (page_size > 1) as i128],
            sequence_ids: vec![0, 1],
            positions: Some(vec![length(5), length(5)]),
        };
        let geometry = geometry(2, 10, page_size);
        // The prefix, page 7, page 8, and the pages without readers.
        assert_eq!(check(&schedule, &geometry), 4, "{page_size}");
        let plan = Plan::new(&schedule, &geometry, 32).unwrap();
        let prefix = units(&plan, &geometry).into_iter().find(|unit| unit.pages[0] == 9);
        assert_eq!(prefix.unwrap().pages, [9, 3, 4], "{page_size}");
    }
}

/// What most rows see comes first.
#[test]
fn long_walks_come_first() {
    let schedule = Schedule {
        block_table: (0..8).collect(),
        table_width: 8,
        sequence_lengths: vec![8 * 64],
        sequence_ids: vec![0; 8 * 64],
        positions: Some((0..8 * 64).collect()),
    };
    let geometry = geometry(8 * 64, 8, 64);
    let plan = Plan::new(&schedule, &geometry, 32).unwrap();
    let firsts: Vec<_> = units(&plan, &geometry).iter().map(|unit| unit.first_slot).collect();
    assert_eq!(firsts, (0..8).map(|i| 64 * i).collect::<Vec<_>>());
}

#[test]
fn a_hundred_thousand_pages_make_few_units() {
    let pages = 100_000;
    let mut block_table: Vec<_> = (0..pages as i128).collect();
    Rng::with_seed(5).shuffle(&mut block_table);
    let schedule = Schedule {
        block_table,
        table_width: pages / 4,
        sequence_lengths: vec![pages as i128 / 4; 4],
        sequence_ids: vec![0, 1, 3],
        positions: Some(vec![10, 20, 30]),
    };
    let geometry = geometry(3, pages, 1);
    assert_eq!(check(&schedule, &geometry), 4);
    let plan = Plan::new(&schedule, &geometry, 32).unwrap();
    assert_eq!(plan.unit_count(), 4 * (pages / 4).div_ceil(64));
    assert_eq!(plan.active_unit_count(), 3 * (pages / 4).div_ceil(64));
}

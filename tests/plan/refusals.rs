//! What a plan rejects, and the words in which it does.

use backslang::kernels::attention::{Geometry, Plan, Schedule};
use backslang::{Error, Result};
use fastrand::Rng;

use crate::definition::check_plan;
use crate::random::{ScheduleCase, for_seeds};

use crate::{geometry, small};

fn rejects(change: impl FnOnce(&mut Schedule, &mut Geometry), message: &str) {
    let (mut schedule, mut geometry) = small();
    change(&mut schedule, &mut geometry);
    let error = Plan::new(&schedule, &geometry, 32).unwrap_err();
    assert!(error.is_input());
    assert_eq!(error.to_string(), message);
}

#[test]
fn page_ids_out_of_range_are_rejected_where_used() {
    let message = |value: i128| {
        format!(
            "array `block_table`[0, 1] = {value}: \
             a page id ≥ 0 and < 3 (pages): sequence 0 of length 5 uses this entry"
        )
    };
    for value in [-1, 3, 0xFFFF_FFFF, 1 << 32, i128::MIN, i128::MAX] {
        rejects(|schedule, _| schedule.block_table[1] = value, &message(value));
        let (mut schedule, geometry) = small();
        schedule.block_table[3] = value;
        Plan::new(&schedule, &geometry, 32).unwrap();
    }
}

#[test]
fn lengths_out_of_range_are_rejected() {
    let message = |value: i128| {
        format!(
            "array `sequence_lengths`[1] = {value}: \
             a length ≥ 0 and ≤ 8, the table_width 2 · page_size 4"
        )
    };
    for value in [-1, 9, 1 << 32, (1 << 32) + 3] {
        rejects(|schedule, _| schedule.sequence_lengths[1] = value, &message(value));
    }
    // A page of 3·2^30 slots: only one whole page fits 32-bit token indices.
    rejects(
        |schedule, geometry| {
            (geometry.pages, geometry.page_size) = (1, 3 << 30);
            geometry.kv_heads = 0;
            geometry.heads = 0;
            schedule.sequence_lengths[0] = (3 << 30) + 1;
        },
        "array `sequence_lengths`[0] = 3221225473: \
         a length ≥ 0 and ≤ 3221225472, the whole pages below 2^32",
    );
}

#[test]
fn sequence_ids_out_of_range_are_rejected() {
    for value in [-1, 2, 0xFFFF_FFFF, 1 << 32] {
        rejects(
            |schedule, _| schedule.sequence_ids[2] = value,
            &format!("array `sequence_ids`[2] = {value}: a sequence id ≥ 0 and < 2 (sequences)"),
        );
    }
    rejects(
        |schedule, _| {
            schedule.sequence_lengths.clear();
            schedule.block_table.clear();
        },
        "array `sequence_ids`[0] = 1: no query rows, as there are 0 sequences",
    );
}

#[test]
fn positions_out_of_range_are_rejected() {
    let set = |schedule: &mut Schedule, value| schedule.positions.as_mut().unwrap()[3] = value;
    for value in [-1, 1 << 32, i128::MAX] {
        rejects(
            |schedule, _| set(schedule, value),
            &format!(
                "array `positions`[3] = {value}: \
                 a position ≥ 0 and ≤ 4294967295, the kernels' index type"
            ),
        );
    }
    let (mut schedule, geometry) = small();
    set(&mut schedule, i128::from(u32::MAX));
    check_plan(&schedule, &geometry, 32);
}

#[test]
fn sizes_that_disagree_are_rejected() {
    rejects(
        |schedule, _| schedule.block_table.truncate(3),
        "array `block_table`: expected the 2 · 2 entries of [sequences, table_width], \
         found shape [3]",
    );
    rejects(
        |schedule, _| schedule.sequence_ids.truncate(3),
        "array `sequence_ids`: expected [4], one entry a query row, found shape [3]",
    );
    rejects(
        |schedule, _| schedule.positions.as_mut().unwrap().push(0),
        "array `positions`: expected [4], one entry a query row, found shape [5]",
    );
    rejects(
        |schedule, _| schedule.table_width = usize::MAX,
        "array `block_table`: expected the 2 · 18446744073709551615 entries of \
         [sequences, table_width], found shape [4]",
    );
}

#[test]
fn sizes_beyond_the_index_type_are_rejected_before_anything_is_allocated() {
    let too_large = |what: &str, found: u128| {
        format!("{what}: {found} does not fit the kernels' 32-bit indices (at most 4294967295)")
    };
    rejects(|_, g| g.pages = 1 << 32, &too_large("pages", 1 << 32));
    rejects(
        |_, g| (g.pages, g.page_size) = (1 << 16, 1 << 16),
        &too_large("slots (pages · page_size)", 1 << 32),
    );
    rejects(
        |_, g| (g.pages, g.page_size, g.kv_heads) = (1 << 15, 1 << 15, 4),
        &too_large("rows of the cache (slots · kv_heads)", 1 << 32),
    );
    rejects(
        |schedule, g| {
            (g.pages, g.page_size) = (u32::MAX as usize, 1);
            (g.heads, g.kv_heads, g.key_dim, g.value_dim) = (1, 1, 1, 1);
            schedule.sequence_lengths = vec![2, 1];
        },
        &too_large("words of the plan's inverse", u128::from(u32::MAX) + 4 + 6 + 8 + 2 + 4 + 2),
    );
}

#[test]
fn a_block_of_no_rows_and_a_page_of_no_slots_are_rejected() {
    let (schedule, mut geometry) = small();
    let error = Plan::new(&schedule, &geometry, 0).unwrap_err();
    assert_eq!(error.to_string(), "`query_block_rows`: expected ≥ 1, found 0");
    geometry.page_size = 0;
    let error = Plan::new(&schedule, &geometry, 32).unwrap_err();
    assert_eq!(error.to_string(), "`page_size`: expected ≥ 1, found 0");
}

#[test]
fn a_call_must_fit_the_plan() {
    let (mut schedule, geometry) = small();
    let plan = Plan::new(&schedule, &geometry, 32).unwrap();
    plan.check_call("test", &geometry, true).unwrap();
    let other = Geometry { pages: 4, ..geometry };
    let error = plan.check_call("test", &other, true).unwrap_err();
    let sizes = "[queries, pages, page_size, 1 with key/value heads]";
    let message =
        format!("array `plan`: expected {sizes} = [4, 4, 4, 1], found shape [4, 3, 4, 1]");
    assert_eq!(error.to_string(), message);
    let headless = Geometry { heads: 0, kv_heads: 0, ..geometry };
    assert!(plan.check_call("test", &headless, true).is_err());

    schedule.positions = None;
    let plan = Plan::new(&schedule, &geometry, 32).unwrap();
    plan.check_call("test", &geometry, false).unwrap();
    let result: Result<()> = plan.check_call("test", &geometry, true);
    let Err(Error::MissingArray { operator: "test", array: "positions", .. }) = result else {
        panic!("{result:?}");
    };
}

/// One value that is not legal where it stands, in a schedule that is.
fn spoil(schedule: &mut Schedule, geometry: &Geometry, rng: &mut Rng) -> Option<Edit> {
    // Wrapped to 32 bits, the last two are what was there.
    let bad = |own: i128, end: i128, rng: &mut Rng| {
        let values = [-1, end, end + 1, i128::MIN, i128::MAX, (1 << 32) + own, own - (1 << 32)];
        values[rng.usize(0..values.len())]
    };
    let Schedule { block_table, table_width, sequence_lengths, sequence_ids, positions } = schedule;
    let pick = |len: usize, rng: &mut Rng| (len > 0).then(|| rng.usize(0..len));
    let sequences = sequence_lengths.len();
    let (array, index, place, end) = match rng.u8(0..4) {
        0 => {
            let sequence = pick(sequences, rng)?;
            let used = (sequence_lengths[sequence] as usize).div_ceil(geometry.page_size);
            let logical = pick(used, rng)?;
            let place = &mut block_table[sequence * *table_width + logical];
            ("block_table", format!("{sequence}, {logical}"), place, geometry.pages as i128)
        }
        1 => {
            let sequence = pick(sequences, rng)?;
            let end = (*table_width * geometry.page_size) as i128 + 1;
            ("sequence_lengths", sequence.to_string(), &mut sequence_lengths[sequence], end)
        }
        2 => {
            let row = pick(sequence_ids.len(), rng)?;
            ("sequence_ids", row.to_string(), &mut sequence_ids[row], sequences as i128)
        }
        _ => {
            let positions = positions.as_mut()?;
            let row = pick(positions.len(), rng)?;
            ("positions", row.to_string(), &mut positions[row], 1 << 32)
        }
    };
    let value = bad(*place, end, rng);
    *place = value;
    Some(Edit { array, index, value })
}

#[derive(Debug, PartialEq)]
struct Edit {
    array: &'static str,
    index: String,
    value: i128,
}

#[test]
fn random_spoilt_values_are_named() {
    for_seeds(20_000, |rng| {
        let case = ScheduleCase::random(rng);
        let mut schedule = case.schedule(rng);
        let geometry = geometry(schedule.sequence_ids.len(), case.pages, case.page_size);
        let Some(edit) = spoil(&mut schedule, &geometry, rng) else { return };
        let error = Plan::new(&schedule, &geometry, 32).unwrap_err();
        let text = error.to_string();
        assert!(error.is_input() && text.contains('≥'), "{text}");
        let Error::Index { array, index, value, .. } = error else { panic!("{text}") };
        assert_eq!(Edit { array, index, value }, edit, "{text}");
    });
}

//! The layout of the words, and schedules with little or nothing in them.

use backslang::kernels::attention::{Plan, Schedule};

use crate::definition::check_plan;

use crate::{geometry, small};

#[test]
fn words_lie_as_documented() {
    let (schedule, geometry) = small();
    let plan = Plan::new(&schedule, &geometry, 1).unwrap();
    assert_eq!(plan.metadata(), [1, 0, 1, 0, 2, 4, 1, 7, 5, 3, 2, 0, 2, 0]);
    let expected: &[&[u32]] = &[
        &[7, 13, 16],
        &[0, 1, 1, 3],
        &[0, 1, 0, 0, 1, 0],
        &[0, 2, 4],
        &[1, 3, 0, 2],
        &[1, 0],
        &[7, 2],
        &[0, 2, 4],
        &[4, 7, 2, 1],
    ];
    assert_eq!(plan.inverse(), expected.concat());
    assert_eq!(plan.active_pages(), [0, 2]);
    assert_eq!(plan.inactive_pages(), [1]);
    assert_eq!(plan.row_units(), [[0, 0, 2], [1, 2, 2]]);
    assert_eq!((plan.sequences(), plan.queries(), plan.table_width()), (2, 4, 2));
    assert_eq!(plan.query_block_rows(), 1);
}

#[test]
fn nothing_at_all_is_a_plan() {
    check_plan(&Schedule::default(), &geometry(0, 0, 1), 32);
    check_plan(&Schedule { table_width: 7, ..Schedule::default() }, &geometry(0, 3, 4), 32);
    check_plan(
        &Schedule { table_width: usize::MAX, ..Schedule::default() },
        &geometry(0, 3, 4),
        32,
    );
}

#[test]
fn row_units_are_rows_64_at_a_time() {
    let rows = [64, 0, 65, 1, 200];
    let sequence_ids = (0..).zip(rows).flat_map(|(id, rows)| vec![id; rows]).collect::<Vec<_>>();
    let queries = sequence_ids.len();
    let schedule = Schedule {
        block_table: vec![0; rows.len()],
        table_width: 1,
        sequence_lengths: vec![1; rows.len()],
        sequence_ids: sequence_ids.into_iter().rev().collect(),
        positions: None,
    };
    let plan = Plan::new(&schedule, &geometry(queries, 1, 4), 32).unwrap();
    let expected = [
        [0, 0, 64],
        [2, 64, 64],
        [2, 128, 1],
        [3, 129, 1],
        [4, 130, 64],
        [4, 194, 64],
        [4, 258, 64],
        [4, 322, 8],
    ];
    assert_eq!(plan.row_units(), expected);
}

#[test]
fn pages_of_sequences_without_rows_or_tokens_are_inactive() {
    let schedule = Schedule {
        block_table: vec![0, 1, 2],
        table_width: 1,
        sequence_lengths: vec![2, 0, 1],
        sequence_ids: vec![1, 2],
        positions: None,
    };
    let plan = Plan::new(&schedule, &geometry(2, 4, 2), 32).unwrap();
    assert_eq!(plan.active_pages(), [2]);
    assert_eq!(plan.inactive_pages(), [0, 1, 3]);
}

#[test]
fn pages_without_elements_take_no_words() {
    let (mut schedule, mut geometry) = small();
    (geometry.heads, geometry.kv_heads) = (0, 0);
    (geometry.pages, geometry.page_size) = (u32::MAX as usize, 1);
    schedule.block_table.fill((u32::MAX - 1).into());
    schedule.sequence_lengths = vec![2, 1];
    let plan = Plan::new(&schedule, &geometry, 32).unwrap();
    assert!(plan.inverse().len() < 32, "{}", plan.inverse().len());
    assert!(plan.active_pages().is_empty() && plan.inactive_pages().is_empty());
}

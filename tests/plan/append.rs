//! Where rows of an append go, and what is refused.

use backslang::kernels::attention::append::{AppendInputs, AppendPlan};
use backslang::kernels::attention::{Geometry, Schedule};

use crate::geometry;

/// Two sequences of lengths 6 and 3 on pages of 4 that both begin with page 2; one row each for tokens 4 and 5 of the
/// first.
fn append() -> (Schedule, Geometry) {
    let schedule = Schedule {
        block_table: vec![2, 0, 2, -1],
        table_width: 2,
        sequence_lengths: vec![6, 3],
        sequence_ids: vec![0, 0],
        positions: Some(vec![5, 4]),
    };
    (schedule, geometry(2, 3, 4))
}

#[test]
fn rows_go_to_their_slots() {
    let (schedule, geometry) = append();
    let plan = AppendPlan::new(&schedule, &geometry).unwrap();
    assert_eq!((plan.slots(), plan.queries()), ([1, 0].as_slice(), 2));
}

fn rejects(change: impl FnOnce(&mut Schedule, &mut Geometry), message: &str) {
    let (mut schedule, mut geometry) = append();
    change(&mut schedule, &mut geometry);
    let error = AppendPlan::new(&schedule, &geometry).unwrap_err();
    assert!(error.is_input());
    assert_eq!(error.to_string(), message);
}

#[test]
fn appends_that_write_what_is_read_elsewhere_are_refused() {
    rejects(
        |schedule, _| schedule.positions = Some(vec![4, 4]),
        "array `positions`[1] = 4: a position that no other row has: row 0 writes to this slot of sequence 0",
    );
    rejects(
        |schedule, _| schedule.positions = Some(vec![3, 4]),
        "array `block_table`[1, 0] = 2: another page: row 0 writes to this one, \
         which is also logical page 0 of sequence 0",
    );
    rejects(
        |schedule, _| schedule.block_table[0] = 0,
        "array `block_table`[0, 0] = 0: another page: row 1 writes to this one, \
         which is also logical page 1 of sequence 0",
    );
    // Two sequences that write to different slots of one page.
    rejects(
        |schedule, _| {
            schedule.sequence_ids = vec![0, 1];
            schedule.positions = Some(vec![0, 1]);
        },
        "array `block_table`[0, 0] = 2: another page: row 1 writes to this one, \
         which is also logical page 0 of sequence 1",
    );
}

#[test]
fn what_a_table_holds_beyond_the_length_shares_nothing() {
    let (mut schedule, geometry) = append();
    schedule.block_table[3] = 0;
    AppendPlan::new(&schedule, &geometry).unwrap();
}

#[test]
fn positions_that_no_sequence_has_are_refused() {
    for (position, row) in [(6, 0), (7, 1), (1 << 20, 1)] {
        let message = format!(
            "array `positions`[{row}] = {position}: a position < 6, the length of sequence 0"
        );
        rejects(|s, _| s.positions.as_mut().unwrap()[row] = position, &message);
    }
    rejects(
        |schedule, _| schedule.positions = None,
        "paged-append: array `positions` is missing (it says to which slot a row goes)",
    );
    rejects(
        |schedule, _| schedule.positions = Some(vec![-1, 4]),
        "array `positions`[0] = -1: a position ≥ 0 and ≤ 4294967295, the kernels' index type",
    );
    rejects(
        |schedule, _| schedule.block_table[1] = 3,
        "array `block_table`[0, 1] = 3: a page id ≥ 0 and < 3 (pages): \
         sequence 0 of length 6 uses this entry",
    );
}

#[test]
fn shapes_that_disagree_are_refused() {
    let separate = || AppendInputs::Separate {
        new_k: vec![5, 2, 8],
        new_v: vec![5, 2, 3],
        k: vec![7, 4, 2, 8],
        v: vec![7, 4, 2, 3],
    };
    let latent = || AppendInputs::Latent {
        new_latent: vec![5, 1, 8],
        new_k_position: vec![5, 1, 3],
        latent: vec![7, 4, 1, 8],
        k_position: vec![7, 4, 1, 3],
    };
    let infer = |shapes: &AppendInputs<Vec<usize>>| {
        Geometry::of_append(&shapes.as_ref().map(|_, shape| shape.as_slice()))
    };
    assert_eq!(infer(&separate()).unwrap().value_dim, 3);
    let geometry = infer(&latent()).unwrap();
    assert_eq!((geometry.queries, geometry.value_dim, geometry.position_dim), (5, 8, 3));
    let refused = |shapes: AppendInputs<Vec<usize>>, array: &str, shape: &[usize], words: &str| {
        let shapes = shapes.map(|name, own| if name == array { shape.to_vec() } else { own });
        let message = format!("array `{array}`: expected {words}, found shape {shape:?}");
        assert_eq!(infer(&shapes).unwrap_err().to_string(), message);
    };
    refused(separate(), "new_k", &[5, 16], "[queries, kv_heads, dim]");
    refused(separate(), "new_k", &[5, 2, 7], "[5, 2, 8]");
    refused(separate(), "new_v", &[4, 2, 3], "[5, 2, 3]");
    refused(separate(), "k", &[7, 4, 16], "[pages, page_size, kv_heads, dim]");
    refused(separate(), "k", &[7, 0, 2, 8], "a page_size ≥ 1");
    refused(separate(), "v", &[6, 4, 2, 3], "[7, 4, 2, 3]");
    refused(separate(), "v", &[7, 4, 2, 1025], "a dim in 1..=1024");
    refused(latent(), "latent", &[7, 4, 2, 8], "one key/value head, [pages, page_size, 1, dim]");
    refused(latent(), "k_position", &[7, 4, 1, 257], "a dim in 1..=256");
    refused(latent(), "new_k_position", &[5, 1, 4], "[5, 1, 3]");
}

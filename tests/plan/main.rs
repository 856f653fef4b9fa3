//! The host plan against a naive twin, everything that it rejects, and all that kernels read of it.

#[path = "../common/random.rs"]
mod random;

mod append;
mod definition;
mod layout;
mod reach;
mod refusals;
mod units;
mod words;

use backslang::kernels::attention::{Geometry, Schedule};

pub(crate) fn geometry(queries: usize, pages: usize, page_size: usize) -> Geometry {
    Geometry {
        queries,
        heads: 2,
        kv_heads: 1,
        pages,
        page_size,
        key_dim: 4,
        value_dim: 4,
        position_dim: 0,
        statistics_columns: 0,
    }
}

/// Two sequences of lengths 5 and 3 on pages of 4, two rows each; the first page is shared.
pub(crate) fn small() -> (Schedule, Geometry) {
    let schedule = Schedule {
        block_table: vec![2, 0, 2, -1],
        table_width: 2,
        sequence_lengths: vec![5, 3],
        sequence_ids: vec![1, 0, 1, 0],
        positions: Some(vec![2, 4, 1, 7]),
    };
    (schedule, geometry(4, 3, 4))
}

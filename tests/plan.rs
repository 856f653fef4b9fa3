//! The host plan against a naive twin, and everything that it rejects.

#[path = "common/random.rs"]
mod random;

use backslang::kernels::attention::{Geometry, Plan, Schedule};
use backslang::{Error, Result};
use fastrand::Rng;
use random::ScheduleCase;

fn geometry(queries: usize, pages: usize, page_size: usize) -> Geometry {
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

/// The sections of a plan's words, cut apart by the documented layout.
struct Words<'a> {
    sequence_ids: &'a [u32],
    positions: &'a [u32],
    lengths: &'a [u32],
    block_table: &'a [u32],
    link_offsets: &'a [u32],
    links: &'a [[u32; 2]],
    row_offsets: &'a [u32],
    row_ids: &'a [u32],
    nondecreasing: &'a [u32],
    maxima: &'a [u32],
    block_offsets: &'a [u32],
    block_maxima: &'a [u32],
    query_block_rows: usize,
}

impl<'a> Words<'a> {
    fn of(plan: &'a Plan, pages: usize) -> Self {
        let (queries, sequences) = (plan.queries() as usize, plan.sequences() as usize);
        let (sequence_ids, rest) = plan.metadata().split_at(queries);
        let (positions, rest) = rest.split_at(queries);
        let (lengths, block_table) = rest.split_at(sequences);
        assert_eq!(block_table.len(), sequences * plan.table_width() as usize);
        let inverse = plan.inverse();
        let [links_base, rows_base, ids_base] = [0, 1, 2].map(|i| inverse[i] as usize);
        assert_eq!(links_base, 3 + pages + 1);
        assert_eq!(ids_base, rows_base + sequences + 1);
        let (row_ids, rest) = inverse[ids_base..].split_at(queries);
        let (nondecreasing, rest) = rest.split_at(sequences);
        let (maxima, rest) = rest.split_at(sequences);
        let (block_offsets, block_maxima) = rest.split_at(sequences + 1);
        Self {
            sequence_ids,
            positions,
            lengths,
            block_table,
            link_offsets: &inverse[3..links_base],
            links: inverse[links_base..rows_base].as_chunks().0,
            row_offsets: &inverse[rows_base..ids_base],
            row_ids,
            nondecreasing,
            maxima,
            block_offsets,
            block_maxima,
            query_block_rows: plan.query_block_rows() as usize,
        }
    }

    fn rows(&self, sequence: usize) -> &[u32] {
        &self.row_ids[self.row_offsets[sequence] as usize..self.row_offsets[sequence + 1] as usize]
    }

    /// The rows that add to a slot, in order, as the history kernel walks them.
    fn walk(&self, page: usize, offset: usize, page_size: usize, mode: Mode) -> Vec<u32> {
        let own = self.link_offsets[page] as usize..self.link_offsets[page + 1] as usize;
        let mut visited = Vec::new();
        for &[sequence, logical] in &self.links[own] {
            let token = logical as usize * page_size + offset;
            if token < self.lengths[sequence as usize] as usize {
                self.walk_sequence(sequence as usize, token as u32, mode, &mut visited);
            }
        }
        visited
    }

    fn walk_sequence(&self, sequence: usize, token: u32, mode: Mode, visited: &mut Vec<u32>) {
        let rows = self.rows(sequence);
        let position = |row: u32| self.positions[row as usize];
        match mode {
            Mode::NotCausal => visited.extend(rows),
            Mode::Causal => visited.extend(rows.iter().filter(|&&row| token <= position(row))),
            Mode::Pruned if token > self.maxima[sequence] => {}
            Mode::Pruned if self.nondecreasing[sequence] == 1 => {
                let first = rows.partition_point(|&row| position(row) < token);
                visited.extend(&rows[first..]);
            }
            Mode::Pruned => {
                let blocks = rows.chunks(self.query_block_rows);
                let maxima = &self.block_maxima[self.block_offsets[sequence] as usize..];
                for (block, maximum) in blocks.zip(maxima) {
                    if token <= *maximum {
                        visited.extend(block.iter().filter(|&&row| token <= position(row)));
                    }
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    NotCausal,
    Causal,
    Pruned,
}

/// The rows that add to a slot, in order, straight from the definition.
fn contributors(schedule: &Schedule, geometry: &Geometry, slot: usize, causal: bool) -> Vec<u32> {
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
        assert!(words.links[own].is_sorted());
        let first = page * geometry.page_size;
        // Each used page holds at least its first token.
        let active = !contributors(schedule, geometry, first, false).is_empty();
        assert_eq!(plan.active_pages().contains(&(page as u32)), active);
        assert_eq!(plan.inactive_pages().contains(&(page as u32)), !active);
    }
    assert!(plan.active_pages().is_sorted() && plan.inactive_pages().is_sorted());
    assert_eq!(plan.active_pages().len() + plan.inactive_pages().len(), geometry.pages);
}

fn check_plan(schedule: &Schedule, geometry: &Geometry, query_block_rows: u32) {
    let plan = Plan::new(schedule, geometry, query_block_rows).unwrap();
    assert_eq!(plan.has_positions(), schedule.positions.is_some());
    let words = Words::of(&plan, geometry.pages);
    check_metadata(schedule, &words, geometry.page_size);
    check_sequences(&words);
    check_pages(schedule, &plan, geometry, &words);
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
    let mut rng = Rng::with_seed(1);
    for _ in 0..600 {
        let case = ScheduleCase::random(&mut rng);
        let schedule = case.schedule(&mut rng);
        let geometry = geometry(schedule.sequence_ids.len(), case.pages, case.page_size);
        for query_block_rows in [1, 2, 3, 32, u32::MAX] {
            check_plan(&schedule, &geometry, query_block_rows);
        }
    }
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

/// Two sequences of lengths 5 and 3 on pages of 4, two rows each; the first page is shared.
fn small() -> (Schedule, Geometry) {
    let schedule = Schedule {
        block_table: vec![2, 0, 2, -1],
        table_width: 2,
        sequence_lengths: vec![5, 3],
        sequence_ids: vec![1, 0, 1, 0],
        positions: Some(vec![2, 4, 1, 7]),
    };
    (schedule, geometry(4, 3, 4))
}

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
        "array `sequence_ids`: expected [4], one entry a row of `q`, found shape [3]",
    );
    rejects(
        |schedule, _| schedule.positions.as_mut().unwrap().push(0),
        "array `positions`: expected [4], one entry a row of `q`, found shape [5]",
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
        |_, g| (g.heads, g.key_dim) = (1 << 20, 1024),
        &too_large("elements of the queries (queries · heads · key_dim)", 1 << 32),
    );
    rejects(
        |_, g| (g.heads, g.value_dim) = (1 << 20, 1024),
        &too_large("elements of the output (queries · heads · value_dim)", 1 << 32),
    );
    rejects(
        |_, g| g.pages = 1 << 28,
        &too_large("elements of the keys (slots · kv_heads · key_dim)", 1 << 32),
    );
    rejects(
        |_, g| (g.pages, g.key_dim) = (1 << 28, 1),
        &too_large("elements of the values (slots · kv_heads · value_dim)", 1 << 32),
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
    let message =
        "array `plan`: expected [queries, pages, page_size] = [4, 4, 4], found shape [4, 3, 4]";
    assert_eq!(error.to_string(), message);

    schedule.positions = None;
    let plan = Plan::new(&schedule, &geometry, 32).unwrap();
    plan.check_call("test", &geometry, false).unwrap();
    let result: Result<()> = plan.check_call("test", &geometry, true);
    let Err(Error::MissingArray { operator: "test", array: "positions", .. }) = result else {
        panic!("{result:?}");
    };
}

//! Tiles of the query kernel: rows that are taken together do not show in each other's bits.

use backslang::kernels::attention::{BackwardInputs, Geometry, Gradient, Gradients, Schedule};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};
use fastrand::Rng;

use crate::accuracy::fresh_seed;
use crate::common::compare::assert_same_bits;
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase};
use crate::halves::rounded;
use crate::support::{busy_case, check, run_poisoned};

/// Sequences of so many rows and tokens each, the rows of all in one random order, on pages in places of a random order.
fn ragged(
    case: AttentionCase,
    sizes: &[[usize; 2]],
    unsorted: bool,
    seed: u64,
) -> AttentionProblem {
    let mut rng = Rng::with_seed(seed);
    let page_size = case.schedule.page_size;
    let width = sizes.iter().map(|size| size[1].div_ceil(page_size)).max().unwrap();
    let pages = width * sizes.len();
    let queries = sizes.iter().map(|size| size[0]).sum();
    let schedule = ScheduleCase { queries, pages, ..case.schedule };
    let mut problem = AttentionCase { schedule, ..case }.problem(seed, 0.0);
    let mut table: Vec<_> = (0..pages as i128).collect();
    rng.shuffle(&mut table);
    let mut sequence_ids: Vec<i128> =
        (0..).zip(sizes).flat_map(|(id, size)| vec![id; size[0]]).collect();
    rng.shuffle(&mut sequence_ids);
    let mut done = vec![0; sizes.len()];
    let position = |&id: &i128| {
        let [rows, tokens] = sizes[id as usize];
        let row = done[id as usize];
        done[id as usize] += 1;
        let last = (tokens + row).saturating_sub(rows) as i128;
        if unsorted { rng.i128(0..=tokens as i128) } else { last }
    };
    problem.schedule = Schedule {
        positions: Some(sequence_ids.iter().map(position).collect()),
        block_table: table,
        table_width: width,
        sequence_lengths: sizes.iter().map(|size| size[1] as i128).collect(),
        sequence_ids,
    };
    problem
}

/// Rows around the ends of units and tiles, sequences without rows and without tokens.
const SIZES: [[usize; 2]; 7] = [[1, 30], [65, 70], [0, 9], [64, 40], [3, 0], [17, 3], [130, 64]];

/// Any numbers of rows and of heads of a group, in any order, without and with statistics.
pub(crate) fn ragged_rows(runtime: &Runtime) {
    let seed = fresh_seed();
    for (heads, kv_heads, position_dim, columns, unsorted) in
        [(1, 1, 0, 0, false), (6, 2, 0, 2, true), (5, 1, 4, 0, false), (8, 1, 0, 3, true)]
    {
        let case = AttentionCase { heads, kv_heads, ..busy_case(unsorted, position_dim) };
        let mut problem = ragged(case, &SIZES, unsorted, seed);
        let what = format!("{heads} heads, {kv_heads}, seed {seed}");
        let found = check(runtime, &problem, &what);
        if columns > 0 {
            give(&mut problem, &found.statistics, columns);
            check(runtime, &problem, &format!("{what}, {columns} columns"));
        }
    }
}

/// Gives the first columns of statistics.
fn give(problem: &mut AttentionProblem, statistics: &HostTensor, columns: usize) {
    let rows = statistics.as_f32().unwrap().chunks_exact(3);
    let given = rows.flat_map(|row| row[..columns].to_vec()).collect();
    let shape = [statistics.shape()[0], statistics.shape()[1], columns];
    problem.inputs.statistics = Some(HostTensor::from_f32(&shape, given).unwrap());
    problem.geometry.statistics_columns = columns;
}

/// These rows of a problem alone.
fn only(problem: &AttentionProblem, rows: &[usize]) -> AttentionProblem {
    let mut part = problem.clone();
    let of = |tensor: &HostTensor| taken(tensor, rows);
    part.inputs = part.inputs.map(|name, tensor| match name {
        "k" | "v" | "latent" | "k_position" => tensor,
        _ => of(&tensor),
    });
    let schedule = &problem.schedule;
    part.schedule.sequence_ids = rows.iter().map(|&row| schedule.sequence_ids[row]).collect();
    let positions = schedule.positions.as_ref().unwrap();
    part.schedule.positions = Some(rows.iter().map(|&row| positions[row]).collect());
    part.geometry =
        Geometry::of_backward(&part.inputs.as_ref().map(|_, tensor| tensor.shape())).unwrap();
    part
}

/// These rows of an array.
fn taken(tensor: &HostTensor, rows: &[usize]) -> HostTensor {
    let bytes = tensor.bytes().len() / tensor.shape()[0].max(1);
    let part = rows.iter().flat_map(|row| &tensor.bytes()[row * bytes..][..bytes]);
    let shape = [&[rows.len()], &tensor.shape()[1..]].concat();
    HostTensor::from_bytes(tensor.dtype(), &shape, &part.copied().collect::<Vec<_>>()).unwrap()
}

/// Every row has the bits that it has alone, and with any of the others.
pub(crate) fn neighbours_do_not_show(runtime: &Runtime) {
    let seed = fresh_seed();
    let mut rng = Rng::with_seed(seed);
    for (dtype, position_dim, columns) in
        [(Dtype::F32, 0, 0), (Dtype::Bf16, 6, 2), (Dtype::F16, 0, 3)]
    {
        let case = AttentionCase { value_dim: 12, ..busy_case(true, position_dim) };
        let mut problem = rounded(ragged(case, &SIZES, true, seed), dtype);
        let query = [Gradient::Q, Gradient::QPosition];
        let query = &query[..if position_dim > 0 { 2 } else { 1 }];
        problem.options.gradients = Gradients::only(query);
        let mut all = run_poisoned(runtime, &problem);
        if columns > 0 {
            give(&mut problem, &all.statistics, columns);
            all = run_poisoned(runtime, &problem);
        }
        let rows = problem.geometry.queries;
        let alone = [[rng.usize(0..rows)].to_vec(), [rng.usize(0..rows)].to_vec()];
        let some = [2, 3, 7].map(|n| (0..rows).filter(|_| rng.usize(0..n) == 0).collect());
        for chosen in alone.into_iter().chain(some) {
            let part = run_poisoned(runtime, &only(&problem, &chosen));
            let what = format!("{dtype}, {} rows, seed {seed}", chosen.len());
            assert_same_bits(&part.statistics, &taken(&all.statistics, &chosen), &what);
            for ((g, part), (_, all)) in part.gradients.iter().zip(&all.gradients) {
                assert_same_bits(part, &taken(all, &chosen), &format!("{what}: {g:?}"));
            }
        }
    }
}

/// A token that one row of a tile sees and another does not: NaN in it stays with those that see it.
pub(crate) fn nan_stays_with_those_that_see_it(runtime: &Runtime) {
    let case = AttentionCase { causal: true, ..busy_case(false, 0) };
    let problem = ragged(case, &[[40, 40]], false, 3);
    let clean = run_poisoned(runtime, &problem);
    let token = 22;
    let page_size = problem.geometry.page_size;
    let slot =
        problem.schedule.block_table[token / page_size] as usize * page_size + token % page_size;
    let mut spoilt = problem.clone();
    let width = |tensor: &HostTensor| tensor.shape()[2..].iter().product::<usize>();
    spoilt.inputs = BackwardInputs::map(spoilt.inputs, |name, mut tensor| {
        if matches!(name, "k" | "v") {
            let width = width(&tensor);
            tensor.as_f32_mut().unwrap()[slot * width..][..width].fill(f32::NAN);
        }
        tensor
    });
    let found = run_poisoned(runtime, &spoilt);
    let [found, clean] = [&found, &clean].map(|run| run.gradients[0].1.as_f32().unwrap());
    let positions = problem.schedule.positions.as_ref().unwrap();
    let row_width = found.len() / positions.len();
    let rows = found.chunks(row_width).zip(clean.chunks(row_width)).zip(positions);
    for ((found, clean), &position) in rows {
        match position >= token as i128 {
            true => assert!(found.iter().all(|x| x.is_nan()), "{position}"),
            false => assert_eq!(found, clean, "{position}"),
        }
    }
}

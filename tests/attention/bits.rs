//! Bits: what may not change them, and the order that gives them.

use backslang::HostTensor;
use backslang::kernels::attention::{
    BackwardOutputs, Geometry, Gradient, Gradients, Options, Schedule,
};
use backslang::runtime::Runtime;

use crate::common::compare::assert_same_bits;
use crate::common::gpu;
use crate::common::random::{AttentionCase, ScheduleCase};

use crate::support::{assert_same, busy_case, busy_cases, check, run_poisoned, settings, small};

pub(crate) fn history_settings_share_bits(runtime: &Runtime) {
    for (name, mut problem) in busy_cases() {
        let expected = check(runtime, &problem, name);
        for options in settings(problem.options) {
            problem.options = options;
            assert_same(
                &run_poisoned(runtime, &problem),
                &expected,
                &format!("{name}: {options:?}"),
            );
        }
        for query_block_rows in [1, 7, 1000, u32::MAX] {
            problem.options = Options { prune_queries: true, query_block_rows, ..problem.options };
            assert_same(
                &run_poisoned(runtime, &problem),
                &expected,
                &format!("{name}: {query_block_rows} rows"),
            );
        }
    }
}

pub(crate) fn gradient_subsets_share_bits(runtime: &Runtime) {
    for (name, problem) in busy_cases().into_iter().step_by(2) {
        let all = check(runtime, &problem, name);
        for bits in 1u32..1 << all.gradients.len() {
            let chosen = all.gradients.iter().enumerate().filter(|(i, _)| bits >> i & 1 != 0);
            let chosen = chosen.map(|(_, gradient)| gradient.clone()).collect::<Vec<_>>();
            let names = chosen.iter().map(|(g, _)| *g).collect::<Vec<_>>();
            let subset = problem.clone().with_gradients(Gradients::only(&names));
            let expected =
                BackwardOutputs { gradients: chosen, statistics: all.statistics.clone() };
            assert_same(&run_poisoned(runtime, &subset), &expected, &format!("{name}: {names:?}"));
        }
    }
}

pub(crate) fn repeats_share_bits(runtime: &Runtime) {
    for (name, problem) in busy_cases() {
        let first = run_poisoned(runtime, &problem);
        for _ in 0..3 {
            assert_same(&run_poisoned(runtime, &problem), &first, name);
        }
    }
}

pub(crate) fn unread_values_reach_nothing(runtime: &Runtime) {
    for seed in 0..6 {
        let case = AttentionCase {
            given_columns: [0, 2, 3][seed as usize % 3],
            zero_denominators: true,
            given_output: seed % 2 == 0,
            schedule: ScheduleCase { shared: false, ..busy_case(seed % 2 == 1, 0).schedule },
            ..busy_case(false, if seed < 3 { 0 } else { 3 })
        };
        let clean = run_poisoned(runtime, &case.problem(seed, 0.0));
        for poison in [f32::NAN, 1e30, f32::INFINITY] {
            let found = run_poisoned(runtime, &case.problem(seed, poison));
            assert_same(&found, &clean, &format!("{case:?} with {poison}"));
        }
    }
}

/// Where pages lie does not matter: each logical token keeps its bits.
pub(crate) fn page_placement(runtime: &Runtime) {
    let problem = busy_case(true, 0).problem(21, 0.0);
    let pages = problem.geometry.pages;
    let mut moved_to = (0..pages).collect::<Vec<_>>();
    fastrand::Rng::with_seed(3).shuffle(&mut moved_to);
    let shuffled = |tensor: &HostTensor| {
        let source = tensor.as_f32().unwrap();
        let width = source.len() / pages;
        let mut target = vec![0.0; source.len()];
        for (page, &to) in moved_to.iter().enumerate() {
            target[to * width..][..width].copy_from_slice(&source[page * width..][..width]);
        }
        HostTensor::from_f32(tensor.shape(), target).unwrap()
    };
    let mut moved = problem.clone();
    moved.inputs =
        moved.inputs.map(|name, t| if matches!(name, "k" | "v") { shuffled(&t) } else { t });
    for page in &mut moved.schedule.block_table {
        if let Ok(index) = usize::try_from(*page) {
            *page = moved_to.get(index).map_or(*page, |&to| to as i128);
        }
    }
    let expected = run_poisoned(runtime, &problem);
    for ((g, found), (_, expected)) in
        run_poisoned(runtime, &moved).gradients.iter().zip(&expected.gradients)
    {
        let expected = if g.is_history() { shuffled(expected) } else { expected.clone() };
        assert_same_bits(found, &expected, g.output_name());
    }
}

/// The promised order, replayed in f32 on the host. With q = 0 and statistics (0, 1, 0) every p is 1, so that v's
/// gradient is the plain sum of output gradients: links by sequence and logical page, then rows, then heads.
pub(crate) fn history_is_summed_in_order(runtime: &Runtime) {
    let case = AttentionCase { given_columns: 3, ..busy_case(true, 0) };
    let mut problem = case.problem(61, 0.0);
    problem.inputs.q.as_f32_mut().unwrap().fill(0.0);
    let statistics = problem.inputs.statistics.as_mut().and_then(HostTensor::as_f32_mut).unwrap();
    statistics.chunks_exact_mut(3).for_each(|row| row.copy_from_slice(&[0.0, 1.0, 0.0]));
    let mut problem = problem.with_gradients(Gradients::only(&[Gradient::V]));

    let Geometry { pages, page_size, heads, kv_heads, value_dim, .. } = problem.geometry;
    let terms = problem.inputs.output_gradient.as_f32().unwrap();
    let schedule = &problem.schedule;
    let mut expected = vec![0f32; pages * page_size * kv_heads * value_dim];
    for (sequence, &length) in schedule.sequence_lengths.iter().enumerate() {
        let table = &schedule.block_table[sequence * schedule.table_width..];
        for token in 0..length as usize {
            let slot = table[token / page_size] as usize * page_size + token % page_size;
            let sees = |&row: &usize| {
                schedule.sequence_ids[row] == sequence as i128
                    && schedule.positions.as_ref().unwrap()[row] >= token as i128
            };
            for row in (0..schedule.sequence_ids.len()).filter(sees) {
                for head in 0..heads {
                    let target = (slot * kv_heads + head / (heads / kv_heads)) * value_dim;
                    let source = (row * heads + head) * value_dim;
                    for d in 0..value_dim {
                        expected[target + d] += terms[source + d];
                    }
                }
            }
        }
    }
    for options in settings(problem.options) {
        problem.options = options;
        let found = run_poisoned(runtime, &problem);
        let found = found.gradients[0].1.as_f32().unwrap();
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "element {i}, {options:?}");
        }
    }
}

/// Grids in many dispatches and in many submissions, and NaN behind every tensor: none changes a bit.
pub(crate) fn splits_and_guards_share_bits(runtime: &Runtime) {
    let strained = gpu::open(|_| ()).unwrap();
    strained.guard_tensors(2048);
    for (i, (name, mut problem)) in busy_cases().into_iter().enumerate() {
        strained.split_grids(1 + i as u32 % 3);
        strained.slice_grids([0, 1, 7, 50][i % 4]);
        problem.options.compact_history = i % 2 == 0;
        let expected = run_poisoned(runtime, &problem);
        assert_same(&run_poisoned(&strained, &problem), &expected, name);
    }
    strained.finish().unwrap();
}

/// One token seen by every row, so p = 1: v's gradient is the plain sum over the heads of a group.
/// Head h carries 2^h, so that the sum names its terms.
pub(crate) fn head_map(runtime: &Runtime) {
    for (heads, kv_heads) in [(4, 2), (6, 2), (6, 3), (8, 1), (16, 2), (9, 3), (5, 5)] {
        let case = AttentionCase { heads, kv_heads, ..small(3, 2, 0) };
        let mut problem = case.problem(1, f32::NAN);
        problem.schedule = Schedule {
            block_table: vec![1],
            table_width: 1,
            sequence_lengths: vec![1],
            sequence_ids: vec![0; 5],
            positions: Some(vec![0; 5]),
        };
        let mut output_gradient =
            HostTensor::from_f32(&[5, heads, 2], vec![0.0; 10 * heads]).unwrap();
        for (i, x) in output_gradient.as_f32_mut().unwrap().iter_mut().enumerate() {
            *x = f32::from(1u16 << ((i / 2) % heads));
        }
        problem.inputs = crate::common::random::inputs(&problem.geometry, 3);
        problem.inputs.output_gradient = output_gradient;
        let found = check(runtime, &problem, &format!("{heads} heads on {kv_heads}"));
        let (_, v) = found.gradients.iter().find(|(g, _)| *g == Gradient::V).unwrap();
        let group = heads / kv_heads;
        let slot = problem.geometry.page_size;
        for kv_head in 0..kv_heads {
            let expected =
                5 * (kv_head * group..(kv_head + 1) * group).map(|h| 1usize << h).sum::<usize>();
            let element = v.as_f32().unwrap()[(slot * kv_heads + kv_head) * 2];
            assert_eq!(element, expected as f32, "{heads} heads on {kv_heads}, kv head {kv_head}");
        }
    }
}

/// With H identical heads the gradient of MLA's one position key is exactly H times that of one head: with scores of 0
/// over four tokens and small integers everywhere else, every term and every sum is exact.
pub(crate) fn shared_position_key(runtime: &Runtime) {
    let of = |heads: usize| {
        let case = AttentionCase { heads, ..small(6, 6, 4) };
        let mut problem = case.problem(5, 0.0);
        problem.schedule = Schedule {
            block_table: vec![2, 0],
            table_width: 2,
            sequence_lengths: vec![4],
            sequence_ids: vec![0; 3],
            positions: Some(vec![3; 3]),
        };
        problem.options.scale = 0.5;
        problem.geometry.queries = 3;
        problem.inputs = crate::common::random::inputs(&problem.geometry, 9);
        problem.inputs = problem.inputs.map(|name, tensor| {
            // The same for every head, whatever their number.
            let width = tensor.shape()[2..].iter().product::<usize>();
            let rows = tensor.bytes().len() / 4 / width;
            let rows = (0..rows).map(|row| if name == "latent" { row } else { row / heads });
            let element = |(row, column): (usize, usize)| match name {
                "q" | "k_position" => 0.0,
                _ => ((row * 7 + column * 5 + name.len()) % 9) as f32 - 4.0,
            };
            let data = rows.flat_map(|row| (0..width).map(move |column| (row, column)));
            HostTensor::from_f32(tensor.shape(), data.map(element).collect()).unwrap()
        });
        let found = check(runtime, &problem, &format!("{heads} equal heads"));
        let (_, tensor) =
            found.gradients.into_iter().find(|(g, _)| *g == Gradient::KPosition).unwrap();
        tensor
    };
    let one = of(1);
    assert!(one.as_f32().unwrap().iter().any(|&x| x != 0.0));
    for heads in [2, 3, 5, 7, 8, 16] {
        for (many, one) in of(heads).as_f32().unwrap().iter().zip(one.as_f32().unwrap()) {
            assert_eq!(*many, heads as f32 * one, "{heads} heads");
        }
    }
}

//! Pages: their size, their order, what shares them, and what lies in the last one behind the last token.

use backslang::HostTensor;
use backslang::kernels::attention::{Gradient, Schedule};
use backslang::runtime::Runtime;
use fastrand::Rng;

use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase, inputs};

use crate::support::{assert_same, busy_case, check, run_poisoned, settings};

/// A problem on a schedule of its own.
fn problem(
    case: AttentionCase,
    pages: usize,
    page_size: usize,
    schedule: Schedule,
) -> AttentionProblem {
    let schedule_case = ScheduleCase { pages, page_size, ..case.schedule };
    let geometry = AttentionCase { schedule: schedule_case, ..case }.geometry(&schedule);
    let options = backslang::kernels::attention::Options {
        causal: case.causal,
        ..backslang::kernels::attention::Options::new(case.scale)
    };
    AttentionProblem { inputs: inputs(&geometry, 81), schedule, options, geometry }
}

/// `rows` rows a sequence at positions that go down, so that none of the shortcuts for sorted rows applies.
fn rows(sequences: usize, rows: usize) -> (Vec<i128>, Option<Vec<i128>>) {
    let all = || (0..sequences * rows).rev();
    let ids = all().map(|row| (row % sequences) as i128).collect();
    (ids, Some(all().map(|row| (row * 5) as i128).collect()))
}

pub(crate) fn page_sizes(runtime: &Runtime) {
    for (page_size, position_dim) in [(1, 0), (16, 0), (256, 0), (256, 5)] {
        let case = busy_case(true, position_dim);
        let schedule = ScheduleCase {
            page_size,
            pages: 2048 / (page_size + 50),
            max_length: 2 * page_size + 30,
            ..case.schedule
        };
        let case = AttentionCase { schedule, ..case };
        let mut problem = case.problem(82, f32::NAN);
        let expected = check(runtime, &problem, &format!("pages of {page_size}"));
        for options in settings(problem.options).step_by(7) {
            problem.options = options;
            assert_same(&run_poisoned(runtime, &problem), &expected, &format!("{options:?}"));
        }
    }
}

/// A slot that a sequence reads as several tokens gets the terms of all of them.
pub(crate) fn one_page_many_times(runtime: &Runtime) {
    for (causal, position_dim) in [(true, 0), (false, 0), (true, 5)] {
        let case = AttentionCase { causal, ..busy_case(false, position_dim) };
        let (sequence_ids, positions) = rows(2, 9);
        let schedule = Schedule {
            block_table: vec![3, 1, 3, 3, 1, 3, 0, 3],
            table_width: 4,
            sequence_lengths: vec![15, 14],
            sequence_ids,
            positions,
        };
        let mut problem = problem(case, 5, 4, schedule);
        let expected = check(runtime, &problem, "one page many times");
        for options in settings(problem.options).step_by(7) {
            problem.options = options;
            assert_same(&run_poisoned(runtime, &problem), &expected, &format!("{options:?}"));
        }
    }
}

/// Page 16, length 17: whatever lies in the other 15 slots reaches nothing, and their gradients are 0.
pub(crate) fn last_partial_page(runtime: &Runtime) {
    for position_dim in [0, 5] {
        let (sequence_ids, positions) = rows(1, 8);
        let schedule = Schedule {
            block_table: vec![2, 0],
            table_width: 2,
            sequence_lengths: vec![17],
            sequence_ids,
            positions,
        };
        let mut problem = problem(busy_case(false, position_dim), 3, 16, schedule);
        for options in settings(problem.options).step_by(7) {
            problem.options = options;
            let mut rng = Rng::with_seed(83);
            let mut with = |fill: &mut dyn FnMut(&mut Rng) -> f32| {
                let mut filled = problem.clone();
                filled.inputs = filled.inputs.map(|name, mut tensor| {
                    if matches!(name, "k" | "v" | "latent" | "k_position") {
                        tail(&mut tensor).iter_mut().for_each(|x| *x = fill(&mut rng));
                    }
                    tensor
                });
                check(runtime, &filled, &format!("{options:?}"))
            };
            let zeros = with(&mut |_| 0.0);
            for (gradient, tensor) in zeros.gradients.iter().filter(|(g, _)| g.is_history()) {
                let bits = tail(&mut tensor.clone()).iter().map(|x| x.to_bits()).max();
                assert_eq!(bits, Some(0), "{gradient:?}");
            }
            for value in [f32::NAN, 1e30, f32::NEG_INFINITY] {
                assert_same(&with(&mut |_| value), &zeros, &format!("{value}"));
            }
            assert_same(&with(&mut |rng| 100.0 * rng.f32()), &zeros, "random");
        }
    }
}

/// Of three pages of 16 the slots 1.. of page 0.
fn tail(tensor: &mut HostTensor) -> &mut [f32] {
    let page = tensor.bytes().len() / 4 / 3;
    &mut tensor.as_f32_mut().unwrap()[page / 16..page]
}

/// Nothing in the sizes tells the axes apart: only the contract does.
pub(crate) fn two_of_everything(runtime: &Runtime) {
    let case = AttentionCase { heads: 4, key_dim: 2, value_dim: 2, ..busy_case(false, 0) };
    let (sequence_ids, positions) = rows(2, 3);
    let schedule = Schedule {
        block_table: vec![1, 0, 0, 1],
        table_width: 2,
        sequence_lengths: vec![4, 3],
        sequence_ids,
        positions,
    };
    let problem = problem(case, 2, 2, schedule);
    check(runtime, &problem, "two of everything");
    // By hand: one row that sees one token, that of page 1, slot 1: v's gradient there is the sum over the group.
    let mut lone = problem.clone();
    lone.schedule = Schedule {
        block_table: vec![1, 0],
        table_width: 2,
        sequence_lengths: vec![2],
        sequence_ids: vec![0; 6],
        positions: Some(vec![1; 6]),
    };
    // Key [page 1, slot 0] is −∞ for every query of ones: all of the weight is on slot 1.
    lone.inputs.q.as_f32_mut().unwrap().fill(1.0);
    if let backslang::kernels::attention::History::Separate { k, .. } = &mut lone.inputs.history {
        k.as_f32_mut().unwrap()[8..12].fill(-1e6);
    }
    let output_gradient = (0..6 * 4 * 2).map(|i| (1 << (i % 8)) as f32).collect();
    lone.inputs.output_gradient = HostTensor::from_f32(&[6, 4, 2], output_gradient).unwrap();
    let found = run_poisoned(runtime, &lone);
    let (_, v) = found.gradients.iter().find(|(g, _)| *g == Gradient::V).unwrap();
    let mut expected = [0.0; 16];
    // Page 1, slot 1: kv head 0 has heads 0 and 1, codes 1, 2, 4, 8; kv head 1 codes 16 … 128; six rows.
    expected[12..].copy_from_slice(&[5.0, 10.0, 80.0, 160.0].map(|x| 6.0 * x));
    assert_eq!(v.as_f32().unwrap(), expected);
}

/// Compaction changes no bit, whatever order the live pages are in and however many there are.
pub(crate) fn compaction_of_any_pages(runtime: &Runtime) {
    let case = busy_case(false, 0);
    for (what, block_table, lengths) in [
        ("cycles", vec![1, 2, 0, 4, 5, 3], vec![11, 12]),
        ("one live page", vec![4, -1, -1, -1, -1, -1], vec![3, 0]),
        ("the last page", vec![7, -1, -1, 7, -1, -1], vec![4, 2]),
        ("all free", vec![-1; 6], vec![0, 0]),
        ("all live", vec![7, 5, 3, 1, 0, 2], vec![12, 9]),
    ] {
        let (sequence_ids, positions) = rows(2, 7);
        let schedule = Schedule {
            block_table,
            table_width: 3,
            sequence_lengths: lengths,
            sequence_ids,
            positions,
        };
        let mut problem = problem(case, 8, 4, schedule);
        let expected = check(runtime, &problem, what);
        problem.options.compact_history = true;
        assert_same(&run_poisoned(runtime, &problem), &expected, what);
    }
}

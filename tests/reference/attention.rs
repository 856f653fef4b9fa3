//! What the attention reference does with given statistics, skipped rows, poison and live NaN.

use backslang::Error;
use backslang::kernels::attention::{
    BackwardInputs, BackwardOutputs, Geometry, Gradient, Gradients, History,
};
use backslang::reference;
use fastrand::Rng;
use ndarray::{ArrayD, Axis, Slice};

use crate::bits;
use crate::golden::relative_error;
use crate::random::{AttentionCase, AttentionProblem, ScheduleCase};

type Outputs = BackwardOutputs<ArrayD<f64>>;

fn widened(problem: &AttentionProblem) -> BackwardInputs<ArrayD<f64>> {
    problem.inputs.as_ref().map(|_, tensor| tensor.to_f64())
}

fn run(problem: &AttentionProblem) -> Outputs {
    run_on(problem, &widened(problem))
}

fn run_on(problem: &AttentionProblem, inputs: &BackwardInputs<ArrayD<f64>>) -> Outputs {
    reference::attention::backward(inputs, &problem.schedule, &problem.options).unwrap()
}

fn gradient(outputs: &Outputs, gradient: Gradient) -> &ArrayD<f64> {
    let found = outputs.gradients.iter().find(|(found, _)| *found == gradient);
    &found.unwrap_or_else(|| panic!("no {gradient:?}")).1
}

/// The last row that sees a token.
fn live_row(problem: &AttentionProblem) -> usize {
    let mut rows = (0..problem.geometry.queries).rev();
    rows.find(|&row| !problem.visible_slots(row).is_empty()).unwrap()
}

/// Eight rows over three sequences that share pages.
fn middling(position_dim: usize) -> AttentionCase {
    AttentionCase {
        schedule: ScheduleCase {
            sequences: 3,
            queries: 8,
            pages: 6,
            page_size: 3,
            max_length: 11,
            shared: true,
            unsorted: true,
            packed: false,
            positions: true,
        },
        heads: 4,
        kv_heads: if position_dim > 0 { 1 } else { 2 },
        key_dim: 6,
        value_dim: if position_dim > 0 { 6 } else { 5 },
        position_dim,
        causal: true,
        scale: 0.5,
        given_columns: 0,
        zero_denominators: false,
        given_output: false,
    }
}

#[test]
fn poison_reaches_nothing() {
    let mut rng = Rng::with_seed(21);
    for seed in 0..300 {
        let case = AttentionCase::random(&mut rng);
        let clean = run(&case.problem(seed, 0.0));
        for poison in [f32::NAN, f32::INFINITY, 1e30] {
            let poisoned = run(&case.problem(seed, poison));
            for ((name, clean), (_, poisoned)) in clean.gradients.iter().zip(&poisoned.gradients) {
                assert!(clean.iter().all(|x| x.is_finite()), "{name:?} of {case:?}");
                assert_eq!(bits(clean), bits(poisoned), "{name:?} of {case:?}");
            }
            // Given rows that are skipped keep the maximum that they came with.
            if case.given_columns == 0 {
                assert_eq!(bits(&clean.statistics), bits(&poisoned.statistics));
            }
        }
    }
}

#[test]
fn given_statistics_change_nothing_when_they_are_right() {
    for (seed, position_dim) in [(1, 0), (2, 2)] {
        let problem = middling(position_dim).problem(seed, f32::NAN);
        let computed = run(&problem);
        let plain = widened(&problem);
        let output = {
            let inputs = backslang::kernels::attention::ForwardInputs {
                q: plain.q.clone(),
                history: plain.history.clone(),
            };
            let outputs =
                reference::attention::forward(&inputs, &problem.schedule, &problem.options);
            outputs.unwrap().output
        };
        let three = computed.statistics.clone();
        let two = three.slice_axis(Axis(2), Slice::from(..2)).to_owned();
        for (statistics, output) in [
            (Some(three.clone()), None),
            (Some(three), Some(output.clone())),
            (Some(two.clone()), None),
            (Some(two), Some(output.clone())),
            (None, Some(output)),
        ] {
            let found = run_on(&problem, &BackwardInputs { statistics, output, ..plain.clone() });
            assert!(relative_error(&found.statistics, &computed.statistics) < 1e-13);
            for ((_, found), (_, computed)) in found.gradients.iter().zip(&computed.gradients) {
                assert!(relative_error(found, computed) < 1e-13);
            }
        }
    }
}

#[test]
fn a_log_sum_exp_serves_as_maximum() {
    let problem = middling(0).problem(3, 0.0);
    let computed = run(&problem);
    let mut statistics = computed.statistics.clone();
    for mut row in statistics.rows_mut() {
        if row[1] != 0.0 {
            row[0] += row[1].ln();
            row[1] = 1.0;
        }
    }
    let inputs = BackwardInputs { statistics: Some(statistics), ..widened(&problem) };
    let found = run_on(&problem, &inputs);
    for ((_, found), (_, computed)) in found.gradients.iter().zip(&computed.gradients) {
        assert!(relative_error(found, computed) < 1e-13);
    }
}

#[test]
fn wrong_statistics_are_used_as_they_are() {
    let problem = middling(0).problem(4, 0.0);
    let computed = run(&problem);
    let mut statistics = computed.statistics.clone();
    statistics.rows_mut().into_iter().for_each(|mut row| row[1] *= 2.0);
    let inputs = BackwardInputs { statistics: Some(statistics), ..widened(&problem) };
    let found = run_on(&problem, &inputs);
    let half = gradient(&computed, Gradient::V) * 0.5;
    assert_eq!(bits(gradient(&found, Gradient::V)), bits(&half));
}

/// A row whose denominator is given as 0 contributes as if its upstream gradient were 0.
#[test]
fn a_denominator_of_zero_takes_a_row_out() {
    for position_dim in [0, 2] {
        let problem = middling(position_dim).problem(5, 0.0);
        let row = live_row(&problem);
        let plain = widened(&problem);
        let mut silenced = plain.clone();
        silenced.output_gradient.index_axis_mut(Axis(0), row).fill(0.0);
        let expected = run_on(&problem, &silenced);
        let mut statistics = run(&problem).statistics;
        statistics.index_axis_mut(Axis(0), row).index_axis_mut(Axis(1), 1).fill(-0.0);
        let mut skipping = BackwardInputs { statistics: Some(statistics), ..plain };
        skipping.q.index_axis_mut(Axis(0), row).fill(f64::NAN);
        skipping.output_gradient.index_axis_mut(Axis(0), row).fill(f64::NAN);
        let found = run_on(&problem, &skipping);
        for ((name, found), (_, expected)) in found.gradients.iter().zip(&expected.gradients) {
            assert!(relative_error(found, expected) < 1e-13, "{name:?}");
        }
        let own = gradient(&found, Gradient::Q).index_axis(Axis(0), row);
        assert!(own.iter().all(|x| x.to_bits() == 0));
    }
}

#[test]
fn two_given_columns_get_a_delta() {
    let problem = middling(0).problem(6, 0.0);
    let mut statistics = run(&problem).statistics.slice_axis(Axis(2), Slice::from(..2)).to_owned();
    let row = live_row(&problem);
    statistics[[row, 1, 1]] = 0.0;
    statistics[[row, 1, 0]] = 7.0;
    let inputs = BackwardInputs { statistics: Some(statistics), ..widened(&problem) };
    let found = run_on(&problem, &inputs).statistics;
    assert_eq!(found.shape(), [8, 4, 3]);
    assert_eq!([0, 1, 2].map(|c| found[[row, 1, c]]), [7.0, 0.0, 0.0]);
}

#[test]
fn rows_that_see_nothing_are_zeros() {
    let mut problem = middling(0).problem(7, 0.0);
    problem.schedule.sequence_lengths[1] = 0;
    problem.schedule.sequence_ids[4] = 1;
    let outputs = run(&problem);
    let zeros = |array: &ArrayD<f64>| array.index_axis(Axis(0), 4).iter().all(|x| x.to_bits() == 0);
    assert!(zeros(&outputs.statistics) && zeros(gradient(&outputs, Gradient::Q)));
    let plain = widened(&problem);
    let inputs =
        backslang::kernels::attention::ForwardInputs { q: plain.q, history: plain.history };
    let forward = reference::attention::forward(&inputs, &problem.schedule, &problem.options);
    let forward = forward.unwrap();
    assert!(zeros(&forward.output) && zeros(&forward.statistics));
}

#[test]
fn a_subset_of_the_gradients_has_the_bits_of_all() {
    for position_dim in [0, 2] {
        let problem = middling(position_dim).problem(8, f32::NAN);
        let all = run(&problem);
        let available = all.gradients.iter().map(|(gradient, _)| *gradient).collect::<Vec<_>>();
        for subset in 1..1 << available.len() {
            let kept = (0..available.len()).filter(|i| subset >> i & 1 == 1).map(|i| available[i]);
            let kept = kept.collect::<Vec<_>>();
            let outputs = run(&problem.clone().with_gradients(Gradients::only(&kept)));
            let names = outputs.gradients.iter().map(|(gradient, _)| *gradient);
            assert_eq!(names.collect::<Vec<_>>(), kept);
            for (name, found) in &outputs.gradients {
                assert_eq!(bits(found), bits(gradient(&all, *name)));
            }
            assert_eq!(bits(&outputs.statistics), bits(&all.statistics));
        }
    }
}

/// A NaN in one key makes NaN of exactly the rows that see it, and of what these rows touch.
#[test]
fn a_live_nan_reaches_what_depends_on_it() {
    let problem = middling(0).problem(9, 0.0);
    let clean = run(&problem);
    let Geometry { heads, kv_heads, .. } = problem.geometry;
    let rows = 0..problem.geometry.queries;
    let seen = rows.map(|row| problem.visible_slots(row)).collect::<Vec<_>>();
    let slot = *seen.iter().flatten().max().unwrap();
    let hit = seen.iter().map(|slots| slots.contains(&slot)).collect::<Vec<_>>();
    assert!(hit.contains(&true) && hit.contains(&false));

    let mut inputs = widened(&problem);
    let History::Separate { k, .. } = &mut inputs.history else { unreachable!() };
    let page_size = problem.geometry.page_size;
    k[[slot / page_size, slot % page_size, 1, 2]] = f64::NAN;
    let found = run_on(&problem, &inputs);
    let of_kv_head_1 = |head: usize| head / (heads / kv_heads) == 1;
    let check = |found: f64, clean: f64, hit: bool| {
        assert_eq!(found.is_nan(), hit);
        assert!(hit || found.to_bits() == clean.to_bits());
    };
    let compare = |found: &ArrayD<f64>, clean: &ArrayD<f64>, hits: &dyn Fn(&[usize]) -> bool| {
        for ((at, &found), &clean) in found.indexed_iter().zip(clean) {
            check(found, clean, hits(ndarray::Dimension::slice(&at)));
        }
    };
    let row_hit = |at: &[usize]| hit[at[0]] && of_kv_head_1(at[1]);
    let slot_hit = |at: &[usize]| {
        let slot = at[0] * page_size + at[1];
        at[2] == 1 && (0..hit.len()).any(|row| hit[row] && seen[row].contains(&slot))
    };
    compare(&found.statistics, &clean.statistics, &row_hit);
    compare(gradient(&found, Gradient::Q), gradient(&clean, Gradient::Q), &row_hit);
    compare(gradient(&found, Gradient::K), gradient(&clean, Gradient::K), &slot_hit);
    compare(gradient(&found, Gradient::V), gradient(&clean, Gradient::V), &slot_hit);
}

/// Each head is coded by a power of two, so the sums name the heads that they are made of.
#[test]
fn heads_map_to_their_kv_head() {
    for (heads, kv_heads) in [(4, 2), (6, 2), (6, 3), (8, 1), (16, 2), (9, 3)] {
        let case = AttentionCase { heads, kv_heads, ..middling(0) };
        let mut problem = case.problem(10, 0.0);
        // One row, one token: p = 1, so v_gradient = Σ output_gradient.
        problem.schedule.sequence_lengths = vec![1, 0, 0];
        problem.schedule.sequence_ids = vec![0];
        problem.schedule.positions = Some(vec![0]);
        problem.geometry.queries = 1;
        let mut inputs = widened(&problem);
        inputs.q = ArrayD::ones(vec![1, heads, case.key_dim]);
        inputs.output_gradient = ArrayD::zeros(vec![1, heads, case.value_dim]);
        for head in 0..heads {
            let code = f64::from(1u32 << head);
            inputs.output_gradient.index_axis_mut(Axis(1), head).fill(code);
        }
        let outputs = run_on(&problem, &inputs);
        let page = problem.schedule.block_table[0] as usize;
        let group = heads / kv_heads;
        for kv_head in 0..kv_heads {
            let expected = (kv_head * group..(kv_head + 1) * group).map(|h| 1u32 << h).sum::<u32>();
            let found = gradient(&outputs, Gradient::V)[[page, 0, kv_head, 0]];
            assert_eq!(found, f64::from(expected));
        }
    }
}

#[test]
fn a_shared_position_key_sums_over_identical_heads() {
    let problem = middling(2).problem(11, 0.0);
    let one = AttentionCase { heads: 1, ..middling(2) }.problem(11, 0.0);
    let lone = widened(&one);
    let repeat = |array: &ArrayD<f64>| {
        let views = [array.view(), array.view(), array.view(), array.view()];
        ndarray::concatenate(Axis(1), &views).unwrap()
    };
    let History::Latent { latent, q_position, k_position } = lone.history.clone() else {
        unreachable!()
    };
    let history = History::Latent { latent, q_position: repeat(&q_position), k_position };
    let inputs = BackwardInputs {
        q: repeat(&lone.q),
        history,
        output_gradient: repeat(&lone.output_gradient),
        ..lone.clone()
    };
    let (four, one) = (run_on(&problem, &inputs), run_on(&one, &lone));
    for name in [Gradient::KPosition, Gradient::Latent] {
        let expected = gradient(&one, name) * 4.0;
        assert!(relative_error(gradient(&four, name), &expected) < 1e-14);
    }
}

#[test]
fn any_memory_order_will_do() {
    let problem = middling(0).problem(12, f32::NAN);
    let plain = widened(&problem);
    let turned = plain.clone().map(|_, array| {
        let turned = array.t().as_standard_layout().into_owned();
        turned.reversed_axes()
    });
    assert!(!turned.q.is_standard_layout());
    let (plain, turned) = (run_on(&problem, &plain), run_on(&problem, &turned));
    for ((_, plain), (_, turned)) in plain.gradients.iter().zip(&turned.gradients) {
        assert_eq!(bits(plain), bits(turned));
    }
}

#[test]
fn calls_that_make_no_sense_are_errors() {
    let problem = middling(0).problem(13, 0.0);
    let fails = |change: &dyn Fn(&mut AttentionProblem), message: &str| {
        let mut problem = problem.clone();
        change(&mut problem);
        let inputs = widened(&problem);
        let error = reference::attention::backward(&inputs, &problem.schedule, &problem.options)
            .unwrap_err();
        assert!(error.is_input());
        assert_eq!(error.to_string(), message);
    };
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let found = format!("`scale`: expected a finite number > 0, found {scale}");
        fails(&|problem| problem.options.scale = scale, &found);
    }
    fails(
        &|problem| problem.options.query_block_rows = 0,
        "`query_block_rows`: expected ≥ 1, found 0",
    );
    fails(
        &|problem| problem.options.gradients = Gradients::only(&[Gradient::Latent]),
        "`gradients`: expected `all` or a list of q, k, v, found latent",
    );
    fails(
        &|problem| problem.schedule.positions = None,
        "paged-attention-backward: array `positions` is missing \
         (a causal mask needs the position of each row)",
    );
    let mut problem = problem.clone();
    problem.schedule.sequence_ids[5] = 3;
    let inputs = widened(&problem);
    let error = reference::attention::backward(&inputs, &problem.schedule, &problem.options);
    assert!(matches!(error, Err(Error::Index { array: "sequence_ids", value: 3, .. })));
}

/// A history so long that rows and heads no longer share a pass: one page, linked very often, weighs as if once.
#[test]
fn a_page_linked_very_often() {
    const LINKS: usize = 100_000;
    let case = AttentionCase { causal: false, ..middling(0) };
    let mut problem = case.problem(3, 0.0);
    problem.schedule.sequence_ids.fill(0);
    problem.schedule.block_table = vec![1, 0, 0];
    problem.schedule.table_width = 1;
    problem.schedule.sequence_lengths = vec![3, 0, 0];
    let once = run(&problem);
    problem.schedule.block_table = vec![1; 3 * LINKS];
    problem.schedule.table_width = LINKS;
    problem.schedule.sequence_lengths = vec![3 * LINKS as i128, 0, 0];
    let often = run(&problem);
    for ((name, often), (_, once)) in often.gradients.iter().zip(&once.gradients) {
        assert!(relative_error(often, once) < 1e-9, "{name:?}");
    }
}

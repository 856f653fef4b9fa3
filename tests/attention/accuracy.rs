//! Values: against the golden files and the float64 reference.

use backslang::kernels::attention::{
    BackwardInputs, Geometry, Gradient, Gradients, History, Options, Schedule, backward,
};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};

use crate::common::compare::assert_close;
use crate::common::golden::Case;
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase, rounds, visible_slots};

use crate::support::{busy_case, check, run_poisoned, settings, small, tolerance};

/// A golden case of f32 arrays.
pub(crate) fn golden(name: &str) -> (Case, AttentionProblem) {
    let case = Case::open(&format!("{name}.npz"));
    let inputs = case.backward_inputs().map(|_, a| HostTensor::from_f64(Dtype::F32, &a).unwrap());
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape())).unwrap();
    let (schedule, options) = (case.schedule(), case.options());
    (case, AttentionProblem { inputs, schedule, options, geometry })
}

pub(crate) fn golden_files(runtime: &Runtime) {
    for name in [
        "backward_gqa",
        "backward_unsorted",
        "backward_not_causal",
        "backward_mla",
        "real_attention_f32",
    ] {
        let (case, problem) = golden(name);
        let found = run_poisoned(runtime, &problem);
        let expected = |output: &str| case.array(&format!("expected_{output}"));
        for (g, found) in &found.gradients {
            assert_close(
                found,
                &expected(g.output_name()),
                tolerance(&problem),
                &format!("{name}: {g:?}"),
            );
        }
        assert_close(&found.statistics, &expected("statistics"), tolerance(&problem), name);
    }
    let (case, problem) = golden("history_zero_denominators");
    let problem = problem.with_gradients(Gradients::only(&[Gradient::K, Gradient::V]));
    for (g, found) in &run_poisoned(runtime, &problem).gradients {
        let expected = case.array(&format!("expected_{}", g.output_name()));
        assert_close(found, &expected, tolerance(&problem), &format!("zero denominators: {g:?}"));
    }
}

pub(crate) fn random_problems(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fresh_seed());
    for _ in 0..rounds(60) {
        let case = AttentionCase::random(&mut rng);
        let seed = rng.u64(..);
        check(runtime, &case.problem(seed, f32::NAN), &format!("{case:?} of seed {seed}"));
    }
}

/// New problems on every run; a failure names its case and seed.
pub(crate) fn fresh_seed() -> u64 {
    match std::env::var("BACKSLANG_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    }
}

pub(crate) fn dims_at_the_edges(runtime: &Runtime) {
    for (seed, (key_dim, value_dim)) in [
        (1, 1),
        (1, 1024),
        (1024, 1),
        (5, 257),
        (257, 5),
        (31, 33),
        (64, 80),
        (104, 112),
        (1024, 1024),
    ]
    .into_iter()
    .enumerate()
    {
        let problem = small(key_dim, value_dim, 0).problem(seed as u64, f32::NAN);
        check(runtime, &problem, &format!("dims {key_dim} and {value_dim}"));
    }
}

pub(crate) fn latent_512_and_64(runtime: &Runtime) {
    for options in settings(Options::new(1.0 / 24.0)).step_by(3) {
        let mut problem = small(512, 512, 64).problem(7, f32::NAN);
        problem.options = options;
        check(runtime, &problem, &format!("{options:?}"));
    }
    check(runtime, &small(1024, 1024, 256).problem(8, f32::NAN), "the largest latent");
}

pub(crate) fn nothing_to_do(runtime: &Runtime) {
    let base = busy_case(false, 0);
    let with = |change: fn(&mut AttentionCase)| {
        let mut case = base;
        change(&mut case);
        case
    };
    for (name, case) in [
        ("no queries", with(|c| c.schedule.queries = 0)),
        ("no sequences", with(|c| c.schedule.sequences = 0)),
        ("no pages", with(|c| (c.schedule.pages, c.schedule.max_length) = (0, 0))),
        ("empty sequences", with(|c| c.schedule.max_length = 0)),
        ("no heads", with(|c| c.heads = 0)),
    ] {
        let mut problem = case.problem(11, f32::NAN);
        for options in settings(problem.options) {
            problem.options = options;
            let found = check(runtime, &problem, name);
            for (g, tensor) in &found.gradients {
                assert_eq!(tensor.shape(), problem.geometry.gradient_shape(*g), "{name}");
                assert!(tensor.as_f32().unwrap().iter().all(|x| x.to_bits() == 0), "{name}: {g:?}");
            }
        }
    }
    // Every row is skipped, though each sees tokens.
    for position_dim in [0, 3] {
        let case = AttentionCase { given_columns: 3, ..busy_case(true, position_dim) };
        let mut problem = case.problem(12, 0.0);
        let statistics = problem.inputs.statistics.as_mut().and_then(HostTensor::as_f32_mut);
        statistics.unwrap().chunks_exact_mut(3).for_each(|row| row[1] = -0.0);
        problem.inputs = problem.inputs.map(|name, mut tensor| {
            if name != "statistics" {
                tensor.as_f32_mut().unwrap().fill(f32::NAN);
            }
            tensor
        });
        for options in settings(problem.options).step_by(3) {
            problem.options = options;
            for (g, tensor) in &run_poisoned(runtime, &problem).gradients {
                assert!(tensor.as_f32().unwrap().iter().all(|x| x.to_bits() == 0), "{g:?}");
            }
        }
    }
}

/// More than 4096 terms in every sum.
pub(crate) fn long_history(runtime: &Runtime) {
    let case = AttentionCase {
        schedule: ScheduleCase {
            sequences: 1,
            queries: 3,
            pages: 300,
            page_size: 16,
            max_length: 4800,
            shared: false,
            unsorted: false,
            packed: true,
            positions: true,
        },
        heads: 2,
        ..busy_case(false, 0)
    };
    let mut problem = case.problem(2, 0.0);
    problem.schedule.sequence_lengths = vec![4500];
    problem.schedule.block_table = (0..300).rev().collect();
    problem.schedule.table_width = 300;
    problem.schedule.positions = Some(vec![4000, 4499, 9999]);
    check(runtime, &problem, "long history");
}

/// Scores that span some hundred: most probabilities vanish, the exponential must not.
pub(crate) fn large_scores(runtime: &Runtime) {
    for (seed, scale) in [(51, 3.0), (52, 12.0)] {
        let problem = AttentionCase { scale, ..busy_case(false, 0) }.problem(seed, f32::NAN);
        check(runtime, &problem, &format!("scale {scale}"));
    }
}

pub(crate) fn live_nan_stays_with_its_row(runtime: &Runtime) {
    let mut problem = busy_case(false, 0).problem(31, 0.0);
    let Geometry { heads, kv_heads, key_dim, page_size, .. } = problem.geometry;
    let row =
        (0..problem.geometry.queries).find(|&row| problem.visible_slots(row).len() > 2).unwrap();
    let head = 1;
    let clean = run_poisoned(runtime, &problem);
    if let Some(q) = problem.inputs.q.as_f32_mut() {
        q[(row * heads + head) * key_dim] = f32::NAN;
    }
    let found = run_poisoned(runtime, &problem);
    let touched = visible_slots(&problem.schedule, page_size, row, true);
    for ((g, found), (_, clean)) in found.gradients.iter().zip(&clean.gradients) {
        let width = *found.shape().last().unwrap();
        let rows = found.as_f32().unwrap().chunks(width).zip(clean.as_f32().unwrap().chunks(width));
        for (i, (found, clean)) in rows.enumerate() {
            let depends = match g {
                Gradient::Q => i == row * heads + head,
                _ => i % kv_heads == head / (heads / kv_heads) && touched.contains(&(i / kv_heads)),
            };
            if depends {
                assert!(found.iter().all(|x| x.is_nan()), "{g:?} row {i}: {found:?}");
            } else {
                assert_eq!(found, clean, "{g:?} row {i}");
            }
        }
    }
}

/// A row for each score, each on a page of its own with one token. Maximum 0, denominator 1, delta 0: p is e^score, and
/// so are ds and all gradients but that of k.
pub(crate) fn given_scores(scores: &[f32]) -> (BackwardInputs<HostTensor>, Schedule) {
    let n = scores.len();
    let rows = |data| HostTensor::from_f32(&[n, 1, 1], data).unwrap();
    let page_of_one = || HostTensor::from_f32(&[n, 1, 1, 1], vec![1.0; n]).unwrap();
    let inputs = BackwardInputs {
        q: rows(scores.to_vec()),
        history: History::Separate { k: page_of_one(), v: page_of_one() },
        output_gradient: rows(vec![1.0; n]),
        statistics: Some(HostTensor::from_f32(&[n, 1, 3], [0.0, 1.0, 0.0].repeat(n)).unwrap()),
        output: None,
    };
    let each = || (0..n as i128).collect::<Vec<_>>();
    let schedule = Schedule {
        block_table: each(),
        table_width: 1,
        sequence_lengths: vec![1; n],
        sequence_ids: each(),
        positions: Some(vec![0; n]),
    };
    (inputs, schedule)
}

/// Probabilities down to the smallest that f32 has in full: a few ulp each, relative. Drivers' own `exp` is tens of ulp
/// off there, which a norm over larger ones hides.
pub(crate) fn small_probabilities(runtime: &Runtime) {
    let scores: Vec<f32> = (0..=870).map(|i| i as f32 * -0.1).collect();
    let (inputs, schedule) = given_scores(&scores);
    let run = backward::run(runtime, &inputs, &schedule, &Options::new(1.0)).unwrap();
    for (gradient, found) in &run.outputs.gradients {
        for (&score, &found) in scores.iter().zip(found.as_f32().unwrap()) {
            let p = f64::from(score).exp();
            let expected = if *gradient == Gradient::K { p * f64::from(score) } else { p };
            let error = (f64::from(found) - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
            assert!(error < 5e-7, "{gradient:?} at {score}: {found:e}, expected {expected:e}");
        }
    }
}

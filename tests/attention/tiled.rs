//! The `tiled` algorithm: values against the float64 reference, the same bits however the call is made, and what it refuses.
//!
//! Devices without matrix units refuse it. The forms of the kernels for tests emulate them, which takes many minutes: there
//! `BACKSLANG_TEST_EMULATED=1` asks for it.

use backslang::kernels::attention::{Algorithm, Gradient, Gradients, Options, backward};
use backslang::runtime::Runtime;
use backslang::{Dtype, Error};
use fastrand::Rng;

use crate::accuracy::fresh_seed;
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase, rounds};
use crate::halves::{HALVES, check, rounded};
use crate::support::{assert_same, busy_case, run_poisoned, settings};

/// The problem in halves on matrix units; `None` where there are none for the type.
fn tiled(runtime: &Runtime, problem: AttentionProblem, dtype: Dtype) -> Option<AttentionProblem> {
    let mut problem = rounded(problem, dtype);
    problem.options.algorithm = Algorithm::Tiled;
    if runtime.device().matrices.of(dtype) {
        let asked = runtime.lanes() == 32 || std::env::var_os("BACKSLANG_TEST_EMULATED").is_some();
        return asked.then_some(problem);
    }
    let AttentionProblem { inputs, schedule, options, .. } = &problem;
    let error = backward::run(runtime, inputs, schedule, options).unwrap_err();
    assert!(matches!(error, Error::Parameter { name: "algorithm", .. }), "{error}");
    assert!(error.to_string().contains("multiplies matrices"), "{error}");
    None
}

/// A case of widths that matrix units take.
fn case(key_dim: usize, value_dim: usize) -> AttentionCase {
    AttentionCase { key_dim, value_dim, ..busy_case(false, 0) }
}

pub(crate) fn tiled_random_problems(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for (dtype, tolerance) in HALVES {
        for _ in 0..rounds(16) / 2 {
            let mut pick = |from: &[usize]| from[rng.usize(0..from.len())];
            let dims = [8, 16, 16, 24, 40];
            let (key_dim, value_dim) = (pick(&dims), pick(&dims));
            let kv_heads = pick(&[1, 2]);
            let heads = kv_heads * pick(&[1, 2, 3, 5]);
            let random = AttentionCase::random(&mut rng);
            let case = AttentionCase {
                key_dim,
                value_dim,
                heads,
                kv_heads,
                position_dim: 0,
                scale: 1.0 / (key_dim as f32).sqrt(),
                ..random
            };
            let seed = rng.u64(..);
            let Some(problem) = tiled(runtime, case.problem(seed, f32::NAN), dtype) else { return };
            check(runtime, &problem, tolerance, &format!("{dtype}, {case:?} of seed {seed}"));
        }
    }
}

/// Widths, page sizes and heads about which tiles, steps and pieces end.
pub(crate) fn tiled_sizes(runtime: &Runtime) {
    let schedule = |queries, pages, page_size, max_length| ScheduleCase {
        sequences: 2,
        queries,
        pages,
        page_size,
        max_length,
        shared: true,
        unsorted: false,
        packed: true,
        positions: true,
    };
    for (i, (dims, heads, schedule)) in [
        ((64, 48), (1, 1), schedule(70, 12, 16, 90)),
        ((128, 128), (4, 1), schedule(10, 4, 16, 40)),
        ((80, 96), (8, 2), schedule(6, 40, 1, 20)),
        ((16, 8), (3, 1), schedule(23, 2, 100, 150)),
        ((8, 24), (16, 1), schedule(5, 2, 64, 70)),
    ]
    .into_iter()
    .enumerate()
    {
        let case = AttentionCase {
            heads: heads.0,
            kv_heads: heads.1,
            schedule,
            scale: 1.0 / (dims.0 as f32).sqrt(),
            ..case(dims.0, dims.1)
        };
        let (dtype, tolerance) = HALVES[i % 2];
        let Some(problem) = tiled(runtime, case.problem(i as u64, f32::NAN), dtype) else { return };
        check(runtime, &problem, tolerance, &format!("{dtype}, {case:?}"));
    }
}

/// The bits depend on no setting, on no other gradient, and repeat.
pub(crate) fn tiled_settings_share_bits(runtime: &Runtime) {
    for (i, (dtype, _)) in HALVES.into_iter().enumerate() {
        let case = AttentionCase { given_columns: 3, ..case(16, 24) };
        let case = AttentionCase {
            schedule: ScheduleCase { unsorted: i == 0, ..case.schedule },
            zero_denominators: i == 1,
            ..case
        };
        let Some(mut problem) = tiled(runtime, case.problem(3, f32::NAN), dtype) else { return };
        let expected = run_poisoned(runtime, &problem);
        for options in settings(problem.options) {
            problem.options = options;
            assert_same(&run_poisoned(runtime, &problem), &expected, &format!("{options:?}"));
        }
        for (gradient, expected) in &expected.gradients {
            let gradients = Gradients::only(&[*gradient]);
            let part = problem.clone().with_gradients(gradients);
            let found = run_poisoned(runtime, &part);
            assert_eq!(found.gradients[0].1.bytes(), expected.bytes(), "{gradient:?} alone");
        }
    }
}

/// A row that is not finite reaches the tokens that it sees, and a token that is not the rows that see it: no others.
pub(crate) fn tiled_nonfinite_rows_reach_what_they_see(runtime: &Runtime) {
    for (dtype, _) in HALVES {
        let case = AttentionCase { heads: 2, kv_heads: 1, given_columns: 3, ..case(16, 16) };
        let problem = case.problem(8, 0.0);
        for (array, value) in [("q", f32::NAN), ("output_gradient", f32::INFINITY), ("k", f32::NAN)]
        {
            let Some(clean) = tiled(runtime, problem.clone(), dtype) else { return };
            let seen = |row: usize| clean.visible_slots(row);
            let sees_some = |row: &usize| seen(*row).len() > 2 && seen(*row).len() < 20;
            let row = (0..clean.geometry.queries).find(sees_some).unwrap();
            let spoilt_slot = seen(row)[1];
            let mut spoilt = problem.clone();
            spoilt.inputs = spoilt.inputs.map(|name, mut tensor| {
                if name == array {
                    let index = if array == "k" { spoilt_slot } else { row * 2 };
                    tensor.as_f32_mut().unwrap()[index * 16] = value;
                }
                tensor
            });
            let spoilt = tiled(runtime, spoilt, dtype).unwrap();
            let found = run_poisoned(runtime, &spoilt);
            let clean_bits = run_poisoned(runtime, &clean);
            for ((gradient, found), (_, clean)) in found.gradients.iter().zip(&clean_bits.gradients)
            {
                let reached = |index: usize| match (array, gradient.is_history()) {
                    // Of rows and heads.
                    ("k", false) => seen(index / 2).contains(&spoilt_slot),
                    ("k", true) => index == spoilt_slot,
                    (_, false) => index == row * 2,
                    (_, true) => seen(row).contains(&index),
                };
                let pairs = found.to_f64().into_iter().zip(clean.to_f64());
                let mut spread = 0;
                for (i, (found, clean)) in pairs.enumerate() {
                    match reached(i / 16) {
                        true => spread += usize::from(!found.is_finite()),
                        false => assert_eq!(found, clean, "{array}: {gradient:?}[{i}]"),
                    }
                }
                let passes = array == "k" && *gradient == Gradient::V;
                assert!(spread > 0 || passes, "{array} reaches no {gradient:?}");
            }
        }
    }
}

/// Gradients far smaller than one keep their precision: f16 scales what it rounds.
pub(crate) fn tiled_small_gradients(runtime: &Runtime) {
    for (dtype, tolerance) in HALVES {
        let mut problem = case(16, 16).problem(5, 0.0);
        problem.inputs = problem.inputs.map(|name, mut tensor| {
            if name == "output_gradient" {
                tensor.as_f32_mut().unwrap().iter_mut().for_each(|x| *x *= 2f32.powi(-9));
            }
            tensor
        });
        let Some(problem) = tiled(runtime, problem, dtype) else { return };
        check(runtime, &problem, tolerance, &format!("{dtype}, small gradients"));
    }
}

/// A gradient is added to what its tensor holds, rounded once.
pub(crate) fn tiled_accumulates(runtime: &Runtime) {
    for (dtype, tolerance) in HALVES {
        let Some(problem) = tiled(runtime, case(24, 16).problem(6, 0.0), dtype) else { return };
        let AttentionProblem { inputs, schedule, options, .. } = &problem;
        let fresh = backward::run(runtime, inputs, schedule, options).unwrap().outputs;
        let onto: Vec<_> = fresh.gradients.iter().map(|(g, t)| (*g, t.clone())).collect();
        let options = Options { accumulate: Gradients::ALL, ..*options };
        let sums = backward::run_onto(runtime, inputs, schedule, &options, &onto).unwrap().outputs;
        for ((g, sum), (_, once)) in sums.gradients.iter().zip(&fresh.gradients) {
            let twice = once.to_f64() * 2.0;
            crate::common::compare::assert_close(
                sum,
                &twice,
                tolerance,
                &format!("{dtype}, {g:?}"),
            );
        }
    }
}

/// What it cannot do is refused when it is asked for by name, and left to `ordered` otherwise.
pub(crate) fn tiled_refusals(runtime: &Runtime) {
    let refusal = |problem: &AttentionProblem| {
        let AttentionProblem { inputs, schedule, options, .. } = problem;
        let options = Options { algorithm: Algorithm::Tiled, ..*options };
        let error = backward::run(runtime, inputs, schedule, &options).unwrap_err();
        backward::run(runtime, inputs, schedule, &problem.options).unwrap();
        error.to_string()
    };
    let matrices = runtime.device().matrices;
    assert!(refusal(&case(16, 16).problem(1, 0.0)).contains("not f32"));
    if !matrices.of(Dtype::F16) || runtime.lanes() != 32 {
        return;
    }
    let half = |case: AttentionCase| rounded(case.problem(1, 0.0), Dtype::F16);
    for (case, reason) in [
        (case(12, 16), "multiples of 8"),
        (case(16, 136), "multiples of 8"),
        (busy_case(false, 5), "latent"),
    ] {
        let error = refusal(&half(case));
        assert!(error.contains("`algorithm`") && error.contains(reason), "{error}");
    }
}

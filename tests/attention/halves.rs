//! f16 and bf16: values against the float64 reference of the same rounded inputs, and bits.

use backslang::kernels::attention::{BackwardOutputs, Gradient, Gradients, Schedule};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor, reference};

use crate::accuracy::{fresh_seed, golden};
use crate::common::compare::assert_close;
use crate::common::golden::Case;
use crate::common::random::{AttentionCase, AttentionProblem, rounds};
use crate::support::{assert_same, busy_case, half_of_settings, run_poisoned, scales, small};

pub(crate) const HALVES: [(Dtype, f64); 2] = [(Dtype::F16, 1e-3), (Dtype::Bf16, 8e-3)];

/// The same problem on inputs rounded to halves.
pub(crate) fn rounded(mut problem: AttentionProblem, dtype: Dtype) -> AttentionProblem {
    problem.inputs = problem.inputs.map(|name, tensor| match name {
        "statistics" => tensor,
        _ => HostTensor::from_f64(dtype, &tensor.to_f64()).unwrap(),
    });
    problem
}

pub(crate) fn check(
    runtime: &Runtime,
    problem: &AttentionProblem,
    tolerance: f64,
    what: &str,
) -> BackwardOutputs<HostTensor> {
    let found = run_poisoned(runtime, problem);
    let inputs = problem.inputs.as_ref().map(|_, t| t.to_f64());
    let expected =
        reference::attention::backward(&inputs, &problem.schedule, &problem.options).unwrap();
    let scales = scales(problem, &expected);
    for ((scale, (g, found)), (_, expected)) in
        scales.iter().zip(&found.gradients).zip(&expected.gradients)
    {
        let what = format!("{what}: {}", g.output_name());
        assert_eq!(found.dtype(), problem.inputs.q.dtype(), "{what}");
        assert_close(found, expected, tolerance * scale, &what);
    }
    found
}

pub(crate) fn golden_halves(runtime: &Runtime) {
    let (case, problem) = golden("backward_bf16");
    check_golden(runtime, &case, &rounded(problem, Dtype::Bf16), 8e-3, "backward_bf16");
    let (case, problem) = golden("history_f16");
    let problem = problem.with_gradients(Gradients::only(&[Gradient::K, Gradient::V]));
    check_golden(runtime, &case, &rounded(problem, Dtype::F16), 1e-3, "history_f16");
}

fn check_golden(
    runtime: &Runtime,
    case: &Case,
    problem: &AttentionProblem,
    tolerance: f64,
    name: &str,
) {
    for (g, found) in &run_poisoned(runtime, problem).gradients {
        let expected = case.array(&format!("expected_{}", g.output_name()));
        assert_close(found, &expected, tolerance, &format!("{name}: {g:?}"));
    }
}

/// Even widths are stored two elements at a time, odd ones are packed afterwards. Three problems share the kernels.
pub(crate) fn random_halves(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fresh_seed());
    for (dtype, tolerance) in HALVES {
        for round in 0..rounds(30) / 3 {
            let mut kernels = AttentionCase::random(&mut rng);
            if round % 2 == 0 {
                kernels.key_dim *= 2;
                kernels.value_dim *= 2;
                kernels.position_dim *= 2;
            }
            for _ in 0..3 {
                let case = kernels.with_other_sizes(&mut rng);
                let seed = rng.u64(..);
                let problem = rounded(case.problem(seed, f32::NAN), dtype);
                check(runtime, &problem, tolerance, &format!("{dtype}, {case:?} of seed {seed}"));
            }
        }
    }
}

pub(crate) fn half_dims(runtime: &Runtime) {
    // The two types differ in how a word is read and written: each has its half of all kinds of dims.
    for (dims, (dtype, tolerance)) in [
        ([(1, 2, 0), (65, 66, 0), (96, 96, 64)], HALVES[0]),
        ([(2, 1, 0), (64, 80, 0), (130, 130, 7)], HALVES[1]),
    ] {
        for (key_dim, value_dim, position_dim) in dims {
            let problem = small(key_dim, value_dim, position_dim).problem(5, f32::NAN);
            let what = format!("{dtype}, dims {key_dim}, {value_dim}, {position_dim}");
            check(runtime, &rounded(problem, dtype), tolerance, &what);
        }
    }
}

pub(crate) fn half_settings_share_bits(runtime: &Runtime) {
    for position_dim in [0, 5, 6] {
        for (dtype, dim) in [(Dtype::F16, 12), (Dtype::Bf16, 11)] {
            let case =
                AttentionCase { key_dim: dim, value_dim: dim, ..busy_case(true, position_dim) };
            let mut problem = rounded(case.problem(3, f32::NAN), dtype);
            let expected = run_poisoned(runtime, &problem);
            for options in half_of_settings(problem.options, dtype == Dtype::F16) {
                problem.options = options;
                let found = run_poisoned(runtime, &problem);
                assert_same(&found, &expected, &format!("{dtype}, dim {dim}: {options:?}"));
            }
        }
    }
}

/// Sums are f32: 4096 rows of p = 1 and a gradient of 32 make 131072, which f16 rounds to infinity, never to NaN.
pub(crate) fn half_sums_are_wide(runtime: &Runtime) {
    let case = small(2, 2, 0);
    let mut problem = case.problem(1, 0.0);
    problem.schedule = Schedule {
        block_table: vec![0],
        table_width: 1,
        sequence_lengths: vec![1],
        sequence_ids: vec![0; 4096],
        positions: Some(vec![0; 4096]),
    };
    problem.geometry.queries = 4096;
    let heads = problem.geometry.heads;
    let rows =
        |value| HostTensor::from_f32(&[4096, heads, 2], vec![value; 4096 * heads * 2]).unwrap();
    problem.inputs.q = rows(0.0);
    problem.inputs.output_gradient = rows(32.0);
    problem = problem.with_gradients(Gradients::only(&[Gradient::V]));
    for (dtype, sum) in
        [(Dtype::F16, f64::INFINITY), (Dtype::Bf16, 131_072.0), (Dtype::F32, 131_072.0)]
    {
        let problem = rounded(problem.clone(), dtype);
        let group = (heads / problem.geometry.kv_heads) as f64;
        let found = run_poisoned(runtime, &problem).gradients[0].1.to_f64();
        assert!(found.iter().all(|&x| x == 0.0 || x == sum * group), "{dtype}: {found}");
        assert_eq!(found[[0, 0, 0, 0]], sum * group, "{dtype}");
    }
}

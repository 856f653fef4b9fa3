//! Cases, and running them on poisoned outputs.

use backslang::kernels::attention::backward;
use backslang::kernels::attention::{
    BackwardOutputs, DevicePlan, Geometry, History, Options, Plan,
};
use backslang::reference;
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};
use ndarray::{ArrayD, s};

use crate::common::compare::{assert_close, assert_same_bits};
use crate::common::fence::{Fences, assert_untouched};
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase};

/// ‖out − ref‖ / ‖ref‖ ≤ 2e-6 · max(1, max|score| / 8), five times that for sums over more than 4096 terms.
pub(crate) fn tolerance(problem: &AttentionProblem) -> f64 {
    let Geometry { heads, kv_heads, .. } = problem.geometry;
    let plain = problem.inputs.as_ref().map(|_, t| t.to_f64());
    let (k, positions) = match &plain.history {
        History::Separate { k, .. } => (k, None),
        History::Latent { latent, q_position, k_position } => {
            (latent, Some((q_position, k_position)))
        }
    };
    let row = |array: &ndarray::ArrayD<f64>, index: usize| {
        let width = array.shape().last().copied().unwrap_or(0);
        array.as_slice().unwrap()[index * width..][..width].to_vec()
    };
    let dot = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut largest = 0f64;
    let mut terms = 0;
    for query in 0..problem.geometry.queries * heads {
        let slots = problem.visible_slots(query / heads);
        terms = terms.max(slots.len());
        for slot in slots {
            let kv = slot * kv_heads + (query % heads) / (heads / kv_heads);
            let mut score = dot(row(&plain.q, query), row(k, kv));
            if let Some((q_position, k_position)) = positions {
                score += dot(row(q_position, query), row(k_position, kv));
            }
            // Poison lies where statistics say that nothing reads.
            largest = largest.max(if score.is_nan() { 0.0 } else { score.abs() });
        }
    }
    let terms = terms.max(problem.geometry.queries * heads);
    let long = if terms > 4096 { 5.0 } else { 1.0 };
    long * 2e-6 * (largest * f64::from(problem.options.scale) / 8.0).max(1.0)
}

/// What the tolerance of a gradient is relative to: its norm, or more where sums cancel, so that f32 leaves mostly
/// rounding (with one token in view, say, dp - delta is 0): a quarter of how far it moves, for each unit, when every
/// input and each row's delta moves a little of its own.
pub(crate) fn scales(
    problem: &AttentionProblem,
    expected: &BackwardOutputs<ArrayD<f64>>,
) -> Vec<f64> {
    let norm = |a: &ArrayD<f64>| a.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut scales: Vec<f64> = expected.gradients.iter().map(|(_, e)| norm(e)).collect();
    let step = 1e-6;
    for seed in 0..3 {
        let mut signs = fastrand::Rng::with_seed(seed);
        let mut moved =
            |a: &ArrayD<f64>| a.mapv(|x| if signs.bool() { x + x * step } else { x - x * step });
        let mut inputs = problem.inputs.as_ref().map(|_, t| moved(&t.to_f64()));
        let mut statistics = expected.statistics.clone();
        let deltas = moved(&statistics);
        statistics.slice_mut(s![.., .., 2]).assign(&deltas.slice(s![.., .., 2]));
        inputs.statistics = Some(statistics);
        let found = reference::attention::backward(&inputs, &problem.schedule, &problem.options);
        let found = found.unwrap();
        let pairs = expected.gradients.iter().zip(&found.gradients);
        for (scale, ((_, e), (_, f))) in scales.iter_mut().zip(pairs) {
            *scale = scale.max(0.25 * norm(&(f - e)) / step);
        }
    }
    let pairs = scales.iter().zip(&expected.gradients);
    pairs.map(|(scale, (_, e))| scale / norm(e).max(f64::MIN_POSITIVE)).collect()
}

/// Runs on outputs full of NaN between fences; nothing but the outputs may change.
pub(crate) fn run_poisoned(
    runtime: &Runtime,
    problem: &AttentionProblem,
) -> BackwardOutputs<HostTensor> {
    let AttentionProblem { inputs: host, schedule, options, geometry } = problem;
    let plan = Plan::new(schedule, geometry, options.query_block_rows).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let mut fences = Fences::new(runtime);
    fences.add();
    let gradients = options.gradients.resolve(|g| g.exists(geometry.is_mla())).unwrap();
    let dtype = inputs.q.dtype();
    let mut output =
        |name, dtype, shape: &[usize]| fences.output(&mut recorder, name, dtype, shape);
    let outputs = BackwardOutputs {
        gradients: gradients
            .iter()
            .map(|g| (g, output(g.output_name(), dtype, &geometry.gradient_shape(g))))
            .collect(),
        statistics: match &inputs.statistics {
            Some(complete) if geometry.statistics_columns == 3 => complete.clone(),
            _ => output("statistics", Dtype::F32, &geometry.statistics_shape()),
        },
    };
    fences.fill(&mut recorder);
    backward::record(&mut recorder, &inputs, &plan, options, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    fences.assert_whole();
    let mut contents = Vec::new();
    host.as_ref().map(|_, tensor| contents.push(tensor));
    let mut contents = contents.into_iter();
    inputs.as_ref().map(|_, tensor| assert_untouched(runtime, tensor, contents.next()));
    let download = |tensor| {
        assert_untouched(runtime, tensor, None);
        runtime.download(tensor).unwrap()
    };
    BackwardOutputs {
        gradients: outputs.gradients.iter().map(|(g, tensor)| (*g, download(tensor))).collect(),
        statistics: download(&outputs.statistics),
    }
}

pub(crate) fn check(
    runtime: &Runtime,
    problem: &AttentionProblem,
    what: &str,
) -> BackwardOutputs<HostTensor> {
    let found = run_poisoned(runtime, problem);
    let inputs = problem.inputs.as_ref().map(|_, t| t.to_f64());
    let expected =
        reference::attention::backward(&inputs, &problem.schedule, &problem.options).unwrap();
    let tolerance = tolerance(problem);
    let scales = scales(problem, &expected);
    for (i, ((g, found), (h, expected))) in
        found.gradients.iter().zip(&expected.gradients).enumerate()
    {
        assert_eq!(g, h, "{what}");
        assert_close(
            found,
            expected,
            tolerance * scales[i],
            &format!("{what}: {}", g.output_name()),
        );
    }
    if problem.geometry.statistics_columns < 3 {
        // The poisoned maximum of a row to skip comes back as it was given.
        let (mut statistics, mut expected) = (found.statistics.clone(), expected.statistics);
        for (found, expected) in statistics.as_f32_mut().unwrap().iter_mut().zip(&mut expected) {
            if found.is_nan() && expected.is_nan() {
                (*found, *expected) = (0.0, 0.0);
            }
        }
        assert_close(&statistics, &expected, tolerance, &format!("{what}: statistics"));
    }
    found
}

pub(crate) fn assert_same(
    found: &BackwardOutputs<HostTensor>,
    expected: &BackwardOutputs<HostTensor>,
    what: &str,
) {
    assert_eq!(found.gradients.len(), expected.gradients.len(), "{what}");
    for ((g, found), (_, expected)) in found.gradients.iter().zip(&expected.gradients) {
        assert_same_bits(found, expected, &format!("{what}: {}", g.output_name()));
    }
}

/// A case with many rows on shared pages.
pub(crate) fn busy_case(unsorted: bool, position_dim: usize) -> AttentionCase {
    AttentionCase {
        schedule: ScheduleCase {
            sequences: 4,
            queries: 90,
            pages: 14,
            page_size: 4,
            max_length: 29,
            shared: true,
            unsorted,
            packed: false,
            positions: true,
        },
        heads: 4,
        kv_heads: if position_dim > 0 { 1 } else { 2 },
        key_dim: 12,
        value_dim: if position_dim > 0 { 12 } else { 9 },
        position_dim,
        causal: true,
        scale: 0.3,
        given_columns: 0,
        zero_denominators: false,
        given_output: false,
    }
}

pub(crate) fn busy_cases() -> Vec<(&'static str, AttentionProblem)> {
    let skipping =
        AttentionCase { given_columns: 3, zero_denominators: true, ..busy_case(true, 0) };
    vec![
        ("sorted", busy_case(false, 0).problem(1, f32::NAN)),
        ("unsorted", busy_case(true, 0).problem(2, f32::NAN)),
        ("latent", busy_case(false, 5).problem(3, f32::NAN)),
        ("latent, unsorted", busy_case(true, 5).problem(4, f32::NAN)),
        ("not causal", AttentionCase { causal: false, ..busy_case(true, 0) }.problem(5, f32::NAN)),
        ("zero denominators", skipping.problem(6, f32::NAN)),
    ]
}

pub(crate) fn settings(options: Options) -> impl Iterator<Item = Options> {
    (0..8).map(move |bits| Options {
        prune_queries: bits & 1 != 0,
        cache_history: bits & 2 != 0,
        compact_history: bits & 4 != 0,
        ..options
    })
}

/// The settings with an even or odd number of them on: both halves have each pair of settings in all ways.
pub(crate) fn half_of_settings(options: Options, odd: bool) -> impl Iterator<Item = Options> {
    settings(options).filter(move |o| o.prune_queries ^ o.cache_history ^ o.compact_history == odd)
}

pub(crate) fn small(key_dim: usize, value_dim: usize, position_dim: usize) -> AttentionCase {
    let schedule = ScheduleCase {
        queries: 5,
        sequences: 2,
        pages: 5,
        page_size: 2,
        max_length: 5,
        ..busy_case(false, 0).schedule
    };
    AttentionCase {
        schedule,
        key_dim,
        value_dim,
        scale: 1.0 / (key_dim as f32).sqrt(),
        ..busy_case(false, position_dim)
    }
}

//! The attention kernels on the device against the float64 reference, the golden files and their own bits.

mod common;

use backslang::kernels::attention::backward::{self, DevicePlan};
use backslang::kernels::attention::{
    BackwardOutputs, Geometry, Gradient, Gradients, History, Options, Plan, Schedule,
};
use backslang::reference;
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};
use ndarray::ArrayD;

use common::compare::{assert_close, assert_same_bits};
use common::golden::Case;
use common::gpu;
use common::random::{AttentionCase, AttentionProblem, ScheduleCase, visible_slots};

fn main() -> std::process::ExitCode {
    gpu::main(vec![
        gpu::trial("golden_files", golden_files),
        gpu::trial("random_problems", random_problems),
        gpu::trial("history_settings_share_bits", history_settings_share_bits),
        gpu::trial("history_is_summed_in_order", history_is_summed_in_order),
        gpu::trial("gradient_subsets_share_bits", gradient_subsets_share_bits),
        gpu::trial("repeats_share_bits", repeats_share_bits),
        gpu::trial("unread_values_reach_nothing", unread_values_reach_nothing),
        gpu::trial("dims_at_the_edges", dims_at_the_edges),
        gpu::trial("latent_512_and_64", latent_512_and_64),
        gpu::trial("nothing_to_do", nothing_to_do),
        gpu::trial("head_map", head_map),
        gpu::trial("shared_position_key", shared_position_key),
        gpu::trial("page_placement", page_placement),
        gpu::trial("long_history", long_history),
        gpu::trial("large_scores", large_scores),
        gpu::trial("live_nan_stays_with_its_row", live_nan_stays_with_its_row),
        gpu::trial("plan_is_reused_in_one_submission", plan_is_reused_in_one_submission),
        gpu::trial("launches_wait_for_what_they_read", launches_wait_for_what_they_read),
        gpu::trial("splits_and_guards_share_bits", splits_and_guards_share_bits),
    ])
}

/// ‖out − ref‖ / ‖ref‖ ≤ 2e-6 · max(1, max|score| / 8), five times that for sums over more than 4096 terms.
fn tolerance(problem: &AttentionProblem) -> f64 {
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

/// What the tolerance of a gradient is relative to: its norm, or half of its norm before delta is taken off where
/// that cancels: with one token in view, say, ds is 0 and f32 leaves only rounding.
fn scales(problem: &AttentionProblem, expected: &BackwardOutputs<ArrayD<f64>>) -> Vec<f64> {
    let mut inputs = problem.inputs.as_ref().map(|_, t| t.to_f64());
    let mut statistics = expected.statistics.clone();
    statistics.lanes_mut(ndarray::Axis(2)).into_iter().for_each(|mut row| row[2] = 0.0);
    inputs.statistics = Some(statistics);
    let whole =
        reference::attention::backward(&inputs, &problem.schedule, &problem.options).unwrap();
    let norm = |a: &ArrayD<f64>| a.iter().map(|x| x * x).sum::<f64>().sqrt();
    let pairs = expected.gradients.iter().zip(&whole.gradients);
    pairs
        .map(|((_, e), (_, w))| norm(e).max(0.5 * norm(w)) / norm(e).max(f64::MIN_POSITIVE))
        .collect()
}

/// Runs on outputs full of NaN, so that an element that is not written shows.
fn run_poisoned(runtime: &Runtime, problem: &AttentionProblem) -> BackwardOutputs<HostTensor> {
    let plan =
        Plan::new(&problem.schedule, &problem.geometry, problem.options.query_block_rows).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let outputs = backward::allocate(runtime, &inputs, &problem.options).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    for (_, tensor) in &outputs.gradients {
        recorder.fill(tensor, f32::NAN.to_bits()).unwrap();
    }
    if problem.geometry.statistics_columns < 3 {
        recorder.fill(&outputs.statistics, f32::NAN.to_bits()).unwrap();
    }
    backward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    let gradients = outputs.gradients.iter();
    for tensor in gradients.clone().map(|(_, t)| t).chain([&outputs.statistics]) {
        assert!(runtime.guard_holds(tensor).unwrap(), "written beyond {tensor:?}");
    }
    BackwardOutputs {
        gradients: gradients.map(|(g, t)| (*g, runtime.download(t).unwrap())).collect(),
        statistics: runtime.download(&outputs.statistics).unwrap(),
    }
}

fn check(runtime: &Runtime, problem: &AttentionProblem, what: &str) -> BackwardOutputs<HostTensor> {
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

fn assert_same(
    found: &BackwardOutputs<HostTensor>,
    expected: &BackwardOutputs<HostTensor>,
    what: &str,
) {
    assert_eq!(found.gradients.len(), expected.gradients.len(), "{what}");
    for ((g, found), (_, expected)) in found.gradients.iter().zip(&expected.gradients) {
        assert_same_bits(found, expected, &format!("{what}: {}", g.output_name()));
    }
}

/// A golden case of f32 arrays.
fn golden(name: &str) -> (Case, AttentionProblem) {
    let case = Case::open(&format!("{name}.npz"));
    let inputs = case.backward_inputs().map(|_, a| HostTensor::from_f64(Dtype::F32, &a).unwrap());
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape())).unwrap();
    let (schedule, options) = (case.schedule(), case.options());
    (case, AttentionProblem { inputs, schedule, options, geometry })
}

fn golden_files(runtime: &Runtime) {
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

fn random_problems(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fresh_seed());
    for _ in 0..60 {
        let case = AttentionCase::random(&mut rng);
        let seed = rng.u64(..);
        check(runtime, &case.problem(seed, f32::NAN), &format!("{case:?} of seed {seed}"));
    }
}

/// New problems on every run; a failure names its case and seed.
fn fresh_seed() -> u64 {
    match std::env::var("BACKSLANG_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    }
}

/// A case with many rows on shared pages.
fn busy_case(unsorted: bool, position_dim: usize) -> AttentionCase {
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

fn busy_cases() -> Vec<(&'static str, AttentionProblem)> {
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

fn settings(options: Options) -> impl Iterator<Item = Options> {
    (0..8).map(move |bits| Options {
        prune_queries: bits & 1 != 0,
        cache_history: bits & 2 != 0,
        compact_history: bits & 4 != 0,
        ..options
    })
}

fn history_settings_share_bits(runtime: &Runtime) {
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

fn gradient_subsets_share_bits(runtime: &Runtime) {
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

fn repeats_share_bits(runtime: &Runtime) {
    for (name, problem) in busy_cases() {
        let first = run_poisoned(runtime, &problem);
        for _ in 0..3 {
            assert_same(&run_poisoned(runtime, &problem), &first, name);
        }
    }
}

fn unread_values_reach_nothing(runtime: &Runtime) {
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

fn small(key_dim: usize, value_dim: usize, position_dim: usize) -> AttentionCase {
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

fn dims_at_the_edges(runtime: &Runtime) {
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

fn latent_512_and_64(runtime: &Runtime) {
    for options in settings(Options::new(1.0 / 24.0)).step_by(3) {
        let mut problem = small(512, 512, 64).problem(7, f32::NAN);
        problem.options = options;
        check(runtime, &problem, &format!("{options:?}"));
    }
    check(runtime, &small(1024, 1024, 256).problem(8, f32::NAN), "the largest latent");
}

fn nothing_to_do(runtime: &Runtime) {
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
}

/// One token seen by every row, so p = 1: v's gradient is the plain sum over the heads of a group.
/// Head h carries 2^h, so that the sum names its terms.
fn head_map(runtime: &Runtime) {
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
        problem.inputs = common::random::inputs(&problem.geometry, 3);
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

/// With H identical heads the gradient of MLA's one position key is exactly H times that of one head.
fn shared_position_key(runtime: &Runtime) {
    let of = |heads: usize| {
        let case = AttentionCase { heads, ..small(6, 6, 4) };
        let mut problem = case.problem(5, f32::NAN);
        // One row: a doubling sum of equal terms is exact.
        problem.schedule = Schedule {
            block_table: vec![2, 0],
            table_width: 2,
            sequence_lengths: vec![3],
            sequence_ids: vec![0],
            positions: Some(vec![2]),
        };
        problem.geometry.queries = 1;
        problem.inputs = common::random::inputs(&Geometry { heads: 1, ..problem.geometry }, 9);
        problem.inputs = problem.inputs.map(|name, tensor| match name {
            "latent" | "k_position" => tensor,
            _ => {
                let row = tensor.as_f32().unwrap().to_vec();
                HostTensor::from_f32(&[1, heads, row.len()], row.repeat(heads)).unwrap()
            }
        });
        let found = check(runtime, &problem, &format!("{heads} equal heads"));
        let (_, tensor) =
            found.gradients.into_iter().find(|(g, _)| *g == Gradient::KPosition).unwrap();
        tensor
    };
    let one = of(1);
    let two = of(2);
    for (two, one) in two.as_f32().unwrap().iter().zip(one.as_f32().unwrap()) {
        assert_eq!(two.to_bits(), (2.0 * one).to_bits());
    }
}

/// Where pages lie does not matter: each logical token keeps its bits.
fn page_placement(runtime: &Runtime) {
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

/// More than 4096 terms in every sum.
fn long_history(runtime: &Runtime) {
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
fn large_scores(runtime: &Runtime) {
    for (seed, scale) in [(51, 3.0), (52, 12.0)] {
        let problem = AttentionCase { scale, ..busy_case(false, 0) }.problem(seed, f32::NAN);
        check(runtime, &problem, &format!("scale {scale}"));
    }
}

fn live_nan_stays_with_its_row(runtime: &Runtime) {
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

/// Several calls on one uploaded plan in one submission.
fn plan_is_reused_in_one_submission(runtime: &Runtime) {
    let problem = busy_case(true, 0).problem(41, 0.0);
    let expected = run_poisoned(runtime, &problem);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let calls = (0..3)
        .map(|_| {
            let outputs = backward::allocate(runtime, &inputs, &problem.options).unwrap();
            backward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs).unwrap();
            outputs
        })
        .collect::<Vec<_>>();
    let submission = recorder.submit().unwrap();
    submission.wait().unwrap();
    for outputs in calls {
        for ((g, found), (_, expected)) in outputs.gradients.iter().zip(&expected.gradients) {
            assert_same_bits(&runtime.download(found).unwrap(), expected, g.output_name());
        }
    }
}

/// The history kernel waits for the statistics, and for what wrote the same gradients before.
fn launches_wait_for_what_they_read(runtime: &Runtime) {
    let complete = AttentionCase { given_columns: 3, ..busy_case(false, 0) };
    let history = Gradients::only(&[Gradient::K]);
    for (what, problem, calls, compact, barriers) in [
        ("statistics", busy_case(false, 0).problem(3, 0.0), 1, false, 1),
        ("cleared pages", complete.problem(3, 0.0).with_gradients(history), 1, true, 1),
        ("a gradient", complete.problem(3, 0.0).with_gradients(history), 2, false, 1),
        ("nothing", complete.problem(3, 0.0), 1, false, 0),
    ] {
        let options = Options { compact_history: compact, ..problem.options };
        let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
        assert!(!plan.inactive_pages().is_empty(), "{what}");
        let plan = DevicePlan::upload(runtime, plan).unwrap();
        let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
        let outputs = backward::allocate(runtime, &inputs, &options).unwrap();
        let mut recorder = runtime.recorder().unwrap();
        for _ in 0..calls {
            backward::record(&mut recorder, &inputs, &plan, &options, &outputs).unwrap();
        }
        assert_eq!(recorder.barriers(), barriers, "{what}");
        recorder.submit().unwrap().wait().unwrap();
    }
}

/// Grids in many dispatches, and NaN behind every tensor: neither changes a bit.
fn splits_and_guards_share_bits(runtime: &Runtime) {
    let strained = Runtime::new(&gpu::options()).unwrap();
    strained.guard_tensors(2048);
    for (i, (name, mut problem)) in busy_cases().into_iter().enumerate() {
        strained.split_grids(1 + i as u32 % 3);
        problem.options.compact_history = i % 2 == 0;
        let expected = run_poisoned(runtime, &problem);
        assert_same(&run_poisoned(&strained, &problem), &expected, name);
    }
    strained.finish().unwrap();
}

/// The promised order, replayed in f32 on the host. With q = 0 and statistics (0, 1, 0) every p is 1, so that v's
/// gradient is the plain sum of output gradients: links by sequence and logical page, then rows, then heads.
fn history_is_summed_in_order(runtime: &Runtime) {
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

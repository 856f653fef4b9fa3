//! The forward: values against the golden file and the float64 reference.

use backslang::kernels::attention::{
    BackwardInputs, DevicePlan, ForwardInputs, ForwardOutputs, Gradient, History, Plan, Schedule,
    backward, forward,
};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor, reference};
use fastrand::Rng;

use crate::accuracy::fresh_seed;
use crate::common::compare::assert_close;
use crate::common::fence::{Fences, assert_untouched};
use crate::common::golden::Case;
use crate::common::random::{AttentionCase, AttentionProblem, inputs, rounds};
use crate::halves::{HALVES, rounded};
use crate::support::{busy_case, run_poisoned, scales, small, tolerance};

/// The forward's share of a problem.
pub(crate) fn forward_inputs<T: Clone>(inputs: &BackwardInputs<T>) -> ForwardInputs<T> {
    ForwardInputs { q: inputs.q.clone(), history: inputs.history.clone() }
}

/// Runs on outputs full of NaN between fences; nothing but the outputs may change.
pub(crate) fn run_forward(
    runtime: &Runtime,
    problem: &AttentionProblem,
) -> ForwardOutputs<HostTensor> {
    let AttentionProblem { schedule, options, geometry, .. } = problem;
    let host = forward_inputs(&problem.inputs);
    let plan = Plan::new(schedule, geometry, options.query_block_rows).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let mut fences = Fences::new(runtime);
    fences.add();
    let mut output =
        |name, dtype, shape: &[usize]| fences.output(&mut recorder, name, dtype, shape);
    let outputs = ForwardOutputs {
        output: output("output", inputs.q.dtype(), &geometry.output_shape()),
        statistics: output("statistics", Dtype::F32, &geometry.forward_statistics_shape()),
    };
    fences.fill(&mut recorder);
    forward::record(&mut recorder, &inputs, &plan, options, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    fences.assert_whole();
    let mut contents = Vec::new();
    host.as_ref().map(|_, tensor| contents.push(tensor));
    let mut contents = contents.into_iter();
    inputs.as_ref().map(|_, tensor| assert_untouched(runtime, tensor, contents.next()));
    outputs
        .try_map(|_, tensor| {
            assert_untouched(runtime, &tensor, None);
            runtime.download(&tensor)
        })
        .unwrap()
}

/// Holds output and statistics to the reference.
pub(crate) fn check_forward(
    runtime: &Runtime,
    problem: &AttentionProblem,
    of_output: f64,
    what: &str,
) -> ForwardOutputs<HostTensor> {
    let found = run_forward(runtime, problem);
    let inputs = forward_inputs(&problem.inputs).map(|_, t| t.to_f64());
    let exact = reference::attention::forward(&inputs, &problem.schedule, &problem.options);
    let exact = exact.unwrap();
    assert_eq!(found.output.dtype(), problem.inputs.q.dtype(), "{what}");
    assert_close(&found.output, &exact.output, of_output, &format!("{what}: output"));
    let of_statistics = tolerance(problem);
    assert_close(
        &found.statistics,
        &exact.statistics,
        of_statistics,
        &format!("{what}: statistics"),
    );
    found
}

pub(crate) fn golden(runtime: &Runtime) {
    let case = Case::open("forward_gqa.npz");
    let inputs = case.forward_inputs().map(|_, a| HostTensor::from_f64(Dtype::F32, &a).unwrap());
    let run = forward::run(runtime, &inputs, &case.schedule(), &case.options()).unwrap();
    assert_close(&run.outputs.output, &case.array("expected_output"), 2e-6, "output");
    assert_close(&run.outputs.statistics, &case.array("expected_statistics"), 2e-6, "statistics");
}

fn plain(case: AttentionCase) -> AttentionCase {
    AttentionCase { given_columns: 0, given_output: false, ..case }
}

pub(crate) fn random_problems(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for _ in 0..rounds(60) {
        let case = plain(AttentionCase::random(&mut rng));
        let seed = rng.u64(..);
        let problem = case.problem(seed, f32::NAN);
        let what = format!("{case:?} of seed {seed}");
        check_forward(runtime, &problem, tolerance(&problem), &what);
    }
}

pub(crate) fn random_halves(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for (dtype, of_output) in HALVES {
        for round in 0..rounds(30) / 3 {
            let mut kernels = plain(AttentionCase::random(&mut rng));
            if round % 2 == 0 {
                kernels.key_dim *= 2;
                kernels.value_dim *= 2;
            }
            for _ in 0..3 {
                let case = kernels.with_other_sizes(&mut rng);
                let seed = rng.u64(..);
                let problem = rounded(case.problem(seed, f32::NAN), dtype);
                let what = format!("{dtype}, {case:?} of seed {seed}");
                check_forward(runtime, &problem, of_output, &what);
            }
        }
    }
}

pub(crate) fn dims(runtime: &Runtime) {
    for (key_dim, value_dim, position_dim) in
        [(1, 5, 0), (257, 1024, 0), (1024, 1, 0), (576, 512, 0), (512, 512, 64), (1024, 1024, 256)]
    {
        let problem = small(key_dim, value_dim, position_dim).problem(5, f32::NAN);
        let what = format!("dims {key_dim}, {value_dim}, {position_dim}");
        check_forward(runtime, &problem, tolerance(&problem), &what);
    }
    let problem = rounded(small(5, 257, 0).problem(6, f32::NAN), Dtype::F16);
    check_forward(runtime, &problem, 1e-3, "f16, value_dim 257");
}

/// Scores up to 1e4 in magnitude: no overflow, and no error beyond what rounding the scores makes.
pub(crate) fn large_scores(runtime: &Runtime) {
    for (seed, scale) in [(51, 12.0), (52, 2500.0)] {
        let problem = AttentionCase { scale, ..busy_case(false, 0) }.problem(seed, f32::NAN);
        check_forward(runtime, &problem, tolerance(&problem), &format!("scale {scale}"));
    }
    // Exact in f32, so that the results must be as good as with small ones.
    let ladder = |start: f32, step: f32| (0..600).map(move |i| start + step * i as f32);
    for scores in [
        ladder(1e4 - 600.0, 1.0).collect::<Vec<_>>(),
        ladder(1e4, -0.5).collect(),
        ladder(-1e4, 0.25).collect(),
        ladder(0.0, 0.0).map(|_| -1e4).chain([1e4, 9999.5, -1e4]).collect(),
    ] {
        let problem = of_scores(&scores);
        check_forward(runtime, &problem, 2e-6, &format!("scores from {}", scores[0]));
    }
}

/// One row whose scores are these, exactly; values are random, of dim 3.
pub(crate) fn of_scores(scores: &[f32]) -> AttentionProblem {
    let n = scores.len();
    let case = AttentionCase { heads: 1, kv_heads: 1, scale: 1.0, ..small(1, 3, 0) };
    let mut problem = case.problem(3, 0.0);
    problem.geometry.pages = n;
    problem.geometry.page_size = 1;
    problem.geometry.queries = 1;
    problem.inputs = inputs(&problem.geometry, 17);
    problem.inputs.q = HostTensor::from_f32(&[1, 1, 1], vec![1.0]).unwrap();
    if let History::Separate { k, .. } = &mut problem.inputs.history {
        *k = HostTensor::from_f32(&[n, 1, 1, 1], scores.to_vec()).unwrap();
    }
    problem.schedule = Schedule {
        block_table: (0..n as i128).collect(),
        table_width: n,
        sequence_lengths: vec![n as i128],
        sequence_ids: vec![0],
        positions: Some(vec![n as i128 - 1]),
    };
    problem
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
        for dtype in [Dtype::F32, Dtype::F16] {
            let problem = rounded(case.problem(11, f32::NAN), dtype);
            let found = check_forward(runtime, &problem, 0.0, name);
            for tensor in [&found.output, &found.statistics] {
                assert!(tensor.bytes().iter().all(|byte| *byte == 0), "{name}");
            }
        }
    }
    // At position 0 a causal row's output is the first value, to the bit.
    let mut problem = of_scores(&[0.3, 7.0, f32::NAN]);
    problem.schedule.positions = Some(vec![0]);
    let found = run_forward(runtime, &problem);
    let History::Separate { v, .. } = &problem.inputs.history else { unreachable!() };
    assert_eq!(found.output.as_f32().unwrap(), &v.as_f32().unwrap()[..3]);
    assert_eq!(found.statistics.as_f32().unwrap(), [0.3, 1.0]);
}

/// The forward's output and statistics make the gradients that the backward alone makes.
pub(crate) fn training_step(runtime: &Runtime) {
    for (position_dim, causal) in [(0, true), (0, false), (5, true)] {
        let case = AttentionCase { causal, ..busy_case(true, position_dim) };
        let mut problem = case.problem(61, f32::NAN);
        let alone = run_poisoned(runtime, &problem);
        let outputs = run_forward(runtime, &problem);
        let exact = reference::attention::backward(
            &problem.inputs.as_ref().map(|_, t| t.to_f64()),
            &problem.schedule,
            &problem.options,
        );
        let (tolerance, scales) = (tolerance(&problem), scales(&problem, &exact.unwrap()));
        let output_gradient = problem.inputs.output_gradient.clone();
        problem.inputs = forward_inputs(&problem.inputs).into_backward(output_gradient, outputs);
        problem.geometry.statistics_columns = 2;
        let found = run_poisoned(runtime, &problem);
        for (i, ((g, found), (_, alone))) in
            found.gradients.iter().zip(&alone.gradients).enumerate()
        {
            let what = format!("{g:?}, positions {position_dim}, causal {causal}");
            assert_close(found, &alone.to_f64(), tolerance * scales[i], &what);
        }
    }
}

/// As [`training_step`], on tensors that stay on the device, one submission.
pub(crate) fn both_ways_in_one_submission(runtime: &Runtime) {
    let problem = busy_case(false, 0).problem(62, 0.0);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let all = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let inputs = forward_inputs(&all);
    let outputs = forward::allocate(runtime, &inputs).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    forward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs).unwrap();
    let inputs = inputs.into_backward(all.output_gradient.clone(), outputs);
    let gradients = backward::allocate(runtime, &inputs, &problem.options).unwrap();
    backward::record(&mut recorder, &inputs, &plan, &problem.options, &gradients).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    let alone = run_poisoned(runtime, &problem);
    for ((g, found), (_, alone)) in gradients.gradients.iter().zip(&alone.gradients) {
        let found = runtime.download(found).unwrap();
        // Bounds the error where delta nearly cancels.
        let bound = if *g == Gradient::V { 4e-6 } else { 2e-5 };
        assert_close(&found, &alone.to_f64(), bound, g.output_name());
    }
}

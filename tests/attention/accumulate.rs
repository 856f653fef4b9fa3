//! Gradients that are added to what their tensors hold.

use backslang::kernels::Target;
use backslang::kernels::attention::backward;
use backslang::kernels::attention::{
    BackwardOutputs, DevicePlan, Gradient, Gradients, Options, Plan,
};
use backslang::reference;
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};
use fastrand::Rng;

use crate::accuracy::fresh_seed;
use crate::common::compare::{assert_close, assert_same_bits};
use crate::common::fence::{Fences, assert_untouched};
use crate::common::random::{AttentionCase, AttentionProblem, signaling_nans, tensor};
use crate::halves::rounded;
use crate::support::{assert_same, busy_case, half_of_settings, run_poisoned, scales};

pub(crate) type Olds = Vec<(Gradient, HostTensor)>;

/// Runs on outputs that hold `olds`, or NaN where there is none, `calls` times in one submission.
fn run_onto(
    runtime: &Runtime,
    problem: &AttentionProblem,
    olds: &Olds,
    calls: usize,
) -> BackwardOutputs<HostTensor> {
    let AttentionProblem { inputs, schedule, geometry, .. } = problem;
    let names = olds.iter().map(|(g, _)| *g).collect::<Vec<_>>();
    let options = &Options { accumulate: Gradients::only(&names), ..problem.options };
    let plan = Plan::new(schedule, geometry, options.query_block_rows).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut outputs = backward::allocate(runtime, &inputs, options).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let mut fences = Fences::new(runtime);
    for (g, tensor) in &mut outputs.gradients {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        *tensor = fences.output(&mut recorder, g.output_name(), dtype, &shape);
    }
    fences.fill(&mut recorder);
    recorder.submit().unwrap().wait().unwrap();
    for (g, old) in olds {
        let (_, tensor) = outputs.gradients.iter().find(|(h, _)| h == g).unwrap();
        runtime.write(tensor, old.bytes()).unwrap();
    }
    let mut recorder = runtime.recorder().unwrap();
    for _ in 0..calls {
        backward::record(&mut recorder, &inputs, &plan, options, &outputs).unwrap();
    }
    recorder.submit().unwrap().wait().unwrap();
    fences.assert_whole();
    outputs.gradients.iter().for_each(|(_, t)| assert_untouched(runtime, t, None));
    BackwardOutputs {
        gradients: outputs
            .gradients
            .iter()
            .map(|(g, t)| (*g, runtime.download(t).unwrap()))
            .collect(),
        statistics: runtime.download(&outputs.statistics).unwrap(),
    }
}

/// Old values for each gradient that `wanted` picks: numbers, or any bits where `found` is 0.
pub(crate) fn olds(
    rng: &mut Rng,
    found: &BackwardOutputs<HostTensor>,
    wanted: impl Fn(usize) -> bool,
) -> Olds {
    let mut olds = Olds::new();
    for (_, (g, zeros)) in found.gradients.iter().enumerate().filter(|(i, _)| wanted(*i)) {
        let numbers = tensor(rng, zeros.shape()).to_f64();
        let mut old = HostTensor::from_f64(zeros.dtype(), &numbers).unwrap();
        let size = old.dtype().size();
        for (old, zero) in old.bytes_mut().chunks_mut(size).zip(zeros.to_f64().iter()) {
            if *zero == 0.0 {
                rng.fill(old);
            }
        }
        olds.push((*g, old));
    }
    olds
}

/// old + sum, added in f32 and rounded once to the type of the old values; where the sum is 0, the old bits.
fn added(old: &HostTensor, sum: &HostTensor) -> HostTensor {
    let sums = sum.as_f32().unwrap();
    let values = old.to_f64();
    let total = values.iter().zip(sums).map(|(old, sum)| f64::from(*old as f32 + sum));
    let total = ndarray::ArrayD::from_shape_vec(old.shape(), total.collect()).unwrap();
    let mut total = HostTensor::from_f64(old.dtype(), &total).unwrap();
    let size = old.dtype().size();
    let pairs = total.bytes_mut().chunks_mut(size).zip(old.bytes().chunks(size));
    for ((total, old), sum) in pairs.zip(sums) {
        if *sum == 0.0 {
            total.copy_from_slice(old);
        }
    }
    total
}

/// Even and odd dims (packed from scratch), shared and unread pages, all types.
pub(crate) fn problems(seed: u64) -> Vec<(Dtype, AttentionProblem)> {
    let problem = |dtype, unsorted, (key_dim, value_dim), position_dim| {
        let case = AttentionCase { key_dim, value_dim, ..busy_case(unsorted, position_dim) };
        (dtype, rounded(case.problem(seed, f32::NAN), dtype))
    };
    vec![
        problem(Dtype::F32, false, (12, 8), 0),
        problem(Dtype::F32, true, (7, 7), 5),
        problem(Dtype::F16, true, (12, 8), 0),
        problem(Dtype::F16, false, (7, 7), 4),
        problem(Dtype::Bf16, false, (12, 9), 0),
        problem(Dtype::Bf16, true, (6, 6), 4),
    ]
}

/// The gradients in f32 of the same numbers.
fn wide(runtime: &Runtime, problem: &AttentionProblem) -> BackwardOutputs<HostTensor> {
    run_poisoned(runtime, &rounded(problem.clone(), Dtype::F32))
}

pub(crate) fn gradients_are_added_to_old_ones(runtime: &Runtime) {
    let seed = fresh_seed();
    let mut rng = Rng::with_seed(seed);
    for (dtype, problem) in problems(seed) {
        let what = format!("{dtype}, {:?}, seed {seed}", problem.geometry);
        let alone = run_poisoned(runtime, &problem);
        let sums = wide(runtime, &problem);
        // All of them, then every second one beside gradients that are overwritten.
        for step in 1..3 {
            let olds = olds(&mut rng, &sums_as(&sums, dtype), |i| i % step == 0);
            let found = run_onto(runtime, &problem, &olds, 1);
            for ((g, found), ((_, alone), (_, sum))) in
                found.gradients.iter().zip(alone.gradients.iter().zip(&sums.gradients))
            {
                let what = format!("{what}: {}", g.output_name());
                match olds.iter().find(|(h, _)| h == g) {
                    Some((_, old)) => assert_same_bits(found, &added(old, sum), &what),
                    None => assert_same_bits(found, alone, &what),
                }
            }
        }
    }
}

/// Without upstream gradients all is 0: no kernel touches a bit.
pub(crate) fn zeros_are_added_to_any_bits(runtime: &Runtime) {
    let mut rng = Rng::with_seed(4);
    for (dtype, mut problem) in problems(5) {
        let upstream = &mut problem.inputs.output_gradient;
        *upstream = HostTensor::zeros(dtype, upstream.shape());
        let gradients = problem.options.gradients.resolve(|g| g.exists(problem.geometry.is_mla()));
        let olds = gradients
            .unwrap()
            .iter()
            .map(|g| (g, signaling_nans(&mut rng, dtype, &problem.geometry.gradient_shape(g))));
        let olds = olds.collect::<Olds>();
        let found = run_onto(runtime, &problem, &olds, 1);
        for ((g, found), (_, old)) in found.gradients.iter().zip(&olds) {
            assert_same_bits(found, old, &format!("{dtype}, {:?}: {g:?}", problem.geometry));
        }
    }
}

/// Zeros where a gradient is 0, in the type of the problem.
fn sums_as(sums: &BackwardOutputs<HostTensor>, dtype: Dtype) -> BackwardOutputs<HostTensor> {
    let gradients = sums.gradients.iter();
    BackwardOutputs {
        gradients: gradients
            .map(|(g, t)| {
                let live = t.to_f64().mapv(|x| f64::from(u8::from(x != 0.0)));
                (*g, HostTensor::from_f64(dtype, &live).unwrap())
            })
            .collect(),
        statistics: sums.statistics.clone(),
    }
}

/// Against float64: what is added, and the sum of two calls in one submission.
pub(crate) fn accumulation_is_close_to_float64(runtime: &Runtime) {
    let seed = fresh_seed();
    let mut rng = Rng::with_seed(seed);
    for (dtype, problem) in problems(seed) {
        let tolerance = match dtype {
            Dtype::F32 => 2e-6,
            Dtype::F16 => 1e-3,
            _ => 8e-3,
        };
        let plain = problem.inputs.as_ref().map(|_, t| t.to_f64());
        let once =
            reference::attention::backward(&plain, &problem.schedule, &problem.options).unwrap();
        let scales = scales(&problem, &once);
        let olds = once
            .gradients
            .iter()
            .map(|(g, t)| {
                let old = tensor(&mut rng, t.shape()).to_f64();
                (*g, HostTensor::from_f64(dtype, &old).unwrap())
            })
            .collect::<Olds>();
        let onto = olds.iter().map(|(g, t)| (*g, t.to_f64())).collect::<Vec<_>>();
        let expected =
            reference::attention::backward_onto(&plain, &problem.schedule, &problem.options, &onto)
                .unwrap();
        for calls in [1, 2] {
            let found = run_onto(runtime, &problem, &olds, calls);
            for (i, (g, found)) in found.gradients.iter().enumerate() {
                let expected = match calls {
                    1 => expected.gradients[i].1.clone(),
                    _ => &expected.gradients[i].1 + &once.gradients[i].1,
                };
                let what = format!("{dtype}, {calls} calls, seed {seed}: {g:?}");
                assert_close(found, &expected, calls as f64 * tolerance * scales[i], &what);
            }
        }
    }
}

pub(crate) fn accumulating_settings_share_bits(runtime: &Runtime) {
    let mut rng = Rng::with_seed(8);
    for (i, (dtype, mut problem)) in problems(7).into_iter().skip(1).step_by(2).enumerate() {
        let sums = wide(runtime, &problem);
        let olds = olds(&mut rng, &sums_as(&sums, dtype), |i| i != 1);
        let expected = run_onto(runtime, &problem, &olds, 1);
        assert_same(&run_onto(runtime, &problem, &olds, 1), &expected, "a repeat");
        for options in half_of_settings(problem.options, i % 2 == 1) {
            problem.options = options;
            let found = run_onto(runtime, &problem, &olds, 1);
            assert_same(&found, &expected, &format!("{dtype}: {options:?}"));
        }
    }
}

/// From host arrays to host arrays, and what is refused there.
pub(crate) fn old_values_that_do_not_fit_are_refused(runtime: &Runtime) {
    let problem = busy_case(false, 0).problem(3, 0.0);
    let problem = problem.with_gradients(Gradients::only(&[Gradient::K, Gradient::V]));
    let old =
        |g: Gradient| (g, tensor(&mut Rng::with_seed(9), &problem.geometry.gradient_shape(g)));
    let AttentionProblem { inputs, schedule, options, .. } = &problem;
    let run = |options: &Options, olds: &Olds| {
        backward::run_onto(runtime, inputs, schedule, options, olds).map(|run| run.outputs)
    };
    let olds = vec![old(Gradient::V)];
    let found = run(options, &olds).unwrap();
    assert_same(&found, &run_onto(runtime, &problem, &olds, 1), "from the host");
    let named = Options { accumulate: Gradients::only(&[Gradient::V]), ..*options };
    assert_same(&run(&named, &olds).unwrap(), &found, "named");

    let half = HostTensor::zeros(Dtype::F16, olds[0].1.shape());
    let flat = HostTensor::zeros(Dtype::F32, &[1]);
    for (options, olds, part) in [
        (*options, vec![old(Gradient::Q)], "`accumulate`"),
        (*options, vec![old(Gradient::V), old(Gradient::V)], "`accumulate`"),
        (named, vec![], "`accumulate`"),
        (named, vec![old(Gradient::K)], "`accumulate`"),
        (*options, vec![(Gradient::V, half)], "`v_gradient`"),
        (*options, vec![(Gradient::V, flat)], "`v_gradient`"),
    ] {
        let error = run(&options, &olds).unwrap_err();
        assert!(error.is_input() && error.to_string().contains(part), "{error}");
    }
}

/// What is accumulated is not cleared first.
pub(crate) fn accumulated_pages_are_not_cleared(_: &Runtime) {
    let problem = busy_case(false, 0).problem(3, 0.0);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let inputs = problem.inputs.as_ref().map(|_, t| t.into());
    let kernels = |accumulate: &[Gradient]| {
        let accumulate = Gradients::only(accumulate);
        let options = Options { compact_history: true, accumulate, ..problem.options };
        let launches = backward::launches(&inputs, &plan, &options, Target::TYPICAL).unwrap();
        launches.iter().map(|launch| launch.kernel().name).collect::<Vec<_>>()
    };
    let (query, history, clear) = ("query_backward", "history_backward", "clear_pages");
    assert_eq!(kernels(&[]), [query, clear, clear, history]);
    assert_eq!(kernels(&[Gradient::V]), [query, clear, history]);
    assert_eq!(kernels(&[Gradient::Q, Gradient::K, Gradient::V]), [query, history]);
}

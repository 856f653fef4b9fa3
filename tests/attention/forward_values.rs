//! What the forward reads and what it does not: infinities, NaN, shared pages, large grids, views.

use backslang::kernels::attention::{
    DevicePlan, ForwardInputs, ForwardOutputs, History, Plan, forward,
};
use backslang::runtime::{Runtime, Tensor};
use backslang::{Dtype, HostTensor, reference};
use fastrand::Rng;
use ndarray::ArrayD;

use crate::common::compare::assert_same_bits;
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase, tensor};
use crate::forward::{check_forward, forward_inputs, of_scores, run_forward};
use crate::halves::rounded;
use crate::nonfinite::live;
use crate::sizes;
use crate::support::{busy_case, busy_cases, small, tolerance};

/// NaN, large values and zeros in what nothing reads, on shared pages too: the same bits.
pub(crate) fn unread_values_reach_nothing(runtime: &Runtime) {
    for (position_dim, unsorted) in [(0, false), (0, true), (5, true)] {
        let case = busy_case(unsorted, position_dim);
        let expected = run_forward(runtime, &case.problem(21, 0.0));
        for poison in [f32::NAN, f32::INFINITY, 1e30] {
            let found = run_forward(runtime, &case.problem(21, poison));
            assert_same_bits(&found.output, &expected.output, "output");
            assert_same_bits(&found.statistics, &expected.statistics, "statistics");
        }
    }
}

/// NaN, ∞ and −∞ in a live element of each input in turn.
pub(crate) fn nonfinite_inputs_reach_what_depends_on_them(runtime: &Runtime) {
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    for position_dim in [0, 5] {
        let case = busy_case(true, position_dim);
        let schedule = ScheduleCase { shared: false, queries: 24, ..case.schedule };
        let problem = AttentionCase { schedule, ..case }.problem(91, 0.0);
        let clean = Pair::of(runtime, &problem);
        let mut arrays = Vec::new();
        forward_inputs(&problem.inputs)
            .as_ref()
            .map(|name, tensor| arrays.push((name, live(&problem, name, tensor))));
        for (name, live) in arrays {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let at = live[rng.usize(0..live.len())];
                let mut spoilt = problem.clone();
                spoilt.inputs = spoilt.inputs.map(|found, mut tensor| {
                    if found == name {
                        tensor.as_f32_mut().unwrap()[at] = value;
                    }
                    tensor
                });
                let what = format!("{value} in element {at} of `{name}`, seed {seed}");
                Pair::of(runtime, &spoilt).assert_spoilt_alike(&clean, &what);
            }
        }
    }
}

/// Scores of −∞, ∞ and NaN at every place of a block and of a chunk, alone and together.
pub(crate) fn nonfinite_scores(runtime: &Runtime) {
    let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
    let clean = Pair::of(runtime, &of_scores(&[0.5; 600]));
    for few in [
        vec![low],
        vec![low; 5],
        vec![low; 600],
        vec![high],
        vec![f32::NAN],
        vec![low, 1.0],
        vec![1.0, low],
        [vec![low; 4], vec![0.5]].concat(),
        [vec![low; 256], vec![0.5; 300]].concat(),
        [vec![0.5; 300], vec![low; 256]].concat(),
        [vec![low; 300], vec![high]].concat(),
        [vec![low; 300], vec![f32::NAN]].concat(),
        [vec![high; 2], vec![low; 300], vec![1.0; 20]].concat(),
        [vec![1.0; 5], vec![f32::NAN], vec![2.0; 500]].concat(),
    ] {
        let what = format!("{} scores from {}", few.len(), few[0]);
        let problem = of_scores(&few);
        Pair::of(runtime, &problem).assert_spoilt_alike(&clean, &what);
    }
    // A value that is infinite counts in full, unless its weight is 0.
    for weightless in [false, true] {
        let mut scores = vec![0.25; 400];
        if weightless {
            scores[300] = low;
        }
        let mut problem = of_scores(&scores);
        if let History::Separate { v, .. } = &mut problem.inputs.history {
            v.as_f32_mut().unwrap()[3 * 300 + 1] = high;
        }
        let what = format!("an infinite value, without weight: {weightless}");
        Pair::of(runtime, &problem).assert_spoilt_alike(&clean, &what);
    }
}

/// What the device and the reference make of a problem.
struct Pair {
    found: ForwardOutputs<HostTensor>,
    exact: ForwardOutputs<ArrayD<f64>>,
}

impl Pair {
    fn of(runtime: &Runtime, problem: &AttentionProblem) -> Self {
        let inputs = forward_inputs(&problem.inputs).map(|_, tensor| tensor.to_f64());
        let exact = reference::attention::forward(&inputs, &problem.schedule, &problem.options);
        Self { found: run_forward(runtime, problem), exact: exact.unwrap() }
    }

    /// Non-finite exactly where the reference is, and of its kind; bits of the clean run where the reference keeps
    /// its own.
    fn assert_spoilt_alike(&self, clean: &Self, what: &str) {
        for (name, found, exact, clean_found, clean_exact) in [
            (
                "output",
                &self.found.output,
                &self.exact.output,
                &clean.found.output,
                &clean.exact.output,
            ),
            (
                "statistics",
                &self.found.statistics,
                &self.exact.statistics,
                &clean.found.statistics,
                &clean.exact.statistics,
            ),
        ] {
            let [found, clean_found] = [found, clean_found].map(|t| t.as_f32().unwrap());
            let exact = exact.iter().zip(clean_exact);
            for (i, (&found, (&exact, &clean_exact))) in found.iter().zip(exact).enumerate() {
                let what = format!("{what}: element {i} of {name}: {found}, not {exact}");
                assert_eq!(found.is_nan(), exact.is_nan(), "{what}");
                assert_eq!(found.is_finite(), exact.is_finite(), "{what}");
                if exact.to_bits() == clean_exact.to_bits() {
                    assert_eq!(found.to_bits(), clean_found[i].to_bits(), "{what}");
                } else if !exact.is_nan() && !exact.is_finite() {
                    assert!(f64::from(found) == exact, "{what}");
                }
            }
        }
    }
}

/// More workgroups along x, and along y, than one dispatch may have.
pub(crate) fn large_grids(runtime: &Runtime) {
    let rows = 100_000;
    let problem =
        sizes::problem(sizes::geometry(rows, rows, 1), sizes::scattered(rows / 4, 4, rows));
    check_forward(runtime, &problem, tolerance(&problem), "100,000 rows");
    // Odd rows of halves, so that the merge has as many.
    check_forward(runtime, &rounded(problem, Dtype::F16), 1e-3, "100,000 rows of f16");
    let heads = 70_000;
    let geometry = backslang::kernels::attention::Geometry {
        heads,
        kv_heads: heads,
        ..sizes::geometry(1, 2, 1)
    };
    let problem = sizes::problem(geometry, sizes::scattered(1, 1, 2));
    check_forward(runtime, &problem, tolerance(&problem), "70,000 heads");
}

/// Every setting of the busy cases, and the head map.
pub(crate) fn busy(runtime: &Runtime) {
    for (name, problem) in busy_cases() {
        // Of given statistics the forward knows nothing: there, rows hold poison that it would read.
        if problem.geometry.statistics_columns == 0 {
            check_forward(runtime, &problem, tolerance(&problem), name);
        }
    }
    for (heads, kv_heads) in [(6, 3), (8, 1), (16, 2), (9, 3), (5, 5)] {
        let problem = AttentionCase { heads, kv_heads, ..small(3, 2, 0) }.problem(1, f32::NAN);
        check_forward(runtime, &problem, tolerance(&problem), &format!("{heads} on {kv_heads}"));
    }
}

/// Rows of a packed projection, and an output between other columns: the bits of dense tensors, and nothing beside.
pub(crate) fn views(runtime: &Runtime) {
    for (dtype, position_dim, long) in [
        (Dtype::F32, 0, false),
        (Dtype::F32, 4, false),
        (Dtype::F16, 4, false),
        (Dtype::Bf16, 0, true),
        (Dtype::F32, 0, true),
    ] {
        let case = AttentionCase { value_dim: 12, ..busy_case(true, position_dim) };
        let mut problem = case.problem(33, 0.0);
        if long {
            problem = of_scores(&[0.5; 300]);
            problem.geometry.value_dim = 4;
            problem.inputs.history = History::Separate {
                k: tensor(&mut Rng::with_seed(4), &[300, 1, 1, 1]),
                v: tensor(&mut Rng::with_seed(5), &[300, 1, 1, 4]),
            };
        }
        let problem = rounded(problem, dtype);
        let expected = run_forward(runtime, &problem);
        let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
        let plan = DevicePlan::upload(runtime, plan).unwrap();
        let host = forward_inputs(&problem.inputs);
        let inputs: ForwardInputs<Tensor> = host
            .as_ref()
            .try_map(|name, t| match name {
                "q" | "q_position" => Ok::<_, backslang::Error>(between(runtime, t).1),
                _ => runtime.upload(name, t),
            })
            .unwrap();
        let poison = vec![f32::NAN; expected.output.to_f64().len()];
        let poison = HostTensor::from_f32(expected.output.shape(), poison).unwrap();
        let poison = HostTensor::from_f64(dtype, &poison.to_f64()).unwrap();
        let (whole, output) = between(runtime, &poison);
        let before = runtime.download(&whole).unwrap();
        let outputs = ForwardOutputs {
            output: output.clone(),
            ..forward::allocate(runtime, &inputs).unwrap()
        };
        let mut recorder = runtime.recorder().unwrap();
        forward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs).unwrap();
        recorder.submit().unwrap().wait().unwrap();
        let what = format!("{dtype}, positions {position_dim}");
        assert_same_bits(&runtime.download(&output).unwrap(), &expected.output, &what);
        assert_same_bits(
            &runtime.download(&outputs.statistics).unwrap(),
            &expected.statistics,
            &what,
        );
        let after = runtime.download(&whole).unwrap();
        let unlike = before.bytes().chunks(dtype.size()).zip(after.bytes().chunks(dtype.size()));
        let written = unlike.filter(|(a, b)| a != b).count();
        assert!(written <= expected.output.to_f64().len(), "{what}: written beside the view");
    }
}

/// A tensor with two columns before and four behind the rows `[heads, dim]` of `host`, which is a view of it.
fn between(runtime: &Runtime, host: &HostTensor) -> (Tensor, Tensor) {
    let [rows, heads, dim] = *host.shape() else { panic!() };
    let (width, size) = (heads * dim, host.dtype().size());
    let mut whole = HostTensor::zeros(host.dtype(), &[rows, width + 6]);
    let row_bytes = (width + 6) * size;
    for (target, source) in
        whole.bytes_mut().chunks_mut(row_bytes).zip(host.bytes().chunks(width * size))
    {
        target[2 * size..][..source.len()].copy_from_slice(source);
    }
    let whole = runtime.upload("packed", &whole).unwrap();
    let view = whole.narrow(1, 2..2 + width).unwrap().reshape(&[rows, heads, dim]).unwrap();
    (whole, view)
}

/// Views that the kernels do not take, each with an error that names the array.
pub(crate) fn views_that_do_not_fit(runtime: &Runtime) {
    let problem = small(4, 4, 0).problem(1, 0.0);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    for (array, dtype) in [("q", Dtype::F32), ("k", Dtype::F32), ("output", Dtype::F16)] {
        let host = forward_inputs(&rounded(problem.clone(), dtype).inputs);
        let mut inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
        let mut outputs = forward::allocate(runtime, &inputs).unwrap();
        // The last axis is a part of a wider one: gaps within rows, or, for the output's halves, between odd ones.
        let part = |tensor: &Tensor, more: usize| {
            let mut shape = tensor.shape().to_vec();
            let last = shape.len() - 1;
            let dim = shape[last];
            shape[last] += more;
            runtime.tensor(array, dtype, &shape).unwrap().narrow(last, 0..dim).unwrap()
        };
        match (array, &mut inputs.history) {
            ("q", _) => inputs.q = part(&inputs.q, 2),
            ("k", History::Separate { k, .. }) => *k = part(k, 2),
            _ => outputs.output = part(&outputs.output, 1),
        }
        let mut recorder = runtime.recorder().unwrap();
        let refused = forward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs);
        let error = refused.unwrap_err();
        assert!(error.is_input() && error.to_string().contains(array), "{error}");
    }
}

/// Nothing is recorded for outputs that are not those of the call.
pub(crate) fn outputs_of_another_call_are_refused(runtime: &Runtime) {
    let problem = small(4, 3, 0).problem(1, 0.0);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let host = forward_inputs(&problem.inputs);
    let inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let good = forward::allocate(runtime, &inputs).unwrap();
    let tensor = |dtype, shape: &[usize]| runtime.tensor("odd", dtype, shape).unwrap();
    let half = tensor(Dtype::F16, good.output.shape());
    let output = |output| ForwardOutputs { output, ..good.clone() };
    let complete = tensor(Dtype::F32, &problem.geometry.statistics_shape());
    for (outputs, array) in [
        (output(tensor(Dtype::F32, &[1])), "output"),
        (output(half), "output"),
        (ForwardOutputs { statistics: complete, ..good.clone() }, "statistics"),
    ] {
        let mut recorder = runtime.recorder().unwrap();
        let refused = forward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs);
        let error = refused.unwrap_err();
        assert!(error.is_input() && error.to_string().contains(array), "{error}");
    }
}

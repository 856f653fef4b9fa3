//! Rows that are views into packed ones: the same bits as of tensors of their own, and nothing between them is touched.

use backslang::kernels::Target;
use backslang::kernels::attention::backward;
use backslang::kernels::attention::{
    BackwardInputs, BackwardOutputs, DevicePlan, Gradient, Gradients, History, Options, Plan,
};
use backslang::runtime::{Runtime, Tensor};
use backslang::{Dtype, Error, HostTensor};

use crate::accuracy::fresh_seed;
use crate::common::compare::assert_same_bits;
use crate::common::random::{AttentionCase, AttentionProblem};
use crate::halves::rounded;
use crate::support::{busy_case, run_poisoned};

/// Packed rows of canaries, with the part [begin, begin + width) of each row taken as [rows, heads, dim].
struct Packed {
    whole: Tensor,
    canaries: HostTensor,
    begin: usize,
    part: Tensor,
}

impl Packed {
    fn new(runtime: &Runtime, dtype: Dtype, shape: &[usize], begin: usize, after: usize) -> Self {
        let part = shape[1] * shape[2];
        let width = begin + part + after;
        let bytes = vec![0xa7; shape[0] * width * dtype.size()];
        let canaries = HostTensor::from_bytes(dtype, &[shape[0], width], &bytes).unwrap();
        let whole = runtime.upload("packed", &canaries).unwrap();
        let part = whole.narrow(1, begin..begin + part).unwrap().reshape(shape).unwrap();
        Self { whole, canaries, begin, part }
    }

    /// With the contents of an array.
    fn of(runtime: &Runtime, host: &HostTensor, begin: usize, after: usize) -> Self {
        let packed = Self::new(runtime, host.dtype(), host.shape(), begin, after);
        runtime.write(&packed.part, host.bytes()).unwrap();
        packed
    }

    /// Whether the part holds `expected`, and all else canaries.
    fn assert_holds(&self, runtime: &Runtime, expected: &HostTensor, what: &str) {
        let mut all = self.canaries.clone();
        let size = all.dtype().size();
        let (width, rows) = (all.shape()[1] * size, all.shape()[0]);
        let part = expected.bytes().len() / rows.max(1);
        for row in 0..rows {
            let begin = row * width + self.begin * size;
            all.bytes_mut()[begin..][..part]
                .copy_from_slice(&expected.bytes()[row * part..][..part]);
        }
        assert_same_bits(&runtime.download(&self.whole).unwrap(), &all, what);
    }
}

/// All inputs that may be views as such, `begin` elements into their rows.
fn views(
    runtime: &Runtime,
    problem: &AttentionProblem,
    begin: usize,
    after: usize,
) -> BackwardInputs<Tensor> {
    let place = |name: &'static str, t: &HostTensor| match name {
        "q" | "q_position" | "output_gradient" | "output" => {
            Ok::<_, Error>(Packed::of(runtime, t, begin, after).part)
        }
        _ => runtime.upload(name, t),
    };
    problem.inputs.as_ref().try_map(place).unwrap()
}

/// The call on views, with the query gradients into packed rows of canaries.
fn check(runtime: &Runtime, problem: &AttentionProblem, begin: usize, after: usize, what: &str) {
    let expected = run_poisoned(runtime, problem);
    let AttentionProblem { schedule, geometry, options, .. } = problem;
    let plan = Plan::new(schedule, geometry, options.query_block_rows).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = views(runtime, problem, begin, after);
    let mut outputs = backward::allocate(runtime, &inputs, options).unwrap();
    let mut packed = Vec::new();
    for (g, tensor) in &mut outputs.gradients {
        if !g.is_history() {
            let rows = Packed::new(runtime, tensor.dtype(), tensor.shape(), begin, after);
            *tensor = rows.part.clone();
            packed.push((*g, rows));
        }
    }
    let mut recorder = runtime.recorder().unwrap();
    backward::record(&mut recorder, &inputs, &plan, options, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    for ((g, found), (_, expected)) in outputs.gradients.iter().zip(&expected.gradients) {
        let what = format!("{what}: {}", g.output_name());
        assert_same_bits(&runtime.download(found).unwrap(), expected, &what);
        if let Some((_, rows)) = packed.iter().find(|(h, _)| h == g) {
            rows.assert_holds(runtime, expected, &what);
        }
    }
    let statistics = runtime.download(&outputs.statistics).unwrap();
    assert_same_bits(&statistics, &expected.statistics, what);
}

/// A busy problem with even dims.
fn problem(seed: u64, dtype: Dtype, position_dim: usize, given: bool) -> AttentionProblem {
    let dims = if position_dim > 0 { (10, 10) } else { (10, 6) };
    let case = AttentionCase {
        key_dim: dims.0,
        value_dim: dims.1,
        given_columns: if given { 2 } else { 0 },
        given_output: given,
        ..busy_case(true, position_dim)
    };
    rounded(case.problem(seed, f32::NAN), dtype)
}

pub(crate) fn views_share_bits_with_dense_tensors(runtime: &Runtime) {
    let seed = fresh_seed();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (position_dim, given, begin, after) in
            [(0, false, 0, 4), (0, true, 2, 0), (4, false, 70, 2), (4, true, 6, 8)]
        {
            let what = format!("{dtype}, {position_dim}, {begin} before, {after} after, {seed}");
            check(runtime, &problem(seed, dtype, position_dim, given), begin, after, &what);
        }
    }
    // Elements of f32 lie anywhere.
    check(runtime, &problem(seed, Dtype::F32, 0, true), 3, 2, "f32 at odd places");
}

/// One packed projection [rows, (heads + 2 · kv_heads) · dim]: q of it, its gradient into the same place of another, and
/// added to what is there.
pub(crate) fn packed_projections(runtime: &Runtime) {
    let seed = fresh_seed();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let case = AttentionCase { key_dim: 8, value_dim: 8, ..busy_case(false, 0) };
        let problem = rounded(case.problem(seed, f32::NAN), dtype);
        let problem = problem.with_gradients(Gradients::only(&[Gradient::Q]));
        let AttentionProblem { schedule, geometry, options, .. } = &problem;
        let after = 2 * geometry.kv_heads * 8;
        let q = Packed::of(runtime, &problem.inputs.q, 0, after);
        let shape = geometry.gradient_shape(Gradient::Q);
        let target = Packed::new(runtime, dtype, &shape, 0, after);
        let plan = DevicePlan::upload(runtime, Plan::new(schedule, geometry, 32).unwrap()).unwrap();
        let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
        let inputs = BackwardInputs { q: q.part.clone(), ..inputs };
        let run = |accumulate| {
            let options = Options { accumulate, ..*options };
            let mut outputs = backward::allocate(runtime, &inputs, &options).unwrap();
            outputs.gradients[0].1 = target.part.clone();
            let mut recorder = runtime.recorder().unwrap();
            backward::record(&mut recorder, &inputs, &plan, &options, &outputs).unwrap();
            recorder.submit().unwrap().wait().unwrap();
        };
        run(Gradients::NONE);
        let once = run_poisoned(runtime, &problem).gradients.remove(0).1;
        target.assert_holds(runtime, &once, "once");
        run(Gradients::ALL);
        let expected =
            backward::run_onto(runtime, &problem.inputs, schedule, options, &[(Gradient::Q, once)])
                .unwrap();
        target.assert_holds(runtime, &expected.outputs.gradients[0].1, "twice");
    }
}

/// What cannot be read or written where it lies is refused before anything is recorded.
pub(crate) fn views_that_do_not_fit_are_refused(runtime: &Runtime) {
    let refused = |problem: &AttentionProblem,
                   change: &dyn Fn(&mut BackwardInputs<Tensor>, &mut BackwardOutputs<Tensor>),
                   array: &str| {
        let AttentionProblem { schedule, geometry, options, .. } = problem;
        let plan = DevicePlan::upload(runtime, Plan::new(schedule, geometry, 32).unwrap()).unwrap();
        let mut inputs =
            problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
        let mut outputs = backward::allocate(runtime, &inputs, options).unwrap();
        change(&mut inputs, &mut outputs);
        let mut recorder = runtime.recorder().unwrap();
        let error = backward::record(&mut recorder, &inputs, &plan, options, &outputs).unwrap_err();
        assert_eq!(error.kind(), "layout", "{error}");
        assert!(error.is_input() && error.to_string().contains(&format!("`{array}`")), "{error}");
    };
    let apart =
        |t: &Tensor, begin, after| Packed::new(runtime, t.dtype(), t.shape(), begin, after).part;
    let f16 = problem(1, Dtype::F16, 0, false);
    for (begin, after) in [(1, 1), (2, 1), (1, 2)] {
        let odd = |_: &mut _, outputs: &mut BackwardOutputs<Tensor>| {
            outputs.gradients[0].1 = apart(&outputs.gradients[0].1, begin, after);
        };
        refused(&f16, &odd, "q_gradient");
    }
    // Rows of odd dims are packed, without gaps.
    let odd =
        rounded(AttentionCase { value_dim: 7, ..busy_case(true, 0) }.problem(1, 0.0), Dtype::Bf16);
    let strided = |_: &mut _, outputs: &mut BackwardOutputs<Tensor>| {
        outputs.gradients[0].1 = apart(&outputs.gradients[0].1, 2, 2);
    };
    refused(&odd, &strided, "q_gradient");
    // Heads of a row follow each other.
    let heads = |inputs: &mut BackwardInputs<Tensor>, _: &mut _| {
        let [rows, heads, dim] = *inputs.q.shape() else { unreachable!() };
        let wider = runtime.tensor("wider", inputs.q.dtype(), &[rows, heads, dim + 2]).unwrap();
        inputs.q = wider.narrow(2, 0..dim).unwrap();
    };
    refused(&f16, &heads, "q");
    // The cache lies without gaps.
    let cache = |inputs: &mut BackwardInputs<Tensor>, _: &mut _| {
        if let History::Separate { v, .. } = &mut inputs.history {
            let mut shape = v.shape().to_vec();
            shape[1] += 1;
            let wider = runtime.tensor("wider", v.dtype(), &shape).unwrap();
            *v = wider.narrow(1, 1..shape[1]).unwrap();
        }
    };
    refused(&f16, &cache, "v");
}

/// Halves that are read may begin anywhere.
pub(crate) fn halves_are_read_at_odd_places(runtime: &Runtime) {
    let problem = problem(fresh_seed(), Dtype::F16, 4, true);
    let history = Gradients::only(&[Gradient::Latent, Gradient::KPosition]);
    check(runtime, &problem.with_gradients(history), 3, 2, "f16 at odd places");
}

/// With saved statistics and the output there is no walk but that of the gradients, and with complete statistics no query
/// kernel where no gradient of its own is wanted.
pub(crate) fn saved_statistics_leave_one_walk(_: &Runtime) {
    let launches = |columns, given_output, gradients: &[Gradient]| {
        let case = AttentionCase { given_columns: columns, given_output, ..busy_case(false, 0) };
        let problem = case.problem(1, 0.0).with_gradients(Gradients::only(gradients));
        let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
        let inputs = problem.inputs.as_ref().map(|_, t| t.into());
        backward::launches(&inputs, &plan, &problem.options, Target::TYPICAL).unwrap()
    };
    let names = |columns, given_output, gradients: &[Gradient]| {
        let launches = launches(columns, given_output, gradients);
        launches.iter().map(|launch| launch.kernel().name).collect::<Vec<_>>()
    };
    let constant = |columns, given_output, gradients: &[Gradient], name: &str| {
        let query = &launches(columns, given_output, gradients)[0];
        let place = query.kernel().constants.iter().position(|c| c.name == name).unwrap();
        query.constants()[place]
    };
    let (query, history) = ("query_backward", "history_backward");
    let all = [Gradient::Q, Gradient::K, Gradient::V];
    // The kernel walks for the maximum without columns, for the sums without columns or without delta's source, and for
    // gradients that are needed.
    assert_eq!(names(2, true, &all), [query, history]);
    for (name, value) in [("given_columns", 2), ("given_output", 1), ("need_q", 1)] {
        assert_eq!(constant(2, true, &all, name), value, "{name}");
    }
    assert_eq!(names(2, true, &all[1..]), [query, history]);
    assert_eq!(constant(2, true, &all[1..], "need_q"), 0);
    assert_eq!(constant(2, true, &all[1..], "need_q_position"), 0);
    assert_eq!(constant(3, false, &all, "given_columns"), 3);
    assert_eq!(names(3, false, &all[..1]), [query]);
    for output in [false, true] {
        assert_eq!(names(3, output, &all[1..]), [history]);
        assert_eq!(names(3, output, &all[2..]), [history]);
    }
}

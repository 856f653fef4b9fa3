//! Parts of calls on the device: put together, they have the bits of the whole call.

mod common;

use std::process::ExitCode;

use backslang::kernels::Target;
use backslang::kernels::attention::append::{self, AppendInputs};
use backslang::kernels::attention::{
    ForwardInputs, Geometry, Gradient, Gradients, History, Options, Schedule, backward, forward,
};
use backslang::kernels::mamba3::preprocess::{self, Parameters, Widths, dtype_of};
use backslang::kernels::mamba3::preprocess_backward::{self, Onto};
use backslang::kernels::mamba3::preprocess_forward;
use backslang::runtime::Runtime;
use backslang::shard::{
    self, Append, Assembly, AttentionBackward, AttentionForward, Divide, Drive, Engine,
    PreprocessBackward, PreprocessForward, Shard,
};
use backslang::{Dtype, HostTensor};
use common::compare::assert_same_bits;
use common::gpu;
use common::random::{self, AttentionCase, AttentionProblem, ScheduleCase};
use fastrand::Rng;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Halves share their code but for loads and stores: they have fewer of the counts, which take their time.
fn counts(dtype: Dtype) -> &'static [usize] {
    if dtype.is_half() { &[2, 7] } else { &[1, 2, 3, 7] }
}

/// More than there are heads, pages or chunks of rows.
const MANY: usize = 40;

fn main() -> ExitCode {
    gpu::main(vec![
        gpu::trial("rows_of_the_preprocess", rows_of_the_preprocess),
        gpu::trial("rows_of_its_backward", rows_of_its_backward),
        gpu::trial("heads_and_rows_of_attention", heads_and_rows_of_attention),
        gpu::trial("rows_of_long_histories", rows_of_long_histories),
        gpu::trial("heads_and_pages_of_the_backward", heads_and_pages_of_the_backward),
        gpu::trial("pages_of_an_append", pages_of_an_append),
        gpu::trial("nothing_to_divide", nothing_to_divide),
        gpu::trial_alone("several_devices", several_devices),
        gpu::trial("a_part_takes_what_it_needs", |_| a_part_takes_what_it_needs()),
    ])
}

type Named = Vec<(String, HostTensor)>;

/// Each part by an engine of its own.
fn in_parts<'a>(call: &dyn Divide, count: usize, engine: impl Fn() -> Engine<'a>) -> Named {
    let mut assembly = Assembly::new(call.outputs().unwrap()).unwrap();
    // The order of the parts does not matter.
    for index in (0..count).rev() {
        let shard = Shard::new(index, count).unwrap();
        let arrays = call.part(shard, &mut engine()).unwrap();
        arrays.into_iter().for_each(|array| assembly.add(array).unwrap());
    }
    assembly.finish().unwrap()
}

fn assert_same(found: &Named, expected: &Named, what: &str) {
    let names = |of: &Named| of.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        assert_eq!(found.shape(), expected.shape(), "{what}: {name}");
        assert_same_bits(found, expected, &format!("{what}: {name}"));
    }
}

/// Parts on the device have the bits of `whole`, and those of the reference the bits of one part.
fn check(runtime: &Runtime, call: &dyn Divide, whole: &Named, what: &str) {
    let exact = in_parts(call, 1, Engine::reference);
    for &count in counts(whole[0].1.dtype()) {
        let found = in_parts(call, count, || Engine::on(runtime));
        assert_same(&found, whole, &format!("{what}, {count} parts"));
    }
    for count in [2, 3, 7, MANY] {
        let found = in_parts(call, count, Engine::reference);
        assert_same(&found, &exact, &format!("{what}, {count} exact parts"));
    }
}

fn rounded(tensor: &HostTensor, dtype: Dtype) -> HostTensor {
    HostTensor::from_f64(dtype, &tensor.to_f64()).unwrap()
}

fn preprocess_geometry(leading: &[usize]) -> preprocess::Geometry {
    preprocess::Geometry {
        leading: leading.to_vec(),
        rows: leading.iter().product(),
        inner_size: 5,
        bc_rows: 2,
        state_size: 7,
        heads: 3,
        rope_angles: 2,
    }
}

fn preprocess_inputs(
    leading: &[usize],
    dtype: Dtype,
) -> (Widths, preprocess::BackwardInputs<HostTensor>) {
    let g = preprocess_geometry(leading);
    let inputs = random::mamba3(&g, 3);
    let inputs = inputs.map(|name, tensor| rounded(&tensor, dtype_of(name, dtype)));
    let (inner_size, bc_rows) = (g.inner_size, g.bc_rows);
    let widths =
        Widths { inner_size, bc_rows, state_size: g.state_size, rope_angles: g.rope_angles };
    (widths, inputs)
}

fn rows_of_the_preprocess(runtime: &Runtime) {
    for dtype in DTYPES {
        let (widths, inputs) = preprocess_inputs(&[3, 4], dtype);
        let inputs =
            preprocess::ForwardInputs { projected: inputs.projected, dt_bias: inputs.dt_bias };
        let parameters = Parameters::default();
        let run = preprocess_forward::run(runtime, &inputs, &widths, &parameters).unwrap();
        let mut whole = Named::new();
        run.outputs.map(|name, tensor| whole.push((name.into(), tensor)));
        let call = PreprocessForward { inputs: &inputs, widths, parameters };
        check(runtime, &call, &whole, dtype.name());
    }
}

/// Of 300 rows in three chunks, the last of them short.
fn rows_of_its_backward(runtime: &Runtime) {
    for dtype in DTYPES {
        let (_, inputs) = preprocess_inputs(&[2, 150], dtype);
        let mut rng = Rng::with_seed(4);
        let old = random::tensor(&mut rng, inputs.projected.shape());
        let sums = Onto {
            projected_gradient: Some(rounded(&old, dtype)),
            dt_bias_gradient: Some(random::tensor(&mut rng, &[3])),
        };
        for (onto, what) in [(Onto::default(), "new"), (sums, "added")] {
            let parameters = Parameters { dt_min: 0.0, ..Parameters::default() };
            let run = preprocess_backward::run_onto(runtime, &inputs, &parameters, &onto).unwrap();
            let mut whole = Named::new();
            run.outputs.map(|name, tensor| whole.push((name.into(), tensor)));
            let call = PreprocessBackward { inputs: &inputs, parameters, onto: &onto };
            check(runtime, &call, &whole, &format!("{dtype}, {what}"));
        }
    }
}

/// Rows of several sequences, in no order, on shared pages; some of them see nothing.
fn case(position_dim: usize) -> AttentionCase {
    let mla = position_dim > 0;
    AttentionCase {
        schedule: ScheduleCase {
            sequences: 4,
            queries: 23,
            pages: 9,
            page_size: 3,
            max_length: 14,
            shared: true,
            unsorted: true,
            packed: false,
            positions: true,
        },
        heads: 6,
        kv_heads: if mla { 1 } else { 3 },
        key_dim: 6,
        value_dim: if mla { 6 } else { 5 },
        position_dim,
        causal: true,
        scale: 0.3,
        given_columns: 0,
        zero_denominators: false,
        given_output: false,
    }
}

/// In halves; what nothing reads is NaN.
fn problem(case: &AttentionCase, dtype: Dtype) -> AttentionProblem {
    let mut problem = case.problem(11, f32::NAN);
    problem.inputs = problem.inputs.map(|name, tensor| match name {
        "statistics" => tensor,
        _ => rounded(&tensor, dtype),
    });
    problem
}

fn forward_inputs(problem: &AttentionProblem) -> ForwardInputs<HostTensor> {
    ForwardInputs { q: problem.inputs.q.clone(), history: problem.inputs.history.clone() }
}

fn check_forward(runtime: &Runtime, problem: &AttentionProblem, what: &str) {
    let (inputs, schedule, options) = (forward_inputs(problem), &problem.schedule, problem.options);
    let run = forward::run(runtime, &inputs, schedule, &options).unwrap().outputs;
    let whole = vec![("output".into(), run.output), ("statistics".into(), run.statistics)];
    let call = AttentionForward { inputs: &inputs, schedule, options };
    check(runtime, &call, &whole, what);
}

fn heads_and_rows_of_attention(runtime: &Runtime) {
    for dtype in DTYPES {
        for position_dim in [0, 3] {
            let what = format!("{dtype}, positions {position_dim}");
            check_forward(runtime, &problem(&case(position_dim), dtype), &what);
        }
    }
}

/// The whole call divides the tokens of each row by its own sizes; a part of it alone would do so otherwise.
fn rows_of_long_histories(runtime: &Runtime) {
    let mut problem = problem(&case(0), Dtype::F32);
    let (length, page_size) = (1500, 50);
    problem.schedule = Schedule {
        block_table: (0..30).rev().chain(0..30).collect(),
        table_width: 30,
        sequence_lengths: vec![length, length - 70],
        sequence_ids: (0..400).map(|row| row % 2).collect(),
        positions: Some((0..400).map(|row| length - 2 * row).collect()),
    };
    let geometry = Geometry { queries: 400, pages: 30, page_size, ..problem.geometry };
    problem.inputs = random::inputs(&geometry, 5);
    check_forward(runtime, &problem, "long");
}

fn check_backward(
    runtime: &Runtime,
    problem: &AttentionProblem,
    options: Options,
    onto: &[(Gradient, HostTensor)],
    what: &str,
) {
    let (inputs, schedule) = (&problem.inputs, &problem.schedule);
    let run = backward::run_onto(runtime, inputs, schedule, &options, onto).unwrap().outputs;
    let gradients = run.gradients.into_iter().map(|(g, t)| (g.output_name().into(), t));
    let whole = gradients.chain([("statistics".into(), run.statistics)]).collect();
    let call = AttentionBackward { inputs, schedule, options, onto, save_statistics: true };
    check(runtime, &call, &whole, what);
}

fn heads_and_pages_of_the_backward(runtime: &Runtime) {
    for dtype in DTYPES {
        for (position_dim, given_columns, given_output) in
            [(0, 0, false), (3, 2, true), (0, 3, true)]
        {
            let case = AttentionCase {
                given_columns,
                given_output,
                zero_denominators: given_columns > 0,
                ..case(position_dim)
            };
            let problem = problem(&case, dtype);
            let what = format!("{dtype}, positions {position_dim}, {given_columns} given");
            let options = Options { compact_history: given_columns > 0, ..problem.options };
            check_backward(runtime, &problem, options, &[], &what);
            if given_columns == 3 && dtype != Dtype::Bf16 {
                let mut rng = Rng::with_seed(7);
                let old = [Gradient::Q, Gradient::K].map(|g| {
                    let shape = problem.geometry.gradient_shape(g);
                    (g, rounded(&random::tensor(&mut rng, &shape), dtype))
                });
                check_backward(runtime, &problem, options, &old, &format!("{what}, added"));
                let only = Options { gradients: Gradients::only(&[Gradient::V]), ..options };
                check_backward(runtime, &problem, only, &[], &format!("{what}, of v alone"));
            }
        }
    }
}

fn pages_of_an_append(runtime: &Runtime) {
    let mut rng = Rng::with_seed(9);
    // Pages 3 and 0, then 5 alone; rows at 4, 1, 3 of the one and at 0 of the other.
    let schedule = Schedule {
        block_table: vec![3, 0, 5, -1],
        table_width: 2,
        sequence_lengths: vec![5, 1],
        sequence_ids: vec![0, 1, 0, 0],
        positions: Some(vec![4, 0, 1, 3]),
    };
    for dtype in DTYPES {
        let mut tensor = |shape: &[usize]| rounded(&random::tensor(&mut rng, shape), dtype);
        let inputs = AppendInputs::Separate {
            k: tensor(&[7, 3, 2, 5]),
            v: tensor(&[7, 3, 2, 4]),
            new_k: tensor(&[4, 2, 5]),
            new_v: tensor(&[4, 2, 4]),
        };
        let run = append::run(runtime, &inputs, &schedule).unwrap().outputs;
        let whole = run.named().map(|(name, tensor)| (name.to_owned(), tensor.clone())).to_vec();
        check(runtime, &Append { inputs: &inputs, schedule: &schedule }, &whole, dtype.name());
    }
}

/// No rows, no pages, no heads: arrays of the right shapes, with zeros where there are elements.
fn nothing_to_divide(runtime: &Runtime) {
    let (_, inputs) = preprocess_inputs(&[0, 3], Dtype::F32);
    let onto = Onto {
        dt_bias_gradient: Some(HostTensor::from_f32(&[3], vec![1.0; 3]).unwrap()),
        ..Onto::default()
    };
    let parameters = Parameters::default();
    let run = preprocess_backward::run_onto(runtime, &inputs, &parameters, &onto).unwrap();
    let mut whole = Named::new();
    run.outputs.map(|name, tensor| whole.push((name.into(), tensor)));
    check(
        runtime,
        &PreprocessBackward { inputs: &inputs, parameters, onto: &onto },
        &whole,
        "rows",
    );
    for (queries, pages, kv_heads) in [(0, 3, 2), (3, 0, 2), (3, 3, 0), (0, 0, 0)] {
        let schedule = ScheduleCase { queries, pages, max_length: 0, ..case(0).schedule };
        let case = AttentionCase { schedule, heads: 2 * kv_heads, kv_heads, ..case(0) };
        let what = format!("{queries} queries, {pages} pages, {kv_heads} heads");
        let schedule = schedule.schedule(&mut Rng::with_seed(1));
        let geometry = case.geometry(&schedule);
        let inputs = random::inputs(&geometry, 2);
        let options = Options::new(0.5);
        let problem = AttentionProblem { inputs, schedule, options, geometry };
        check_forward(runtime, &problem, &what);
        check_backward(runtime, &problem, options, &[], &what);
    }
}

/// As many as there are here: the same one, several times.
fn several_devices(runtime: &Runtime) {
    let runtimes = (0..2).map(|_| gpu::open(|_| ()).unwrap()).collect::<Vec<_>>();
    assert!(runtimes.iter().all(|other| other.is_like(runtime)));
    let problem = problem(&case(0), Dtype::F16);
    let AttentionProblem { inputs, schedule, options, .. } = &problem;
    let call = AttentionBackward {
        inputs,
        schedule,
        options: *options,
        onto: &[],
        save_statistics: false,
    };
    let run = backward::run(runtime, inputs, schedule, options).unwrap().outputs;
    let gradients = run.gradients.into_iter().map(|(g, t)| (g.output_name().into(), t));
    let whole = gradients.collect::<Named>();
    let spread = shard::run(&runtimes, &call, Drive::default()).unwrap();
    assert_same(&spread.outputs, &whole, "attention");
    assert_eq!(spread.records.len(), 2);
    let timed = spread.records.iter().all(|record| !record.timings.is_empty());
    assert_eq!(timed, runtime.device().timestamps);
    // Parts on several devices are the parts that they are on one.
    let shard = Shard::new(1, 2).unwrap();
    let parts = shard::part(&runtimes, &call, shard, Drive::default()).unwrap().outputs;
    assert_eq!(parts, call.part(shard, &mut Engine::on(runtime)).unwrap());
    let (_, inputs) = preprocess_inputs(&[1], Dtype::F32);
    let (parameters, onto) = (Parameters::default(), Onto::default());
    // An error of a part is one of the call.
    let wrong = Parameters { epsilon: 0.0, ..parameters };
    let call = PreprocessBackward { inputs: &inputs, parameters: wrong, onto: &onto };
    assert!(
        shard::run(&runtimes, &call, Drive::default()).unwrap_err().to_string().contains("epsilon")
    );
    assert!(shard::run(&[], &call, Drive::default()).unwrap_err().to_string().contains("runtimes"));
    runtimes.into_iter().for_each(|runtime| runtime.finish().unwrap());
}

/// A head of several, without the other heads' arrays; statistics only where they are not known.
fn a_part_takes_what_it_needs() {
    let problem = problem(&case(0), Dtype::F32);
    let plan = |given: bool, shard: &str| {
        let mut inputs = problem.inputs.clone();
        if given {
            let shape = problem.geometry.statistics_shape();
            inputs.statistics = Some(HostTensor::zeros(Dtype::F32, &shape));
        }
        let (schedule, options) = (&problem.schedule, problem.options);
        let call = AttentionBackward {
            inputs: &inputs,
            schedule,
            options,
            onto: &[],
            save_statistics: false,
        };
        let mut engine = Engine::nowhere(Target::TYPICAL);
        call.part(shard.parse().unwrap(), &mut engine).unwrap();
        engine.into_record()
    };
    let kernels = |given, shard| {
        let record = plan(given, shard);
        record.launches.iter().map(|launch| launch.kernel().name).collect::<Vec<_>>()
    };
    assert_eq!(kernels(false, "0/1"), ["query_backward", "history_backward"]);
    assert_eq!(kernels(false, "1/3"), ["query_backward", "history_backward"]);
    // Of half a head, the statistics of the other half's rows, too.
    let halves = kernels(false, "0/6");
    assert_eq!(halves, ["query_backward", "query_backward", "history_backward"]);
    assert_eq!(kernels(true, "0/6"), ["query_backward", "history_backward"]);
    let whole = plan(true, "0/1").input_bytes;
    assert!(plan(true, "1/3").input_bytes <= whole / 3 + 16);
    let History::Separate { k, .. } = &problem.inputs.history else { unreachable!() };
    assert!(plan(true, "0/1000").input_bytes < k.bytes().len());
}

//! The forward on histories that are cut into chunks.

use backslang::kernels::attention::{DevicePlan, History, Plan, Schedule, backward, forward};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};
use fastrand::Rng;

use crate::common::compare::{assert_close, assert_same_bits};
use crate::common::gpu;
use crate::common::random::{AttentionCase, AttentionProblem, inputs};
use crate::forward::{check_forward, forward_inputs, of_scores, run_forward};
use crate::halves::rounded;
use crate::support::{small, tolerance};

/// Around the smallest chunk, of 256 tokens.
const LENGTHS: [usize; 7] = [1, 255, 256, 257, 1000, 0, 4097];

/// A row a sequence, at its end and beyond, on pages in a random order; what nothing reads is `poison`.
fn long(position_dim: usize, causal: bool, poison: f32) -> AttentionProblem {
    let page_size = 16;
    let case = AttentionCase {
        causal,
        heads: 2,
        kv_heads: 1,
        ..small(6, if position_dim > 0 { 6 } else { 4 }, position_dim)
    };
    let mut problem = case.problem(1, 0.0);
    let width = LENGTHS.iter().max().unwrap().div_ceil(page_size);
    let used = |length: usize| length.div_ceil(page_size);
    let pages = LENGTHS.iter().map(|&length| used(length)).sum::<usize>() + 3;
    let mut order = (0..pages as i128).collect::<Vec<_>>();
    Rng::with_seed(5).shuffle(&mut order);
    let mut live = vec![false; pages * page_size];
    let mut table = vec![-1; width * LENGTHS.len()];
    for (sequence, &length) in LENGTHS.iter().enumerate() {
        for token in 0..length {
            if token % page_size == 0 {
                table[sequence * width + token / page_size] = order.pop().unwrap();
            }
            let page = table[sequence * width + token / page_size] as usize;
            live[page * page_size + token % page_size] = true;
        }
    }
    problem.schedule = Schedule {
        block_table: table,
        table_width: width,
        sequence_lengths: LENGTHS.map(|length| length as i128).to_vec(),
        sequence_ids: (0..LENGTHS.len() as i128).rev().collect(),
        positions: Some(LENGTHS.iter().rev().map(|&length| length as i128 + 2).collect()),
    };
    problem.geometry.queries = LENGTHS.len();
    problem.geometry.pages = pages;
    problem.geometry.page_size = page_size;
    problem.inputs = inputs(&problem.geometry, 6).map(|name, mut tensor| {
        let width = tensor.shape().last().copied().unwrap();
        if matches!(name, "k" | "v" | "latent" | "k_position") {
            let rows = tensor.as_f32_mut().unwrap().chunks_mut(width);
            rows.zip(&live).filter(|(_, live)| !**live).for_each(|(row, _)| row.fill(poison));
        }
        tensor
    });
    problem
}

pub(crate) fn lengths(runtime: &Runtime) {
    for (position_dim, causal) in [(0, true), (0, false), (3, true)] {
        let problem = long(position_dim, causal, f32::NAN);
        let what = format!("positions {position_dim}, causal {causal}");
        check_forward(runtime, &problem, tolerance(&problem), &what);
    }
    for (dtype, of_output, value_dim) in [(Dtype::F16, 1e-3, 4), (Dtype::Bf16, 8e-3, 3)] {
        let mut problem = long(0, true, f32::NAN);
        problem.geometry.value_dim = value_dim;
        let v = inputs(&problem.geometry, 7).history;
        if let (History::Separate { v, .. }, History::Separate { v: other, .. }) =
            (&mut problem.inputs.history, v)
        {
            *v = other;
        }
        check_forward(runtime, &rounded(problem, dtype), of_output, &format!("{dtype}"));
    }
}

/// Two kernels where there is something to divide, one where not.
pub(crate) fn launches(runtime: &Runtime) {
    let kernels = |problem: &AttentionProblem| {
        let inputs = forward_inputs(&problem.inputs);
        let run = forward::run(runtime, &inputs, &problem.schedule, &problem.options).unwrap();
        run.timings.iter().map(|timing| timing.kernel.to_string()).collect::<Vec<_>>()
    };
    if runtime.device().timestamps {
        let (attend, merge) = ("paged_attention", "paged_attention_merge");
        assert_eq!(kernels(&long(0, true, 0.0)), [attend, merge]);
        assert_eq!(kernels(&of_scores(&[0.5; 256])), [attend]);
        assert_eq!(kernels(&of_scores(&[0.5; 257])), [attend, merge]);
    }
}

/// The merge waits for the chunks, and a backward in the same submission for the merge.
pub(crate) fn launches_wait_for_what_they_read(runtime: &Runtime) {
    for (scores, barriers) in [(256, 0), (257, 1)] {
        let problem = of_scores(&vec![0.5; scores]);
        let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
        let plan = DevicePlan::upload(runtime, plan).unwrap();
        let all = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
        let inputs = forward_inputs(&all);
        let outputs = forward::allocate(runtime, &inputs).unwrap();
        let mut recorder = runtime.recorder().unwrap();
        forward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs).unwrap();
        assert_eq!(recorder.barriers(), barriers, "{scores} tokens");
        let inputs = inputs.into_backward(all.output_gradient, outputs);
        let gradients = backward::allocate(runtime, &inputs, &problem.options).unwrap();
        backward::record(&mut recorder, &inputs, &plan, &problem.options, &gradients).unwrap();
        // One before each of the backward's kernels.
        assert_eq!(recorder.barriers(), barriers + 2, "{scores} tokens");
        recorder.submit().unwrap().wait().unwrap();
    }
}

/// Divided or not, the results agree: so many copies of a row that they fill a device alone are not divided.
pub(crate) fn divided_or_not(runtime: &Runtime) {
    let scores = (0..1000).map(|i| ((i * 37) % 101) as f32 * 0.1).collect::<Vec<_>>();
    let few = of_scores(&scores);
    let mut many = few.clone();
    let rows = 4096;
    many.geometry.queries = rows;
    many.inputs.q = HostTensor::from_f32(&[rows, 1, 1], vec![1.0; rows]).unwrap();
    many.schedule.sequence_ids = vec![0; rows];
    many.schedule.positions = Some(vec![999; rows]);
    let divided = run_forward(runtime, &few);
    let whole = run_forward(runtime, &many);
    let first = |tensor: &HostTensor, width: usize| {
        let elements = tensor.as_f32().unwrap();
        assert!(elements.chunks(width).all(|row| row == &elements[..width]));
        HostTensor::from_f32(&[1, 1, width], elements[..width].to_vec()).unwrap().to_f64()
    };
    assert_close(&divided.output, &first(&whole.output, 3), 2e-6, "output");
    assert_close(&divided.statistics, &first(&whole.statistics, 2), 2e-6, "statistics");
}

/// Repeats, poison, grids and submissions of few workgroups: one set of bits.
pub(crate) fn bits(_: &Runtime) {
    let strained = gpu::open(|_| ()).unwrap();
    strained.guard_tensors(2048);
    for position_dim in [0, 3] {
        let expected = run_forward(&strained, &long(position_dim, true, 0.0));
        for (poison, groups) in [(0.0, 0), (f32::NAN, 0), (1e30, 3), (f32::NAN, 7)] {
            strained.split_grids(groups);
            strained.slice_grids(3 * groups);
            let found = run_forward(&strained, &long(position_dim, true, poison));
            let what = format!("poison {poison}, groups {groups}");
            assert_same_bits(&found.output, &expected.output, &what);
            assert_same_bits(&found.statistics, &expected.statistics, &what);
        }
        strained.split_grids(0);
        strained.slice_grids(0);
    }
    strained.finish().unwrap();
}

/// f32 scratch for rows of an odd number of halves is twice the output: there is some for a part of the rows at a time.
pub(crate) fn scratch_is_bounded(_: &Runtime) {
    let runtime = gpu::open(|_| ()).unwrap();
    let (value_dim, queries) = (1023, 20_000);
    let shape = [queries, 1, 1];
    let inputs = backslang::kernels::attention::ForwardInputs {
        q: HostTensor::zeros(Dtype::F16, &shape),
        history: History::Separate {
            k: HostTensor::zeros(Dtype::F16, &[1, 1, 1, 1]),
            v: HostTensor::from_bytes(Dtype::F16, &[1, 1, 1, value_dim], &[0x3c; 2 * 1023])
                .unwrap(),
        },
    };
    let schedule = Schedule {
        block_table: vec![0],
        table_width: 1,
        sequence_lengths: vec![1],
        sequence_ids: vec![0; queries],
        positions: Some(vec![0; queries]),
    };
    let options = backslang::kernels::attention::Options::new(1.0);
    let run = forward::run(&runtime, &inputs, &schedule, &options).unwrap();
    // Every element of every window.
    assert!(run.outputs.output.bytes().iter().all(|byte| *byte == 0x3c));
    // Two windows, of two kernels each.
    let timed = runtime.device().timestamps;
    assert!(!timed || run.timings.len() == 4, "{:?}", run.timings);
    runtime.finish().unwrap();
}

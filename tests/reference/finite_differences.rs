//! Gradients against central differences of the float64 forwards, with random upstream gradients.

use backslang::kernels::attention::{BackwardInputs, ForwardInputs, Schedule};
use backslang::kernels::mamba3::preprocess;
use backslang::reference;
use fastrand::Rng;
use ndarray::ArrayD;

use crate::random::{self, AttentionCase, AttentionProblem, ScheduleCase};

/// Half the distance of a central difference, and what rounding and the third derivative leave of it.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

/// The gradient of `loss` by each element of `array`.
fn central_differences(
    array: &ArrayD<f64>,
    mut loss: impl FnMut(&ArrayD<f64>) -> f64,
) -> ArrayD<f64> {
    let mut moved = array.clone();
    let mut gradient = ArrayD::zeros(array.shape());
    for (index, slope) in gradient.indexed_iter_mut() {
        let at = array[&index];
        moved[&index] = at + STEP;
        let above = loss(&moved);
        moved[&index] = at - STEP;
        let below = loss(&moved);
        moved[&index] = at;
        *slope = (above - below) / (2.0 * STEP);
    }
    gradient
}

fn assert_close(name: &str, found: &ArrayD<f64>, expected: &ArrayD<f64>) {
    assert_eq!(found.shape(), expected.shape(), "{name}");
    let largest = expected.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs();
        assert!(error <= TOLERANCE * largest, "{name}: {found} against {expected}");
    }
}

/// `Σ output · output_gradient` over the rows that are read; the others hold NaN.
fn attention_loss(problem: &AttentionProblem, inputs: &ForwardInputs<ArrayD<f64>>) -> f64 {
    let AttentionProblem { schedule, options, .. } = problem;
    let output = reference::attention::forward(inputs, schedule, options).unwrap().output;
    let upstream = problem.inputs.output_gradient.to_f64();
    output.iter().zip(&upstream).filter(|(_, g)| !g.is_nan()).map(|(o, g)| o * g).sum()
}

/// The history with another array under `name`.
fn replaced(
    inputs: &ForwardInputs<ArrayD<f64>>,
    replaced: &str,
    array: &ArrayD<f64>,
) -> ForwardInputs<ArrayD<f64>> {
    inputs.as_ref().map(|name, own| if name == replaced { array.clone() } else { own.clone() })
}

fn check_attention(problem: &AttentionProblem) {
    let inputs = problem.inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let AttentionProblem { schedule, options, .. } = problem;
    let outputs = reference::attention::backward(&inputs, schedule, options).unwrap();
    let BackwardInputs { q, history, .. } = inputs;
    let inputs = ForwardInputs { q, history };
    let mut checked = 0;
    for (gradient, found) in &outputs.gradients {
        let name = gradient.name();
        inputs.as_ref().map(|own, array| {
            if own == name {
                let loss =
                    |array: &ArrayD<f64>| attention_loss(problem, &replaced(&inputs, name, array));
                assert_close(name, found, &central_differences(array, loss));
                checked += 1;
            }
        });
    }
    assert_eq!(checked, if problem.geometry.is_mla() { 4 } else { 3 });
}

#[test]
fn random_attention() {
    let mut rng = Rng::with_seed(11);
    for seed in 0..60 {
        let mut case = AttentionCase::random(&mut rng);
        // Given ones are rounded to f32, far coarser than the tolerance.
        (case.given_columns, case.given_output) = (0, false);
        case.heads = case.kv_heads * (case.heads / case.kv_heads).min(2);
        case.schedule.queries = case.schedule.queries.min(6);
        case.schedule.pages = case.schedule.pages.min(4);
        case.schedule.page_size = case.schedule.page_size.min(3);
        case.schedule.max_length = case.schedule.max_length.min(6);
        check_attention(&case.problem(seed, f32::NAN));
    }
}

/// A page shared by two sequences and twice in one of them, grouped heads, both masks, both histories.
#[test]
fn shared_pages() {
    for (causal, position_dim, value_dim) in
        [(true, 0, 5), (false, 0, 2), (true, 2, 3), (false, 1, 3)]
    {
        let case = AttentionCase {
            schedule: ScheduleCase {
                sequences: 2,
                queries: 5,
                pages: 3,
                page_size: 2,
                max_length: 5,
                shared: true,
                unsorted: true,
                packed: false,
                positions: true,
            },
            heads: if position_dim > 0 { 3 } else { 4 },
            kv_heads: if position_dim > 0 { 1 } else { 2 },
            key_dim: 3,
            value_dim,
            position_dim,
            causal,
            scale: 0.6,
            given_columns: 0,
            zero_denominators: false,
            given_output: false,
        };
        let mut problem = case.problem(5, 0.0);
        problem.schedule = Schedule {
            block_table: vec![0, 2, 0, 2, 1, -1],
            table_width: 3,
            sequence_lengths: vec![5, 4],
            sequence_ids: vec![0, 1, 0, 1, 0],
            positions: Some(vec![4, 3, 1, 0, 9]),
        };
        check_attention(&problem);
    }
}

/// `Σ output · gradient` over all eight outputs.
fn mamba_loss(
    inputs: &preprocess::BackwardInputs<ArrayD<f64>>,
    widths: &preprocess::Widths,
    parameters: &preprocess::Parameters,
) -> f64 {
    let forward = preprocess::ForwardInputs {
        projected: inputs.projected.clone(),
        dt_bias: inputs.dt_bias.clone(),
    };
    let outputs = reference::mamba3::preprocess(&forward, widths, parameters).unwrap();
    let upstream = inputs.named().skip(2).map(|(_, gradient)| gradient);
    outputs.named().zip(upstream).map(|((_, o), g)| (o * g).sum()).sum()
}

#[test]
fn random_mamba3() {
    let mut rng = Rng::with_seed(12);
    for seed in 0..60 {
        let geometry = random::mamba3_geometry(&mut rng);
        let inputs = random::mamba3(&geometry, seed).map(|_, tensor| tensor.to_f64());
        let parameters = preprocess::Parameters {
            epsilon: [1e-5, 0.5][rng.usize(0..2)],
            dt_min: [0.0, 0.01][rng.usize(0..2)],
            dt_max: [0.1, 1.0, f32::INFINITY][rng.usize(0..3)],
            a_floor: [0.0, 0.3][rng.usize(0..2)],
        };
        let widths = preprocess::Widths {
            inner_size: geometry.inner_size,
            bc_rows: geometry.bc_rows,
            state_size: geometry.state_size,
            rope_angles: geometry.rope_angles,
        };
        let outputs = reference::mamba3::preprocess_backward(&inputs, &parameters).unwrap();
        let projected = central_differences(&inputs.projected, |projected| {
            let inputs =
                preprocess::BackwardInputs { projected: projected.clone(), ..inputs.clone() };
            mamba_loss(&inputs, &widths, &parameters)
        });
        assert_close("projected", &outputs.projected_gradient, &projected);
        let dt_bias = central_differences(&inputs.dt_bias, |dt_bias| {
            let inputs = preprocess::BackwardInputs { dt_bias: dt_bias.clone(), ..inputs.clone() };
            mamba_loss(&inputs, &widths, &parameters)
        });
        assert_close("dt_bias", &outputs.dt_bias_gradient, &dt_bias);
    }
}

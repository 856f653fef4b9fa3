//! The operator in the middle of a graph: forward on the device, a fixed linear map to a loss, backward on the device,
//! against central differences of the same loss in float64.

use backslang::HostTensor;
use backslang::kernels::attention::{ForwardInputs, Geometry, backward, forward};
use backslang::reference;
use backslang::runtime::Runtime;
use fastrand::Rng;
use ndarray::ArrayD;

use crate::common::compare::assert_close;
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase, normal};
use crate::forward::forward_inputs;
use crate::support::busy_case;

const STEP: f64 = 1e-4;
const TOLERANCE: f64 = 1e-5;

/// loss = w · (M · output), M `[rows of w, elements of the output]`.
struct Rest {
    map: Vec<Vec<f64>>,
    w: Vec<f64>,
}

impl Rest {
    fn random(elements: usize, rng: &mut Rng) -> Self {
        let mut row = |n: usize| (0..n).map(|_| normal(rng)).collect::<Vec<_>>();
        Self { w: row(6), map: (0..6).map(|_| row(elements)).collect() }
    }

    fn loss(&self, output: &ArrayD<f64>) -> f64 {
        let dot = |row: &Vec<f64>| row.iter().zip(output).map(|(m, o)| m * o).sum::<f64>();
        self.map.iter().zip(&self.w).map(|(row, w)| w * dot(row)).sum()
    }

    /// Mᵀ·w.
    fn output_gradient(&self, geometry: &Geometry) -> HostTensor {
        let column =
            |i: usize| self.map.iter().zip(&self.w).map(|(row, w)| row[i] * w).sum::<f64>();
        let shape = geometry.output_shape();
        let elements = (0..shape.iter().product()).map(|i| column(i) as f32).collect();
        HostTensor::from_f32(&shape, elements).unwrap()
    }
}

/// The gradient of `loss` by each element of the array called `name`.
fn central_differences(
    inputs: &ForwardInputs<ArrayD<f64>>,
    name: &str,
    loss: impl Fn(&ForwardInputs<ArrayD<f64>>) -> f64,
) -> ArrayD<f64> {
    let moved = |at: usize, by: f64| {
        let moved = inputs.as_ref().map(|found, array| {
            let mut array = array.clone();
            if found == name {
                *array.iter_mut().nth(at).unwrap() += by;
            }
            array
        });
        loss(&moved)
    };
    let mut shape = Vec::new();
    inputs.as_ref().map(|found, array| {
        if found == name {
            shape = array.shape().to_vec();
        }
    });
    let count = shape.iter().product();
    let slopes = (0..count).map(|i| (moved(i, STEP) - moved(i, -STEP)) / (2.0 * STEP)).collect();
    ArrayD::from_shape_vec(shape, slopes).unwrap()
}

fn problem(position_dim: usize, causal: bool, seed: u64) -> AttentionProblem {
    let schedule = ScheduleCase {
        sequences: 2,
        queries: 6,
        pages: 6,
        page_size: 3,
        max_length: 8,
        ..busy_case(true, 0).schedule
    };
    let case = AttentionCase {
        schedule,
        causal,
        key_dim: 4,
        value_dim: if position_dim > 0 { 4 } else { 3 },
        ..busy_case(true, position_dim)
    };
    case.problem(seed, 0.0)
}

pub(crate) fn gradients_of_a_graph(runtime: &Runtime) {
    let seed = fastrand::u64(..);
    for (position_dim, causal) in [(0, true), (3, true), (0, false)] {
        let AttentionProblem { inputs, schedule, options, geometry } =
            problem(position_dim, causal, seed);
        let rest =
            Rest::random(geometry.output_shape().iter().product(), &mut Rng::with_seed(seed ^ 1));
        let inputs = forward_inputs(&inputs);
        let exact = inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let loss = |inputs: &ForwardInputs<ArrayD<f64>>| {
            rest.loss(&reference::attention::forward(inputs, &schedule, &options).unwrap().output)
        };

        let outputs = forward::run(runtime, &inputs, &schedule, &options).unwrap().outputs;
        let found = rest.loss(&outputs.output.to_f64());
        assert!((found - loss(&exact)).abs() < 1e-4, "{found}, seed {seed}");
        let inputs = inputs.into_backward(rest.output_gradient(&geometry), outputs);
        let run = backward::run(runtime, &inputs, &schedule, &options).unwrap();
        assert_eq!(run.outputs.gradients.len(), if position_dim > 0 { 4 } else { 3 });
        for (gradient, found) in &run.outputs.gradients {
            let name = gradient.name();
            let expected = central_differences(&exact, name, loss);
            let what = format!("{name}, positions {position_dim}, causal {causal}, seed {seed}");
            assert_close(found, &expected, TOLERANCE, &what);
        }
    }
}

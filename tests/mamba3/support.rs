//! Running on poisoned outputs, and what results are held to.

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters, dtype_of,
};
use backslang::kernels::mamba3::preprocess_backward;
use backslang::reference;
use backslang::runtime::Runtime;
use ndarray::ArrayD;

use crate::common::compare::assert_close;
use crate::common::fence::{Fences, assert_untouched};

pub(crate) const TOLERANCE: f64 = 2e-6;

/// Runs on outputs full of NaN between fences; nothing but the outputs may change.
pub(crate) fn run_poisoned(
    runtime: &Runtime,
    host: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> BackwardOutputs<HostTensor> {
    let geometry = Geometry::of_backward(&host.as_ref().map(|_, t| t.shape())).unwrap();
    let inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let mut fences = Fences::new(runtime);
    fences.add();
    let outputs = geometry.backward_outputs().map(|name, shape| {
        let dtype = dtype_of(name, host.projected.dtype());
        fences.output(&mut recorder, name, dtype, &shape)
    });
    fences.fill(&mut recorder);
    preprocess_backward::record(&mut recorder, &inputs, parameters, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    fences.assert_whole();
    for ((_, tensor), (_, contents)) in inputs.named().zip(host.named()) {
        assert_untouched(runtime, tensor, Some(contents));
    }
    outputs.map(|_, tensor| {
        assert_untouched(runtime, &tensor, None);
        runtime.download(&tensor).unwrap()
    })
}

pub(crate) fn check(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
    what: &str,
) -> BackwardOutputs<HostTensor> {
    let scales =
        BackwardOutputs { projected_gradient: 1.0, dt_bias_partial: 1.0, dt_bias_gradient: 1.0 };
    check_scaled(runtime, inputs, parameters, &scales, what)
}

pub(crate) fn check_scaled(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
    scales: &BackwardOutputs<f64>,
    what: &str,
) -> BackwardOutputs<HostTensor> {
    let found = run_poisoned(runtime, inputs, parameters);
    let plain = inputs.as_ref().map(|_, t| t.to_f64());
    let expected = reference::mamba3::preprocess_backward(&plain, parameters).unwrap();
    let outputs = found.named().zip(expected.named()).zip(scales.named());
    for (((name, found), (_, expected)), (_, scale)) in outputs {
        assert_close(found, expected, TOLERANCE * scale, &format!("{what}: {name}"));
    }
    found
}

/// How much larger than a result is half of what it would be if the two terms of `total`, those of a state row's
/// gradient, and the rows of a sum did not cancel: of what cancels, f32 leaves only rounding.
pub(crate) fn cancellation(
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> BackwardOutputs<f64> {
    let mut inputs = inputs.as_ref().map(|_, t| t.to_f64());
    let norms = |inputs: &BackwardInputs<ArrayD<f64>>| {
        let outputs = reference::mamba3::preprocess_backward(inputs, parameters).unwrap();
        outputs.map(|_, a| a.iter().map(|x| x * x).sum::<f64>().sqrt())
    };
    let sizes = norms(&inputs);
    let state = state_terms(&inputs, parameters);
    inputs.adt_gradient.fill(0.0);
    inputs.dt_gradient.mapv_inplace(f64::abs);
    let mut whole = norms(&inputs);
    whole.projected_gradient = whole.projected_gradient.hypot(state);
    let ratio =
        |whole: f64, size: f64| if size == 0.0 { 1.0 } else { (0.5 * whole / size).max(1.0) };
    BackwardOutputs {
        projected_gradient: ratio(whole.projected_gradient, sizes.projected_gradient),
        dt_bias_partial: ratio(whole.dt_bias_partial, sizes.dt_bias_partial),
        dt_bias_gradient: ratio(whole.dt_bias_gradient, sizes.dt_bias_gradient),
    }
}

/// The norm of g·r over all state rows, of which the gradient r·(g − y·mean(g·y)) is a small rest where a row is short.
fn state_terms(inputs: &BackwardInputs<ArrayD<f64>>, parameters: &Parameters) -> f64 {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, a| a.shape())).unwrap();
    let (width, n) = (geometry.projected_width(), geometry.state_size);
    let slices = geometry.slices();
    let mut squares = 0.0;
    for (slice, gradient) in [(slices.b, &inputs.bh_gradient), (slices.c, &inputs.ch_gradient)] {
        let packed = inputs.projected.as_slice().unwrap().chunks_exact(width.max(1));
        let rows = packed.flat_map(|row| row[slice.clone()].chunks_exact(n.max(1)));
        for (v, g) in rows.zip(gradient.as_slice().unwrap().chunks_exact(n.max(1))) {
            let mean = v.iter().map(|v| v * v).sum::<f64>() / n as f64;
            let r2 = 1.0 / (mean + f64::from(parameters.epsilon));
            squares += r2 * g.iter().map(|g| g * g).sum::<f64>();
        }
    }
    squares.sqrt()
}

pub(crate) fn geometry(
    rows: usize,
    inner_size: usize,
    bc_rows: usize,
    state_size: usize,
    heads: usize,
    rope_angles: usize,
) -> Geometry {
    Geometry { leading: vec![rows], rows, inner_size, bc_rows, state_size, heads, rope_angles }
}

/// Relative error in units of the last place of f32, where the exact value is a normal number.
pub(crate) fn ulps(found: f32, expected: f64) -> f64 {
    (f64::from(found) - expected).abs() / (expected.abs() * f64::from(f32::EPSILON))
}

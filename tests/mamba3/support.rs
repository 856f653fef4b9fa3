//! Running on poisoned outputs, and what results are held to.

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters,
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
    let outputs =
        geometry.backward_outputs().map(|name, shape| fences.output(&mut recorder, name, &shape));
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

/// How much larger than a result is half of what it would be if the two terms of `total`, and the rows of a sum, did
/// not cancel: of what cancels, f32 leaves only rounding.
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
    inputs.adt_gradient.fill(0.0);
    inputs.dt_gradient.mapv_inplace(f64::abs);
    let whole = norms(&inputs);
    let ratio =
        |whole: f64, size: f64| if size == 0.0 { 1.0 } else { (0.5 * whole / size).max(1.0) };
    BackwardOutputs {
        projected_gradient: ratio(whole.projected_gradient, sizes.projected_gradient),
        dt_bias_partial: ratio(whole.dt_bias_partial, sizes.dt_bias_partial),
        dt_bias_gradient: ratio(whole.dt_bias_gradient, sizes.dt_bias_gradient),
    }
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

//! Every golden case.

use backslang::kernels::attention::{self, Gradient, Gradients, History};
use backslang::kernels::mamba3::preprocess::{BackwardInputs, ForwardInputs, Parameters, Widths};
use backslang::reference;
use ndarray::ArrayD;

use crate::golden::{Case, relative_error};

/// The cases were made by an independent float64 implementation.
const TOLERANCE: f64 = 1e-12;

/// Where statistics are given, they are rounded to f32, but the results come from the unrounded ones.
const STATISTICS_TOLERANCE: f64 = 2e-7;

/// The cases' parameters are float64, the reference takes f32: a clamp moves by up to 2⁻²⁵.
const PARAMETER_TOLERANCE: f64 = 1e-7;

fn check(name: &str, found: &ArrayD<f64>, case: &Case, tolerance: f64) {
    let error = relative_error(found, &case.array(&format!("expected_{name}")));
    assert!(error <= tolerance, "{name}: {error:e}");
}

/// By how much q must grow so that scores with the f32 scale are those with the case's float64 scale.
fn rescale(case: &Case) -> f64 {
    case.scalar("scale") / f64::from(case.options().scale)
}

fn rescaled_history(history: History<ArrayD<f64>>, factor: f64) -> History<ArrayD<f64>> {
    match history {
        History::Latent { latent, q_position, k_position } => {
            History::Latent { latent, q_position: q_position * factor, k_position }
        }
        separate => separate,
    }
}

fn check_backward(name: &str, gradients: &[Gradient]) {
    check_case(&Case::open(name), gradients);
}

fn check_case(case: &Case, gradients: &[Gradient]) {
    let tolerance = if case.has("statistics") { STATISTICS_TOLERANCE } else { TOLERANCE };
    let factor = rescale(case);
    let inputs = case.backward_inputs();
    let inputs = attention::BackwardInputs {
        q: inputs.q * factor,
        history: rescaled_history(inputs.history, factor),
        ..inputs
    };
    let gradients = Gradients::only(gradients);
    let options = attention::Options { gradients, ..case.options() };
    let outputs = reference::attention::backward(&inputs, &case.schedule(), &options).unwrap();
    assert_eq!(outputs.gradients.len(), gradients.iter().count());
    for (gradient, found) in &outputs.gradients {
        let factor = if gradient.is_history() { 1.0 } else { factor };
        check(gradient.output_name(), &(found * factor), case, tolerance);
    }
    if case.has("expected_statistics") {
        check("statistics", &outputs.statistics, case, tolerance);
    }
}

const SEPARATE: &[Gradient] = &[Gradient::Q, Gradient::K, Gradient::V];
const HISTORY: &[Gradient] = &[Gradient::K, Gradient::V];

#[test]
fn backward_gqa() {
    check_backward("backward_gqa.npz", SEPARATE);
}

#[test]
fn backward_unsorted() {
    check_backward("backward_unsorted.npz", SEPARATE);
}

#[test]
fn backward_not_causal() {
    check_backward("backward_not_causal.npz", SEPARATE);
}

#[test]
fn backward_mla() {
    let gradients = [Gradient::Q, Gradient::QPosition, Gradient::Latent, Gradient::KPosition];
    check_backward("backward_mla.npz", &gradients);
}

#[test]
fn backward_bf16() {
    check_backward("backward_bf16.npz", SEPARATE);
}

#[test]
fn history_f16() {
    let mut case = Case::open("history_f16.npz");
    check_case(&case, HISTORY);
    case.remove("statistics");
    check_case(&case, HISTORY);
}

#[test]
fn history_zero_denominators() {
    check_backward("history_zero_denominators.npz", HISTORY);
}

#[test]
fn real_attention() {
    check_backward("real_attention_f32.npz", SEPARATE);
}

#[test]
fn forward_gqa() {
    let case = Case::open("forward_gqa.npz");
    let mut inputs = case.forward_inputs();
    inputs.q *= rescale(&case);
    let outputs =
        reference::attention::forward(&inputs, &case.schedule(), &case.options()).unwrap();
    check("output", &outputs.output, &case, TOLERANCE);
    check("statistics", &outputs.statistics, &case, TOLERANCE);
}

fn parameters(case: &Case) -> Parameters {
    let scalar = |name| case.scalar(name) as f32;
    Parameters {
        epsilon: scalar("epsilon"),
        dt_min: scalar("dt_min"),
        dt_max: scalar("dt_max"),
        a_floor: scalar("a_floor"),
    }
}

fn mamba_backward(
    case: &Case,
) -> backslang::kernels::mamba3::preprocess::BackwardOutputs<ArrayD<f64>> {
    let inputs = BackwardInputs::try_build(|name| Ok::<_, ()>(case.array(name))).unwrap();
    let outputs = reference::mamba3::preprocess_backward(&inputs, &parameters(case)).unwrap();
    for (name, found) in outputs.named() {
        check(name, found, case, PARAMETER_TOLERANCE);
    }
    outputs
}

#[test]
fn mamba_backward_default_clamps() {
    mamba_backward(&Case::open("mamba_backward.npz"));
}

#[test]
fn mamba_backward_small_dt() {
    let case = Case::open("mamba_backward_small_dt.npz");
    let found = mamba_backward(&case).dt_bias_partial;
    // Down to e⁻⁶⁰: a norm would hide the small ones.
    for (found, expected) in found.iter().zip(&case.array("expected_dt_bias_partial")) {
        let error = (found - expected).abs();
        assert!(error <= PARAMETER_TOLERANCE * expected.abs(), "{found:e} {expected:e}");
    }
}

#[test]
fn mamba_forward() {
    let case = Case::open("mamba_forward.npz");
    let inputs = ForwardInputs::try_build(|name| Ok::<_, ()>(case.array(name))).unwrap();
    let size = |name| case.scalar(name) as usize;
    let widths = Widths {
        inner_size: size("inner_size"),
        bc_rows: size("bc_rows"),
        state_size: size("state_size"),
        rope_angles: size("rope_angles"),
    };
    let outputs = reference::mamba3::preprocess(&inputs, &widths, &parameters(&case)).unwrap();
    for (name, found) in outputs.named() {
        check(name, found, &case, PARAMETER_TOLERANCE);
    }
}

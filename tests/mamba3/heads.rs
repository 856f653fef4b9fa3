//! The scalars of a head: softplus, clamp, decay.

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{BackwardInputs, Parameters};
use backslang::kernels::mamba3::preprocess_backward;
use backslang::reference;
use backslang::runtime::Runtime;

use crate::support::{check, geometry, run_poisoned, ulps};

/// One row, a head for each value of dd_dt: d(dd_dt) = dt_gradient · sigmoid, d(dd_A) = −adt_gradient · dt.
fn scalars(dd_dt: &[f32], dd_a: f32) -> BackwardInputs<HostTensor> {
    let heads = dd_dt.len();
    let zeros =
        |shape: &[usize]| HostTensor::from_f32(shape, vec![0.0; shape.iter().product()]).unwrap();
    let shape = geometry(1, 0, 0, 0, heads, 0).backward_inputs();
    let mut inputs = shape.map(|_, shape| zeros(&shape));
    let projected = inputs.projected.as_f32_mut().unwrap();
    projected[..heads].copy_from_slice(dd_dt);
    projected[heads..2 * heads].fill(dd_a);
    inputs
}

fn filled(inputs: &mut BackwardInputs<HostTensor>, dt: f32, adt: f32) {
    inputs.dt_gradient.as_f32_mut().unwrap().fill(dt);
    inputs.adt_gradient.as_f32_mut().unwrap().fill(adt);
}

fn wide() -> Parameters {
    Parameters { dt_min: 0.0, dt_max: f32::INFINITY, a_floor: 0.0, ..Parameters::default() }
}

/// For each head d(dd_dt) under an upstream gradient of 1, and dt, which is d(dd_A) where dd_A = 0 and adt's is −1.
fn slope_and_dt(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> Vec<(f32, f32)> {
    let mut inputs = inputs.clone();
    let heads = inputs.dt_bias.shape()[0];
    filled(&mut inputs, 1.0, 0.0);
    let slopes = run_poisoned(runtime, &inputs, parameters).projected_gradient;
    filled(&mut inputs, 0.0, -1.0);
    let steps = run_poisoned(runtime, &inputs, parameters).projected_gradient;
    let (slopes, steps) = (slopes.as_f32().unwrap(), steps.as_f32().unwrap());
    (0..heads).map(|head| (slopes[head], steps[heads + head])).collect()
}

/// Value and gradient within 4 ulp, relative, on both sides and in between, however the argument is shared out between
/// dd_dt and dt_bias.
pub(crate) fn softplus_tails(runtime: &Runtime) {
    let mut values = vec![
        -87.3, -87.0, -86.5, -40.0, -20.0, -17.0, -16.0, -15.0, 85.0, 88.0, 89.0, 100.0, 1e4, 3e38,
    ];
    values.extend((-600..600).map(|i| i as f32 * 0.07));
    for bias in [0.0, 0.5, -32.0] {
        let mut inputs = scalars(&values, 0.0);
        inputs.dt_bias.as_f32_mut().unwrap().fill(bias);
        inputs.projected.as_f32_mut().unwrap()[..values.len()].iter_mut().for_each(|x| *x -= bias);
        let sums = inputs.projected.as_f32().unwrap()[..values.len()].iter().map(|x| x + bias);
        let sums = sums.collect::<Vec<_>>();
        for (&x, (sigmoid, softplus)) in sums.iter().zip(slope_and_dt(runtime, &inputs, &wide())) {
            let tail = (-f64::from(x).abs()).exp();
            let exact_sigmoid = if x >= 0.0 { 1.0 } else { tail } / (1.0 + tail);
            let exact_softplus = f64::from(x).max(0.0) + tail.ln_1p();
            let what = format!("softplus({x}) = {softplus:e}, its derivative {sigmoid:e}");
            assert!(ulps(sigmoid, exact_sigmoid) <= 4.0, "{what}, not {exact_sigmoid:e}");
            assert!(ulps(softplus, exact_softplus) <= 4.0, "{what}, not {exact_softplus:e}");
            if x >= 85.0 {
                assert_eq!((sigmoid, softplus), (1.0, x), "{what}");
            }
            if x == -20.0 {
                assert!((f64::from(sigmoid) - 2.0611536e-9).abs() < 1e-15, "{what}");
                assert!((f64::from(softplus) - 2.0611536e-9).abs() < 1e-15, "{what}");
            }
        }
    }
}

/// Where the result is not a normal number it may be 0, but never NaN, negative or too large.
pub(crate) fn softplus_below_the_normal_range(runtime: &Runtime) {
    let values = [-87.4, -88.0, -95.0, -103.0, -104.0, -150.0, -1e4, -3e38, f32::NEG_INFINITY];
    let found = slope_and_dt(runtime, &scalars(&values, 0.0), &wide());
    for (x, (sigmoid, softplus)) in values.into_iter().zip(found) {
        let exact = f64::from(x).exp();
        for found in [sigmoid, softplus].map(f64::from) {
            assert!((0.0..=exact + 1e-44).contains(&found), "{x}: {found:e}, not {exact:e}");
        }
    }
}

/// The bounds themselves pass the gradient; one step outside does not. What is not clamped keeps its bits.
pub(crate) fn dt_clamp(runtime: &Runtime) {
    let inputs = scalars(&[-60.0, -6.0, -3.0, -1.0, 0.5, 90.0], 0.0);
    let open = slope_and_dt(runtime, &inputs, &wide());
    for (head, &(slope, s)) in open.iter().enumerate() {
        for (dt_min, dt_max) in [
            (0.0, f32::INFINITY),
            (s, s),
            (s.next_down(), s.next_up()),
            (s.next_up(), f32::INFINITY),
            (s.next_up(), s.next_up()),
            (s, f32::INFINITY),
            (s.next_down(), f32::INFINITY),
            (0.0, s.next_down()),
            (s.next_down(), s.next_down()),
            (0.0, s),
            (0.0, s.next_up()),
            (2.0 * s, 3.0 * s),
            (0.0, 0.5 * s),
            (0.0, 0.0),
        ] {
            let parameters = Parameters { dt_min, dt_max, ..wide() };
            let found = slope_and_dt(runtime, &inputs, &parameters)[head];
            let passed = if dt_min <= s && s <= dt_max { slope } else { 0.0 };
            assert_eq!(found, (passed, s.clamp(dt_min, dt_max)), "{s} in [{dt_min}, {dt_max}]");
        }
    }
}

/// Bounds that cross, and others out of their range, name what is wrong.
pub(crate) fn parameters_out_of_range_are_refused(runtime: &Runtime) {
    let inputs = scalars(&[0.0], 0.0);
    let refused = |parameters: Parameters, parts: &[&str]| {
        let error = preprocess_backward::run(runtime, &inputs, &parameters).map(drop).unwrap_err();
        assert!(error.is_input(), "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    let usual = Parameters::default();
    for (dt_min, dt_max) in [(0.2, 0.1), (f32::INFINITY, 1.0), (-1.0, 0.1), (f32::NAN, 0.1)] {
        let found = [format!("dt_min = {dt_min}"), format!("dt_max = {dt_max}")];
        refused(Parameters { dt_min, dt_max, ..usual }, &[&found[0], &found[1]]);
    }
    refused(Parameters { epsilon: 0.0, ..usual }, &["`epsilon`", "> 0"]);
    refused(Parameters { a_floor: -1.0, ..usual }, &["`a_floor`", "-1"]);
}

/// From finite inputs no NaN, and no infinity where the gradient itself is finite.
pub(crate) fn products_that_overflow_on_the_way(runtime: &Runtime) {
    let narrow = Parameters { dt_min: 1e-3, dt_max: 0.1, a_floor: 10.0, ..Parameters::default() };
    let wide = Parameters { dt_min: 0.0, dt_max: f32::INFINITY, ..Parameters::default() };
    for parameters in [narrow, wide] {
        for a in [3e38, -3.0, -1e6] {
            let mut inputs = scalars(&[-60.0, -20.0, -3.0, 5.0, 3e37], a);
            filled(&mut inputs, 1.0, 50.0);
            let found = run_poisoned(runtime, &inputs, &parameters).projected_gradient.to_f64();
            let inputs = inputs.as_ref().map(|_, t| t.to_f64());
            let expected = reference::mamba3::preprocess_backward(&inputs, &parameters).unwrap();
            for (found, expected) in found.iter().zip(&expected.projected_gradient) {
                let overflows = expected.abs() > f64::from(f32::MAX);
                let close = (found - expected).abs() <= 1e-6 * expected.abs() + 1e-37;
                assert!(close || overflows && found.is_infinite(), "{a}: {found}, not {expected}");
            }
        }
    }
}

/// A token decays no slower than the floor; at the floor itself dd_A has no gradient.
pub(crate) fn a_floor(runtime: &Runtime) {
    let dd_a = [-3.0f32, 0.0, 0.5, 0.75];
    let mut inputs = scalars(&[0.0; 4], 0.0);
    inputs.projected.as_f32_mut().unwrap()[4..8].copy_from_slice(&dd_a);
    filled(&mut inputs, 0.0, 1.0);
    let wide = Parameters { dt_min: 0.0, dt_max: f32::INFINITY, ..Parameters::default() };
    for (a_floor, token, passes) in [
        (0.0, [0.25, 1.0, 1.5, 1.75], [true; 4]),
        (1.5, [1.5, 1.5, 1.5, 1.75], [false, false, false, true]),
    ] {
        let parameters = Parameters { a_floor, ..wide };
        let what = format!("a_floor {a_floor}");
        let found = check(runtime, &inputs, &parameters, &what).projected_gradient;
        let found = found.as_f32().unwrap();
        for head in 0..4 {
            // sigmoid(0) is 1/2.
            assert!(ulps(found[head], -0.5 * token[head]) <= 4.0, "{what}: {found:?}");
            assert_eq!(found[4 + head] != 0.0, passes[head], "{what}: {found:?}");
        }
    }
}

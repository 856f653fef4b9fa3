//! The Mamba-3 kernels on the device against the float64 reference, the golden files and their own bits.

mod common;

use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters,
};
use backslang::kernels::mamba3::preprocess_backward::{self, DT_BIAS_CHUNK_ROWS};
use backslang::reference;
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};
use common::compare::{assert_close, assert_same_bits};
use common::golden::Case;
use common::gpu;
use common::random;
use ndarray::ArrayD;

fn main() -> std::process::ExitCode {
    gpu::main(vec![
        gpu::trial("golden_files", golden_files),
        gpu::trial("random_problems", random_problems),
        gpu::trial("sizes_at_the_edges", sizes_at_the_edges),
        gpu::trial("dt_bias_is_summed_in_order", dt_bias_is_summed_in_order),
        gpu::trial("repeats_share_bits", repeats_share_bits),
        gpu::trial("launches_wait_for_what_they_read", launches_wait_for_what_they_read),
        gpu::trial("splits_and_guards_share_bits", splits_and_guards_share_bits),
        gpu::trial("softplus_tails", softplus_tails),
        gpu::trial("dt_clamp", dt_clamp),
        gpu::trial("products_that_overflow_on_the_way", products_that_overflow_on_the_way),
        gpu::trial("a_floor", a_floor),
        gpu::trial("zero_state_row", zero_state_row),
        gpu::trial("huge_state_row", huge_state_row),
        gpu::trial("state_rows_are_separate", state_rows_are_separate),
        gpu::trial("live_nan_stays_with_its_row", live_nan_stays_with_its_row),
        gpu::trial("passed_through_bits", passed_through_bits),
    ])
}

const TOLERANCE: f64 = 2e-6;

/// Runs on outputs full of NaN, so that an element that is not written shows.
fn run_poisoned(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
) -> BackwardOutputs<HostTensor> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape())).unwrap();
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let outputs = preprocess_backward::allocate(runtime, &geometry).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    for (_, tensor) in outputs.named() {
        recorder.fill(tensor, f32::NAN.to_bits()).unwrap();
    }
    preprocess_backward::record(&mut recorder, &inputs, parameters, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    for (_, tensor) in outputs.named() {
        assert!(runtime.guard_holds(tensor).unwrap(), "written beyond {tensor:?}");
    }
    outputs.map(|_, t| runtime.download(&t).unwrap())
}

fn check(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    parameters: &Parameters,
    what: &str,
) -> BackwardOutputs<HostTensor> {
    let scales =
        BackwardOutputs { projected_gradient: 1.0, dt_bias_partial: 1.0, dt_bias_gradient: 1.0 };
    check_scaled(runtime, inputs, parameters, &scales, what)
}

fn check_scaled(
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
fn cancellation(
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

/// A golden case of f32 arrays.
fn golden(name: &str) -> (Case, BackwardInputs<HostTensor>, Parameters) {
    let case = Case::open(&format!("{name}.npz"));
    let inputs =
        BackwardInputs::try_build(|array| HostTensor::from_f64(Dtype::F32, &case.array(array)));
    let scalar = |name| case.scalar(name) as f32;
    let parameters = Parameters {
        epsilon: scalar("epsilon"),
        dt_min: scalar("dt_min"),
        dt_max: scalar("dt_max"),
        a_floor: scalar("a_floor"),
    };
    (case, inputs.unwrap(), parameters)
}

fn golden_files(runtime: &Runtime) {
    for name in ["mamba_backward", "mamba_backward_small_dt"] {
        let (case, inputs, parameters) = golden(name);
        for (output, found) in run_poisoned(runtime, &inputs, &parameters).named() {
            let expected = case.array(&format!("expected_{output}"));
            assert_close(found, &expected, TOLERANCE, &format!("{name}: {output}"));
        }
    }
    // Here the sigmoid must not cancel, which a norm would hide: element by element.
    let (case, inputs, parameters) = golden("mamba_backward_small_dt");
    let found = run_poisoned(runtime, &inputs, &parameters).dt_bias_partial;
    let expected = case.array("expected_dt_bias_partial");
    for (found, expected) in found.as_f32().unwrap().iter().zip(&expected) {
        assert!(
            (f64::from(*found) - expected).abs() <= 5e-5 * expected.abs(),
            "{found} for {expected}"
        );
    }
}

fn random_problems(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fastrand::u64(..));
    for _ in 0..60 {
        let mut geometry = random::mamba3_geometry(&mut rng);
        // A state row of one element has a gradient of g·r·epsilon·r²: rounding of f32 only shows where nothing else does.
        geometry.inner_size = geometry.inner_size.max(geometry.bc_rows);
        let seed = rng.u64(..);
        let inputs = random::mamba3(&geometry, seed);
        let parameters = Parameters::default();
        let scales = cancellation(&inputs, &parameters);
        let what = format!("{geometry:?} of seed {seed}");
        check_scaled(runtime, &inputs, &parameters, &scales, &what);
    }
}

fn geometry(
    rows: usize,
    inner_size: usize,
    bc_rows: usize,
    state_size: usize,
    heads: usize,
    rope_angles: usize,
) -> Geometry {
    Geometry { leading: vec![rows], rows, inner_size, bc_rows, state_size, heads, rope_angles }
}

fn sizes_at_the_edges(runtime: &Runtime) {
    for sizes in [
        geometry(0, 8, 1, 4, 3, 2),
        geometry(1, 0, 0, 0, 0, 0),
        geometry(3, 0, 0, 5, 0, 7),
        geometry(3, 5, 2, 1, 1, 0),
        geometry(2, 600, 4, 127, 33, 32),
        geometry(2, 1543, 1, 300, 70, 1),
        geometry(300, 4, 1, 3, 5, 1),
        geometry(4, 3, 2, 0, 2, 2),
        // Empty beside huge: nothing to do, and not to be counted through.
        geometry(u32::MAX as usize, 0, 0, 0, 0, 0),
        geometry(3, 5, u32::MAX as usize, 0, 2, 2),
    ] {
        check(runtime, &random::mamba3(&sizes, 5), &Parameters::default(), &format!("{sizes:?}"));
    }
}

/// The promised order, replayed in f32 on the host: chunks of rows, then the chunks.
fn dt_bias_is_summed_in_order(runtime: &Runtime) {
    for rows in [1, 127, 128, 129, 1000] {
        let inputs = random::mamba3(&geometry(rows, 1, 1, 2, 37, 0), 9);
        let found = run_poisoned(
            runtime,
            &inputs,
            &Parameters { dt_min: 0.0, dt_max: 9.0, ..Parameters::default() },
        );
        let partial = found.dt_bias_partial.as_f32().unwrap();
        for (head, sum) in found.dt_bias_gradient.as_f32().unwrap().iter().enumerate() {
            let column = partial.iter().skip(head).step_by(37).copied().collect::<Vec<_>>();
            let chunks =
                column.chunks(DT_BIAS_CHUNK_ROWS).map(|chunk| chunk.iter().fold(0.0, |s, x| s + x));
            let expected = chunks.fold(0.0f32, |s, x| s + x);
            assert_eq!(sum.to_bits(), expected.to_bits(), "{rows} rows, head {head}");
        }
    }
}

fn repeats_share_bits(runtime: &Runtime) {
    let inputs = random::mamba3(&geometry(200, 70, 3, 50, 7, 9), 77);
    let first = run_poisoned(runtime, &inputs, &Parameters::default());
    for _ in 0..3 {
        let again = run_poisoned(runtime, &inputs, &Parameters::default());
        for ((name, again), (_, first)) in again.named().zip(first.named()) {
            assert_same_bits(again, first, name);
        }
    }
}

/// The terms before the chunks, the chunks before the sum.
fn launches_wait_for_what_they_read(runtime: &Runtime) {
    let sizes = geometry(3, 4, 1, 2, 3, 0);
    let inputs = random::mamba3(&sizes, 1);
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let outputs = preprocess_backward::allocate(runtime, &sizes).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    preprocess_backward::record(&mut recorder, &inputs, &Parameters::default(), &outputs).unwrap();
    assert_eq!(recorder.barriers(), 2);
    recorder.submit().unwrap().wait().unwrap();
}

/// Grids in many dispatches, and NaN behind every tensor: neither changes a bit.
fn splits_and_guards_share_bits(runtime: &Runtime) {
    let strained = Runtime::new(&gpu::options()).unwrap();
    strained.split_grids(2);
    strained.guard_tensors(2048);
    for sizes in [geometry(700, 3, 1, 5, 197, 2), geometry(7, 61, 3, 50, 37, 9)] {
        let inputs = random::mamba3(&sizes, 78);
        let expected = run_poisoned(runtime, &inputs, &Parameters::default());
        let found = run_poisoned(&strained, &inputs, &Parameters::default());
        for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
            assert_same_bits(found, expected, name);
        }
    }
    strained.finish().unwrap();
}

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

/// Relative error in units of the last place of f32, where the exact value is a normal number.
fn ulps(found: f32, expected: f64) -> f64 {
    (f64::from(found) - expected).abs() / (expected.abs() * f64::from(f32::EPSILON))
}

fn softplus_tails(runtime: &Runtime) {
    let mut values = vec![
        -87.3, -87.0, -86.5, -40.0, -20.0, -17.0, -16.0, -15.0, 85.0, 88.0, 89.0, 100.0, 1e4, 3e38,
    ];
    values.extend((-600..600).map(|i| i as f32 * 0.07));
    let wide =
        Parameters { dt_min: 0.0, dt_max: f32::INFINITY, a_floor: 0.0, ..Parameters::default() };
    let heads = values.len();

    let mut inputs = scalars(&values, 0.0);
    filled(&mut inputs, 1.0, 0.0);
    let gradient = run_poisoned(runtime, &inputs, &wide).projected_gradient;
    // With dd_A = 0 the derivative of the heavy tail is 1: d(dd_A) = −adt_gradient · dt.
    filled(&mut inputs, 0.0, -1.0);
    let dt = run_poisoned(runtime, &inputs, &wide).projected_gradient;
    for (head, &x) in values.iter().enumerate() {
        let x64 = f64::from(x);
        let tail = (-x64.abs()).exp();
        let (sigmoid, softplus) =
            (if x64 >= 0.0 { 1.0 } else { tail } / (1.0 + tail), x64.max(0.0) + tail.ln_1p());
        let (found_sigmoid, found_softplus) =
            (gradient.as_f32().unwrap()[head], dt.as_f32().unwrap()[heads + head]);
        assert!(
            ulps(found_sigmoid, sigmoid) <= 4.0,
            "sigmoid({x}) = {found_sigmoid:e}, not {sigmoid:e}"
        );
        assert!(
            ulps(found_softplus, softplus) <= 4.0,
            "softplus({x}) = {found_softplus:e}, not {softplus:e}"
        );
        if x >= 85.0 {
            assert_eq!(found_sigmoid, 1.0, "{x}");
        }
    }
}

/// The bounds themselves pass the gradient; one step outside does not.
fn dt_clamp(runtime: &Runtime) {
    let xs = [-6.0f32, -3.0, -1.0, 0.5];
    let mut inputs = scalars(&xs, 0.0);
    filled(&mut inputs, 0.0, -1.0);
    let wide = Parameters { dt_min: 0.0, dt_max: f32::INFINITY, ..Parameters::default() };
    let gradient = |inputs: &BackwardInputs<HostTensor>, p: &Parameters| {
        run_poisoned(runtime, inputs, p).projected_gradient
    };
    let softplus = gradient(&inputs, &wide).as_f32().unwrap()[4..8].to_vec();
    filled(&mut inputs, 1.0, 0.0);
    for (head, &s) in softplus.iter().enumerate() {
        for (dt_min, dt_max, passes) in [
            (s, s, true),
            (s.next_down(), s.next_up(), true),
            (s.next_up(), f32::INFINITY, false),
            (0.0, s.next_down(), false),
            (0.0, s, true),
            (s, f32::INFINITY, true),
        ] {
            let found = gradient(&inputs, &Parameters { dt_min, dt_max, ..Parameters::default() });
            assert_eq!(found.as_f32().unwrap()[head] != 0.0, passes, "{s} in [{dt_min}, {dt_max}]");
        }
    }
}

/// From finite inputs no NaN, and no infinity where the gradient itself is finite.
fn products_that_overflow_on_the_way(runtime: &Runtime) {
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
fn a_floor(runtime: &Runtime) {
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

fn zero_state_row(runtime: &Runtime) {
    let sizes = geometry(2, 1, 2, 20, 1, 0);
    let mut inputs = random::mamba3(&sizes, 3);
    let before = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
    // Row 1, the second state row of B.
    let (width, begin) = (sizes.projected_width(), 2 + 20);
    inputs.projected.as_f32_mut().unwrap()[width + begin..][..20].fill(0.0);
    let after =
        check(runtime, &inputs, &Parameters::default(), "a zero state row").projected_gradient;
    let g = &inputs.bh_gradient.as_f32().unwrap()[3 * 20..];
    for (i, (after, before)) in
        after.as_f32().unwrap().iter().zip(before.as_f32().unwrap()).enumerate()
    {
        match i.checked_sub(width + begin).filter(|&j| j < 20) {
            Some(j) => assert!(ulps(*after, f64::from(g[j]) / 1e-5f64.sqrt()) <= 4.0, "{after}"),
            None => assert_eq!(after.to_bits(), before.to_bits(), "element {i}"),
        }
    }
}

/// Squares overflow here; the gradient does not.
fn huge_state_row(runtime: &Runtime) {
    let mut inputs = random::mamba3(&geometry(3, 0, 1, 30, 0, 0), 8);
    inputs.projected.as_f32_mut().unwrap().iter_mut().for_each(|x| *x *= 1e25);
    inputs.bh_gradient.as_f32_mut().unwrap().iter_mut().for_each(|x| *x *= 1e10);
    check(runtime, &inputs, &Parameters::default(), "huge state rows");
}

/// One state row's gradient does not move by a bit when another row of the token changes.
fn state_rows_are_separate(runtime: &Runtime) {
    let sizes = geometry(1, 0, 3, 17, 0, 0);
    let mut inputs = random::mamba3(&sizes, 4);
    let before = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
    inputs.projected.as_f32_mut().unwrap()[17..34].iter_mut().for_each(|x| *x += 1.0);
    let after = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
    for (i, (after, before)) in
        after.as_f32().unwrap().iter().zip(before.as_f32().unwrap()).enumerate()
    {
        assert_eq!(after.to_bits() != before.to_bits(), (17..34).contains(&i), "element {i}");
    }
}

fn live_nan_stays_with_its_row(runtime: &Runtime) {
    let sizes = geometry(3, 4, 2, 6, 5, 2);
    let (width, slices) = (sizes.projected_width(), sizes.slices());
    let clean = random::mamba3(&sizes, 6);
    let expected = run_poisoned(runtime, &clean, &Parameters::default()).projected_gradient;
    for (slice, place, reaches) in [
        (slices.dd_dt.clone(), 2, vec![slices.dd_dt.start + 2, slices.dd_a.start + 2]),
        (slices.dd_a.clone(), 1, vec![slices.dd_dt.start + 1, slices.dd_a.start + 1]),
        (slices.b.clone(), 7, (slices.b.start + 6..slices.b.end).collect()),
    ] {
        let mut inputs = clean.clone();
        inputs.projected.as_f32_mut().unwrap()[width + slice.start + place] = f32::NAN;
        let found = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
        for (i, (found, clean)) in
            found.as_f32().unwrap().iter().zip(expected.as_f32().unwrap()).enumerate()
        {
            if i / width == 1 && reaches.contains(&(i % width)) {
                assert!(found.is_nan(), "element {i}: {found}");
            } else {
                assert_eq!(found.to_bits(), clean.to_bits(), "element {i}");
            }
        }
    }
}

/// Slices that pass through are copied as bits: NaN payloads, −0 and subnormals included.
fn passed_through_bits(runtime: &Runtime) {
    let sizes = geometry(2, 5, 1, 2, 3, 4);
    let mut inputs = random::mamba3(&sizes, 12);
    let odd =
        [0x7fc0_1234u32, 0x8000_0000, 0x0000_0001, 0xff80_0000, 0x7f80_0001].map(f32::from_bits);
    for tensor in [
        &mut inputs.z_gradient,
        &mut inputs.x_gradient,
        &mut inputs.trap_gradient,
        &mut inputs.angle_gradient,
    ] {
        tensor
            .as_f32_mut()
            .unwrap()
            .iter_mut()
            .zip(odd.iter().cycle())
            .for_each(|(x, odd)| *x = *odd);
    }
    let found = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
    let (slices, width) = (sizes.slices(), sizes.projected_width());
    for (slice, source) in [
        (slices.z, &inputs.z_gradient),
        (slices.x, &inputs.x_gradient),
        (slices.trap, &inputs.trap_gradient),
        (slices.angle, &inputs.angle_gradient),
    ] {
        for row in 0..2 {
            let found = &found.as_f32().unwrap()[row * width..][slice.clone()];
            let source = &source.as_f32().unwrap()[row * slice.len()..][..slice.len()];
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(found), bits(source));
        }
    }
}

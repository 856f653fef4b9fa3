//! The scalar corners of the Mamba-3 preprocess.

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, ForwardInputs, ForwardOutputs, Geometry, Parameters, Widths,
};
use backslang::reference::mamba3::{preprocess, preprocess_backward};
use fastrand::Rng;
use ndarray::{ArrayD, Axis, IxDyn};

use crate::bits;
use crate::random;

const OPEN: Parameters =
    Parameters { epsilon: 1e-5, dt_min: 0.0, dt_max: f32::INFINITY, a_floor: 0.0 };

/// One row with one head for each (dd_dt, dd_A) and nothing else; `dt_bias` is 0.
struct Heads {
    forward: ForwardOutputs<ArrayD<f64>>,
    backward: BackwardOutputs<ArrayD<f64>>,
}

impl Heads {
    /// Every upstream dt gradient is `dt_gradient`, every adt gradient `adt_gradient`.
    fn run(
        heads: &[(f64, f64)],
        [dt_gradient, adt_gradient]: [f64; 2],
        parameters: &Parameters,
    ) -> Self {
        let n = heads.len();
        let row = |width: usize, value: f64| ArrayD::from_elem(IxDyn(&[width]), value);
        let mut projected = row(3 * n, 0.0);
        for (head, &(dd_dt, dd_a)) in heads.iter().enumerate() {
            (projected[head], projected[n + head]) = (dd_dt, dd_a);
        }
        let inputs = ForwardInputs { projected, dt_bias: row(n, 0.0) };
        let widths = Widths { inner_size: 0, bc_rows: 0, state_size: 1, rope_angles: 0 };
        let forward = preprocess(&inputs, &widths, parameters).unwrap();
        let states = || ArrayD::zeros(IxDyn(&[0, 1]));
        let inputs = BackwardInputs {
            projected: inputs.projected,
            dt_bias: inputs.dt_bias,
            z_gradient: row(0, 0.0),
            x_gradient: row(0, 0.0),
            bh_gradient: states(),
            ch_gradient: states(),
            dt_gradient: row(n, dt_gradient),
            adt_gradient: row(n, adt_gradient),
            trap_gradient: row(n, 0.0),
            angle_gradient: row(0, 0.0),
        };
        Self { forward, backward: preprocess_backward(&inputs, parameters).unwrap() }
    }

    fn dd_dt_gradient(&self, head: usize) -> f64 {
        let found = self.backward.dt_bias_partial[head];
        assert_eq!(found.to_bits(), self.backward.projected_gradient[head].to_bits());
        // A sum of one term: equal but for the sign of a zero.
        let sum = self.backward.dt_bias_gradient[head];
        assert!(sum == found || sum.is_nan() && found.is_nan());
        found
    }

    fn dd_a_gradient(&self, head: usize) -> f64 {
        self.backward.projected_gradient[self.backward.dt_bias_gradient.len() + head]
    }
}

fn assert_relative(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 4e-16 * expected.abs(), "{found:e} against {expected:e}");
}

#[test]
fn the_softplus_tail_keeps_its_relative_accuracy() {
    let tail = [-15.0, -16.0, -17.0, -20.0, -40.0, -87.0, -700.0];
    let run = Heads::run(&tail.map(|x| (x, 0.0)), [1.0, 0.0], &OPEN);
    for (head, x) in tail.into_iter().enumerate() {
        let e = f64::exp(x);
        // ln(1 + e) and e / (1 + e) as series; e⁴ is below 1e-26.
        assert_relative(run.forward.dt[head], e * (1.0 - e * (0.5 - e / 3.0)));
        assert_relative(run.dd_dt_gradient(head), e * (1.0 - e * (1.0 - e)));
    }
    assert!((run.forward.dt[3] - 2.0611536e-9).abs() < 1e-16);
    assert!((run.dd_dt_gradient(3) - 2.0611536e-9).abs() < 1e-16);
}

#[test]
fn the_softplus_head_is_the_identity() {
    let head = [85.0, 88.0, 89.0, 100.0, 1e4, f64::from(3e38f32)];
    let run = Heads::run(&head.map(|x| (x, 0.0)), [1.0, 0.0], &OPEN);
    for (head, x) in head.into_iter().enumerate() {
        assert_eq!(run.forward.dt[head], x);
        assert_eq!(run.dd_dt_gradient(head), 1.0);
    }
}

/// softplus(50) is 50 exactly, so the clamps can be put on it and an f32 ulp beside it.
#[test]
fn the_boundary_of_the_clamp_passes_the_gradient() {
    let s = 50.0f32;
    for (dt_min, dt_max, dt, slope) in [
        (0.0, f32::INFINITY, s, 1.0),
        (s, f32::INFINITY, s, 1.0),
        (s.next_up(), f32::INFINITY, s.next_up(), 0.0),
        (s.next_down(), f32::INFINITY, s, 1.0),
        (0.0, s, s, 1.0),
        (0.0, s.next_down(), s.next_down(), 0.0),
        (0.0, s.next_up(), s, 1.0),
        (s, s, s, 1.0),
        (60.0, 60.0, 60.0, 0.0),
        (40.0, 40.0, 40.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),
    ] {
        let parameters = Parameters { dt_min, dt_max, ..OPEN };
        let run = Heads::run(&[(50.0, 0.5)], [3.0, 2.0], &parameters);
        assert_eq!(run.forward.dt[0], f64::from(dt));
        assert_eq!(run.dd_dt_gradient(0), (3.0 - 2.0 * 1.5) * slope);
        assert_eq!(run.dd_a_gradient(0), -2.0 * f64::from(dt));
        let run = Heads::run(&[(50.0, 0.5)], [3.0, 0.0], &parameters);
        assert_eq!(run.dd_dt_gradient(0), 3.0 * slope);
    }
}

#[test]
fn the_floor_of_the_decay_stops_the_gradient() {
    // heavy_tail(−1) = 1/2, heavy_tail(−3) = 1/4, heavy_tail(0) = 1, heavy_tail(2) = 3.
    let heads = [(50.0, -1.0), (50.0, -3.0), (50.0, 0.0), (50.0, 2.0), (50.0, -0.0)];
    let run = Heads::run(&heads, [0.0, 1.0], &Parameters { a_floor: 0.25, ..OPEN });
    let adt = [-0.5, -0.25, -1.0, -3.0, -1.0].map(|a_token| 50.0 * a_token);
    assert_eq!(run.forward.adt.as_slice().unwrap(), adt);
    let slopes = [0.25, 0.0, 1.0, 1.0, 1.0];
    for (head, slope) in slopes.into_iter().enumerate() {
        assert_eq!(run.dd_a_gradient(head), -50.0 * slope);
    }
}

#[test]
fn nan_and_infinity_propagate_within_their_head() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let heads =
        [(nan, 1.0), (1.0, nan), (inf, 1.0), (-inf, 1.0), (1.0, inf), (1.0, -inf), (1.0, 1.0)];
    let parameters = Parameters { dt_min: 0.25, dt_max: 0.5, a_floor: 0.125, ..OPEN };
    let run = Heads::run(&heads, [1.0, 1.0], &parameters);
    let Heads { forward: ForwardOutputs { dt, adt, .. }, .. } = &run;
    // A clamp or a maximum that dropped the NaN would give a bound here.
    assert!(dt[0].is_nan() && adt[0].is_nan());
    assert!(run.dd_dt_gradient(0).is_nan() && run.dd_a_gradient(0).is_nan());
    assert!(dt[1] == 0.5 && adt[1].is_nan());
    assert!(run.dd_dt_gradient(1).is_nan() && run.dd_a_gradient(1).is_nan());
    assert_eq!(
        [dt[2], adt[2], run.dd_dt_gradient(2), run.dd_a_gradient(2)],
        [0.5, -1.0, 0.0, -0.5]
    );
    assert_eq!(
        [dt[3], adt[3], run.dd_dt_gradient(3), run.dd_a_gradient(3)],
        [0.25, -0.5, 0.0, -0.25]
    );
    // −∞ · [outside the clamp] is NaN, as written.
    assert!(adt[4] == -inf && run.dd_dt_gradient(4).is_nan() && run.dd_a_gradient(4) == -0.5);
    assert_eq!([adt[5], run.dd_a_gradient(5)], [-0.0625, 0.0]);
    assert!(run.dd_dt_gradient(6).is_finite() && run.dd_a_gradient(6).is_finite());
    // Also where the upstream gradient is 0.
    let run = Heads::run(&heads, [0.0, 0.0], &parameters);
    assert!(run.dd_dt_gradient(0).is_nan() && run.dd_a_gradient(0).is_nan());
    assert!(run.dd_dt_gradient(1).is_nan() && run.dd_a_gradient(1).is_nan());
}

fn sizes() -> Geometry {
    Geometry {
        leading: vec![2, 3],
        rows: 6,
        inner_size: 4,
        bc_rows: 3,
        state_size: 5,
        heads: 2,
        rope_angles: 3,
    }
}

fn random_inputs() -> BackwardInputs<ArrayD<f64>> {
    random::mamba3(&sizes(), 31).map(|_, tensor| tensor.to_f64())
}

fn run(inputs: &BackwardInputs<ArrayD<f64>>) -> BackwardOutputs<ArrayD<f64>> {
    preprocess_backward(inputs, &Parameters::default()).unwrap()
}

#[test]
fn a_zero_state_row_divides_by_the_root_of_epsilon() {
    let inputs = random_inputs();
    let mut zeroed = inputs.clone();
    // The middle B row of token [1, 2].
    let begin = sizes().slices().b.start + sizes().state_size;
    (begin..begin + 5).for_each(|column| zeroed.projected[[1, 2, column]] = 0.0);
    let (clean, found) = (run(&inputs).projected_gradient, run(&zeroed).projected_gradient);
    for (at, &found) in found.indexed_iter() {
        let at = [at[0], at[1], at[2]];
        if at[..2] == [1, 2] && (begin..begin + 5).contains(&at[2]) {
            let g = inputs.bh_gradient[[1, 2, 1, at[2] - begin]];
            assert_relative(found, g / f64::from(1e-5f32).sqrt());
        } else {
            assert_eq!(found.to_bits(), clean[at].to_bits());
        }
    }
}

/// Whatever happens in one element, even NaN, stays in the state row or head that it belongs to.
#[test]
fn state_rows_and_heads_keep_to_themselves() {
    let inputs = random_inputs();
    let clean = run(&inputs).projected_gradient;
    let at = sizes().slices();
    let state_row = |column: usize, slice: usize| {
        slice + (column - slice) / 5 * 5..slice + (column - slice) / 5 * 5 + 5
    };
    for changed in at.b.start..at.trap.start {
        let touched = |column: usize| match changed {
            c if at.b.contains(&c) => state_row(c, at.b.start).contains(&column),
            c if at.c.contains(&c) => state_row(c, at.c.start).contains(&column),
            c => {
                (at.dd_dt.contains(&column) || at.dd_a.contains(&column))
                    && (column - at.dd_dt.start) % 2 == (c - at.dd_dt.start) % 2
            }
        };
        for value in [f64::NAN, 2.5] {
            let mut moved = inputs.clone();
            moved.projected[[0, 1, changed]] = value;
            let found = run(&moved).projected_gradient;
            for (index, &found) in found.indexed_iter() {
                let index = [index[0], index[1], index[2]];
                if index[..2] != [0, 1] || !touched(index[2]) {
                    assert_eq!(found.to_bits(), clean[index].to_bits(), "{changed} {index:?}");
                } else if value.is_nan() {
                    assert!(found.is_nan(), "{changed} {index:?}");
                }
            }
        }
    }
}

#[test]
fn slices_that_pass_through_keep_their_bits() {
    let mut inputs = random_inputs();
    inputs.z_gradient[[0, 0, 0]] = f64::NAN;
    inputs.x_gradient[[1, 0, 3]] = -0.0;
    let outputs = run(&inputs);
    let at = sizes().slices();
    let slice = |range: std::ops::Range<usize>| {
        outputs.projected_gradient.slice_axis(Axis(2), range.into()).to_owned()
    };
    for (range, upstream) in [
        (at.z, &inputs.z_gradient),
        (at.x, &inputs.x_gradient),
        (at.trap, &inputs.trap_gradient),
        (at.angle, &inputs.angle_gradient),
    ] {
        assert_eq!(bits(&slice(range)), bits(upstream));
    }
    assert_eq!(bits(&slice(at.dd_dt)), bits(&outputs.dt_bias_partial));
}

#[test]
fn leading_axes_stand_for_rows() {
    let inputs = random_inputs();
    let flat = inputs.clone().map(|name, array| match name {
        "dt_bias" => array,
        _ => {
            let shape = [&[6], &array.shape()[2..]].concat();
            array.into_shape_with_order(shape).unwrap()
        }
    });
    let (nested, flat) = (run(&inputs), run(&flat));
    for ((_, nested), (_, flat)) in nested.named().zip(flat.named()) {
        assert_eq!(bits(nested), bits(flat));
    }
    assert_eq!(nested.dt_bias_partial.shape(), [2, 3, 2]);
    assert_eq!(flat.dt_bias_partial.shape(), [6, 2]);
}

#[test]
fn no_rows_give_zero_sums() {
    let sizes = Geometry { leading: vec![0], rows: 0, ..sizes() };
    let inputs = random::mamba3(&sizes, 1).map(|_, tensor: HostTensor| tensor.to_f64());
    let outputs = run(&inputs);
    assert_eq!(outputs.projected_gradient.shape(), [0, sizes.projected_width()]);
    assert_eq!(outputs.dt_bias_gradient, ArrayD::<f64>::zeros(vec![2]));
}

/// Far outside the range where the squares fit f32, and where `v·r³·dot/n` would cancel.
#[test]
fn large_and_small_state_rows_stay_accurate() {
    let mut rng = Rng::with_seed(32);
    let mut inputs = random_inputs();
    for scale in [1e-30, 1e30] {
        inputs.projected = inputs.projected.mapv(|_| scale * random::normal(&mut rng));
        let outputs = run(&inputs);
        assert!(outputs.projected_gradient.iter().all(|x| x.is_finite()));
    }
}

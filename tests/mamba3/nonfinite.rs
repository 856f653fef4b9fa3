//! NaN and infinities among the inputs: they reach what depends on them, and nothing else.

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters,
};
use backslang::reference;
use backslang::runtime::Runtime;
use ndarray::ArrayD;

use crate::common::random;

use crate::support::{geometry, run_poisoned};

/// Where dt is below, within and above the clamp, by head.
fn inputs(sizes: &Geometry) -> BackwardInputs<HostTensor> {
    let mut inputs = random::mamba3(sizes, 6);
    let (width, begin) = (sizes.projected_width(), sizes.slices().dd_dt.start);
    for row in inputs.projected.as_f32_mut().unwrap().chunks_exact_mut(width) {
        row[begin..begin + 3].copy_from_slice(&[-12.0, -4.0, 4.0]);
    }
    inputs.dt_bias.as_f32_mut().unwrap().fill(0.25);
    inputs
}

/// NaN, ∞ and −∞ in every element of every input array in turn.
pub(crate) fn nonfinite_inputs_reach_what_depends_on_them(runtime: &Runtime) {
    let sizes = geometry(2, 2, 2, 3, 3, 2);
    let parameters = Parameters::default();
    let clean_inputs = inputs(&sizes);
    let clean = Pair::of(runtime, &clean_inputs, &parameters);
    for (name, tensor) in clean_inputs.named() {
        for at in 0..tensor.bytes().len() / 4 {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let spoilt = clean_inputs.clone().map(|found, mut tensor| {
                    if found == name {
                        tensor.as_f32_mut().unwrap()[at] = value;
                    }
                    tensor
                });
                let spoilt = Pair::of(runtime, &spoilt, &parameters);
                let what = format!("{value} in element {at} of `{name}`");
                spoilt.assert_spoilt(&clean, &what);
                if value.is_nan() {
                    assert_eq!(spoilt.nan(), dependents(&sizes, name, at), "{what}");
                }
            }
        }
    }
}

/// The elements of the outputs, by (output, index), that depend on an element of an input.
fn dependents(sizes: &Geometry, name: &str, at: usize) -> Vec<(&'static str, usize)> {
    let (slices, width) = (sizes.slices(), sizes.projected_width());
    let Geometry { rows, heads, state_size, bc_rows, .. } = *sizes;
    let packed = |row: usize, column: usize| ("projected_gradient", row * width + column);
    let state = |row: usize, slice: usize, element: usize| {
        let begin = slice + element / state_size * state_size;
        (begin..begin + state_size).map(|column| packed(row, column)).collect::<Vec<_>>()
    };
    let head = |row: usize, head: usize, dd_a_too: bool| {
        let mut found = vec![packed(row, slices.dd_dt.start + head)];
        found.extend(dd_a_too.then(|| packed(row, slices.dd_a.start + head)));
        found.extend([("dt_bias_partial", row * heads + head), ("dt_bias_gradient", head)]);
        found
    };
    let passed = |slice: &std::ops::Range<usize>| {
        vec![packed(at / slice.len(), slice.start + at % slice.len())]
    };
    let bc_width = bc_rows * state_size;
    let mut found = match name {
        "projected" => {
            let (row, column) = (at / width, at % width);
            match column {
                c if slices.b.contains(&c) => state(row, slices.b.start, c - slices.b.start),
                c if slices.c.contains(&c) => state(row, slices.c.start, c - slices.c.start),
                c if slices.dd_dt.contains(&c) => head(row, c - slices.dd_dt.start, true),
                c if slices.dd_a.contains(&c) => head(row, c - slices.dd_a.start, true),
                // The backward does not read what passes through.
                _ => Vec::new(),
            }
        }
        "dt_bias" => (0..rows).flat_map(|row| head(row, at, true)).collect(),
        "z_gradient" => passed(&slices.z),
        "x_gradient" => passed(&slices.x),
        "trap_gradient" => passed(&slices.trap),
        "angle_gradient" => passed(&slices.angle),
        "bh_gradient" => state(at / bc_width, slices.b.start, at % bc_width),
        "ch_gradient" => state(at / bc_width, slices.c.start, at % bc_width),
        "dt_gradient" => head(at / heads, at % heads, false),
        "adt_gradient" => head(at / heads, at % heads, true),
        _ => unreachable!("{name}"),
    };
    found.sort();
    found.dedup();
    found
}

/// What the device and the reference make of the same inputs.
struct Pair {
    found: BackwardOutputs<HostTensor>,
    exact: BackwardOutputs<ArrayD<f64>>,
}

impl Pair {
    fn of(runtime: &Runtime, inputs: &BackwardInputs<HostTensor>, parameters: &Parameters) -> Self {
        let plain = inputs.as_ref().map(|_, tensor| tensor.to_f64());
        Self {
            found: run_poisoned(runtime, inputs, parameters),
            exact: reference::mamba3::preprocess_backward(&plain, parameters).unwrap(),
        }
    }

    fn outputs(&self) -> impl Iterator<Item = (&'static str, usize, f32, f64)> {
        self.found.named().zip(self.exact.named()).flat_map(|((name, found), (_, exact))| {
            let pairs = found.as_f32().unwrap().iter().zip(exact);
            pairs.enumerate().map(move |(at, (&found, &exact))| (name, at, found, exact))
        })
    }

    fn nan(&self) -> Vec<(&'static str, usize)> {
        let nan = self.outputs().filter(|(_, _, found, _)| found.is_nan());
        let mut nan = nan.map(|(name, at, ..)| (name, at)).collect::<Vec<_>>();
        nan.sort();
        nan
    }

    /// Non-finite exactly where the reference is, and of its kind; bits of the clean run where the reference keeps its
    /// own.
    fn assert_spoilt(&self, clean: &Self, what: &str) {
        for ((name, at, found, exact), (_, _, clean_found, clean_exact)) in
            self.outputs().zip(clean.outputs())
        {
            let what = || format!("{what}: element {at} of {name}: {found}, not {exact}");
            if exact.to_bits() == clean_exact.to_bits() {
                assert_eq!(found.to_bits(), clean_found.to_bits(), "{}", what());
            } else if exact.is_finite() {
                assert!(found.is_finite(), "{}", what());
            } else {
                assert_eq!(found.is_nan(), exact.is_nan(), "{}", what());
                assert!(exact.is_nan() || f64::from(found) == exact, "{}", what());
            }
        }
    }
}

//! Values against the golden file and the float64 reference, bits, sizes, and calls that are refused.

use backslang::kernels::mamba3::preprocess::{ForwardInputs, Parameters, Widths};
use backslang::kernels::mamba3::preprocess_forward;
use backslang::runtime::Runtime;
use backslang::{Dtype, Error, HostTensor};

use super::support::{check, inputs, run_poisoned, widths};
use crate::common::compare::{assert_close, assert_same_bits};
use crate::common::golden::Case;
use crate::common::{gpu, random};
use crate::support::{TOLERANCE, geometry};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

pub(crate) fn golden_file(runtime: &Runtime) {
    let case = Case::open("mamba_forward.npz");
    let inputs =
        ForwardInputs::try_build(|name| HostTensor::from_f64(Dtype::F32, &case.array(name)));
    let size = |name| case.scalar(name) as usize;
    let widths = Widths {
        inner_size: size("inner_size"),
        bc_rows: size("bc_rows"),
        state_size: size("state_size"),
        rope_angles: size("rope_angles"),
    };
    let scalar = |name| case.scalar(name) as f32;
    let parameters = Parameters {
        epsilon: scalar("epsilon"),
        dt_min: scalar("dt_min"),
        dt_max: scalar("dt_max"),
        a_floor: scalar("a_floor"),
    };
    for (name, found) in run_poisoned(runtime, &inputs.unwrap(), &widths, &parameters).named() {
        assert_close(found, &case.array(&format!("expected_{name}")), TOLERANCE, name);
    }
}

pub(crate) fn random_problems(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fastrand::u64(..));
    for round in 0..40 {
        let mut sizes = random::mamba3_geometry(&mut rng);
        if round % 2 == 0 {
            sizes.inner_size *= 2;
            sizes.state_size *= 2;
            sizes.rope_angles *= 2;
        }
        let seed = rng.u64(..);
        for dtype in DTYPES {
            let what = format!("{sizes:?} of seed {seed}");
            let inputs = inputs(&sizes, dtype, seed);
            check(runtime, &inputs, &widths(&sizes), &Parameters::default(), &what);
        }
    }
}

pub(crate) fn sizes_at_the_edges(runtime: &Runtime) {
    let mut all = vec![
        geometry(0, 8, 1, 4, 3, 2),
        geometry(1, 0, 0, 0, 0, 0),
        geometry(3, 0, 0, 5, 0, 7),
        geometry(2, 1543, 1, 300, 70, 1),
        geometry(300, 4, 1, 3, 5, 1),
        geometry(70_000, 1, 0, 1, 1, 0),
        geometry(4, 3, 2, 0, 2, 2),
        // Empty beside huge: nothing to do, and not to be counted through.
        geometry(u32::MAX as usize, 0, 0, 0, 0, 0),
        geometry(3, 5, u32::MAX as usize, 0, 2, 2),
    ];
    for state_size in [1, 127, 300] {
        for bc_rows in [0, 4] {
            all.push(geometry(3, 7, bc_rows, state_size, 3, 5));
            all.push(geometry(3, 6, bc_rows, state_size, 0, 0));
        }
    }
    for sizes in all {
        for dtype in DTYPES {
            let inputs = inputs(&sizes, dtype, 5);
            let what = format!("{sizes:?}");
            check(runtime, &inputs, &widths(&sizes), &Parameters::default(), &what);
        }
    }
}

/// z, x, angle and f32 trap are copied as bits: NaN with what it carries, −0 and subnormals.
pub(crate) fn passed_through_bits(runtime: &Runtime) {
    let halves =
        [0x0001u16, 0x8001, 0x7c01, 0x7e00, 0xfe55, 0x7f81, 0xffc1, 0x0080, 0x8000, 0x7bff];
    for dtype in DTYPES {
        for (inner, heads) in [(10, 4), (9, 4), (10, 3)] {
            let sizes = geometry(3, inner, 1, 2, heads, 5);
            let mut inputs = inputs(&sizes, dtype, 2);
            let count = inputs.projected.bytes().len() / 2;
            let bytes: Vec<u8> =
                halves.iter().cycle().take(count).flat_map(|w| w.to_ne_bytes()).collect();
            let shape = inputs.projected.shape().to_vec();
            inputs.projected = HostTensor::from_bytes(dtype, &shape, &bytes).unwrap();
            let found = run_poisoned(runtime, &inputs, &widths(&sizes), &Parameters::default());
            let (slices, size) = (sizes.slices(), dtype.size());
            for (row, packed) in bytes.chunks_exact(size * sizes.projected_width()).enumerate() {
                for (columns, tensor) in
                    [(&slices.z, &found.z), (&slices.x, &found.x), (&slices.angle, &found.angle)]
                {
                    let n = size * columns.len();
                    let expected = &packed[size * columns.start..][..n];
                    assert_eq!(tensor.bytes()[row * n..][..n], *expected, "{dtype}, {sizes:?}");
                }
                if dtype == Dtype::F32 {
                    let expected = &packed[size * slices.trap.start..size * slices.trap.end];
                    let n = size * heads;
                    assert_eq!(found.trap.bytes()[row * n..][..n], *expected, "trap");
                }
            }
        }
    }
}

pub(crate) fn repeats_share_bits(runtime: &Runtime) {
    let sizes = geometry(200, 70, 3, 50, 7, 9);
    for dtype in DTYPES {
        let inputs = inputs(&sizes, dtype, 77);
        let run = || run_poisoned(runtime, &inputs, &widths(&sizes), &Parameters::default());
        let first = run();
        for ((name, again), (_, first)) in run().named().zip(first.named()) {
            assert_same_bits(again, first, name);
        }
    }
}

/// Grids in many dispatches and in many submissions, and NaN behind every tensor: none changes a bit.
pub(crate) fn splits_and_guards_share_bits(runtime: &Runtime) {
    let strained = gpu::open(|_| ()).unwrap();
    strained.split_grids(2);
    strained.slice_grids(5);
    strained.guard_tensors(2048);
    for sizes in [geometry(70, 3, 1, 5, 197, 2), geometry(7, 61, 3, 50, 37, 9)] {
        for dtype in DTYPES {
            let inputs = inputs(&sizes, dtype, 78);
            let run =
                |runtime| run_poisoned(runtime, &inputs, &widths(&sizes), &Parameters::default());
            let (found, expected) = (run(&strained), run(runtime));
            for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
                assert_same_bits(found, expected, name);
            }
        }
    }
    strained.finish().unwrap();
}

/// Widths that do not make up the packed rows, a dt_bias of halves, parameters out of range: each error names it.
pub(crate) fn refusals(runtime: &Runtime) {
    let sizes = geometry(2, 4, 1, 3, 2, 1);
    let usual = inputs(&sizes, Dtype::F16, 1);
    let refused = |inputs: &ForwardInputs<HostTensor>, widths: &Widths, parameters: &Parameters| {
        let error = preprocess_forward::run(runtime, inputs, widths, parameters).map(drop);
        let error = error.unwrap_err();
        assert!(error.is_input(), "{error}");
        error
    };
    let widths = widths(&sizes);
    let wider = Widths { inner_size: 5, ..widths };
    let error = refused(&usual, &wider, &Parameters::default());
    assert!(matches!(error, Error::Shape { array: "projected", .. }), "{error}");
    assert!(error.to_string().contains("inner_size 5"), "{error}");

    let dt_bias = HostTensor::from_f64(Dtype::F16, &usual.dt_bias.to_f64()).unwrap();
    let halves = ForwardInputs { dt_bias, ..usual.clone() };
    let error = refused(&halves, &widths, &Parameters::default());
    assert!(matches!(&error, Error::Dtype { array, .. } if array == "dt_bias"), "{error}");

    let crossed = Parameters { dt_min: 0.2, dt_max: 0.1, ..Parameters::default() };
    let error = refused(&usual, &widths, &crossed);
    assert!(error.to_string().contains("dt_min = 0.2 and dt_max = 0.1"), "{error}");
}

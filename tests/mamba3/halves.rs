//! f16 and bf16: values against the float64 reference of the same rounded inputs, and bits that pass through.

use backslang::kernels::mamba3::preprocess::{BackwardInputs, Parameters, dtype_of};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor, reference};

use crate::common::compare::assert_close;
use crate::common::random;

use crate::support::{cancellation, geometry, run_poisoned};

const HALVES: [(Dtype, f64); 2] = [(Dtype::F16, 1e-3), (Dtype::Bf16, 8e-3)];

/// The same inputs rounded to halves, where they are not f32 in any case.
fn rounded(inputs: &BackwardInputs<HostTensor>, dtype: Dtype) -> BackwardInputs<HostTensor> {
    inputs.as_ref().map(|name, t| HostTensor::from_f64(dtype_of(name, dtype), &t.to_f64()).unwrap())
}

/// Even widths are stored two elements at a time, odd ones are packed afterwards.
pub(crate) fn random_halves(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fastrand::u64(..));
    let parameters = Parameters::default();
    for (dtype, tolerance) in HALVES {
        for round in 0..40 {
            let mut sizes = random::mamba3_geometry(&mut rng);
            sizes.inner_size = sizes.inner_size.max(sizes.bc_rows);
            if round % 2 == 0 {
                sizes.inner_size *= 2;
                sizes.state_size *= 2;
                sizes.heads *= 2;
                sizes.rope_angles *= 2;
            }
            let seed = rng.u64(..);
            let inputs = rounded(&random::mamba3(&sizes, seed), dtype);
            let scales = cancellation(&inputs, &parameters);
            let found = run_poisoned(runtime, &inputs, &parameters);
            let plain = inputs.as_ref().map(|_, t| t.to_f64());
            let expected = reference::mamba3::preprocess_backward(&plain, &parameters).unwrap();
            let outputs = found.named().zip(expected.named()).zip(scales.named());
            for (((name, found), (_, expected)), (_, scale)) in outputs {
                let what = format!("{dtype}, {sizes:?} of seed {seed}: {name}");
                assert_eq!(found.dtype(), dtype_of(name, dtype), "{what}");
                assert_close(found, expected, tolerance * scale, &what);
            }
        }
    }
}

/// z, x and angle are copied as bits: subnormals and NaN with what they carry, too.
pub(crate) fn half_bits_pass_through(runtime: &Runtime) {
    let bits = [0x0001u16, 0x8001, 0x7c01, 0x7e00, 0xfe55, 0x7f81, 0xffc1, 0x0080, 0x8000, 0x7bff];
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for inner in [10, 9] {
            let sizes = geometry(3, inner, 1, 2, 2, 4);
            let mut inputs = rounded(&random::mamba3(&sizes, 1), dtype);
            for tensor in
                [&mut inputs.z_gradient, &mut inputs.x_gradient, &mut inputs.angle_gradient]
            {
                let words = bits.iter().cycle().take(tensor.bytes().len() / 2);
                let bytes: Vec<u8> = words.flat_map(|w| w.to_ne_bytes()).collect();
                *tensor = HostTensor::from_bytes(dtype, tensor.shape(), &bytes).unwrap();
            }
            let found = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
            let width = 2 * sizes.projected_width();
            let slices = sizes.slices();
            for (row, packed) in found.bytes().chunks_exact(width).enumerate() {
                for (columns, tensor) in [
                    (&slices.z, &inputs.z_gradient),
                    (&slices.x, &inputs.x_gradient),
                    (&slices.angle, &inputs.angle_gradient),
                ] {
                    let n = 2 * columns.len();
                    let expected = &tensor.bytes()[row * n..][..n];
                    let place = 2 * columns.start;
                    assert_eq!(packed[place..place + n], *expected, "{dtype}, inner size {inner}");
                }
            }
        }
    }
}

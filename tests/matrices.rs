//! Products of matrices of halves, on devices that multiply them, and in the forms for tests, which emulate them.

#[path = "common/gpu.rs"]
mod gpu;

use std::process::ExitCode;

use backslang::kernels::matrix_rate::{self, STEP, TILE};
use backslang::runtime::Runtime;
use backslang::{Dtype, Error, HostTensor};
use half::{bf16, f16};

fn main() -> ExitCode {
    gpu::main(vec![
        gpu::trial("products_are_right", products_are_right),
        gpu::trial("products_repeat", products_repeat),
        gpu::trial("other_sizes_are_refused", other_sizes_are_refused),
        gpu::trial("elements_are_looked_at", elements_are_looked_at),
    ])
}

const TYPES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

/// A matrix of random halves, and its elements.
fn matrix(random: &mut fastrand::Rng, dtype: Dtype, shape: [usize; 2]) -> (HostTensor, Vec<f64>) {
    let value = |_| 2.0 * random.f32() - 1.0;
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
    let encode = |x: &f32| match dtype {
        Dtype::F16 => (f16::from_f32(*x).to_bits(), f16::from_f32(*x).to_f64()),
        _ => (bf16::from_f32(*x).to_bits(), bf16::from_f32(*x).to_f64()),
    };
    let (bits, values): (Vec<u16>, Vec<f64>) = values.iter().map(encode).unzip();
    let mut host = HostTensor::zeros(dtype, &shape);
    host.bytes_mut().copy_from_slice(bytemuck::cast_slice(&bits));
    (host, values)
}

/// The product on the device, in f32; `None` of a device that does not multiply such matrices, which says so.
fn product(runtime: &Runtime, a: &HostTensor, b: &HostTensor) -> Option<Vec<f32>> {
    let [a, b] = [("a", a), ("b", b)].map(|(name, host)| runtime.upload(name, host).unwrap());
    let c = runtime.tensor("c", Dtype::F32, &[a.shape()[0], b.shape()[1]]).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    recorder.fill(&c, u32::MAX).unwrap();
    match matrix_rate::multiply(&mut recorder, &a, &b, &c) {
        Ok(()) => assert!(runtime.device().matrices.of(a.dtype())),
        Err(Error::Unsupported { reason, .. }) => {
            assert!(!runtime.device().matrices.of(a.dtype()));
            assert!(reason.contains("matrix_rate") && reason.contains("CooperativeMatrixKHR"));
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    recorder.submit().unwrap().wait().unwrap();
    Some(bytemuck::allocation::pod_collect_to_vec(runtime.download(&c).unwrap().bytes()))
}

fn products_are_right(runtime: &Runtime) {
    let mut random = fastrand::Rng::with_seed(1);
    for dtype in TYPES {
        for [rows, depth, columns] in [[TILE, STEP, TILE], [2 * TILE, 3 * STEP, TILE]] {
            let (a, left) = matrix(&mut random, dtype, [rows, depth]);
            let (b, right) = matrix(&mut random, dtype, [depth, columns]);
            let Some(found) = product(runtime, &a, &b) else { continue };
            for row in 0..rows {
                for column in 0..columns {
                    let terms =
                        (0..depth).map(|k| left[row * depth + k] * right[k * columns + column]);
                    let (sum, size) =
                        terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + f64::abs(x)));
                    let error = (f64::from(found[row * columns + column]) - sum).abs() / size;
                    // Units may cut what they add to the largest term's precision.
                    assert!(error < 1e-6, "{dtype}, {row}, {column}: {error:e}");
                }
            }
        }
    }
}

fn products_repeat(runtime: &Runtime) {
    let mut random = fastrand::Rng::with_seed(2);
    for dtype in TYPES {
        let (a, _) = matrix(&mut random, dtype, [TILE, 2 * STEP]);
        let (b, _) = matrix(&mut random, dtype, [2 * STEP, 2 * TILE]);
        let Some(first) = product(runtime, &a, &b) else { continue };
        let again = product(runtime, &a, &b).unwrap();
        assert!(first.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

fn other_sizes_are_refused(runtime: &Runtime) {
    let refused = |a: [usize; 2], b: [usize; 2]| {
        let [a, b] = [a, b].map(|shape| runtime.tensor("matrix", Dtype::F16, &shape).unwrap());
        let c = runtime.tensor("c", Dtype::F32, &[a.shape()[0], b.shape()[1]]).unwrap();
        let mut recorder = runtime.recorder().unwrap();
        matrix_rate::multiply(&mut recorder, &a, &b, &c).unwrap_err()
    };
    for [rows, depth, columns] in
        [[TILE + 1, STEP, TILE], [TILE, STEP / 2, TILE], [TILE, STEP, TILE / 2]]
    {
        let error = refused([rows, depth], [depth, columns]);
        assert!(matches!(error, Error::Parameter { .. }), "{error}");
    }
    let error = refused([TILE, STEP], [TILE, TILE]);
    assert!(matches!(error, Error::Shape { .. }), "{error}");
}

/// Where matrices are emulated, accumulators and operands lie alike.
fn elements_are_looked_at(runtime: &Runtime) {
    for dtype in TYPES {
        match runtime.copies_elements(dtype) {
            Ok(copies) => {
                assert!(runtime.device().matrices.of(dtype));
                assert!(copies || !runtime.device().software());
                assert_eq!(runtime.copies_elements(dtype).unwrap(), copies);
            }
            Err(Error::Unsupported { .. }) => assert!(!runtime.device().matrices.of(dtype)),
            Err(error) => panic!("{error}"),
        }
    }
}

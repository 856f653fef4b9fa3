//! Rounding to f16 and bf16 on the device: every case of it, and what lies beside an odd number of elements.

#[path = "common/gpu.rs"]
mod gpu;

use std::process::ExitCode;

use backslang::manifest::kernel;
use backslang::runtime::{Access, Runtime};
use backslang::{Dtype, HostTensor};
use half::{bf16, f16};

fn main() -> ExitCode {
    gpu::main(vec![
        gpu::trial("f16_rounds_to_nearest_even", f16_rounds_to_nearest_even),
        gpu::trial("bf16_rounds_to_nearest_even", bf16_rounds_to_nearest_even),
        gpu::trial("odd_counts_leave_what_is_beside", odd_counts_leave_what_is_beside),
    ])
}

/// Packs `values` over a tensor of `beside`.
fn pack(runtime: &Runtime, dtype: Dtype, values: &[f32], beside: u32) -> Vec<u16> {
    let source = HostTensor::from_f32(&[values.len()], values.to_vec()).unwrap();
    let source = runtime.upload("source", &source).unwrap();
    let target = runtime.tensor("target", dtype, &[values.len().next_multiple_of(2)]).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    recorder.fill(&target, beside).unwrap();
    let lanes = runtime.lanes();
    let push = |access: &mut Access<'_>| {
        [0, 0, access.read(&source), access.write(&target), values.len() as u32]
    };
    let groups = [values.len().div_ceil(8 * lanes as usize), 1];
    let kernel = kernel("pack", dtype.name()).unwrap();
    // SAFETY: both tensors hold the elements.
    unsafe { recorder.dispatch(kernel, &[lanes, 0], groups, push) }.unwrap();
    recorder.submit().unwrap().wait().unwrap();
    bytemuck::allocation::pod_collect_to_vec(runtime.download(&target).unwrap().bytes())
}

/// Values on, just below and just above each value of a type and each middle between two, of both signs.
fn neighbours(widen: impl Fn(u16) -> f32, infinity: u16) -> Vec<f32> {
    let mut values = vec![0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
    for bits in 0..infinity {
        let value = widen(bits);
        let next =
            if bits + 1 == infinity { 2.0 * value - widen(bits - 1) } else { widen(bits + 1) };
        let middle = f32::midpoint(value, next);
        values.extend([value, value.next_up(), middle.next_down(), middle, middle.next_up()]);
    }
    let negative: Vec<f32> = values.iter().map(|x| -x).collect();
    [values, negative].concat()
}

fn compare(
    found: &[u16],
    values: &[f32],
    expected: impl Fn(f32) -> u16,
    is_nan: impl Fn(u16) -> bool,
) {
    for (&found, &value) in found.iter().zip(values) {
        // Drivers may flush what is subnormal in f32; a NaN may have any payload.
        let flushed = value.is_subnormal() && found & 0x7fff == 0;
        let same = found == expected(value) || (value.is_nan() && is_nan(found));
        assert!(same || flushed, "{value:e}: {found:04x}, not {:04x}", expected(value));
    }
}

fn f16_rounds_to_nearest_even(runtime: &Runtime) {
    let mut values = neighbours(|bits| f16::from_bits(bits).to_f32(), 0x7c00);
    values.extend([2049.0, 2051.0, 65519.99, 65520.0, 131_072.0]);
    let found = pack(runtime, Dtype::F16, &values, 0);
    compare(&found, &values, |x| f16::from_f32(x).to_bits(), |h| f16::from_bits(h).is_nan());
    assert_eq!(found[values.len() - 5..values.len()], [0x6800, 0x6802, 0x7bff, 0x7c00, 0x7c00]);
    let small = pack(runtime, Dtype::F16, &[5.960_464_5e-8, 2.980_232_2e-8, 2.980_232_4e-8], 0);
    assert_eq!(small[..3], [1, 0, 0]);
}

fn bf16_rounds_to_nearest_even(runtime: &Runtime) {
    let mut values = neighbours(|bits| bf16::from_bits(bits).to_f32(), 0x7f80);
    let bits = [0x3e89_ccd5, 0x3f80_8000, 0x3f81_8000, 0x7f7f_ffff];
    values.extend(bits.map(f32::from_bits));
    let found = pack(runtime, Dtype::Bf16, &values, 0);
    compare(&found, &values, |x| bf16::from_f32(x).to_bits(), |h| bf16::from_bits(h).is_nan());
    assert_eq!(found[values.len() - 4..values.len()], [0x3e8a, 0x3f80, 0x3f82, 0x7f80]);
}

fn odd_counts_leave_what_is_beside(runtime: &Runtime) {
    for count in [1, 3, 65, 1543] {
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let found = pack(runtime, dtype, &values, 0xabcd_1234);
            assert_eq!(found[count..], [0xabcd], "{dtype}, {count} elements");
            let last = values[count - 1];
            let expected = match dtype {
                Dtype::F16 => f16::from_f32(last).to_bits(),
                _ => bf16::from_f32(last).to_bits(),
            };
            assert_eq!(found[count - 1], expected, "{dtype}, {count} elements");
        }
    }
}

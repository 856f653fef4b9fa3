//! Bits: what may not change them, and the order that gives them.

use backslang::Dtype;
use backslang::kernels::mamba3::preprocess::Parameters;
use backslang::kernels::mamba3::preprocess_backward::{self, DT_BIAS_CHUNK_ROWS};
use backslang::runtime::Runtime;

use crate::common::compare::assert_same_bits;
use crate::common::{gpu, random};

use crate::support::{geometry, run_poisoned};

/// The promised order, replayed in f32 on the host: chunks of rows, then the chunks.
pub(crate) fn dt_bias_is_summed_in_order(runtime: &Runtime) {
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

pub(crate) fn repeats_share_bits(runtime: &Runtime) {
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
pub(crate) fn launches_wait_for_what_they_read(runtime: &Runtime) {
    let sizes = geometry(3, 4, 1, 2, 3, 0);
    let inputs = random::mamba3(&sizes, 1);
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let outputs = preprocess_backward::allocate(runtime, &sizes, Dtype::F32).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    preprocess_backward::record(&mut recorder, &inputs, &Parameters::default(), &outputs).unwrap();
    assert_eq!(recorder.barriers(), 2);
    recorder.submit().unwrap().wait().unwrap();
}

/// Grids in many dispatches and in many submissions, and NaN behind every tensor: none changes a bit.
pub(crate) fn splits_and_guards_share_bits(runtime: &Runtime) {
    let strained = gpu::open(|_| ()).unwrap();
    strained.split_grids(2);
    strained.guard_tensors(2048);
    for (sizes, slice) in [(geometry(700, 3, 1, 5, 197, 2), 23), (geometry(7, 61, 3, 50, 37, 9), 1)]
    {
        strained.slice_grids(slice);
        let inputs = random::mamba3(&sizes, 78);
        let expected = run_poisoned(runtime, &inputs, &Parameters::default());
        let found = run_poisoned(&strained, &inputs, &Parameters::default());
        for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
            assert_same_bits(found, expected, name);
        }
    }
    strained.finish().unwrap();
}

/// Slices that pass through are copied as bits: NaN payloads, −0 and subnormals included.
pub(crate) fn passed_through_bits(runtime: &Runtime) {
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

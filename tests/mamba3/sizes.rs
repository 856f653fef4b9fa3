//! Sizes: grids beyond one dispatch, rows beside the usual tiles, tensors as large as a binding.

use backslang::kernels::mamba3::preprocess::{ForwardInputs, Geometry, Parameters, dtype_of};
use backslang::kernels::mamba3::preprocess_backward::{self, Onto};
use backslang::runtime::Runtime;
use backslang::{Dtype, Error, HostTensor};

use crate::common::compare::assert_same_bits;
use crate::common::{gpu, random};
use crate::forward::support as forward;

use crate::support::{cancellation, check, check_scaled, geometry, run_poisoned};

fn check_sizes(runtime: &Runtime, sizes: &Geometry) {
    let inputs = random::mamba3(sizes, 5);
    check(runtime, &inputs, &Parameters::default(), &format!("{sizes:?}"));
}

pub(crate) fn sizes_at_the_edges(runtime: &Runtime) {
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
        check_sizes(runtime, &sizes);
    }
    // Each of the sizes that stand alone beside each of the others.
    for state_size in [1, 127, 300] {
        for bc_rows in [0, 4] {
            for heads in [0, 3] {
                for rope_angles in [0, 5] {
                    check_sizes(runtime, &geometry(3, 7, bc_rows, state_size, heads, rope_angles));
                }
            }
        }
    }
}

/// Rows that no power of two divides, and all that lies around the outputs.
pub(crate) fn widths_beside_the_tiles(_: &Runtime) {
    let guarded = gpu::open(|_| ()).unwrap();
    guarded.guard_tensors(256);
    let widths = [16, 48, 72, 80, 96, 104, 112, 120, 160, 192];
    for (&width, &other) in widths.iter().zip(widths.iter().rev()) {
        check_sizes(&guarded, &geometry(3, width, 2, other, width, other));
    }
    guarded.finish().unwrap();
}

/// More rows than 16 bits count.
pub(crate) fn seventy_thousand_rows(runtime: &Runtime) {
    let inputs = random::mamba3(&geometry(70_000, 1, 1, 2, 3, 1), 15);
    let parameters = Parameters::default();
    let scales = cancellation(&inputs, &parameters);
    check_scaled(runtime, &inputs, &parameters, &scales, "70,000 rows");
}

/// More blocks of heads, in the sum of the dt_bias terms, than one dispatch has workgroups along y.
pub(crate) fn more_heads_than_an_axis_holds(runtime: &Runtime) {
    let heads = 65_536 * runtime.lanes() as usize + 3;
    let mut inputs = geometry(1, 0, 0, 1, heads, 0).backward_inputs().map(|name, shape| {
        let element = |i: usize| (i % 1000 + name.len()) as f32 * 1e-3 - 0.5;
        HostTensor::from_f32(&shape, (0..shape.iter().product()).map(element).collect()).unwrap()
    });
    inputs.projected.as_f32_mut().unwrap().iter_mut().for_each(|x| *x -= 4.0);
    let found = check(runtime, &inputs, &Parameters::default(), &format!("{heads} heads"));
    // One row: the sum is its term.
    assert_eq!(found.dt_bias_gradient.as_f32(), found.dt_bias_partial.as_f32());
}

/// Rows beyond a binding lie in several buffers, each filled to the last element; a row that is wider than a binding is
/// refused before anything is begun. On devices in host memory no more is taken than fits beside other tests.
pub(crate) fn rows_beyond_a_binding(_: &Runtime) {
    let runtime = gpu::open(|_| ()).unwrap();
    if runtime.device().software() {
        runtime.limit_bindings(1 << 27);
    }
    let limit = runtime.largest_binding();
    // z and x.
    let inner_size = |bytes: u64, rows: usize| (bytes / 4 / 2) as usize / rows;
    let before = runtime.memory();
    let beyond = geometry(1, inner_size(limit, 1) + 1, 0, 0, 0, 0);
    // Never read, so that the system need not even find memory for it.
    let zeros = beyond
        .backward_inputs()
        .map(|_, shape| HostTensor::from_f32(&shape, vec![0.0; shape.iter().product()]).unwrap());
    let refused = preprocess_backward::run(&runtime, &zeros, &Parameters::default()).map(drop);
    let Err(Error::Layout { array, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!((array, runtime.memory()), ("projected", before));
    if gpu::has_parts() {
        let sizes = geometry(130, inner_size(limit, 128), 0, 0, 0, 0);
        check_copies(&runtime, &sizes);
    }
    runtime.finish().unwrap();
}

/// z and x arrive in their slices, every element.
fn check_copies(runtime: &Runtime, sizes: &Geometry) {
    let inputs = sizes.backward_inputs().map(|name, shape| {
        let first = if name == "z_gradient" { 1 } else { 0x8000_0000u32 };
        let element = |i: u32| f32::from_bits(first + i % 0x7f00_0000);
        let count = shape.iter().product::<usize>() as u32;
        HostTensor::from_f32(&shape, (0..count).map(element).collect()).unwrap()
    });
    let found = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
    let width = sizes.inner_size;
    for (row, found) in found.bytes().chunks_exact(8 * width).enumerate() {
        let source = |tensor: &HostTensor| tensor.bytes()[row * 4 * width..][..4 * width].to_vec();
        let (z, x) = found.split_at(4 * width);
        assert!(z == source(&inputs.z_gradient) && x == source(&inputs.x_gradient), "row {row}");
    }
}

/// Small bindings, so that every array is in several parts, which end at other rows in each: the bits of whole arrays.
pub(crate) fn parts_share_bits(_: &Runtime) {
    if !gpu::has_parts() {
        return;
    }
    let strained = gpu::open(|_| ()).unwrap();
    let parameters = Parameters::default();
    // Even widths; odd ones, which are packed from scratch, some rows of it at a time.
    let limit = 32_768;
    for (dtype, sizes) in [
        (Dtype::F32, geometry(3000, 6, 2, 4, 3, 2)),
        (Dtype::Bf16, geometry(3000, 6, 2, 4, 2, 2)),
        (Dtype::F16, geometry(3000, 3, 1, 5, 3, 1)),
    ] {
        let host = random::mamba3(&sizes, 21)
            .map(|name, t| HostTensor::from_f64(dtype_of(name, dtype), &t.to_f64()).unwrap());
        let what = format!("{dtype}");
        let forward_inputs =
            ForwardInputs { projected: host.projected.clone(), dt_bias: host.dt_bias.clone() };
        let widths = forward::widths(&sizes);
        let both = |limit| {
            strained.limit_bindings(limit);
            strained.guard_tensors(if limit > 0 { 64 } else { 0 });
            let forward = forward::run_poisoned(&strained, &forward_inputs, &widths, &parameters);
            let backward = run_poisoned(&strained, &host, &parameters);
            let onto = Onto {
                projected_gradient: Some(host.projected.clone()),
                dt_bias_gradient: Some(host.dt_bias.clone()),
            };
            let sums = preprocess_backward::run_onto(&strained, &host, &parameters, &onto).unwrap();
            let parted = strained.upload("projected", &host.projected).unwrap();
            assert_eq!(parted.binding_elements().is_some(), limit > 0, "{what}");
            (forward, backward, sums.outputs)
        };
        let (expected, found) = (both(0), both(limit));
        for ((name, found), (_, expected)) in found.0.named().zip(expected.0.named()) {
            assert_same_bits(found, expected, &format!("{what}: {name}"));
        }
        for (found, expected) in [(found.1, expected.1), (found.2, expected.2)] {
            for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
                assert_same_bits(found, expected, &format!("{what}: {name}"));
            }
        }
    }
    strained.finish().unwrap();
}

//! What the program computes with backslang: the Mamba-3 backward, on ranges of its own buffers and in its own command
//! buffer.

use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters, dtype_of,
};
use backslang::kernels::mamba3::preprocess_backward;
use backslang::raw;
use backslang::runtime::{Recorder, Runtime};
use backslang::{HostTensor, reference};

use crate::vulkan::{Buffer, Result, Vulkan};

/// Random inputs.
pub(crate) fn sample(rng: &mut fastrand::Rng) -> backslang::Result<BackwardInputs<HostTensor>> {
    let geometry = Geometry {
        leading: vec![150],
        rows: 150,
        inner_size: 48,
        bc_rows: 2,
        state_size: 16,
        heads: 3,
        rope_angles: 5,
    };
    geometry.backward_inputs().try_map(|name, shape| {
        // So that dt is mostly within its bounds, and has a gradient.
        let middle = if name == "dt_bias" { -3.5 } else { 0.0 };
        let values = (0..shape.iter().product()).map(|_| middle + 2.0 * rng.f32() - 1.0);
        HostTensor::from_f32(&shape, values.collect())
    })
}

/// The gradients, by way of one buffer for all inputs and one for all outputs.
pub(crate) fn gradients(
    vulkan: &Vulkan,
    runtime: &Runtime,
    host: &BackwardInputs<HostTensor>,
) -> Result<BackwardOutputs<HostTensor>> {
    let geometry = Geometry::of_backward(&host.as_ref().map(|_, tensor| tensor.shape()))?;
    let results = geometry
        .backward_outputs()
        .map(|name, shape| HostTensor::zeros(dtype_of(name, host.projected.dtype()), &shape));
    // Kernels that take no views want their tensors to begin at such places.
    let alignment = runtime.device().limits.min_storage_buffer_offset_alignment;
    let (mut in_bytes, mut out_bytes) = (0, 0);
    let in_places = host.as_ref().map(|_, tensor| place(&mut in_bytes, tensor, alignment));
    let out_places = results.as_ref().map(|_, tensor| place(&mut out_bytes, tensor, alignment));

    let mut in_buffer = Buffer::new(vulkan, in_bytes)?;
    for ((_, tensor), (_, &start)) in host.named().zip(in_places.named()) {
        let bytes = tensor.bytes();
        in_buffer.contents()[start as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    let mut out_buffer = Buffer::new(vulkan, out_bytes)?;

    // SAFETY: both are as described, and live until `recorded` is dropped, when the device is done.
    let (from, to) = unsafe {
        let from = raw::Buffer::import(runtime, in_buffer.described())?;
        (from, raw::Buffer::import(runtime, out_buffer.described())?)
    };
    let mut places = in_places.named().map(|(_, &start)| start);
    let inputs = host.as_ref().try_map(|name, tensor| {
        from.tensor(name, tensor.dtype(), tensor.shape(), places.next().unwrap_or(0))
    })?;
    let mut places = out_places.named().map(|(_, &start)| start);
    let outputs = results.as_ref().try_map(|name, tensor| {
        to.tensor(name, tensor.dtype(), tensor.shape(), places.next().unwrap_or(0))
    })?;

    let (commands, recorded) = vulkan.record(|commands| {
        // The program's own commands may come before and after.
        let work = |recorder: &mut Recorder<'_>| {
            preprocess_backward::record(recorder, &inputs, &Parameters::default(), &outputs)
        };
        // SAFETY: the command buffer is recording; after an error it is not submitted.
        let ((), recorded) = unsafe { raw::record(runtime, commands, work) }?;
        Ok(recorded)
    })?;
    vulkan.run(commands)?;
    drop(recorded);

    let mut places = out_places.named().map(|(_, &start)| start as usize);
    let read = |_: &str, mut tensor: HostTensor| {
        let bytes = tensor.bytes_mut();
        let start = places.next().unwrap_or(0);
        bytes.copy_from_slice(&out_buffer.contents()[start..][..bytes.len()]);
        tensor
    };
    Ok(results.map(read))
}

/// Prints how far results are from what float64 says; an error where it is more than f32 accounts for.
pub(crate) fn check(
    inputs: &BackwardInputs<HostTensor>,
    found: &BackwardOutputs<HostTensor>,
) -> Result<()> {
    let inputs = inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let expected = reference::mamba3::preprocess_backward(&inputs, &Parameters::default())?;
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
        let error = norm(&mut found.to_f64().iter().zip(expected).map(|(a, b)| a - b));
        let error = error / norm(&mut expected.iter().copied());
        println!("{name:<20} relative error {error:.1e}");
        if error.is_nan() || error > 2e-6 {
            return Err(format!("{name} is not what float64 says").into());
        }
    }
    Ok(())
}

/// Where a tensor begins behind what was placed before.
fn place(end: &mut u64, tensor: &HostTensor, alignment: u64) -> u64 {
    let start = end.next_multiple_of(alignment);
    *end = start + tensor.bytes().len() as u64;
    start
}

//! backslang on wgpu's device and buffers: the Mamba-3 backward reads and writes wgpu's buffers, in a command buffer
//! that wgpu submits, and wgpu reads back what came out. It is held to float64.

mod device;

use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, Geometry, Parameters, dtype_of,
};
use backslang::kernels::mamba3::preprocess_backward;
use backslang::raw::{self, ash::vk};
use backslang::runtime::{Recorder, Runtime, Tensor};
use backslang::{Dtype, HostTensor, reference};
use device::Shared;
use wgpu::hal::api::Vulkan;
use wgpu::util::{BufferInitDescriptor, DeviceExt};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A tensor and the buffer of wgpu's that it is.
struct Array {
    buffer: wgpu::Buffer,
    tensor: Tensor,
}

fn main() -> Result<()> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()))?;
    println!("on {}", adapter.get_info().name);
    let shared = device::open(&adapter)?;
    let inputs = sample(&mut fastrand::Rng::with_seed(1))?;
    let found = gradients(&shared, &inputs)?;
    check(&inputs, &found)?;
    shared.runtime.finish()?;
    Ok(())
}

/// Random inputs.
fn sample(rng: &mut fastrand::Rng) -> backslang::Result<BackwardInputs<HostTensor>> {
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

fn gradients(
    Shared { runtime, device, queue }: &Shared,
    host: &BackwardInputs<HostTensor>,
) -> Result<BackwardOutputs<HostTensor>> {
    let geometry = Geometry::of_backward(&host.as_ref().map(|_, tensor| tensor.shape()))?;
    let results = geometry
        .backward_outputs()
        .map(|name, shape| HostTensor::zeros(dtype_of(name, Dtype::F32), &shape));
    // wgpu clears what it has not seen written, so it is to see zeros.
    let inputs = host.as_ref().try_map(|name, tensor| array(runtime, device, name, tensor))?;
    let outputs = results.as_ref().try_map(|name, tensor| array(runtime, device, name, tensor))?;

    let from = inputs.as_ref().map(|_, array| array.tensor.clone());
    let to = outputs.as_ref().map(|_, array| array.tensor.clone());
    let work = |recorder: &mut Recorder<'_>| {
        preprocess_backward::record(recorder, &from, &Parameters::default(), &to)
    };
    // What is recorded past wgpu has an encoder of its own.
    let mut encoder = device.create_command_encoder(&Default::default());
    // SAFETY: the command buffer is recording, and wgpu submits it once, to the runtime's queue; after an error it is
    // dropped.
    let ((), recorded) = unsafe {
        encoder.as_hal_mut::<Vulkan, _, _>(|hal| -> Result<_> {
            let commands = hal.ok_or("wgpu does not run on Vulkan")?.raw_handle();
            Ok(raw::record(runtime, commands, work)?)
        })
    }?;
    let mut copies = device.create_command_encoder(&Default::default());
    let copied = outputs.as_ref().map(|_, Array { buffer, .. }| {
        let copy = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        copies.copy_buffer_to_buffer(buffer, 0, &copy, 0, buffer.size());
        copy
    });
    queue.submit([encoder.finish(), copies.finish()]);
    queue.on_submitted_work_done(move || drop(recorded));
    copied.named().for_each(|(_, copy)| copy.map_async(wgpu::MapMode::Read, .., |_| ()));
    device.poll(wgpu::PollType::wait_indefinitely())?;
    let mut copied = copied.named();
    results.try_map(|_, mut result| {
        let (_, copy) = copied.next().ok_or("as many copies as results")?;
        let bytes = copy.get_mapped_range(..)?;
        result.bytes_mut().copy_from_slice(&bytes);
        Ok(result)
    })
}

/// A buffer of wgpu's with these contents, as a tensor.
fn array(
    runtime: &Runtime,
    device: &wgpu::Device,
    name: &str,
    contents: &HostTensor,
) -> Result<Array> {
    let buffer = device.create_buffer_init(&BufferInitDescriptor {
        label: Some(name),
        contents: contents.bytes(),
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST,
    });
    // SAFETY: the buffer is not destroyed here.
    let handle = unsafe {
        let hal = buffer.as_hal::<Vulkan>().ok_or("wgpu does not run on Vulkan")?;
        hal.raw_handle()
    };
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER
        | vk::BufferUsageFlags::TRANSFER_SRC
        | vk::BufferUsageFlags::TRANSFER_DST;
    let keep = Some(Box::new(buffer.clone()) as raw::Keep);
    let desc = raw::BufferDesc { handle, bytes: buffer.size(), usage, keep };
    // SAFETY: that is how wgpu makes such a buffer, and it keeps it while there is a handle.
    let imported = unsafe { raw::Buffer::import(runtime, desc) }?;
    let tensor = imported.tensor(name, contents.dtype(), contents.shape(), 0)?;
    Ok(Array { buffer, tensor })
}

fn check(inputs: &BackwardInputs<HostTensor>, found: &BackwardOutputs<HostTensor>) -> Result<()> {
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

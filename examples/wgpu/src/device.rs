//! wgpu on a device that backslang can share.

use backslang::raw::ash::{self, vk};
use backslang::raw::{self, Needs};
use backslang::runtime::{Runtime, RuntimeOptions};
use wgpu::hal::api::Vulkan;

use crate::Result;

/// The queue family that wgpu takes.
const FAMILY: u32 = 0;

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

/// Opens a device with what wgpu and backslang need of it, for both.
pub(crate) fn open(adapter: &wgpu::Adapter) -> Result<Shared> {
    let descriptor =
        wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
    let features = descriptor.required_features;
    // SAFETY: nothing of it is destroyed.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }.ok_or("wgpu does not run on Vulkan")?;
    let (instance, physical_device) =
        (hal.shared_instance().raw_instance(), hal.raw_physical_device());
    // SAFETY: the physical device is the instance's.
    let mut needs = unsafe { Needs::of(instance, physical_device) }?;
    let mut extensions = hal.required_device_extensions(features);
    extensions.extend(needs.extensions());
    extensions.sort_unstable();
    extensions.dedup();
    let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
    let queues =
        [vk::DeviceQueueCreateInfo::default().queue_family_index(FAMILY).queue_priorities(&[1.0])];
    let mut of_wgpu = hal.physical_device_features(&extensions, features);
    let info =
        vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
    let info = of_wgpu.add_to_device_create(info);
    // SAFETY: builder functions have made the chain, of wgpu's features.
    let info = unsafe { needs.switch_on(info) };
    // SAFETY: all that is asked for is offered.
    let raw_device = unsafe { instance.create_device(physical_device, &info, None) }?;
    let handle: ash::Device = raw_device.clone();
    // SAFETY: the device is new and has all that wgpu would ask for; it is wgpu's from here on.
    let (device, queue) = unsafe {
        let opened = hal.device_from_raw(
            raw_device,
            None,
            &extensions,
            features,
            &descriptor.required_limits,
            &descriptor.memory_hints,
            FAMILY,
            0,
        )?;
        adapter.create_device_from_hal::<Vulkan>(opened, &descriptor)?
    };
    let described = raw::Device {
        entry: None,
        instance,
        api_version: hal.shared_instance().instance_api_version(),
        physical_device,
        device: &handle,
        create_info: &info,
        // SAFETY: the device has it.
        queue: unsafe { handle.get_device_queue(FAMILY, 0) },
        queue_family: FAMILY,
        queue_lock: None,
        // wgpu destroys the device with its last handle.
        keep: Some(Box::new(device.clone())),
    };
    // SAFETY: all is wgpu's, which lives as long as the device that is kept. One thread uses both, so that none
    // uses the queue while the other does.
    let runtime = unsafe { raw::open(described, &RuntimeOptions::default()) }?;
    Ok(Shared { runtime, device, queue })
}

//! What a physical device offers, and what the runtime asks of it.

use std::ffi::CStr;

use ash::{ext, khr, vk};

use super::{Instance, executable, matrices, requirements};
use crate::error::{Error, Result};
use crate::runtime::info::{DeviceInfo, DeviceKind, FloatControls, Limits, Matrices};

/// Slots of a bindless heap below which a device is not worth having.
const MIN_HEAP_SLOTS: u32 = 64;

/// A physical device and how to open it.
pub(in crate::runtime) struct Physical {
    pub(super) handle: vk::PhysicalDevice,
    pub(in crate::runtime) info: DeviceInfo,
    pub(super) queue: QueueFamily,
    /// Whether the subgroup size of a compute pipeline can be required.
    pub(super) required_subgroup_size: bool,
    pub(super) memory_budget: bool,
    /// Whether it can be asked what became of pipelines.
    pub(super) executables: bool,
    /// Extensions to enable when the device is opened, beside those of the matrices that it multiplies, and those that options
    /// ask for.
    pub(super) extensions: Vec<&'static CStr>,
}

/// The queue family that runs everything.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueFamily {
    pub(super) index: u32,
    /// Bits of its timestamps; 0 when it has none.
    pub(super) timestamp_bits: u32,
    /// Nanoseconds a tick.
    pub(super) timestamp_period: f32,
    /// Queues that may be had of it.
    pub(super) queues: u32,
}

impl Physical {
    /// Asks the driver everything the runtime wants to know.
    pub(super) fn query(
        entry: Option<&ash::Entry>,
        instance: &ash::Instance,
        handle: vk::PhysicalDevice,
        index: usize,
    ) -> Self {
        // SAFETY: the handle comes from this instance.
        let basic = unsafe { instance.get_physical_device_properties(handle) };
        let modern = basic.api_version >= vk::API_VERSION_1_3;
        let properties = if modern { Properties::query(instance, handle) } else { <_>::default() };
        // SAFETY: as above.
        let extensions = unsafe { instance.enumerate_device_extension_properties(handle) };
        let extensions = extensions.unwrap_or_default();
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        let wanted = [khr::portability_subset::NAME, ext::memory_budget::NAME];
        // SAFETY: the handle comes from this instance, and the device has the extension.
        let executables = modern
            && has(executable::EXTENSION)
            && unsafe { executable::offered(instance, handle) };
        let queue = queue_family(instance, handle, basic.limits.timestamp_period);
        let mut info = describe(&basic, &properties, index);
        info.memory = largest_heap(instance, handle);
        info.timestamps = queue.is_some_and(|q| q.timestamp_bits > 0);
        if !modern {
            let [major, minor, _] = info.api_version;
            info.lacks.push(format!("Vulkan 1.3 (it has {major}.{minor})"));
        } else {
            info.lacks.extend(properties.lacks);
            if info.subgroup_size == matrices::LANES {
                info.matrices = matrices::query(entry, instance, handle, has);
            }
            if info.limits.max_heap_slots < MIN_HEAP_SLOTS {
                info.lacks.push(format!("{MIN_HEAP_SLOTS} update-after-bind storage buffers"));
            }
        }
        if queue.is_none() {
            info.lacks.push("a compute queue".into());
        }
        Self {
            handle,
            info,
            queue: queue.unwrap_or_default(),
            required_subgroup_size: properties
                .v13
                .required_subgroup_size_stages
                .contains(vk::ShaderStageFlags::COMPUTE),
            memory_budget: has(ext::memory_budget::NAME),
            executables,
            extensions: wanted.into_iter().filter(|name| has(name)).collect(),
        }
    }

    /// With a caller's choice of queue family.
    ///
    /// # Errors
    /// [`Error::Parameter`] for one that does not compute.
    pub(super) fn with_family(mut self, instance: &Instance, index: u32) -> Result<Self> {
        // SAFETY: the handle comes from this instance.
        let families =
            unsafe { instance.handle().get_physical_device_queue_family_properties(self.handle) };
        let computes = families
            .get(index as usize)
            .filter(|family| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
        let family = computes.ok_or_else(|| Error::Parameter {
            name: "queue_family",
            expected: "a family that computes".into(),
            found: format!("{index} of the {} of {}", families.len(), self.info.name),
        })?;
        self.queue = QueueFamily {
            index,
            timestamp_bits: family.timestamp_valid_bits,
            timestamp_period: self.queue.timestamp_period,
            // The caller's.
            queues: 1,
        };
        self.info.timestamps = self.queue.timestamp_bits > 0;
        Ok(self)
    }
}

/// Properties of a device of Vulkan 1.3, and the required features that it lacks.
#[derive(Default)]
struct Properties {
    v11: vk::PhysicalDeviceVulkan11Properties<'static>,
    v12: vk::PhysicalDeviceVulkan12Properties<'static>,
    v13: vk::PhysicalDeviceVulkan13Properties<'static>,
    lacks: Vec<String>,
}

impl Properties {
    fn query(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Self {
        let mut found = Self::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut found.v11)
            .push_next(&mut found.v12)
            .push_next(&mut found.v13);
        // SAFETY: the device is of Vulkan 1.3, which knows every struct of the chain.
        unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
        let (mut v12, mut v13) = <_>::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next::<vk::PhysicalDeviceVulkan12Features<'_>>(&mut v12)
            .push_next::<vk::PhysicalDeviceVulkan13Features<'_>>(&mut v13);
        // SAFETY: as above; the chain is then read as it was made.
        found.lacks = unsafe {
            instance.get_physical_device_features2(handle, &mut features);
            requirements::missing(&features, &found.v11)
        };
        found
    }
}

fn describe(basic: &vk::PhysicalDeviceProperties, p: &Properties, index: usize) -> DeviceInfo {
    let version = basic.api_version;
    DeviceInfo {
        index,
        name: text(basic.device_name_as_c_str()),
        uuid: p.v11.device_uuid,
        driver_uuid: p.v11.driver_uuid,
        pipeline_cache_uuid: basic.pipeline_cache_uuid,
        kind: match basic.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        },
        driver: text(p.v12.driver_name_as_c_str()),
        driver_version: text(p.v12.driver_info_as_c_str()),
        api_version: [
            vk::api_version_major(version),
            vk::api_version_minor(version),
            vk::api_version_patch(version),
        ],
        subgroup_size: p.v11.subgroup_size,
        subgroup_sizes: [p.v13.min_subgroup_size, p.v13.max_subgroup_size],
        limits: limits(&basic.limits, p),
        float_controls: float_controls(&p.v12),
        matrices: Matrices::default(),
        memory: 0,
        timestamps: false,
        lacks: Vec::new(),
    }
}

fn limits(basic: &vk::PhysicalDeviceLimits, p: &Properties) -> Limits {
    Limits {
        max_storage_buffer_range: basic.max_storage_buffer_range.into(),
        max_buffer_size: p.v13.max_buffer_size,
        max_memory_allocation_size: p.v11.max_memory_allocation_size,
        min_storage_buffer_offset_alignment: basic.min_storage_buffer_offset_alignment,
        max_compute_work_group_count: basic.max_compute_work_group_count,
        max_compute_work_group_invocations: basic.max_compute_work_group_invocations,
        max_compute_work_group_size: basic.max_compute_work_group_size,
        max_compute_workgroup_subgroups: p.v13.max_compute_workgroup_subgroups,
        max_compute_shared_memory_size: basic.max_compute_shared_memory_size,
        max_push_constants_size: basic.max_push_constants_size,
        max_heap_slots: p
            .v12
            .max_per_stage_descriptor_update_after_bind_storage_buffers
            .min(p.v12.max_descriptor_set_update_after_bind_storage_buffers)
            .min(p.v12.max_per_stage_update_after_bind_resources)
            .min(p.v12.max_update_after_bind_descriptors_in_all_pools),
    }
}

fn float_controls(v12: &vk::PhysicalDeviceVulkan12Properties<'_>) -> FloatControls {
    let free = |independence| independence != vk::ShaderFloatControlsIndependence::NONE;
    FloatControls {
        signed_zero_inf_nan_preserve: v12.shader_signed_zero_inf_nan_preserve_float32 == vk::TRUE,
        denorm_preserve: v12.shader_denorm_preserve_float32 == vk::TRUE,
        rounding_mode_rte: v12.shader_rounding_mode_rte_float32 == vk::TRUE,
        denorm_independent: free(v12.denorm_behavior_independence),
        rounding_independent: free(v12.rounding_mode_independence),
    }
}

fn largest_heap(instance: &ash::Instance, handle: vk::PhysicalDevice) -> u64 {
    // SAFETY: the handle comes from this instance.
    let memory = unsafe { instance.get_physical_device_memory_properties(handle) };
    let heaps = memory.memory_heaps_as_slice().iter();
    heaps
        .filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|heap| heap.size)
        .max()
        .unwrap_or(0)
}

fn queue_family(
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
    timestamp_period: f32,
) -> Option<QueueFamily> {
    // SAFETY: the handle comes from this instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(handle) };
    choose_family(&families, timestamp_period)
}

/// A family that computes: preferably one that can time, and of those one that does not draw.
fn choose_family(
    families: &[vk::QueueFamilyProperties],
    timestamp_period: f32,
) -> Option<QueueFamily> {
    let (index, family) = (0..)
        .zip(families)
        .filter(|(_, f)| f.queue_count > 0 && f.queue_flags.contains(vk::QueueFlags::COMPUTE))
        .min_by_key(|(_, f)| {
            (f.timestamp_valid_bits == 0, f.queue_flags.contains(vk::QueueFlags::GRAPHICS))
        })?;
    Some(QueueFamily {
        index,
        timestamp_bits: family.timestamp_valid_bits,
        timestamp_period,
        queues: family.queue_count,
    })
}

fn text<E>(name: Result<&CStr, E>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(queue_flags: vk::QueueFlags, timestamp_valid_bits: u32) -> vk::QueueFamilyProperties {
        vk::QueueFamilyProperties {
            queue_flags,
            queue_count: 1,
            timestamp_valid_bits,
            ..<_>::default()
        }
    }

    #[test]
    fn the_queue_computes_times_and_preferably_does_not_draw() {
        let all = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE;
        let index = |families: &[_]| choose_family(families, 1.0).map(|f| f.index);
        let copies = family(vk::QueueFlags::TRANSFER, 64);
        let [draws, computes] = [family(all, 64), family(vk::QueueFlags::COMPUTE, 64)];
        let untimed = family(vk::QueueFlags::COMPUTE, 0);
        assert_eq!(index(&[copies, draws, computes]), Some(2));
        assert_eq!(index(&[untimed, draws]), Some(1));
        assert_eq!(index(&[copies, untimed]), Some(1));
        assert_eq!(index(&[copies]), None);
        let gone = vk::QueueFamilyProperties { queue_count: 0, ..computes };
        assert_eq!(index(&[gone, draws]), Some(1));
    }

    #[test]
    fn the_heap_keeps_to_every_limit() {
        let slots = |values: [u32; 4]| {
            let [stage, set, resources, pools] = values;
            let mut p = Properties::default();
            p.v12.max_per_stage_descriptor_update_after_bind_storage_buffers = stage;
            p.v12.max_descriptor_set_update_after_bind_storage_buffers = set;
            p.v12.max_per_stage_update_after_bind_resources = resources;
            p.v12.max_update_after_bind_descriptors_in_all_pools = pools;
            limits(&vk::PhysicalDeviceLimits::default(), &p).max_heap_slots
        };
        for least in 0..4 {
            let mut values = [1000; 4];
            values[least] = 10;
            assert_eq!(slots(values), 10, "{least}");
        }
    }

    #[test]
    fn float_controls_are_those_of_f32() {
        type V12 = vk::PhysicalDeviceVulkan12Properties<'static>;
        type Property = for<'a> fn(&'a mut V12) -> &'a mut vk::Bool32;
        let properties: [(Property, FloatControls); 3] = [
            (
                |p| &mut p.shader_signed_zero_inf_nan_preserve_float32,
                FloatControls { signed_zero_inf_nan_preserve: true, ..<_>::default() },
            ),
            (
                |p| &mut p.shader_denorm_preserve_float32,
                FloatControls { denorm_preserve: true, ..<_>::default() },
            ),
            (
                |p| &mut p.shader_rounding_mode_rte_float32,
                FloatControls { rounding_mode_rte: true, ..<_>::default() },
            ),
        ];
        for (property, expected) in properties {
            let mut v12 = vk::PhysicalDeviceVulkan12Properties::default()
                .denorm_behavior_independence(vk::ShaderFloatControlsIndependence::NONE)
                .rounding_mode_independence(vk::ShaderFloatControlsIndependence::NONE);
            *property(&mut v12) = vk::TRUE;
            assert_eq!(float_controls(&v12), expected);
            v12.rounding_mode_independence = vk::ShaderFloatControlsIndependence::TYPE_32_ONLY;
            assert!(float_controls(&v12).rounding_independent);
        }
    }
}

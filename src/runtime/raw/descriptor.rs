//! The one descriptor set: an update-after-bind array of storage buffers, and the pipeline layout around it. For tests
//! also sets of a binding a tensor.

use std::ops::{Range, RangeFrom};
use std::sync::Arc;

use ash::vk;

use super::{Buffer, Device, Named};
use crate::error::Result;

/// Bytes of push constants that every pipeline may use; the least that Vulkan guarantees.
pub(in crate::runtime) const PUSH_BYTES: u32 = 128;

/// Slots change while others are in use, and not all have to hold something.
const HEAP_FLAGS: vk::DescriptorBindingFlags = vk::DescriptorBindingFlags::from_raw(
    vk::DescriptorBindingFlags::PARTIALLY_BOUND.as_raw()
        | vk::DescriptorBindingFlags::UPDATE_AFTER_BIND.as_raw()
        | vk::DescriptorBindingFlags::UPDATE_UNUSED_WHILE_PENDING.as_raw(),
);

/// Descriptors written at a time when the heap is first filled.
const WRITE_CHUNK: usize = 4096;

/// Set 0 and the pipeline layout around it.
pub(in crate::runtime) struct Descriptors {
    pool: vk::DescriptorPool,
    set_layout: vk::DescriptorSetLayout,
    pipeline_layout: vk::PipelineLayout,
    set: vk::DescriptorSet,
    device: Arc<Device>,
}

impl Descriptors {
    /// The heap: binding 0 holds `slots` descriptors, of which those from `filled` on hold all of `dummy`.
    pub(in crate::runtime) fn new(
        device: &Arc<Device>,
        slots: u32,
        filled: RangeFrom<u32>,
        dummy: &Buffer,
    ) -> Result<Self> {
        let mut descriptors = Self::empty(device);
        descriptors.create(&[slots], HEAP_FLAGS)?;
        descriptors.fill(filled.start..slots, dummy);
        Ok(descriptors)
    }

    /// A binding for each buffer, with these bytes of it, or with nothing.
    ///
    /// The set is not to be used once a buffer is gone.
    #[cfg(feature = "forms")]
    pub(in crate::runtime) fn plain(
        device: &Arc<Device>,
        buffers: &[Option<(&Buffer, Range<u64>)>],
    ) -> Result<Self> {
        let mut descriptors = Self::empty(device);
        let flags = vk::DescriptorBindingFlags::PARTIALLY_BOUND;
        descriptors.create(&vec![1; buffers.len()], flags)?;
        for (binding, buffer) in (0..).zip(buffers) {
            if let Some((buffer, bytes)) = buffer {
                descriptors.update(binding, 0, &[part(buffer, bytes)]);
            }
        }
        Ok(descriptors)
    }

    fn empty(device: &Arc<Device>) -> Self {
        Self {
            pool: vk::DescriptorPool::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            pipeline_layout: vk::PipelineLayout::null(),
            set: vk::DescriptorSet::null(),
            device: device.clone(),
        }
    }

    /// Makes the set, of as many bindings as there are `counts`.
    fn create(&mut self, counts: &[u32], flags: vk::DescriptorBindingFlags) -> Result<()> {
        let device = &self.device.handle;
        let bindings: Vec<_> = (0..)
            .zip(counts)
            .map(|(binding, &count)| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(count)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let late = flags.contains(vk::DescriptorBindingFlags::UPDATE_AFTER_BIND);
        let flags = vec![flags; counts.len()];
        let mut flags =
            vk::DescriptorSetLayoutBindingFlagsCreateInfo::default().binding_flags(&flags);
        let mut info =
            vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings).push_next(&mut flags);
        if late {
            info = info.flags(vk::DescriptorSetLayoutCreateFlags::UPDATE_AFTER_BIND_POOL);
        }
        // SAFETY: the device has the features that the flags need, and the runtime held the counts against its limits.
        self.set_layout = unsafe { device.create_descriptor_set_layout(&info, None) }
            .named("vkCreateDescriptorSetLayout")?;

        let set_layouts = [self.set_layout];
        let pushes = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(PUSH_BYTES)];
        let info = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(&set_layouts)
            .push_constant_ranges(&pushes);
        // SAFETY: the layout is this device's.
        self.pipeline_layout = unsafe { device.create_pipeline_layout(&info, None) }
            .named("vkCreatePipelineLayout")?;

        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(counts.iter().sum())];
        let mut info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        if late {
            info = info.flags(vk::DescriptorPoolCreateFlags::UPDATE_AFTER_BIND);
        }
        // SAFETY: the device is alive.
        self.pool = unsafe { device.create_descriptor_pool(&info, None) }
            .named("vkCreateDescriptorPool")?;

        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(self.pool)
            .set_layouts(&set_layouts);
        // SAFETY: the pool is new and holds exactly this set.
        let sets =
            unsafe { device.allocate_descriptor_sets(&info) }.named("vkAllocateDescriptorSets")?;
        self.set = sets[0];
        Ok(())
    }

    fn fill(&self, slots: Range<u32>, dummy: &Buffer) {
        let info = vk::DescriptorBufferInfo::default().buffer(dummy.handle()).range(dummy.bytes());
        let infos = vec![info; WRITE_CHUNK.min(slots.len())];
        for first in slots.clone().step_by(WRITE_CHUNK) {
            let count = WRITE_CHUNK.min((slots.end - first) as usize);
            self.update(0, first, &infos[..count]);
        }
    }

    /// Lets `slot` hold `bytes` of `buffer`.
    ///
    /// The caller owns the slot, no command in flight uses it, and the buffer stays alive until the slot holds another.
    pub(in crate::runtime) fn write(&self, slot: u32, buffer: &Buffer, bytes: Range<u64>) {
        self.update(0, slot, &[part(buffer, &bytes)]);
    }

    fn update(&self, binding: u32, first: u32, infos: &[vk::DescriptorBufferInfo]) {
        let write = vk::WriteDescriptorSet::default()
            .dst_set(self.set)
            .dst_binding(binding)
            .dst_array_element(first)
            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
            .buffer_info(infos);
        // SAFETY: the slots are within the set; the callers, which hold the heap's lock or the only reference, see to
        // it that no command in flight uses them, which update-unused-while-pending then permits.
        unsafe { self.device.handle.update_descriptor_sets(&[write], &[]) };
    }

    pub(super) fn set(&self) -> vk::DescriptorSet {
        self.set
    }

    pub(super) fn pipeline_layout(&self) -> vk::PipelineLayout {
        self.pipeline_layout
    }
}

fn part(buffer: &Buffer, bytes: &Range<u64>) -> vk::DescriptorBufferInfo {
    vk::DescriptorBufferInfo::default()
        .buffer(buffer.handle())
        .offset(bytes.start)
        .range(bytes.end - bytes.start)
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let device = &self.device.handle;
        // SAFETY: commands that use the set keep the runtime's core, and so this, alive; null handles are ignored.
        unsafe {
            device.destroy_descriptor_pool(self.pool, None);
            device.destroy_pipeline_layout(self.pipeline_layout, None);
            device.destroy_descriptor_set_layout(self.set_layout, None);
        }
    }
}

//! Compute pipelines.

use std::ffi::CStr;
use std::sync::Arc;

use ash::vk;

use super::{Descriptors, Device, Named};
use crate::error::Result;
use crate::runtime::info::Statistic;

/// A driver's cache of pipelines.
pub(in crate::runtime) struct PipelineCache {
    handle: vk::PipelineCache,
    device: Arc<Device>,
}

impl PipelineCache {
    /// A cache that begins with what [`PipelineCache::data`] gave for this device and this driver, or with nothing.
    pub(in crate::runtime) fn new(device: &Arc<Device>, data: &[u8]) -> Result<Self> {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the device is alive, and the data are all that this driver gave, unchanged: the runtime holds a file
        // against the driver's identity, its length and a checksum.
        let handle = unsafe { device.handle.create_pipeline_cache(&info, None) }
            .named("vkCreatePipelineCache")?;
        Ok(Self { handle, device: device.clone() })
    }

    /// All that the driver keeps.
    pub(in crate::runtime) fn data(&self) -> Result<Vec<u8>> {
        // SAFETY: the cache is this device's.
        unsafe { self.device.handle.get_pipeline_cache_data(self.handle) }
            .named("vkGetPipelineCacheData")
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        // SAFETY: pipelines do not need the cache that they were made with.
        unsafe { self.device.handle.destroy_pipeline_cache(self.handle, None) };
    }
}

/// What a pipeline is made of.
pub(in crate::runtime) struct PipelineDesc<'a> {
    /// A well-formed SPIR-V module.
    pub(in crate::runtime) spirv: &'a [u32],
    pub(in crate::runtime) entry_point: &'a CStr,
    /// Id and bits of each specialization constant.
    pub(in crate::runtime) constants: &'a [(u32, u32)],
    /// The subgroup size to require.
    pub(in crate::runtime) subgroup_size: Option<u32>,
    /// Whether every subgroup must be full.
    pub(in crate::runtime) full_subgroups: bool,
}

/// A compute pipeline.
pub(in crate::runtime) struct Pipeline {
    handle: vk::Pipeline,
    /// What the driver tells of it, where it is asked.
    pub(in crate::runtime) statistics: Vec<Statistic>,
    device: Arc<Device>,
}

impl Pipeline {
    /// The pipeline, and whether the driver says that the cache held it.
    pub(in crate::runtime) fn new(
        device: &Arc<Device>,
        descriptors: &Descriptors,
        cache: &PipelineCache,
        desc: &PipelineDesc<'_>,
    ) -> Result<(Self, bool)> {
        let module = ShaderModule::new(device, desc.spirv)?;
        let words: Vec<u32> = desc.constants.iter().map(|&(_, bits)| bits).collect();
        let entries: Vec<_> = (0..)
            .zip(desc.constants)
            .map(|(i, &(id, _))| vk::SpecializationMapEntry {
                constant_id: id,
                offset: 4 * i,
                size: 4,
            })
            .collect();
        let specialization = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(bytemuck::cast_slice(&words));
        let mut subgroup = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let stage =
            stage(desc, &mut subgroup).module(module.handle).specialization_info(&specialization);
        let mut whole = vk::PipelineCreationFeedback::default();
        let mut feedback = vk::PipelineCreationFeedbackCreateInfo::default()
            .pipeline_creation_feedback(&mut whole);
        let flags = match device.executables {
            Some(_) => vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR,
            None => vk::PipelineCreateFlags::empty(),
        };
        let info = vk::ComputePipelineCreateInfo::default()
            .flags(flags)
            .stage(stage)
            .layout(descriptors.pipeline_layout())
            .push_next(&mut feedback);
        // SAFETY: module, layout and cache are this device's; every pointer is to a local that outlives the call.
        let made = unsafe { device.handle.create_compute_pipelines(cache.handle, &[info], None) };
        let handle = match made {
            Ok(pipelines) => pipelines[0],
            Err((_, code)) => return Err(super::failed("vkCreateComputePipelines", code)),
        };
        let hit = vk::PipelineCreationFeedbackFlags::VALID
            | vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
        let mut pipeline = Self { handle, statistics: Vec::new(), device: device.clone() };
        if let Some(executables) = &device.executables {
            // SAFETY: the pipeline was just made so.
            pipeline.statistics = unsafe { executables.statistics(handle) }?;
        }
        Ok((pipeline, whole.flags.contains(hit)))
    }

    pub(super) fn handle(&self) -> vk::Pipeline {
        self.handle
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // SAFETY: commands that use the pipeline keep it alive until the device is done with them.
        unsafe { self.device.handle.destroy_pipeline(self.handle, None) };
    }
}

/// The stage, with what is asked of its subgroups.
fn stage<'a>(
    desc: &PipelineDesc<'a>,
    subgroup: &'a mut vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo<'_>,
) -> vk::PipelineShaderStageCreateInfo<'a> {
    let mut stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .name(desc.entry_point);
    if let Some(size) = desc.subgroup_size {
        subgroup.required_subgroup_size = size;
        stage = stage.push_next(subgroup);
    }
    if desc.full_subgroups {
        stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
    }
    stage
}

/// A shader module; pipelines do not need it once they are made.
struct ShaderModule<'a> {
    handle: vk::ShaderModule,
    device: &'a Device,
}

impl<'a> ShaderModule<'a> {
    fn new(device: &'a Device, spirv: &[u32]) -> Result<Self> {
        let info = vk::ShaderModuleCreateInfo::default().code(spirv);
        // SAFETY: the module is one of this crate's, or the caller of the low-level interface vouches for it, and its
        // framing was checked at load.
        let handle = unsafe { device.handle.create_shader_module(&info, None) }
            .named("vkCreateShaderModule")?;
        Ok(Self { handle, device })
    }
}

impl Drop for ShaderModule<'_> {
    fn drop(&mut self) {
        // SAFETY: no pipeline creation is under way.
        unsafe { self.device.handle.destroy_shader_module(self.handle, None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drivers with one subgroup size do the same without being asked, so no test on them sees it.
    #[test]
    fn subgroups_are_asked_for() {
        let desc = |subgroup_size, full_subgroups| PipelineDesc {
            spirv: &[],
            entry_point: c"k",
            constants: &[],
            subgroup_size,
            full_subgroups,
        };
        let full = vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS;
        let mut subgroup = <_>::default();
        let asked = stage(&desc(Some(16), true), &mut subgroup);
        assert!(asked.flags == full && !asked.p_next.is_null());
        assert_eq!(subgroup.required_subgroup_size, 16);
        let mut subgroup = <_>::default();
        let free = stage(&desc(None, false), &mut subgroup);
        assert!(free.flags.is_empty() && free.p_next.is_null());
    }
}

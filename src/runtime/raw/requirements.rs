//! What the runtime asks of every device: one table for the device check, for opening the device and for the tests.

use ash::vk;

/// Features of a device of Vulkan 1.3, offered or asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Features {
    pub(super) core: vk::PhysicalDeviceFeatures,
    pub(super) v12: vk::PhysicalDeviceVulkan12Features<'static>,
    pub(super) v13: vk::PhysicalDeviceVulkan13Features<'static>,
}

/// Something that every device must have.
struct Requirement {
    /// What the list of devices calls it.
    name: &'static str,
    need: Need,
    /// The SPIR-V capability that it stands for; `None` where the runtime itself needs it.
    #[cfg_attr(not(test), expect(dead_code, reason = "held against the modules in tests"))]
    capability: Option<u32>,
}

#[derive(Clone, Copy)]
enum Need {
    Feature(fn(&mut Features) -> &mut vk::Bool32),
    /// Operations of subgroups in compute shaders.
    Subgroup(vk::SubgroupFeatureFlags),
}

const fn feature(
    name: &'static str,
    capability: Option<u32>,
    feature: fn(&mut Features) -> &mut vk::Bool32,
) -> Requirement {
    Requirement { name, need: Need::Feature(feature), capability }
}

const fn subgroup(
    name: &'static str,
    capability: u32,
    operations: vk::SubgroupFeatureFlags,
) -> Requirement {
    Requirement { name, need: Need::Subgroup(operations), capability: Some(capability) }
}

/// All of it. A capability that no kernel has is not here.
const REQUIREMENTS: &[Requirement] = &[
    // What the modules declare.
    feature("runtimeDescriptorArray", Some(5302), |f| &mut f.v12.runtime_descriptor_array),
    subgroup("basic subgroup operations", 61, vk::SubgroupFeatureFlags::BASIC),
    subgroup("subgroup arithmetic", 63, vk::SubgroupFeatureFlags::ARITHMETIC),
    subgroup("subgroup shuffles", 65, vk::SubgroupFeatureFlags::SHUFFLE),
    // What they do without declaring it: index the heap by push constants, take their workgroup size from one.
    feature("shaderStorageBufferArrayDynamicIndexing", None, |f| {
        &mut f.core.shader_storage_buffer_array_dynamic_indexing
    }),
    feature("maintenance4", None, |f| &mut f.v13.maintenance4),
    // The heap.
    feature("descriptorIndexing", None, |f| &mut f.v12.descriptor_indexing),
    feature("descriptorBindingPartiallyBound", None, |f| {
        &mut f.v12.descriptor_binding_partially_bound
    }),
    feature("descriptorBindingStorageBufferUpdateAfterBind", None, |f| {
        &mut f.v12.descriptor_binding_storage_buffer_update_after_bind
    }),
    feature("descriptorBindingUpdateUnusedWhilePending", None, |f| {
        &mut f.v12.descriptor_binding_update_unused_while_pending
    }),
    // Submissions and barriers.
    feature("timelineSemaphore", None, |f| &mut f.v12.timeline_semaphore),
    feature("synchronization2", None, |f| &mut f.v13.synchronization2),
    // Subgroups of a known size, all full.
    feature("subgroupSizeControl", None, |f| &mut f.v13.subgroup_size_control),
    feature("computeFullSubgroups", None, |f| &mut f.v13.compute_full_subgroups),
];

/// The names of what a device of these features and subgroup properties lacks.
pub(super) fn missing(
    mut features: Features,
    properties: &vk::PhysicalDeviceVulkan11Properties<'_>,
) -> Vec<String> {
    let in_compute = properties.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let lacks = |requirement: &&Requirement| match requirement.need {
        Need::Feature(feature) => *feature(&mut features) == vk::FALSE,
        Need::Subgroup(operations) => {
            !in_compute || !properties.subgroup_supported_operations.contains(operations)
        }
    };
    REQUIREMENTS.iter().filter(lacks).map(|r| r.name.to_owned()).collect()
}

/// The features to open a device with: all that are required, and no other.
pub(super) fn features() -> Features {
    let mut features = Features::default();
    for requirement in REQUIREMENTS {
        if let Need::Feature(feature) = requirement.need {
            *feature(&mut features) = vk::TRUE;
        }
    }
    features
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::manifest::KERNELS;

    const OP_CAPABILITY: u32 = 2 << 16 | 17;
    /// Every Vulkan device with compute shaders has it.
    const SHADER: u32 = 1;

    fn subgroups(
        operations: vk::SubgroupFeatureFlags,
    ) -> vk::PhysicalDeviceVulkan11Properties<'static> {
        vk::PhysicalDeviceVulkan11Properties::default()
            .subgroup_supported_operations(operations)
            .subgroup_supported_stages(vk::ShaderStageFlags::COMPUTE)
    }

    fn every_operation() -> vk::SubgroupFeatureFlags {
        let of = |r: &Requirement| match r.need {
            Need::Subgroup(operations) => operations,
            Need::Feature(_) => vk::SubgroupFeatureFlags::empty(),
        };
        REQUIREMENTS.iter().map(of).fold(vk::SubgroupFeatureFlags::empty(), |all, one| all | one)
    }

    #[test]
    fn the_kernels_have_the_capabilities_that_are_required_and_no_others() {
        let mut declared = BTreeSet::new();
        for kernel in KERNELS {
            let words = kernel.words();
            declared.extend(words[5..].chunks_exact(2).map_while(|instruction| {
                (instruction[0] == OP_CAPABILITY).then_some(instruction[1])
            }));
        }
        let required: BTreeSet<u32> =
            REQUIREMENTS.iter().filter_map(|r| r.capability).chain([SHADER]).collect();
        assert_eq!(declared, required);
    }

    #[test]
    fn a_device_that_has_it_all_lacks_nothing() {
        assert!(missing(features(), &subgroups(every_operation())).is_empty());
        let others = vk::SubgroupFeatureFlags::VOTE | vk::SubgroupFeatureFlags::BALLOT;
        assert!(!every_operation().intersects(others));
    }

    #[test]
    fn whatever_a_device_lacks_is_named() {
        for requirement in REQUIREMENTS {
            let (mut offered, mut operations) = (features(), every_operation());
            match requirement.need {
                Need::Feature(feature) => *feature(&mut offered) = vk::FALSE,
                Need::Subgroup(lacking) => operations &= !lacking,
            }
            assert_eq!(missing(offered, &subgroups(operations)), [requirement.name]);
        }
        let mut drawing = subgroups(every_operation());
        drawing.subgroup_supported_stages = vk::ShaderStageFlags::FRAGMENT;
        assert_eq!(
            missing(features(), &drawing),
            ["basic subgroup operations", "subgroup arithmetic", "subgroup shuffles"]
        );
        let nothing = missing(Features::default(), &<_>::default());
        assert_eq!(nothing.len(), REQUIREMENTS.len());
    }
}

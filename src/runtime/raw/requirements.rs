//! What the runtime asks of every device: one table for the device check, for opening a device, for the check of a
//! caller's, and for the tests. Another one for what a device may have: matrices.
//!
//! Vulkan has a switch for a feature in several structs: in that of the version that took it in, and in that of the
//! extension which it was before. A chain may hold either, never both.

use std::ffi::c_void;
use std::mem::offset_of;

use ash::vk::{self, TaggedStructure};

use super::matrices::BFloat16Features;
use crate::runtime::info::Matrices;

/// Something that a device must have, or may.
struct Requirement {
    /// What the list of devices calls it.
    name: &'static str,
    need: Need,
    /// The SPIR-V capability that it stands for; `None` where the runtime itself needs it.
    capability: Option<u32>,
}

impl Requirement {
    /// The places of its switch; none of what is no feature.
    fn switches(&self) -> &'static [Switch] {
        match self.need {
            Need::Feature(switches) => switches,
            Need::Subgroup(_) => &[],
        }
    }
}

#[derive(Clone, Copy)]
enum Need {
    /// The places of its switch.
    Feature(&'static [Switch]),
    /// Operations of subgroups in compute shaders.
    Subgroup(vk::SubgroupFeatureFlags),
}

/// Where a `VkBool32` lies in a struct of a chain.
#[derive(Clone, Copy)]
struct Switch {
    tag: vk::StructureType,
    offset: usize,
}

macro_rules! switch {
    ($kind:ident, $($field:tt)+) => {
        Switch {
            tag: <vk::$kind<'static> as TaggedStructure>::STRUCTURE_TYPE,
            offset: offset_of!(vk::$kind<'static>, $($field)+),
        }
    };
}

/// The switches of a feature that Vulkan 1.2 took in.
macro_rules! settled {
    ($kind:ident, $field:ident) => {
        &[switch!(PhysicalDeviceVulkan12Features, $field), switch!($kind, $field)]
    };
}

/// The switch of a feature of half-precision floats of the bfloat16 kind.
macro_rules! bfloat16 {
    ($field:ident) => {
        &[Switch {
            tag: BFloat16Features::STRUCTURE_TYPE,
            offset: offset_of!(BFloat16Features<'static>, $field),
        }]
    };
}

/// The switches of a feature of descriptor indexing.
macro_rules! indexing {
    ($field:ident) => {
        &[
            switch!(PhysicalDeviceVulkan12Features, $field),
            switch!(PhysicalDeviceDescriptorIndexingFeatures, $field),
        ]
    };
}

/// The switches of a feature that Vulkan 1.3 took in.
macro_rules! modern {
    ($kind:ident, $field:ident) => {
        &[switch!(PhysicalDeviceVulkan13Features, $field), switch!($kind, $field)]
    };
}

const fn feature(
    name: &'static str,
    capability: Option<u32>,
    switches: &'static [Switch],
) -> Requirement {
    Requirement { name, need: Need::Feature(switches), capability }
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
    feature("runtimeDescriptorArray", Some(5302), indexing!(runtime_descriptor_array)),
    subgroup("basic subgroup operations", 61, vk::SubgroupFeatureFlags::BASIC),
    subgroup("subgroup arithmetic", 63, vk::SubgroupFeatureFlags::ARITHMETIC),
    subgroup("subgroup shuffles", 65, vk::SubgroupFeatureFlags::SHUFFLE),
    // What they do without declaring it: index the heap by push constants, take their workgroup size from one.
    feature(
        "shaderStorageBufferArrayDynamicIndexing",
        None,
        &[switch!(PhysicalDeviceFeatures2, features.shader_storage_buffer_array_dynamic_indexing)],
    ),
    feature("maintenance4", None, modern!(PhysicalDeviceMaintenance4Features, maintenance4)),
    // The heap.
    feature("descriptorBindingPartiallyBound", None, indexing!(descriptor_binding_partially_bound)),
    feature(
        "descriptorBindingStorageBufferUpdateAfterBind",
        None,
        indexing!(descriptor_binding_storage_buffer_update_after_bind),
    ),
    feature(
        "descriptorBindingUpdateUnusedWhilePending",
        None,
        indexing!(descriptor_binding_update_unused_while_pending),
    ),
    // Submissions and barriers.
    feature(
        "timelineSemaphore",
        None,
        &[
            switch!(PhysicalDeviceVulkan12Features, timeline_semaphore),
            switch!(PhysicalDeviceTimelineSemaphoreFeatures, timeline_semaphore),
        ],
    ),
    feature(
        "synchronization2",
        None,
        modern!(PhysicalDeviceSynchronization2Features, synchronization2),
    ),
    // Subgroups of a known size, all full.
    feature(
        "subgroupSizeControl",
        None,
        modern!(PhysicalDeviceSubgroupSizeControlFeatures, subgroup_size_control),
    ),
    feature(
        "computeFullSubgroups",
        None,
        modern!(PhysicalDeviceSubgroupSizeControlFeatures, compute_full_subgroups),
    ),
];

/// What products of matrices need, whatever their elements are.
const MATRICES: &[Requirement] = &[
    feature(
        "cooperativeMatrix",
        Some(CAPABILITY_COOPERATIVE_MATRIX),
        &[switch!(PhysicalDeviceCooperativeMatrixFeaturesKHR, cooperative_matrix)],
    ),
    feature(
        "vulkanMemoryModel",
        Some(5345),
        settled!(PhysicalDeviceVulkanMemoryModelFeatures, vulkan_memory_model),
    ),
    feature(
        "vulkanMemoryModelDeviceScope",
        Some(5346),
        settled!(PhysicalDeviceVulkanMemoryModelFeatures, vulkan_memory_model_device_scope),
    ),
];

/// What those of f16 need besides.
const F16_MATRICES: &[Requirement] = &[feature(
    "shaderFloat16",
    Some(9),
    settled!(PhysicalDeviceShaderFloat16Int8Features, shader_float16),
)];

/// What those of bf16 need besides.
const BF16_MATRICES: &[Requirement] = &[
    feature("shaderBFloat16Type", Some(5116), bfloat16!(shader_bfloat16_type)),
    feature(
        "shaderBFloat16CooperativeMatrix",
        Some(5118),
        bfloat16!(shader_bfloat16_cooperative_matrix),
    ),
];

/// The capability that all modules with matrices declare.
const CAPABILITY_COOPERATIVE_MATRIX: u32 = 6022;

/// What products of these matrices need.
fn of_matrices(matrices: Matrices) -> impl Iterator<Item = &'static Requirement> {
    let lists =
        [(matrices.any(), MATRICES), (matrices.f16, F16_MATRICES), (matrices.bf16, BF16_MATRICES)];
    lists.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, list)| list)
}

/// The SPIR-V capabilities that a module may declare beside those of every device, on one that multiplies such matrices:
/// none without matrices in it.
pub(in crate::runtime) fn matrix_capabilities(matrices: Matrices, declared: &[u32]) -> Vec<u32> {
    if !declared.contains(&CAPABILITY_COOPERATIVE_MATRIX) {
        return Vec::new();
    }
    of_matrices(matrices).filter_map(|requirement| requirement.capability).collect()
}

/// The matrices that a device multiplies which offers these features.
///
/// # Safety
/// As [`Chain::new`].
pub(super) unsafe fn offered_matrices(offered: &vk::PhysicalDeviceFeatures2<'_>) -> Matrices {
    // SAFETY: the caller's promise.
    unsafe { Chain::new(std::ptr::from_ref(offered).cast()) }.matrices()
}

/// The matrices that a device made from this multiplies, as far as features say.
///
/// # Safety
/// As [`Chain::new`] for its chain.
pub(super) unsafe fn switched_on_matrices(info: &vk::DeviceCreateInfo<'_>) -> Matrices {
    // SAFETY: the caller's promise.
    unsafe { Chain::new(info.p_next) }.matrices()
}

/// Switches on what products of these matrices need, in the structs that the chain has.
///
/// # Safety
/// As [`Chain::new`] for the chain of `info`, whose structs can be written.
pub(super) unsafe fn switch_on_matrices(info: &vk::DeviceCreateInfo<'_>, matrices: Matrices) {
    // SAFETY: the caller's promise.
    let chain = unsafe { Chain::new(info.p_next) };
    for place in of_matrices(matrices).flat_map(|r| chain.places(r.switches())) {
        // SAFETY: the switch lies in a struct of its tag, which can be written.
        unsafe { place.cast_mut().write(vk::TRUE) };
    }
}

/// The SPIR-V capabilities that every device is opened with.
pub(in crate::runtime) fn capabilities() -> impl Iterator<Item = u32> {
    /// Every Vulkan device with compute shaders has it.
    const SHADER: u32 = 1;
    REQUIREMENTS.iter().filter_map(|requirement| requirement.capability).chain([SHADER])
}

/// The names of what a device lacks that offers these features and subgroup operations.
///
/// # Safety
/// As [`Chain::new`].
pub(super) unsafe fn missing(
    offered: &vk::PhysicalDeviceFeatures2<'_>,
    properties: &vk::PhysicalDeviceVulkan11Properties<'_>,
) -> Vec<String> {
    // SAFETY: the caller's promise.
    let chain = unsafe { Chain::new(std::ptr::from_ref(offered).cast()) };
    let in_compute = properties.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let lacks = |requirement: &&Requirement| match requirement.need {
        Need::Feature(switches) => !chain.has_on(switches),
        Need::Subgroup(operations) => {
            !in_compute || !properties.subgroup_supported_operations.contains(operations)
        }
    };
    REQUIREMENTS.iter().filter(lacks).map(|r| r.name.to_owned()).collect()
}

/// The names of the features that a device made from this lacks. All else is the physical device's.
///
/// # Safety
/// As [`Chain::new`] for its chain; `p_enabled_features` is null or valid.
pub(super) unsafe fn switched_off(info: &vk::DeviceCreateInfo<'_>) -> Vec<String> {
    // SAFETY: the caller's promise.
    let (chain, core) = unsafe { (Chain::new(info.p_next), info.p_enabled_features.as_ref()) };
    let core = core.map(|core| vk::PhysicalDeviceFeatures2::default().features(*core));
    let core = core.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one struct, or none.
    let core = unsafe { Chain::new(core.cast()) };
    let off = |switches| !chain.has_on(switches) && !core.has_on(switches);
    features().filter(|(_, switches)| off(switches)).map(|(name, _)| name.to_owned()).collect()
}

/// The names and switches of all features.
fn features() -> impl Iterator<Item = (&'static str, &'static [Switch])> {
    let features = REQUIREMENTS.iter().map(|r| (r.name, r.switches()));
    features.filter(|(_, switches)| !switches.is_empty())
}

/// Structs for the switches that a chain has no place for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Switches {
    core: vk::PhysicalDeviceFeatures,
    indexing: vk::PhysicalDeviceDescriptorIndexingFeatures<'static>,
    timeline: vk::PhysicalDeviceTimelineSemaphoreFeatures<'static>,
    synchronization: vk::PhysicalDeviceSynchronization2Features<'static>,
    subgroups: vk::PhysicalDeviceSubgroupSizeControlFeatures<'static>,
    maintenance: vk::PhysicalDeviceMaintenance4Features<'static>,
}

// SAFETY: the pointers in it are null but while `switch_on`'s caller borrows all of it.
unsafe impl Send for Switches {}
// SAFETY: as above.
unsafe impl Sync for Switches {}

impl Switches {
    /// Switches on all that is required and leaves on what was.
    ///
    /// # Safety
    /// As [`Chain::new`] for the chain of `info`, whose structs can be written; `p_enabled_features` is null or valid.
    pub(super) unsafe fn switch_on<'a>(
        &'a mut self,
        mut info: vk::DeviceCreateInfo<'a>,
    ) -> vk::DeviceCreateInfo<'a> {
        *self = Self::default();
        // SAFETY: the caller's promise.
        let (chain, core) = unsafe { (Chain::new(info.p_next), info.p_enabled_features.as_ref()) };
        let has = |tag| chain.structs().any(|(found, _)| found == tag);
        if !has(vk::PhysicalDeviceFeatures2::STRUCTURE_TYPE) {
            self.core = core.copied().unwrap_or_default();
            let from = offset_of!(vk::PhysicalDeviceFeatures2<'_>, features);
            for switch in features().flat_map(|(_, switches)| switches) {
                if switch.tag == vk::PhysicalDeviceFeatures2::STRUCTURE_TYPE {
                    let core = std::ptr::from_mut(&mut self.core);
                    // SAFETY: the switch lies in the struct within that of its tag.
                    unsafe {
                        core.byte_add(switch.offset - from).cast::<vk::Bool32>().write(vk::TRUE)
                    };
                }
            }
            info.p_enabled_features = &self.core;
        }
        let of_12 = !has(vk::PhysicalDeviceVulkan12Features::STRUCTURE_TYPE);
        let of_13 = !has(vk::PhysicalDeviceVulkan13Features::STRUCTURE_TYPE);
        if of_12 && !has(vk::PhysicalDeviceDescriptorIndexingFeatures::STRUCTURE_TYPE) {
            info = info.push_next(&mut self.indexing);
        }
        if of_12 && !has(vk::PhysicalDeviceTimelineSemaphoreFeatures::STRUCTURE_TYPE) {
            info = info.push_next(&mut self.timeline);
        }
        if of_13 && !has(vk::PhysicalDeviceSynchronization2Features::STRUCTURE_TYPE) {
            info = info.push_next(&mut self.synchronization);
        }
        if of_13 && !has(vk::PhysicalDeviceSubgroupSizeControlFeatures::STRUCTURE_TYPE) {
            info = info.push_next(&mut self.subgroups);
        }
        if of_13 && !has(vk::PhysicalDeviceMaintenance4Features::STRUCTURE_TYPE) {
            info = info.push_next(&mut self.maintenance);
        }
        // SAFETY: the caller's promise, and the structs just added.
        let chain = unsafe { Chain::new(info.p_next) };
        for place in features().flat_map(|(_, switches)| chain.places(switches)) {
            // SAFETY: the switch lies in a struct of its tag, which can be written.
            unsafe { place.cast_mut().write(vk::TRUE) };
        }
        info
    }
}

/// Vulkan's structs behind each other.
struct Chain {
    first: *const c_void,
}

impl Chain {
    /// # Safety
    /// Every pointer of the chain is null or to a struct of the type that its `s_type` says, which lives and is not
    /// written by others while the chain is used.
    unsafe fn new(first: *const c_void) -> Self {
        Self { first }
    }

    /// The tag and the address of each.
    fn structs(&self) -> impl Iterator<Item = (vk::StructureType, *const c_void)> {
        let mut next: *const vk::BaseInStructure<'static> = self.first.cast();
        std::iter::from_fn(move || {
            // SAFETY: what `new` was promised.
            let found = unsafe { next.as_ref() }?;
            let at = next.cast();
            next = found.p_next;
            Some((found.s_type, at))
        })
    }

    /// Where these switches lie in the chain.
    fn places(&self, switches: &[Switch]) -> impl Iterator<Item = *const vk::Bool32> {
        self.structs().flat_map(|(tag, at)| {
            let here = switches.iter().filter(move |switch| switch.tag == tag);
            here.map(move |switch| at.wrapping_byte_add(switch.offset).cast())
        })
    }

    /// The matrices for which all is on.
    fn matrices(&self) -> Matrices {
        let has = |list: &[Requirement]| list.iter().all(|r| self.has_on(r.switches()));
        let any = has(MATRICES);
        Matrices { f16: any && has(F16_MATRICES), bf16: any && has(BF16_MATRICES) }
    }

    fn has_on(&self, switches: &[Switch]) -> bool {
        // SAFETY: the switch lies in a struct of its tag.
        self.places(switches).any(|place| unsafe { place.read() } == vk::TRUE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::manifest::KERNELS;

    const OP_CAPABILITY: u32 = 2 << 16 | 17;

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
        let all = Matrices { f16: true, bf16: true };
        let optional = of_matrices(all).filter_map(|r| r.capability);
        assert_eq!(declared, capabilities().chain(optional).collect());
    }

    #[test]
    fn capabilities_of_matrices_come_with_matrices() {
        let all = Matrices { f16: true, bf16: true };
        assert!(matrix_capabilities(all, &[1, 9]).is_empty());
        let f16 = Matrices { f16: true, ..<_>::default() };
        assert_eq!(matrix_capabilities(f16, &[6022]), [6022, 5345, 5346, 9]);
        assert_eq!(matrix_capabilities(all, &[6022]).len(), 6);
        assert!(matrix_capabilities(Matrices::default(), &[6022]).is_empty());
    }

    #[test]
    fn matrices_need_all_of_their_features() {
        let offered = |off: &[Switch]| {
            let mut v12 = V12::default();
            let mut cooperative = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
            let mut bfloat16 = BFloat16Features::default();
            let features = vk::PhysicalDeviceFeatures2::default()
                .push_next(&mut v12)
                .push_next(&mut cooperative)
                .push_next(&mut bfloat16);
            let all = Matrices { f16: true, bf16: true };
            // SAFETY: the structs are there, and nobody else has them.
            unsafe {
                let chain = Chain::new(std::ptr::from_ref(&features).cast());
                let set = |on, place: *const vk::Bool32| place.cast_mut().write(on);
                let switches = of_matrices(all).map(Requirement::switches);
                switches.flat_map(|s| chain.places(s)).for_each(|p| set(vk::TRUE, p));
                chain.places(off).for_each(|p| set(vk::FALSE, p));
                offered_matrices(&features)
            }
        };
        assert_eq!(offered(&[]), Matrices { f16: true, bf16: true });
        let lists = [(MATRICES, [false; 2]), (F16_MATRICES, [false, true])];
        for (list, [f16, bf16]) in lists.into_iter().chain([(BF16_MATRICES, [true, false])]) {
            for requirement in list {
                let found = offered(requirement.switches());
                assert_eq!(found, Matrices { f16, bf16 }, "{}", requirement.name);
            }
        }
    }

    type V12 = vk::PhysicalDeviceVulkan12Features<'static>;
    type V13 = vk::PhysicalDeviceVulkan13Features<'static>;

    /// What a device lacks of whose features all are offered but those named.
    fn missing_without(
        off: &[Switch],
        properties: &vk::PhysicalDeviceVulkan11Properties<'_>,
    ) -> Vec<String> {
        let (mut v12, mut v13) = (V12::default(), V13::default());
        let offered = vk::PhysicalDeviceFeatures2::default();
        let offered = offered.push_next(&mut v12).push_next(&mut v13);
        // SAFETY: the structs are there, and nobody else has them.
        unsafe {
            let chain = Chain::new(std::ptr::from_ref(&offered).cast());
            let all = |on: vk::Bool32, place: *const vk::Bool32| place.cast_mut().write(on);
            features().flat_map(|(_, s)| chain.places(s)).for_each(|p| all(vk::TRUE, p));
            chain.places(off).for_each(|p| all(vk::FALSE, p));
            missing(&offered, properties)
        }
    }

    #[test]
    fn a_device_that_has_it_all_lacks_nothing() {
        assert!(missing_without(&[], &subgroups(every_operation())).is_empty());
        let others = vk::SubgroupFeatureFlags::VOTE | vk::SubgroupFeatureFlags::BALLOT;
        assert!(!every_operation().intersects(others));
    }

    #[test]
    fn whatever_a_device_lacks_is_named() {
        for requirement in REQUIREMENTS {
            let found = match requirement.need {
                Need::Feature(switches) => missing_without(switches, &subgroups(every_operation())),
                Need::Subgroup(lacking) => {
                    missing_without(&[], &subgroups(every_operation() & !lacking))
                }
            };
            assert_eq!(found, [requirement.name]);
        }
        let mut drawing = subgroups(every_operation());
        drawing.subgroup_supported_stages = vk::ShaderStageFlags::FRAGMENT;
        assert_eq!(
            missing_without(&[], &drawing),
            ["basic subgroup operations", "subgroup arithmetic", "subgroup shuffles"]
        );
        // SAFETY: one struct.
        let nothing = unsafe { missing(&<_>::default(), &<_>::default()) };
        assert_eq!(nothing.len(), REQUIREMENTS.len());
    }

    /// What a device made from this lacks, before and after all is switched on; the number of its structs then.
    fn switched(info: vk::DeviceCreateInfo<'_>) -> (usize, usize, usize) {
        let mut switches = Switches::default();
        // SAFETY: tests chain what they have.
        unsafe {
            let before = switched_off(&info).len();
            let info = switches.switch_on(info);
            (before, switched_off(&info).len(), Chain::new(info.p_next).structs().count())
        }
    }

    #[test]
    fn switches_go_where_there_is_a_place() {
        let all = features().count();
        let info = vk::DeviceCreateInfo::default;
        assert_eq!(switched(info()), (all, 0, 5));
        let (mut v12, mut v13) = (V12::default(), V13::default());
        assert_eq!(switched(info().push_next(&mut v12)), (all, 0, 4));
        let info_13 = info().push_next(&mut v12).push_next(&mut v13);
        // The structs are on from the call before.
        assert_eq!(switched(info_13), (all - 5, 0, 2));
        let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
        let mut features = vk::PhysicalDeviceFeatures2::default();
        let info_2 = info().push_next(&mut timeline).push_next(&mut features);
        assert_eq!(switched(info_2), (all, 0, 6));
        assert_eq!(timeline.timeline_semaphore, vk::TRUE);
        assert_eq!(features.features.shader_storage_buffer_array_dynamic_indexing, vk::TRUE);
    }

    #[test]
    fn what_was_on_stays_on() {
        let core = vk::PhysicalDeviceFeatures::default().shader_int64(true);
        let mut switches = Switches::default();
        let info = vk::DeviceCreateInfo::default().enabled_features(&core);
        // SAFETY: a chain of nothing, and a struct that is there.
        let on = unsafe { *switches.switch_on(info).p_enabled_features };
        assert_eq!(
            [on.shader_int64, on.shader_storage_buffer_array_dynamic_indexing],
            [vk::TRUE; 2]
        );
        assert_eq!(on.shader_float64, vk::FALSE);
    }
}

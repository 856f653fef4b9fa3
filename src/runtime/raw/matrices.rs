//! Products of matrices, `VK_KHR_cooperative_matrix`, which a device may have.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use ash::vk::{self, TaggedStructure};
use ash::{Entry, Instance, khr};

use super::requirements;
use crate::runtime::info::Matrices;

/// Rows and columns of the matrices that kernels multiply.
const SIDE: u32 = 16;
/// Invocations of the subgroup that does it.
pub(in crate::runtime) const LANES: u32 = 32;

/// `VK_KHR_shader_bfloat16`.
const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";
/// `VK_COMPONENT_TYPE_BFLOAT16_KHR`.
const BFLOAT16_COMPONENT: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`, which is newer than `ash`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct BFloat16Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    pub(super) shader_bfloat16_type: vk::Bool32,
    pub(super) shader_bfloat16_dot_product: vk::Bool32,
    pub(super) shader_bfloat16_cooperative_matrix: vk::Bool32,
    chain: PhantomData<&'a ()>,
}

// SAFETY: `VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR`, of a struct that is laid out as Vulkan's.
unsafe impl TaggedStructure for BFloat16Features<'_> {
    const STRUCTURE_TYPE: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);
}
// SAFETY: Vulkan lets the struct extend VkPhysicalDeviceFeatures2.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for BFloat16Features<'_> {}
// SAFETY: Vulkan lets the struct extend VkDeviceCreateInfo.
unsafe impl vk::ExtendsDeviceCreateInfo for BFloat16Features<'_> {}

impl Default for BFloat16Features<'_> {
    fn default() -> Self {
        Self {
            s_type: Self::STRUCTURE_TYPE,
            p_next: std::ptr::null_mut(),
            shader_bfloat16_type: vk::FALSE,
            shader_bfloat16_dot_product: vk::FALSE,
            shader_bfloat16_cooperative_matrix: vk::FALSE,
            chain: PhantomData,
        }
    }
}

/// The extensions that a device with these matrices is opened with.
pub(super) fn extensions(matrices: Matrices) -> impl Iterator<Item = &'static CStr> {
    let names =
        [(matrices.any(), khr::cooperative_matrix::NAME), (matrices.bf16, BFLOAT16)].into_iter();
    names.filter(|(wanted, _)| *wanted).map(|(_, name)| name)
}

/// Of these matrices, those whose extensions are among the names.
pub(super) fn within(matrices: Matrices, has: impl Fn(&CStr) -> bool) -> Matrices {
    let has = |one: Matrices| extensions(one).all(&has);
    Matrices {
        f16: matrices.f16 && has(Matrices { f16: true, bf16: false }),
        bf16: matrices.bf16 && has(Matrices { f16: false, bf16: true }),
    }
}

/// The matrices that a device of Vulkan 1.3 multiplies, of those whose extensions it has. The loader is asked for the
/// sizes; none without it.
pub(super) fn query(
    entry: Option<&Entry>,
    instance: &Instance,
    handle: vk::PhysicalDevice,
    has: impl Fn(&CStr) -> bool,
) -> Matrices {
    let known = within(Matrices { f16: true, bf16: true }, has);
    let Some(entry) = entry.filter(|_| known.any()) else { return Matrices::default() };
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut cooperative = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut bfloat16 = BFloat16Features::default();
    let mut features =
        vk::PhysicalDeviceFeatures2::default().push_next(&mut v12).push_next(&mut cooperative);
    if known.bf16 {
        features = features.push_next(&mut bfloat16);
    }
    // SAFETY: the device has the extensions of the structs; the chain is then read as it was made.
    let on = unsafe {
        instance.get_physical_device_features2(handle, &mut features);
        requirements::offered_matrices(&features)
    };
    if !on.any() {
        return on;
    }
    let extension = khr::cooperative_matrix::Instance::new(entry, instance);
    // SAFETY: the device has the extension.
    let shapes = unsafe { extension.get_physical_device_cooperative_matrix_properties(handle) };
    of_shapes(on, &shapes.unwrap_or_default())
}

/// Of these matrices, those that a device multiplies in the one way that kernels do.
fn of_shapes(on: Matrices, shapes: &[vk::CooperativeMatrixPropertiesKHR<'_>]) -> Matrices {
    let multiplies = |component| {
        shapes.iter().any(|shape| {
            [shape.m_size, shape.n_size, shape.k_size] == [SIDE; 3]
                && [shape.a_type, shape.b_type] == [component; 2]
                && [shape.c_type, shape.result_type] == [vk::ComponentTypeKHR::FLOAT32; 2]
                && shape.scope == vk::ScopeKHR::SUBGROUP
                && shape.saturating_accumulation == vk::FALSE
        })
    };
    Matrices {
        f16: on.f16 && multiplies(vk::ComponentTypeKHR::FLOAT16),
        bf16: on.bf16 && multiplies(BFLOAT16_COMPONENT),
    }
}

/// Structs for the switches of a device of our own, whose chain has none of them.
#[derive(Default)]
pub(super) struct MatrixSwitches {
    cooperative: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
    memory_model: vk::PhysicalDeviceVulkanMemoryModelFeatures<'static>,
    float16: vk::PhysicalDeviceShaderFloat16Int8Features<'static>,
    bfloat16: BFloat16Features<'static>,
}

impl MatrixSwitches {
    /// Switches on all that products of these matrices need.
    ///
    /// # Safety
    /// Every struct of the chain of `info` is of the type that it says, and can be written.
    pub(super) unsafe fn switch_on<'a>(
        &'a mut self,
        mut info: vk::DeviceCreateInfo<'a>,
        matrices: Matrices,
    ) -> vk::DeviceCreateInfo<'a> {
        if matrices.any() {
            info = info.push_next(&mut self.cooperative).push_next(&mut self.memory_model);
        }
        if matrices.f16 {
            info = info.push_next(&mut self.float16);
        }
        if matrices.bf16 {
            info = info.push_next(&mut self.bfloat16);
        }
        // SAFETY: the caller's promise, and the structs just added.
        unsafe { requirements::switch_on_matrices(&info, matrices) };
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Matrices = Matrices { f16: true, bf16: true };
    const F16: Matrices = Matrices { f16: true, bf16: false };
    const BF16: Matrices = Matrices { f16: false, bf16: true };
    const NONE: Matrices = Matrices { f16: false, bf16: false };

    #[test]
    fn the_struct_is_laid_out_as_vulkan_has_it() {
        assert_eq!(size_of::<BFloat16Features<'_>>(), size_of::<[*const c_void; 2]>() + 16);
        assert_eq!(std::mem::offset_of!(BFloat16Features<'_>, p_next), 8);
        assert_eq!(std::mem::offset_of!(BFloat16Features<'_>, shader_bfloat16_type), 16);
        assert_eq!(
            std::mem::offset_of!(BFloat16Features<'_>, shader_bfloat16_cooperative_matrix),
            24
        );
    }

    #[test]
    fn matrices_are_those_whose_extensions_there_are() {
        let names = |has: &'static [&'static CStr]| within(ALL, |name| has.contains(&name));
        assert_eq!(names(&[khr::cooperative_matrix::NAME, BFLOAT16]), ALL);
        assert_eq!(names(&[khr::cooperative_matrix::NAME]), F16);
        assert_eq!(names(&[BFLOAT16]), NONE);
        assert_eq!(within(BF16, |_| true), BF16);
        assert_eq!(extensions(NONE).count(), 0);
    }

    #[test]
    fn only_the_one_shape_counts() {
        let shape = |component| {
            vk::CooperativeMatrixPropertiesKHR::default()
                .m_size(SIDE)
                .n_size(SIDE)
                .k_size(SIDE)
                .a_type(component)
                .b_type(component)
                .c_type(vk::ComponentTypeKHR::FLOAT32)
                .result_type(vk::ComponentTypeKHR::FLOAT32)
                .scope(vk::ScopeKHR::SUBGROUP)
        };
        let f16 = shape(vk::ComponentTypeKHR::FLOAT16);
        assert_eq!(of_shapes(ALL, &[f16]), F16);
        assert_eq!(of_shapes(ALL, &[f16, shape(BFLOAT16_COMPONENT)]), ALL);
        assert_eq!(of_shapes(BF16, &[f16]), NONE);
        let others = [
            f16.m_size(8),
            f16.n_size(8),
            f16.k_size(8),
            f16.b_type(vk::ComponentTypeKHR::FLOAT32),
            f16.c_type(vk::ComponentTypeKHR::FLOAT16),
            f16.result_type(vk::ComponentTypeKHR::FLOAT16),
            f16.scope(vk::ScopeKHR::WORKGROUP),
            f16.saturating_accumulation(true),
        ];
        assert!(others.iter().all(|other| of_shapes(ALL, &[*other]) == NONE));
    }

    #[test]
    fn what_is_switched_on_is_seen() {
        for wanted in [ALL, F16, BF16, NONE] {
            let mut switches = MatrixSwitches::default();
            // SAFETY: the chain has nothing but the switches.
            let found = unsafe {
                let info = switches.switch_on(vk::DeviceCreateInfo::default(), wanted);
                requirements::switched_on_matrices(&info)
            };
            assert_eq!(found, wanted);
        }
        let mut switches = MatrixSwitches::default();
        // SAFETY: as above.
        unsafe {
            let info = switches.switch_on(vk::DeviceCreateInfo::default(), ALL);
            let model = vk::PhysicalDeviceVulkanMemoryModelFeatures::STRUCTURE_TYPE;
            let mut next = info.p_next.cast_mut().cast::<vk::BaseOutStructure<'_>>();
            while (*next).s_type != model {
                next = (*next).p_next;
            }
            (*next.cast::<vk::PhysicalDeviceVulkanMemoryModelFeatures<'_>>()).vulkan_memory_model =
                vk::FALSE;
            assert_eq!(requirements::switched_on_matrices(&info), NONE);
        }
    }
}

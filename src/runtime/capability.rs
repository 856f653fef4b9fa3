//! Which SPIR-V capabilities kernels may use, and what the others are called.

use super::info::Matrices;
use super::raw;
use super::spirv::{self, Malformed};

/// The names of the capabilities that a module declares and no device is opened with, or none that does not multiply more
/// matrices.
pub(super) fn lacking(module: &[u32], matrices: Matrices) -> Result<Vec<String>, Malformed> {
    let declared = spirv::capabilities(module)?;
    let more = raw::matrix_capabilities(matrices, &declared);
    let offered: Vec<u32> = raw::capabilities().chain(more).collect();
    let lacks = |capability: &u32| !offered.contains(capability);
    Ok(declared.into_iter().filter(lacks).map(name).collect())
}

/// The capability's name in the SPIR-V specification, or its number.
fn name(capability: u32) -> String {
    let known = NAMES.iter().find(|(number, _)| *number == capability);
    known.map_or_else(|| format!("SPIR-V capability {capability}"), |(_, name)| (*name).into())
}

/// Those that compilers of compute shaders are known to declare.
const NAMES: &[(u32, &str)] = &[
    (9, "Float16"),
    (10, "Float64"),
    (11, "Int64"),
    (12, "Int64Atomics"),
    (13, "ImageBasic"),
    (22, "Int16"),
    (28, "UniformBufferArrayDynamicIndexing"),
    (29, "SampledImageArrayDynamicIndexing"),
    (30, "StorageBufferArrayDynamicIndexing"),
    (31, "StorageImageArrayDynamicIndexing"),
    (39, "Int8"),
    (43, "Sampled1D"),
    (44, "Image1D"),
    (46, "SampledBuffer"),
    (47, "ImageBuffer"),
    (50, "ImageQuery"),
    (55, "StorageImageReadWithoutFormat"),
    (56, "StorageImageWriteWithoutFormat"),
    (62, "GroupNonUniformVote"),
    (64, "GroupNonUniformBallot"),
    (66, "GroupNonUniformShuffleRelative"),
    (67, "GroupNonUniformClustered"),
    (68, "GroupNonUniformQuad"),
    (4427, "DrawParameters"),
    (4431, "SubgroupVoteKHR"),
    (4433, "StorageBuffer16BitAccess"),
    (4434, "UniformAndStorageBuffer16BitAccess"),
    (4435, "StoragePushConstant16"),
    (4441, "VariablePointersStorageBuffer"),
    (4442, "VariablePointers"),
    (4448, "StorageBuffer8BitAccess"),
    (4449, "UniformAndStorageBuffer8BitAccess"),
    (4450, "StoragePushConstant8"),
    (4464, "DenormPreserve"),
    (4465, "DenormFlushToZero"),
    (4466, "SignedZeroInfNanPreserve"),
    (4467, "RoundingModeRTE"),
    (4468, "RoundingModeRTZ"),
    (4472, "RayQueryKHR"),
    (5055, "ShaderClockKHR"),
    (5116, "BFloat16TypeKHR"),
    (5117, "BFloat16DotProductKHR"),
    (5118, "BFloat16CooperativeMatrixKHR"),
    (5301, "ShaderNonUniform"),
    (5307, "SampledImageArrayNonUniformIndexing"),
    (5308, "StorageBufferArrayNonUniformIndexing"),
    (5345, "VulkanMemoryModel"),
    (5346, "VulkanMemoryModelDeviceScope"),
    (5347, "PhysicalStorageBufferAddresses"),
    (5357, "CooperativeMatrixNV"),
    (5394, "CooperativeVectorNV"),
    (6016, "DotProductInputAll"),
    (6017, "DotProductInput4x8Bit"),
    (6018, "DotProductInput4x8BitPacked"),
    (6019, "DotProduct"),
    (6022, "CooperativeMatrixKHR"),
    (6033, "AtomicFloat32AddEXT"),
    (6034, "AtomicFloat64AddEXT"),
    (6095, "AtomicFloat16AddEXT"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::KERNELS;

    #[test]
    fn what_is_lacking_is_named() {
        let module = KERNELS[0].words();
        let none = Matrices::default();
        assert_eq!(lacking(&module, none), Ok(Vec::new()));
        let mut more = module[..5].to_vec();
        for capability in [10, 6033, 99_999] {
            more.extend([2 << 16 | 17, capability]);
        }
        more.extend(&module[5..]);
        let names = ["Float64", "AtomicFloat32AddEXT", "SPIR-V capability 99999"];
        assert_eq!(lacking(&more, none), Ok(names.map(String::from).to_vec()));
    }

    #[test]
    fn matrices_are_for_devices_that_multiply_them() {
        let module = |capabilities: &[u32]| {
            let first = KERNELS[0].words();
            let more = capabilities.iter().flat_map(|c| [2 << 16 | 17, *c]);
            [&first[..5], &more.collect::<Vec<_>>(), &first[5..]].concat()
        };
        let none = Matrices::default();
        let f16 = Matrices { f16: true, ..none };
        let bf16 = Matrices { bf16: true, ..none };
        let lacks = |capabilities: &[u32], matrices| lacking(&module(capabilities), matrices);
        let of_f16 = [6022, 5345, 5346, 9];
        assert_eq!(lacks(&of_f16, f16), Ok(vec![]));
        assert_eq!(lacks(&of_f16, bf16), Ok(vec!["Float16".into()]));
        assert_eq!(lacks(&of_f16, none).unwrap().len(), 4);
        let of_bf16 = [6022, 5345, 5346, 5116, 5118];
        assert_eq!(lacks(&of_bf16, bf16), Ok(vec![]));
        let names = ["BFloat16TypeKHR", "BFloat16CooperativeMatrixKHR"].map(String::from);
        assert_eq!(lacks(&of_bf16, f16), Ok(names.to_vec()));
        // Without matrices it is an ordinary kernel.
        assert_eq!(lacks(&[9], f16), Ok(vec!["Float16".into()]));
    }

    #[test]
    fn each_has_one_name_and_none_is_offered() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(NAMES.iter().all(|(number, _)| raw::capabilities().all(|c| c != *number)));
    }
}

//! The instructions and decorations that modules may have: what the lints understand. Another one may copy, decorate or
//! round where no lint looks, so that it is a fault until it is looked into and listed here.

/// By number, with the names of the specification.
const INSTRUCTIONS: &[(u16, &str)] = &[
    (3, "OpSource"),
    (5, "OpName"),
    (6, "OpMemberName"),
    (10, "OpExtension"),
    (11, "OpExtInstImport"),
    (12, "OpExtInst"),
    (14, "OpMemoryModel"),
    (15, "OpEntryPoint"),
    (16, "OpExecutionMode"),
    (17, "OpCapability"),
    (19, "OpTypeVoid"),
    (20, "OpTypeBool"),
    (21, "OpTypeInt"),
    (22, "OpTypeFloat"),
    (23, "OpTypeVector"),
    (28, "OpTypeArray"),
    (29, "OpTypeRuntimeArray"),
    (30, "OpTypeStruct"),
    (32, "OpTypePointer"),
    (33, "OpTypeFunction"),
    (41, "OpConstantTrue"),
    (42, "OpConstantFalse"),
    (43, "OpConstant"),
    (44, "OpConstantComposite"),
    (48, "OpSpecConstantTrue"),
    (49, "OpSpecConstantFalse"),
    (50, "OpSpecConstant"),
    (52, "OpSpecConstantOp"),
    (54, "OpFunction"),
    (55, "OpFunctionParameter"),
    (56, "OpFunctionEnd"),
    (57, "OpFunctionCall"),
    (59, "OpVariable"),
    (61, "OpLoad"),
    (62, "OpStore"),
    (65, "OpAccessChain"),
    (66, "OpInBoundsAccessChain"),
    (71, "OpDecorate"),
    (72, "OpMemberDecorate"),
    (80, "OpCompositeConstruct"),
    (81, "OpCompositeExtract"),
    (82, "OpCompositeInsert"),
    (83, "OpCopyObject"),
    (109, "OpConvertFToU"),
    (110, "OpConvertFToS"),
    (111, "OpConvertSToF"),
    (112, "OpConvertUToF"),
    (124, "OpBitcast"),
    (126, "OpSNegate"),
    (127, "OpFNegate"),
    (128, "OpIAdd"),
    (129, "OpFAdd"),
    (130, "OpISub"),
    (131, "OpFSub"),
    (132, "OpIMul"),
    (133, "OpFMul"),
    (134, "OpUDiv"),
    (135, "OpSDiv"),
    (136, "OpFDiv"),
    (137, "OpUMod"),
    (154, "OpAny"),
    (156, "OpIsNan"),
    (157, "OpIsInf"),
    (164, "OpLogicalEqual"),
    (165, "OpLogicalNotEqual"),
    (166, "OpLogicalOr"),
    (167, "OpLogicalAnd"),
    (168, "OpLogicalNot"),
    (169, "OpSelect"),
    (170, "OpIEqual"),
    (171, "OpINotEqual"),
    (172, "OpUGreaterThan"),
    (173, "OpSGreaterThan"),
    (174, "OpUGreaterThanEqual"),
    (175, "OpSGreaterThanEqual"),
    (176, "OpULessThan"),
    (177, "OpSLessThan"),
    (178, "OpULessThanEqual"),
    (179, "OpSLessThanEqual"),
    (180, "OpFOrdEqual"),
    (181, "OpFUnordEqual"),
    (182, "OpFOrdNotEqual"),
    (183, "OpFUnordNotEqual"),
    (184, "OpFOrdLessThan"),
    (185, "OpFUnordLessThan"),
    (186, "OpFOrdGreaterThan"),
    (187, "OpFUnordGreaterThan"),
    (188, "OpFOrdLessThanEqual"),
    (189, "OpFUnordLessThanEqual"),
    (190, "OpFOrdGreaterThanEqual"),
    (191, "OpFUnordGreaterThanEqual"),
    (194, "OpShiftRightLogical"),
    (195, "OpShiftRightArithmetic"),
    (196, "OpShiftLeftLogical"),
    (197, "OpBitwiseOr"),
    (198, "OpBitwiseXor"),
    (199, "OpBitwiseAnd"),
    (200, "OpNot"),
    (224, "OpControlBarrier"),
    (245, "OpPhi"),
    (246, "OpLoopMerge"),
    (247, "OpSelectionMerge"),
    (248, "OpLabel"),
    (249, "OpBranch"),
    (250, "OpBranchConditional"),
    (251, "OpSwitch"),
    (253, "OpReturn"),
    (254, "OpReturnValue"),
    (255, "OpUnreachable"),
    (331, "OpExecutionModeId"),
    (345, "OpGroupNonUniformShuffle"),
    (350, "OpGroupNonUniformFAdd"),
    (354, "OpGroupNonUniformUMin"),
    (357, "OpGroupNonUniformUMax"),
    (400, "OpCopyLogical"),
];

/// Those of modules with matrices alone.
const OF_MATRICES: &[(u16, &str)] = &[
    (1, "OpUndef"),
    (115, "OpFConvert"),
    (4456, "OpTypeCooperativeMatrixKHR"),
    (4457, "OpCooperativeMatrixLoadKHR"),
    (4458, "OpCooperativeMatrixStoreKHR"),
    (4459, "OpCooperativeMatrixMulAddKHR"),
    (4460, "OpCooperativeMatrixLengthKHR"),
];

/// Some that no module may have, for the messages.
const OTHERS: &[(u16, &str)] = &[
    (7, "OpString"),
    (8, "OpLine"),
    (63, "OpCopyMemory"),
    (64, "OpCopyMemorySized"),
    (73, "OpDecorationGroup"),
    (74, "OpGroupDecorate"),
    (75, "OpGroupMemberDecorate"),
    (79, "OpVectorShuffle"),
    (116, "OpQuantizeToF16"),
    (148, "OpDot"),
    (225, "OpMemoryBarrier"),
    (234, "OpAtomicIAdd"),
    (332, "OpDecorateId"),
    (6035, "OpAtomicFAddEXT"),
];

/// Decorations, of ids and of members: SpecId, Block, ArrayStride, BuiltIn, Binding, DescriptorSet, Offset,
/// NoContraction.
const DECORATIONS: [u32; 8] = [1, 2, 6, 11, 33, 34, 35, 42];

/// Whether modules may have an instruction.
pub(crate) fn is_known(number: u16) -> bool {
    INSTRUCTIONS.iter().any(|(known, _)| *known == number)
}

/// Whether modules with matrices may have an instruction that others may not.
pub(crate) fn is_of_matrices(number: u16) -> bool {
    OF_MATRICES.iter().any(|(known, _)| *known == number)
}

/// Whether modules may have a decoration.
pub(crate) fn is_known_decoration(decoration: u32) -> bool {
    DECORATIONS.contains(&decoration)
}

/// What the specification calls an instruction.
pub(crate) fn name(number: u16) -> String {
    let found =
        INSTRUCTIONS.iter().chain(OF_MATRICES).chain(OTHERS).find(|(known, _)| *known == number);
    found.map_or_else(|| format!("instruction {number}"), |(_, name)| (*name).to_owned())
}

/// What the specification calls a capability.
pub(crate) fn capability(number: u32) -> String {
    let name = match number {
        1 => "Shader",
        9 => "Float16",
        10 => "Float64",
        11 => "Int64",
        12 => "Int64Atomics",
        22 => "Int16",
        39 => "Int8",
        61 => "GroupNonUniform",
        62 => "GroupNonUniformVote",
        63 => "GroupNonUniformArithmetic",
        64 => "GroupNonUniformBallot",
        65 => "GroupNonUniformShuffle",
        4433 => "StorageBuffer16BitAccess",
        5301 => "ShaderNonUniform",
        5116 => "BFloat16TypeKHR",
        5118 => "BFloat16CooperativeMatrixKHR",
        5302 => "RuntimeDescriptorArray",
        5345 => "VulkanMemoryModel",
        5346 => "VulkanMemoryModelDeviceScope",
        6022 => "CooperativeMatrixKHR",
        _ => return format!("number {number}"),
    };
    name.to_owned()
}

/// What the specification calls a decoration.
pub(crate) fn decoration(number: u32) -> String {
    let name = match number {
        0 => "RelaxedPrecision",
        19 => "Restrict",
        20 => "Aliased",
        21 => "Volatile",
        23 => "Coherent",
        24 => "NonWritable",
        25 => "NonReadable",
        40 => "FPFastMathMode",
        5300 => "NonUniform",
        _ => return format!("number {number}"),
    };
    name.to_owned()
}

/// What GLSL.std.450 calls one of its instructions.
pub(crate) fn extended(number: u32) -> String {
    let name = match number {
        13 => "Sin",
        14 => "Cos",
        26 => "Pow",
        27 => "Exp",
        28 => "Log",
        29 => "Exp2",
        30 => "Log2",
        32 => "InverseSqrt",
        46 => "FMix",
        _ => return format!("number {number}"),
    };
    name.to_owned()
}

//! The manifest and every SPIR-V module in it hold to the rules that the library relies on; above
//! all, sums run in the promised order: no atomics, and nothing that lets a driver reorder.

#[path = "../build/mod.rs"]
mod build;
mod heap_index;
mod interfaces;
mod module;
mod planted;
mod private;
mod vocabulary;

use std::collections::BTreeSet;

use backslang::manifest::{KERNELS, Kernel};
use build::compile::{MATRIX_PROFILE, PROFILE};
use build::spirv::{instructions, op, string};
use module::{BUILT_IN, Instruction, Module};

const OP_SOURCE: u16 = 3;
const OP_STRING: u16 = 7;
const OP_LINE: u16 = 8;
const OP_MEMORY_MODEL: u16 = 14;
const OP_ENTRY_POINT: u16 = 15;
const OP_CAPABILITY: u16 = 17;
const OP_DECORATE: u16 = 71;
const OP_MEMBER_DECORATE: u16 = 72;
const OP_F_ADD: u16 = 129;

const DESCRIPTOR_SET: u32 = 34;
const BINDING: u32 = 33;
const FP_FAST_MATH_MODE: u32 = 40;
const NO_CONTRACTION: u32 = 42;
const GL_COMPUTE: u32 = 5;
const LOGICAL: u32 = 0;
const GLSL450: u32 = 1;
const VULKAN: u32 = 3;

/// Of extended instructions, those that every driver computes exactly or rounds once: Round, FAbs, SAbs, Sqrt, the six
/// of minimum and maximum, Fma. Elementary functions are the shaders' own: drivers' may be tens of ulp off.
fn is_exact(extended: u32) -> bool {
    matches!(extended, 1 | 4 | 5 | 31 | 37..=42 | op::GLSL_FMA)
}

/// Whether a module needs a capability; `None` for one that no module should have. That the runtime asks devices for
/// all of them and for no others is a test of its own.
fn needs(module: &Module, capability: u32) -> Option<bool> {
    if let Some(has) = matrices_need(module, capability) {
        return module.has_matrices().then_some(has);
    }
    let has = |wanted: fn(u16) -> bool| module.all.iter().any(|(number, _)| wanted(*number));
    let built_in = |wanted: fn(u32) -> bool| {
        module.all.iter().any(|(number, words)| {
            matches!(words, [_, BUILT_IN, which] if *number == OP_DECORATE && wanted(*which))
        })
    };
    match capability {
        // Shader.
        1 => Some(true),
        // GroupNonUniform: OpGroupNonUniformElect, SubgroupSize, NumSubgroups, SubgroupId, SubgroupLocalInvocationId.
        61 => {
            Some(has(|n| (333..=366).contains(&n)) || built_in(|b| matches!(b, 36 | 38 | 40 | 41)))
        }
        // GroupNonUniformArithmetic: from OpGroupNonUniformIAdd to OpGroupNonUniformLogicalXor.
        63 => Some(has(|n| (349..=364).contains(&n))),
        // GroupNonUniformShuffle: OpGroupNonUniformShuffle, OpGroupNonUniformShuffleXor.
        65 => Some(has(|n| (345..=346).contains(&n))),
        // RuntimeDescriptorArray: a variable that is a runtime array.
        5302 => Some(module.all.iter().any(|(number, words)| {
            let pointee =
                |pointer| module.made_by.get(&pointer).and_then(|(_, p)| p.get(2).copied());
            let array =
                |ty| matches!(module.made_by.get(&ty), Some((module::op::TYPE_RUNTIME_ARRAY, _)));
            *number == module::op::VARIABLE && pointee(words[0]).is_some_and(array)
        })),
        _ => None,
    }
}

/// Whether a module with matrices needs a capability; `None` for one that is not about them.
fn matrices_need(module: &Module, capability: u32) -> Option<bool> {
    let floats = |wanted: fn(&[u32]) -> bool| {
        module.all.iter().any(|(n, words)| *n == module::op::TYPE_FLOAT && wanted(&words[1..]))
    };
    Some(match capability {
        // Float16.
        9 => floats(|kind| kind == [16]),
        // BFloat16TypeKHR, BFloat16CooperativeMatrixKHR.
        5116 | 5118 => floats(|kind| kind == [16, 0]),
        // VulkanMemoryModel, CooperativeMatrixKHR.
        5345 | 6022 => true,
        // VulkanMemoryModelDeviceScope: the compiler declares it where the heap is.
        5346 => module.all.iter().any(|(n, _)| *n == module::op::TYPE_RUNTIME_ARRAY),
        _ => return None,
    })
}

/// All atomic instructions, those of extensions included.
fn is_atomic(number: u16) -> bool {
    matches!(number, 227..=242 | 318 | 319 | 5614 | 5615 | 6035)
}

/// Floating-point arithmetic that a driver might contract or reorder: from OpFAdd on in the order
/// of the specification, then vectors, matrices and OpDot.
fn is_float_arithmetic(number: u16) -> bool {
    matches!(number, OP_F_ADD | 131 | 133 | 136 | 140..=148)
}

/// Whether the instruction is `fma`: the one extended instruction that sums are made of.
fn is_fma(number: u16, words: &[u32]) -> bool {
    number == op::EXT_INST && words.get(3) == Some(&op::GLSL_FMA)
}

/// Every rule that a module breaks.
fn lint(words: &[u32]) -> Vec<String> {
    let module = Module::new(words);
    let exact: BTreeSet<u32> = module
        .all
        .iter()
        .filter(|(number, words)| *number == OP_DECORATE && words.get(1) == Some(&NO_CONTRACTION))
        .map(|(_, words)| words[0])
        .collect();
    let mut faults = heap_index::faults(words);
    let tiled = module.has_matrices();
    faults.extend(module.all.iter().filter_map(|i| arithmetic(*i, &exact, tiled)));
    faults.extend(module.all.iter().filter_map(|i| declaration(&module, *i)));
    faults.extend(module.all.iter().filter_map(|i| unknown(&module, *i)));
    faults
}

/// What in an instruction lets results differ between drivers or runs.
/// Where matrices are multiplied, weights are rounded to halves: there the device's 2^x does.
fn arithmetic(
    (number, words): Instruction<'_>,
    exact: &BTreeSet<u32>,
    tiled: bool,
) -> Option<String> {
    const EXP2: u32 = 29;
    let name = vocabulary::name(number);
    Some(match (number, words) {
        (n, _) if is_atomic(n) => format!("atomics have no fixed order: {name}"),
        (n, [_, result, ..])
            if (is_float_arithmetic(n) || is_fma(n, words)) && !exact.contains(result) =>
        {
            format!("a driver may fuse or reorder {name}: %{result} is without NoContraction")
        }
        (op::EXT_INST, [_, _, _, EXP2, ..]) if tiled => return None,
        (op::EXT_INST, [_, _, _, extended, ..]) if !is_exact(*extended) => format!(
            "drivers differ in GLSL.std.450's {}: use shaders/shared/float_math.slang",
            vocabulary::extended(*extended)
        ),
        _ => return None,
    })
}

/// What a module declares and should not.
fn declaration(module: &Module, (number, words): Instruction<'_>) -> Option<String> {
    Some(match (number, words) {
        (OP_CAPABILITY, [c]) => match needs(module, *c) {
            Some(true) => return None,
            Some(false) => {
                format!("a capability that nothing here needs: {}", vocabulary::capability(*c))
            }
            None => {
                format!("a capability that no device is asked for: {}", vocabulary::capability(*c))
            }
        },
        (op::EXT_INST_IMPORT, [_, set @ ..]) if string(set) != "GLSL.std.450" => {
            format!("instructions of another set than GLSL.std.450: {}", string(set))
        }
        (OP_ENTRY_POINT, [model, ..]) if *model != GL_COMPUTE => {
            format!("a shader that is no compute shader: execution model {model}")
        }
        (OP_MEMORY_MODEL, words)
            if words != [LOGICAL, if module.has_matrices() { VULKAN } else { GLSL450 }] =>
        {
            format!("a memory model other than logical GLSL450, or Vulkan of matrices: {words:?}")
        }
        (OP_DECORATE, [_, BINDING | DESCRIPTOR_SET, place]) if *place != 0 => {
            "a binding other than the heap's".to_owned()
        }
        (OP_STRING, [_, text @ ..]) => {
            format!("debug information: the string {:?}", string(text))
        }
        (OP_LINE, _) | (OP_SOURCE, [_, _, _, ..]) => "debug information: source lines".to_owned(),
        _ => return None,
    })
}

/// What the lints would not understand.
fn unknown(module: &Module, (number, words): Instruction<'_>) -> Option<String> {
    Some(match (number, words) {
        (OP_DECORATE, [_, decoration, ..]) | (OP_MEMBER_DECORATE, [_, _, decoration, ..])
            if !vocabulary::is_known_decoration(*decoration) =>
        {
            format!("a decoration that no kernel needs: {}", vocabulary::decoration(*decoration))
        }
        (module::op::LOAD, [_, _, _, _, ..]) | (module::op::STORE, [_, _, _, ..]) => {
            format!("{} with memory operands, which no kernel needs", vocabulary::name(number))
        }
        (module::op::VARIABLE, [_, _, _, _, ..]) => {
            "OpVariable with an initializer, which the lints do not follow".to_owned()
        }
        // Said already, and better.
        (OP_STRING | OP_LINE, _) => return None,
        (n, _) if is_atomic(n) => return None,
        (n, _) if module.has_matrices() && vocabulary::is_of_matrices(n) => return None,
        (n, _) if !vocabulary::is_known(n) => format!(
            "{} is not among the instructions that the lints follow (tests/spirv/vocabulary.rs)",
            vocabulary::name(n)
        ),
        _ => return None,
    })
}

#[test]
fn every_module_keeps_the_rules() {
    let mut faults = Vec::new();
    for kernel in KERNELS {
        let place = format!("{} {}", kernel.name, kernel.dtype);
        faults.extend(lint(&kernel.words()).iter().map(|fault| format!("{place}: {fault}")));
    }
    assert!(faults.is_empty(), "{} fault(s)\n{}", faults.len(), faults.join("\n"));
}

/// What the compiler is allowed is what the modules have: another capability is an error there already.
#[test]
fn the_compiler_may_use_the_capabilities_that_modules_have() {
    for (profile, has_matrices) in [(PROFILE, false), (MATRIX_PROFILE, true)] {
        let allowed = profile.split('+').filter_map(|word| word.strip_prefix("spv"));
        let mut declared = BTreeSet::new();
        for kernel in KERNELS {
            let words = kernel.words();
            let module = Module::new(&words);
            // Kernels with matrices may do what all others do.
            if module.has_matrices() && !has_matrices {
                continue;
            }
            let capabilities = module.all.into_iter().filter(|i| i.0 == OP_CAPABILITY);
            declared.extend(capabilities.filter_map(|(_, words)| match words[0] {
                61 => Some("GroupNonUniform"),
                63 => Some("GroupNonUniformArithmetic"),
                65 => Some("GroupNonUniformShuffle"),
                5116 => Some("BFloat16KHR"),
                6022 => Some("CooperativeMatrixKHR"),
                // Shader is in every profile, RuntimeDescriptorArray in the one given; Float16 and the memory model
                // come with matrices.
                _ => None,
            }));
        }
        assert_eq!(BTreeSet::from_iter(allowed), declared);
    }
}

/// Of each boolean specialization constant of a module, its result and its id for specialization.
fn flags(module: &Module) -> Vec<(u32, u32)> {
    let flag = |&(number, words): &(u16, &[u32])| {
        matches!(number, op::SPEC_CONSTANT_TRUE | op::SPEC_CONSTANT_FALSE).then(|| words[1])
    };
    let ids = module.all.iter().filter_map(flag);
    ids.filter_map(|id| Some((id, module.decoration(id, op::DECORATION_SPEC_ID)?[0]))).collect()
}

/// The variables of an invocation that some variant of a kernel loads before it stores them.
fn loaded_first(kernel: &Kernel, words: &[u32]) -> BTreeSet<String> {
    let module = Module::new(words);
    let flags = flags(&module);
    let mut found = BTreeSet::new();
    for variant in 0..1u32 << flags.len() {
        let on = |i: usize| variant >> i & 1 == 1;
        let values = flags.iter().enumerate().map(|(i, (id, _))| (*id, on(i))).collect();
        let is_on = |name: &str| {
            let constant = kernel.constants.iter().find(|c| c.name == name);
            let place = constant.and_then(|c| flags.iter().position(|(_, spec)| *spec == c.id));
            place.is_some_and(on)
        };
        // The host asks for gradients of the position parts only where there are such parts.
        if is_on("mla") || !(is_on("need_position") || is_on("need_q_position")) {
            found.extend(private::loaded_first(&module, &values));
        }
    }
    // Filled when `cached` is found false, which is looked at itself.
    found.retain(|name| !name.ends_with("_cache"));
    found
}

#[test]
fn nothing_is_loaded_before_it_is_stored() {
    let mut faults = Vec::new();
    for kernel in KERNELS {
        let found = loaded_first(kernel, &kernel.words());
        let place = format!("{} {}", kernel.name, kernel.dtype);
        faults.extend(found.iter().map(|name| {
            format!("{place}: on some path the variable `{name}` is loaded before it is stored")
        }));
    }
    assert!(faults.is_empty(), "{} fault(s)\n{}", faults.len(), faults.join("\n"));
}

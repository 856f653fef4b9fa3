//! The manifest and every SPIR-V module in it hold to the rules that the library relies on; above
//! all, sums run in the promised order: no atomics, and nothing that lets a driver reorder.

mod build;

use std::collections::BTreeSet;

use backslang::manifest::{Axis, KERNELS, Kernel, Scalar, kernel};
use build::spirv::{instructions, op, string};

const OP_SOURCE: u16 = 3;
const OP_STRING: u16 = 7;
const OP_LINE: u16 = 8;
const OP_MEMORY_MODEL: u16 = 14;
const OP_ENTRY_POINT: u16 = 15;
const OP_CAPABILITY: u16 = 17;
const OP_DECORATE: u16 = 71;
const OP_F_ADD: u16 = 129;

const DESCRIPTOR_SET: u32 = 34;
const BINDING: u32 = 33;
const FP_FAST_MATH_MODE: u32 = 40;
const NO_CONTRACTION: u32 = 42;
const GL_COMPUTE: u32 = 5;
const LOGICAL: u32 = 0;
const GLSL450: u32 = 1;

/// What a device must have for the modules to load, with the capability's number.
const CAPABILITIES: &[(u32, &str)] = &[
    (1, "Shader"),
    (61, "GroupNonUniform"),
    (62, "GroupNonUniformVote"),
    (63, "GroupNonUniformArithmetic"),
    (64, "GroupNonUniformBallot"),
    (65, "GroupNonUniformShuffle"),
    (5302, "RuntimeDescriptorArray"),
];

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
fn lint(module: &[u32]) -> Vec<String> {
    let instructions = instructions(module).unwrap();
    let exact: BTreeSet<u32> = instructions
        .iter()
        .filter(|(number, words)| *number == OP_DECORATE && words.get(1) == Some(&NO_CONTRACTION))
        .map(|(_, words)| words[0])
        .collect();
    let mut faults = Vec::new();
    for (number, words) in instructions {
        let fault = match (number, words) {
            (n, _) if is_atomic(n) => format!("atomic instruction {n}"),
            (n, [_, result, ..])
                if (is_float_arithmetic(n) || is_fma(n, words)) && !exact.contains(result) =>
            {
                format!("instruction {n} without NoContraction")
            }
            (OP_CAPABILITY, [c]) if CAPABILITIES.iter().all(|(known, _)| known != c) => {
                format!("capability {c}")
            }
            (OP_ENTRY_POINT, [model, ..]) if *model != GL_COMPUTE => {
                format!("execution model {model}")
            }
            (OP_MEMORY_MODEL, words) if words != [LOGICAL, GLSL450] => {
                format!("memory model {words:?}")
            }
            (OP_DECORATE, [_, FP_FAST_MATH_MODE, ..]) => "fast math".to_owned(),
            (OP_DECORATE, [_, BINDING | DESCRIPTOR_SET, place]) if *place != 0 => {
                "a binding other than the heap's".to_owned()
            }
            (OP_STRING, [_, text @ ..]) => format!("the string {:?}", string(text)),
            (OP_LINE, _) | (OP_SOURCE, [_, _, _, ..]) => "source lines".to_owned(),
            _ => continue,
        };
        faults.push(fault);
    }
    faults
}

#[test]
fn every_module_keeps_the_rules() {
    for kernel in KERNELS {
        assert_eq!(lint(&kernel.words()), Vec::<String>::new(), "{} {}", kernel.name, kernel.dtype);
    }
}

/// Takes the instructions for which `keep` is true.
fn filter(module: &[u32], keep: impl Fn(u16, &[u32]) -> bool) -> Vec<u32> {
    let mut words = module[..5].to_vec();
    for (number, operands) in instructions(module).unwrap() {
        if keep(number, operands) {
            words.push((operands.len() as u32 + 1) << 16 | u32::from(number));
            words.extend(operands);
        }
    }
    words
}

#[test]
fn lint_sees_what_it_is_for() {
    let module = kernel("mamba3_dt_bias_gradient", "f32").unwrap().words();
    assert_eq!(filter(&module, |_, _| true), module);

    let loose = filter(&module, |n, words| n != OP_DECORATE || words[1] != NO_CONTRACTION);
    assert_eq!(lint(&loose), [format!("instruction {OP_F_ADD} without NoContraction")]);

    let fused = kernel("history_backward", "f32").unwrap().words();
    let count = instructions(&fused).unwrap().iter().filter(|(n, words)| is_fma(*n, words)).count();
    let loose = filter(&fused, |n, words| n != OP_DECORATE || words[1] != NO_CONTRACTION);
    let found = lint(&loose).into_iter().filter(|fault| fault.starts_with("instruction 12 "));
    assert!(count > 0 && found.count() == count);

    for (words, fault) in [
        (&[3 << 16 | 71, 9, NO_CONTRACTION][..], None),
        (&[7 << 16 | 6035, 1, 2, 3, 4, 5, 6], Some("atomic instruction 6035")),
        (&[7 << 16 | 234, 1, 2, 3, 4, 5, 6], Some("atomic instruction 234")),
        (&[2 << 16 | 17, 9], Some("capability 9")),
        (&[4 << 16 | 71, 9, FP_FAST_MATH_MODE, 16], Some("fast math")),
        (&[4 << 16 | 71, 9, BINDING, 1], Some("a binding other than the heap's")),
        (&[3 << 16 | 7, 9, 0x0061_002f], Some("the string \"/\"")),
    ] {
        let found = lint(&[&module, words].concat());
        assert_eq!(found, Vec::from_iter(fault.map(str::to_owned)), "{words:?}");
    }
}

#[test]
fn kernels_are_sorted_and_found() {
    assert!(!KERNELS.is_empty());
    assert!(KERNELS.is_sorted_by_key(|k| (k.name, k.dtype)));
    let names: BTreeSet<_> = KERNELS.iter().map(|k| (k.name, k.dtype)).collect();
    assert_eq!(names.len(), KERNELS.len());
    for k in KERNELS {
        let found = kernel(k.name, k.dtype).unwrap();
        assert!(std::ptr::eq(*k, found), "{} {}", k.name, k.dtype);
    }
    assert!(kernel("history_backward", "f64").is_none());
    assert!(kernel("", "").is_none());
}

#[test]
fn every_kernel_says_what_it_is() {
    for k in KERNELS {
        let place = format!("{} {}", k.name, k.dtype);
        for text in [k.domain, k.variant, k.status, k.entry_point] {
            assert!(!text.is_empty(), "{place}");
        }
        assert!(["f32", "f16", "bf16", "u32"].contains(&k.dtype), "{place}");
        assert!(k.source.ends_with(".slang"), "{place}");
        assert_eq!(k.spirv.as_ptr() as usize % 4, 0, "{place}: alignment");
        let scan = build::spirv::scan(&k.words()).unwrap();
        assert_eq!(scan.entry_point, k.entry_point, "{place}");
    }
}

#[test]
fn interfaces_hold_what_the_runtime_writes() {
    for k in KERNELS {
        let place = format!("{} {}", k.name, k.dtype);
        assert!(k.push_size <= 128, "{place}");
        for name in ["first_group_x", "first_group_y"] {
            let field = k.push_fields.iter().find(|f| f.name == name);
            assert_eq!(field.map(|f| f.kind), Some(Scalar::U32), "{place}: {name}");
            assert_eq!(k.push_offset(name), field.map(|f| f.offset), "{place}: {name}");
        }
        assert!(k.constants.is_sorted_by_key(|c| c.id), "{place}");
        let lanes = k.constants.iter().find(|c| c.name == "lanes");
        assert_eq!(lanes.map(|c| c.kind), Some(Scalar::U32), "{place}: lanes");
        for axis in k.workgroup_size {
            check_axis(k, axis);
        }
    }
}

fn check_axis(kernel: &Kernel, axis: Axis) {
    let place = format!("{} {}", kernel.name, kernel.dtype);
    match axis {
        Axis::Fixed(size) => assert!(size >= 1, "{place}"),
        Axis::Constant(id) => {
            let constant = kernel.constants.iter().find(|c| c.id == id);
            assert_eq!(constant.map(|c| c.kind), Some(Scalar::U32), "{place}: axis {id}");
        }
    }
}

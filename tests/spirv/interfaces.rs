//! What the manifest says of the modules, and what the runtime relies on.

use std::collections::BTreeSet;

use backslang::manifest::{Axis, KERNELS, Kernel, Scalar, kernel};

use super::build;
use super::module::{Module, OFFSET, PUSH_CONSTANT, op};

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

/// The offsets of the members of a module's push constants, from the module itself.
fn push_offsets(module: &Module) -> Vec<u32> {
    let made = |id: u32| module.made_by.get(&id).map(|(_, words)| *words);
    let of_block = |variable: u32| made(made(made(variable)?[0])?[2]);
    let [variable] = module.variables(PUSH_CONSTANT)[..] else { return Vec::new() };
    let block = of_block(variable).map_or(0, |words| words[0]);
    let offset = |&(number, words): &(u16, &[u32])| match words {
        [target, member, OFFSET, offset] if number == op::MEMBER_DECORATE && *target == block => {
            Some((*member, *offset))
        }
        _ => None,
    };
    let mut offsets: Vec<_> = module.all.iter().filter_map(offset).collect();
    offsets.sort();
    offsets.into_iter().map(|(_, offset)| offset).collect()
}

#[test]
fn push_constants_lie_in_the_module_where_the_manifest_says() {
    for k in KERNELS {
        let words = k.words();
        let fields: Vec<u32> = k.push_fields.iter().map(|field| field.offset).collect();
        assert_eq!(push_offsets(&Module::new(&words)), fields, "{} {}", k.name, k.dtype);
        assert_eq!(fields.last().map(|last| last + 4), Some(k.push_size), "{} {}", k.name, k.dtype);
    }
}

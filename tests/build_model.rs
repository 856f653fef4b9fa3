//! The build script, from reflection and SPIR-V over the model to generated code.

mod build;

use std::collections::BTreeMap;

use build::model::{Axis, Constant, Interface, Kernel, Manifest, PushField, Scalar};
use build::{assert_contains, codegen, reflection, spirv};

fn field(name: &str, offset: u32, kind: Scalar) -> PushField {
    PushField { name: name.into(), offset, kind }
}

fn constant(name: &str, id: u32, kind: Scalar, default: u32) -> Constant {
    Constant { name: name.into(), id, kind, default }
}

fn sample(name: &str, dtype: &str) -> Kernel {
    Kernel {
        name: name.into(),
        dtype: dtype.into(),
        domain: "ssm".into(),
        variant: "fused".into(),
        status: "stable".into(),
        source: format!("mamba3/{name}.slang"),
        entry_point: format!("{name}_{dtype}"),
        spirv: String::new(),
        workgroup_size: [Axis::Constant(1), Axis::Fixed(2), Axis::Fixed(1)],
        interface: Interface {
            push_size: 20,
            push_fields: vec![
                field("first_group_x", 0, Scalar::U32),
                field("first_group_y", 4, Scalar::U32),
                field("rows", 8, Scalar::U32),
                field("shift", 12, Scalar::I32),
                field("scale", 16, Scalar::F32),
            ],
            constants: vec![
                constant("lanes", 0, Scalar::U32, 32),
                constant("size", 1, Scalar::U32, 256),
                constant("causal", 4, Scalar::Bool, 1),
            ],
        },
    }
}

fn manifest(kernels: Vec<Kernel>) -> anyhow::Result<Manifest> {
    Manifest::new("2026.14.1".into(), "-O0".into(), "hash".into(), kernels)
}

/// The error of a manifest of one kernel, changed by `change`.
fn fault(change: impl FnOnce(&mut Kernel)) -> String {
    let mut kernel = sample("copy", "f32");
    change(&mut kernel);
    manifest(vec![kernel]).unwrap_err().to_string()
}

fn reflected(parameters: &str, attributes: &[&str]) -> String {
    let attributes: Vec<String> = attributes
        .iter()
        .map(|name| format!(r#"{{"name": "{name}", "arguments": ["the {name}"]}}"#))
        .collect();
    format!(
        r#"{{"parameters": [{parameters}], "entryPoints": [{{"name": "copy_f32", "stage": "compute",
        "threadGroupSize": [0, 1, 1], "userAttribs": [{}]}}], "bindlessSpaceIndex": 1}}"#,
        attributes.join(", ")
    )
}

fn scalar(name: &str, ty: &str, binding: &str) -> String {
    format!(
        r#"{{"name": "{name}", "binding": {binding}, "type": {{"kind": "scalar", "scalarType": "{ty}"}}}}"#
    )
}

fn push_block(fields: &[String], size: u32) -> String {
    format!(
        r#"{{"name": "push", "binding": {{"kind": "pushConstantBuffer", "index": 0}}, "type":
        {{"kind": "constantBuffer", "sizes": [{{"kind": "pushConstantBuffer", "value": 1}}],
        "elementType": {{"kind": "struct", "fields": [{}],
        "sizes": [{{"kind": "uniform", "value": {size}, "alignment": 4}}]}}}}}}"#,
        fields.join(", ")
    )
}

const ATTRIBUTES: &[&str] = &["kernel_name", "domain", "variant", "dtype", "status"];

#[test]
fn reflection_becomes_an_interface() {
    let heap = r#"{"name": "storage_buffers", "binding": {"kind": "descriptorTableSlot", "index": 0},
        "type": {"kind": "array", "elementCount": 0, "elementType": {"kind": "resource"},
        "sizes": [{"kind": "descriptorTableSlot", "value": "unbounded"}]}}"#;
    let fields = [
        scalar("rows", "uint32", r#"{"kind": "uniform", "offset": 0, "size": 4}"#),
        scalar("scale", "float32", r#"{"kind": "uniform", "offset": 4, "size": 4}"#),
    ];
    let parameters = [
        heap.to_owned(),
        scalar("causal", "bool", r#"{"kind": "specializationConstant", "index": 5}"#),
        scalar("lanes", "uint32", r#"{"kind": "specializationConstant", "index": 0}"#),
        push_block(&fields, 8),
    ];
    let file = reflection::read(&reflected(&parameters.join(", "), ATTRIBUTES)).unwrap();
    assert_eq!(
        file.interface,
        Interface {
            push_size: 8,
            push_fields: vec![field("rows", 0, Scalar::U32), field("scale", 4, Scalar::F32)],
            constants: vec![
                constant("lanes", 0, Scalar::U32, 0),
                constant("causal", 5, Scalar::Bool, 0)
            ],
        }
    );
    assert_eq!(file.entries[0].function, "copy_f32");
    assert_eq!(file.entries[0].attributes.kernel_name, "the kernel_name");
    assert_eq!(file.entries[0].attributes.status, "the status");
}

#[test]
fn tensors_of_the_push_block_become_bindings() {
    let tensor = |name, index| {
        let binding = format!(r#"{{"kind": "descriptorTableSlot", "index": {index}}}"#);
        format!(r#"{{"name": "{name}", "type": {{"kind": "resource"}}, "binding": {binding}}}"#)
    };
    let rows = scalar("rows", "uint32", r#"{"kind": "uniform", "offset": 0, "size": 4}"#);
    let read = |fields: &[String]| reflection::read(&reflected(&push_block(fields, 4), ATTRIBUTES));
    let file = read(&[tensor("a", 0), rows.clone(), tensor("b", 1)]).unwrap();
    assert_eq!(file.bindings, ["a", "b"]);
    assert_eq!(file.interface.push_fields, [field("rows", 0, Scalar::U32)]);
    let error = read(&[tensor("a", 0), rows, tensor("b", 2)]).unwrap_err().to_string();
    assert_contains(&error, "tensor `b`: binding 2, expected 1");
}

#[test]
fn reflection_faults_are_named() {
    let read = |parameters: &str, attributes: &[&str]| {
        reflection::read(&reflected(parameters, attributes)).map(|_| ()).unwrap_err()
    };
    let error = read("", &["kernel_name", "domain", "variant"]).to_string();
    assert_contains(&error, "entry point `copy_f32`: missing attribute(s): dtype, status");
    assert_contains(&read("", ATTRIBUTES).to_string(), "one block of push constants, found 0");
    let long = scalar("n", "uint64", r#"{"kind": "uniform", "offset": 0, "size": 8}"#);
    let error = format!("{:#}", read(&push_block(&[long], 8), ATTRIBUTES));
    assert_contains(&error, "push constant `n`: expected uint, int or float, found uint64");
    let flag = scalar("flag", "bool", r#"{"kind": "uniform", "offset": 0, "size": 4}"#);
    let error = read(&push_block(&[flag], 4), ATTRIBUTES).to_string();
    assert_contains(&error, "push constant `flag`: expected uint, int or float, found bool");
    let wide = scalar("wide", "float64", r#"{"kind": "specializationConstant", "index": 1}"#);
    let error = read(&wide, ATTRIBUTES).to_string();
    assert_contains(&error, "constant `wide`: expected uint, int, float or bool, found float64");
    let error = reflection::read(r#"{"parameters": []}"#).unwrap_err().to_string();
    assert_contains(&error, "no entry point");
}

/// A module of these instructions.
fn module(instructions: &[&[u32]]) -> Vec<u32> {
    let mut words = vec![0x0723_0203, 0x0001_0500, 0, 100, 0];
    for instruction in instructions {
        words.push((instruction.len() as u32) << 16 | instruction[0]);
        words.extend(&instruction[1..]);
    }
    words
}

const MAIN: &[u32] = &[15, 5, 1, u32::from_le_bytes(*b"main"), 0];

#[test]
fn scan_reads_constants_and_workgroup() {
    let words = module(&[
        MAIN,
        &[331, 1, 38, 10, 12, 11],
        &[71, 10, 1, 0],
        &[71, 13, 1, 3],
        &[71, 14, 1, 4],
        &[71, 15, 1, 5],
        &[71, 13, 42],
        &[50, 2, 10, 32],
        &[43, 2, 11, 1],
        &[43, 2, 12, 4],
        &[48, 3, 13],
        &[49, 3, 14],
        &[50, 4, 15, 1.5f32.to_bits()],
    ]);
    let scan = spirv::scan(&words).unwrap();
    assert_eq!(scan.entry_point, "main");
    assert_eq!(scan.workgroup_size, [Axis::Constant(0), Axis::Fixed(4), Axis::Fixed(1)]);
    let defaults = [(0, 32), (3, 1), (4, 0), (5, 1.5f32.to_bits())];
    assert_eq!(scan.defaults, BTreeMap::from(defaults));
    let fixed = spirv::scan(&module(&[MAIN, &[16, 1, 17, 64, 2, 1]])).unwrap();
    assert_eq!(fixed.workgroup_size, [64, 2, 1].map(Axis::Fixed));
}

#[test]
fn scan_faults_are_named() {
    let error = |words: &[u32]| spirv::scan(words).unwrap_err().to_string();
    let size: &[u32] = &[16, 1, 17, 64, 1, 1];
    assert_contains(&error(&[]), "magic");
    assert_contains(&error(&module(&[])[..3]), "header");
    assert_contains(&error(&module(&[size])), "one entry point, found 0");
    assert_contains(&error(&module(&[MAIN, MAIN, size])), "one entry point, found 2");
    assert_contains(&error(&module(&[&[15, 0, 1, 0], size])), "no compute shader");
    assert_contains(&error(&module(&[MAIN])), "no workgroup size");
    assert_contains(&error(&module(&[MAIN, &[331, 1, 38, 7, 7, 7]])), "neither a number nor");
    let words = module(&[MAIN]);
    assert_contains(&error(&words[..words.len() - 1]), "instruction of 5 words with 4 left");
    assert_contains(&error(&[&words[..], &[0]].concat()), "instruction of 0 words");
    assert_contains(&spirv::words(&[1, 2, 3]).unwrap_err().to_string(), "3 bytes");
}

#[test]
fn a_manifest_is_sorted() {
    let kernels = [("sum", "f32"), ("copy", "f32"), ("copy", "bf16")];
    let manifest = manifest(kernels.map(|(n, d)| sample(n, d)).into()).unwrap();
    let names: Vec<_> = manifest.kernels.iter().map(Kernel::file_name).collect();
    assert_eq!(names, ["copy_bf16.spv", "copy_f32.spv", "sum_f32.spv"]);
}

#[test]
fn model_faults_are_named() {
    let error = fault(|k| k.interface.push_fields[3].offset = 16);
    assert_contains(&error, "push constant `shift`: at byte 16, expected 12");
    assert_contains(&error, "shaders/mamba3/copy.slang, entry point `copy_f32`");
    assert_contains(&fault(|k| k.interface.push_size = 24), "24 bytes, but the fields make 20");
    let error = fault(|k| {
        k.interface.push_size = 132;
        let names = (0..33).map(|i| field(&format!("f{i}"), 4 * i, Scalar::U32));
        k.interface.push_fields = names.collect();
    });
    assert_contains(&error, "132 bytes of push constants, at most 128");
    assert_contains(&fault(|k| k.name = "Copy".into()), "lower-case");
    assert_contains(&fault(|k| k.dtype = String::new()), "dtype ``");
    assert_contains(&fault(|k| k.interface.constants[0].name = "loop".into()), "reserved word");
    let error = fault(|k| k.interface.constants[1].id = 0);
    assert_contains(&error, "`lanes` and `size`: ids 0 and 0 must increase");
}

#[test]
fn a_push_block_begins_with_the_first_group() {
    let error = fault(|k| k.interface.push_fields[0].name = "first".into());
    assert_contains(&error, "expected `uint first_group_x` at byte 0, found `first` (U32)");
    let error = fault(|k| k.interface.push_fields[1].kind = Scalar::I32);
    assert_contains(&error, "expected `uint first_group_y` at byte 4, found `first_group_y` (I32)");
    let error = fault(|k| {
        k.interface.push_fields.truncate(1);
        k.interface.push_size = 4;
    });
    assert_contains(&error, "expected `uint first_group_y` at byte 4, found nothing");
    let error = fault(|k| {
        let [x, y] = [0, 1].map(|place| k.interface.push_fields[place].name.clone());
        k.interface.push_fields[0].name = y;
        k.interface.push_fields[1].name = x;
    });
    assert_contains(&error, "expected `uint first_group_x` at byte 0, found `first_group_y`");
}

#[test]
fn element_types_share_the_interface() {
    let mut other = sample("copy", "f16");
    other.interface.constants[0].default = 0;
    assert!(manifest(vec![sample("copy", "f32"), other.clone()]).is_ok());
    other.interface.push_fields[2].name = "columns".into();
    let error = manifest(vec![sample("copy", "f32"), other.clone()]).unwrap_err().to_string();
    assert_contains(&error, "kernel `copy` has other push constants than");
    other = sample("copy", "f16");
    other.interface.constants.pop();
    let error = manifest(vec![sample("copy", "f32"), other]).unwrap_err().to_string();
    assert_contains(&error, "kernel `copy` has other specialization constants than");
    let error = manifest(vec![sample("copy", "f32"); 2]).unwrap_err().to_string();
    assert_contains(&error, "kernel `copy` for `f32` is there already");
}

#[test]
fn generated_code_states_the_layout() {
    let kernels = vec![sample("copy", "f32"), sample("copy", "bf16")];
    let code = codegen::generate(&manifest(kernels).unwrap(), "spirv");
    for part in [
        "pub(crate) mod copy {",
        "pub(crate) shift: i32,",
        "assert!(size_of::<Push>() == 20 && 20 <= 128);",
        "assert!(std::mem::offset_of!(Push, scale) == 16);",
        "#[derive(Clone, Debug, PartialEq, Eq, Hash)]\n    pub(crate) struct Constants {",
        "pub(crate) causal: bool,",
        "u32::from(self.causal),",
        "Constant { name: \"size\", id: 1, kind: Scalar::U32, default: 256 },",
        "pub(crate) static BF16: Kernel = Kernel {",
        "workgroup_size: [Axis::Constant(1), Axis::Fixed(2), Axis::Fixed(1)],",
        "&copy::BF16,\n    &copy::F32,\n",
    ] {
        assert_contains(&code, part);
    }
    assert_eq!(code.matches("struct Push ").count(), 1);
    let mut float = sample("copy", "f32");
    float.interface.constants[1].kind = Scalar::F32;
    let code = codegen::generate(&manifest(vec![float]).unwrap(), "spirv");
    assert_contains(&code, "#[derive(Clone, Debug, PartialEq)]\n    pub(crate) struct Constants {");
    assert_contains(&code, "self.size.to_bits(),");
}

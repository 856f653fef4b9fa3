//! What is read from files, without a device.

use backslang::manifest::{Axis, KERNELS, Scalar};
use backslang::slang::{Compiler, Constant, Field, Value};

use crate::harness::Folder;
use crate::{SCALE, assert_has, compile, refused};

pub(crate) fn tell_what_they_ask_for() {
    let kernel = compile(SCALE).unwrap();
    assert_eq!((kernel.name(), kernel.entry_point()), ("scale", "main"));
    let attributes: Vec<_> =
        kernel.attributes().iter().map(|a| (a.name.as_str(), a.arguments.join(","))).collect();
    assert_eq!(attributes, [("kernel_name", "scale".into()), ("domain", "test".to_owned())]);
    let field = |name: &str, offset, kind| Field { name: name.into(), offset, kind };
    let fields = [
        field("first_group_x", 0, Scalar::U32),
        field("first_group_y", 4, Scalar::U32),
        field("x_index", 8, Scalar::U32),
        field("y_index", 12, Scalar::U32),
        field("count", 16, Scalar::U32),
        field("factor", 20, Scalar::F32),
    ];
    assert_eq!(kernel.fields(), fields);
    let constants = [
        Constant { name: "size".into(), id: 1, kind: Scalar::U32, default: Some(32) },
        Constant { name: "doubled".into(), id: 3, kind: Scalar::Bool, default: Some(0) },
    ];
    assert_eq!(kernel.constants(), constants);
    assert_eq!(kernel.workgroup_size(), [Axis::Constant(1), Axis::Fixed(1), Axis::Fixed(1)]);
    assert_eq!(kernel.tensors(), ["x", "y"]);
    assert_eq!(kernel.values(), ["count", "factor", "size", "doubled"]);
}

/// The build reads the same of the same files, from another output of the compiler.
pub(crate) fn own_kernels() {
    let compiler = Compiler::new().unwrap();
    for source in ["mamba3/preprocess_backward.slang", "tensor/pack.slang"] {
        let path = format!("{}/shaders/{source}", env!("CARGO_MANIFEST_DIR"));
        let module = compiler.load(path.as_ref()).unwrap();
        let own: Vec<_> = KERNELS.iter().filter(|kernel| kernel.source == source).collect();
        assert!(!own.is_empty() && module.entry_points().len() == own.len());
        for own in own {
            let kernel = module.kernel(Some(own.entry_point)).unwrap();
            assert_eq!((kernel.name(), kernel.workgroup_size()), (own.name, own.workgroup_size));
            let fields = kernel.fields().iter().map(|f| (f.name.as_str(), f.offset, f.kind));
            let expected = own.push_fields.iter().map(|f| (f.name, f.offset, f.kind));
            assert!(fields.eq(expected), "{}", own.name);
            let constants = kernel.constants().iter().map(|c| (c.name.as_str(), c.id, c.kind));
            let expected = own.constants.iter().map(|c| (c.name, c.id, c.kind));
            assert!(constants.eq(expected), "{}", own.name);
            for (found, own) in kernel.constants().iter().zip(own.constants) {
                assert!(found.default.is_none_or(|bits| bits == own.default), "{}", own.name);
            }
        }
    }
}

/// The compiler's own words reach the caller, from the file and from what it imports.
pub(crate) fn faults() {
    let wrong = SCALE.replace("push.factor", "push.facter");
    assert_has(&refused(&wrong), &["k.slang:23", "facter"]);
    assert_has(&refused(&SCALE.replace("{\n    uint i", "{\n    uint i i")), &["k.slang:21"]);
    assert_has(&refused(&SCALE.replace("import storage", "import storrage")), &["storrage"]);
    let folder = Folder::new();
    folder.write("helpers.slang", b"float twice(float v) {\n    return 2 * w;\n}\n");
    folder.write("k.slang", b"import helpers;\n");
    let compiler = Compiler::new().unwrap();
    let load = |name: &str| compiler.load(folder.at(name).as_ref());
    let message = load("k.slang").map(drop).unwrap_err().to_string();
    assert_has(&message, &["helpers.slang:2"]);
    let missing = load("none.slang").map(drop).unwrap_err();
    assert!(missing.is_input() && missing.kind() == "slang", "{missing}");
    assert_has(&missing.to_string(), &["none.slang", "No such file"]);
    assert_has(&load("k.txt").map(drop).unwrap_err().to_string(), &["k.txt", "NAME.slang"]);
    folder.write("two.slang", SCALE.replace("void main", "void first").as_bytes());
    let two = load("two.slang").unwrap();
    assert_has(&two.kernel(Some("frst")).unwrap_err().to_string(), &["`frst`", "`first`?"]);
    folder.write("empty.slang", b"float f(float v) { return v; }\n");
    let empty = load("empty.slang").unwrap().kernel(None).unwrap_err().to_string();
    assert_has(&empty, &["empty.slang", "no entry point"]);
}

pub(crate) fn parameters() {
    for (from, to, parts) in [
        ("float factor", "float3 factor", ["`factor`", "vector<float,3>"]),
        ("float factor", "double factor", ["`factor`", "double"]),
        ("uint x_index", "int x_index", ["`x_index`", "expected uint, found int"]),
        ("uint first_group_x", "float first_group_x", ["`first_group_x`", "found float"]),
        ("uint count;", "uint count; uint size;", ["`size`", "specialization constant"]),
        ("binding(0, 0)", "binding(2, 1)", ["`storage_buffers` (binding 2, set 1)", "binding 0"]),
        ("const uint size = 32;", "const uint64_t size = 32;", ["`size`", "uint64_t"]),
        ("uint3 thread :", "uniform uint more, uint3 thread :", ["uniform", "push_constant"]),
    ] {
        let text = SCALE.replacen(from, to, 1);
        // What is not used is not in the module.
        let text = text.replace("if (i >= push.count", "if (i >= push.count + more * 0");
        let text = if to.contains("more") { text } else { text.replace(" + more * 0", "") };
        let message = refused(&text.replace("push.factor *", "2.0 *"));
        assert_has(&message, &parts);
    }
}

pub(crate) fn calls() {
    let kernel = compile(SCALE).unwrap();
    let mut call = kernel.call();
    let mut fault = |name: &str, text: &str, parts: &[&str]| {
        let error = call.set_text(name, text).map(drop).unwrap_err();
        assert!(error.is_input() && error.kind() == "user-kernel", "{error}");
        assert_has(&error.to_string(), &[&["kernel `scale`"], parts].concat());
    };
    fault("cont", "1", &["`cont`", "count, factor, size, doubled", "did you mean `count`?"]);
    fault("count", "-1", &["`count`", "uint", "`-1`"]);
    fault("count", "4294967296", &["`count`", "4294967295"]);
    fault("factor", "two", &["`factor`", "float", "`two`"]);
    fault("doubled", "1", &["`doubled`", "true or false"]);
    fault("x_index", "1", &["`x_index`", "tensor `x`"]);
    fault("first_group_x", "1", &["filled in"]);
    let wrong = call.set("count", Value::F32(1.0)).map(drop).unwrap_err().to_string();
    assert_has(&wrong, &["`count`", "expected uint, found float"]);
    let missing = call.check_values().unwrap_err().to_string();
    assert_has(&missing, &["not set: count (uint), factor (float)"]);
    call.set_text("count", "7").unwrap().set_text("factor", "1e-5").unwrap();
    call.set("doubled", Value::Bool(true)).unwrap();
    call.check_values().unwrap();
    let value = |name| call.value(name);
    assert_eq!([value("count"), value("size")], [Some(Value::U32(7)), Some(Value::U32(32))]);
    assert_eq!([value("factor"), value("z")], [Some(Value::F32(1e-5)), None]);
    assert_has(&kernel.check_tensor("z").unwrap_err().to_string(), &["tensor `z`", "x, y"]);
}

//! The build script's dealings with files: the search for slangc, the sources, the committed SPIR-V.

mod build;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use build::compile::{Compiled, all_flags};
use build::model::{Axis, Interface, Kernel, Manifest, PushField, Scalar};
use build::slangc::{ALL, Found, NAMED, Slangc, Version, find};
use build::sources::{self, Sources};
use build::{assert_contains, committed, folder, write};

#[test]
fn versions() {
    let read = |text| Version::parse(text).map(|v| v.0);
    assert_eq!(read("2026.14.1\n"), Some([2026, 14, 1]));
    assert_eq!(read("v2026.13"), Some([2026, 13, 0]));
    assert_eq!(read("2026.13-12-gabcdef0"), Some([2026, 13, 0]));
    for text in ["", "2026", "unknown", "2026.x", "1.2.3.4"] {
        assert_eq!(read(text), None, "{text}");
    }
    assert!(Version([2026, 13, 0]) <= Version([2026, 13, 1]));
    assert!(Version([2025, 24, 3]) < Version([2026, 2, 0]));
    assert_eq!(Version([2026, 13, 0]).to_string(), "2026.13");
}

#[test]
fn the_compiler_is_found_in_order() {
    let root = folder("find");
    let program = format!("slangc{}", std::env::consts::EXE_SUFFIX);
    let places = ["own", "slang/bin", "sdk/bin", "path"];
    let paths = places.map(|place| root.join(place).join(&program));
    for path in &paths {
        write(path.clone(), "");
    }
    let all = [
        ("SLANGC", paths[0].clone().into_os_string()),
        ("SLANG_DIR", root.join("slang").into_os_string()),
        ("VULKAN_SDK", root.join("sdk").into_os_string()),
        ("PATH", std::env::join_paths([root.join("none"), root.join("path")]).unwrap()),
    ];
    for first in 0..=all.len() {
        let given: BTreeMap<&str, OsString> = all[first..].iter().cloned().collect();
        let mut asked = Vec::new();
        let found = find(ALL, |name| given.get(name).cloned(), |name| asked.push(name)).unwrap();
        let expected = all.get(first).map(|(variable, _)| (paths[first].clone(), *variable));
        assert_eq!(found.map(|f| (f.program, f.variable)), expected);
        assert_eq!(asked, ALL[..(first + 1).min(ALL.len())]);
    }
    let path_only = |name: &str| (name == "PATH").then(|| all[3].1.clone());
    assert_eq!(find(NAMED, path_only, |_| ()).unwrap(), None);
    let empty = |name: &str| (name != "PATH").then(OsString::new);
    assert_eq!(find(ALL, empty, |_| ()).unwrap(), None);
}

#[test]
fn a_named_compiler_has_to_be_there() {
    for name in NAMED {
        let wrong = |asked: &str| (asked == *name).then(|| OsString::from("/nowhere"));
        let error = find(ALL, wrong, |_| ()).unwrap_err().to_string();
        assert_contains(&error, &format!("{name}=/nowhere"));
        assert_contains(&error, &format!("unset {name}"));
        assert_contains(&error, "tools/setup");
    }
    let sdk = |asked: &str| (asked == "VULKAN_SDK").then(|| OsString::from("/nowhere"));
    assert_eq!(find(ALL, sdk, |_| ()).unwrap(), None);
}

#[cfg(unix)]
#[test]
fn an_old_compiler_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let program = folder("old").join("slangc");
    for (text, part) in [
        ("#!/bin/sh\necho 2025.24.3 >&2\n", "is version 2025.24.3, 2026.13 or newer is needed"),
        ("#!/bin/sh\necho hello\n", "does not tell its version"),
        ("#!/no/such/interpreter\n", "cannot be run"),
    ] {
        // A new file each time: one just written may still count as open.
        let _ = fs::remove_file(&program);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let found = Found { program: program.clone(), variable: "VULKAN_SDK" };
        let error = format!("{:#}", Slangc::new(&found).err().unwrap());
        assert_contains(&error, part);
        assert_contains(&error, &program.display().to_string());
        assert_contains(&error, "unset VULKAN_SDK");
        assert_contains(&error, "tools/setup");
    }
}

#[test]
fn the_hash_is_of_names_and_contents() {
    let hash = |name: &str, files: &[(&str, &str)]| {
        let root = folder(name);
        for (name, text) in files {
            write(root.join(name), text);
        }
        Sources::read(&root).unwrap()
    };
    let one = hash("one", &[("shared/b.slang", "x\ny\n"), ("m/a.slang", "z")]);
    assert_eq!(one.kernels(), ["m/a.slang"]);
    let same = [
        ("m/a.slang", "z"),
        ("shared/b.slang", "x\r\ny\r\n"),
        ("compiled/c.slang", "not a source"),
        ("m/notes.txt", "not a source"),
    ];
    assert_eq!(hash("same", &same).hash(), one.hash());
    let renamed = [("shared/b.slang", "x\ny\n"), ("m/b.slang", "z")];
    assert_ne!(hash("renamed", &renamed).hash(), one.hash());
    let changed = [("shared/b.slang", "x\ny"), ("m/a.slang", "z")];
    assert_ne!(hash("changed", &changed).hash(), one.hash());
}

#[test]
fn imports_are_followed() {
    let root = folder("imports");
    for (name, text) in [
        ("m/direct.slang", "import matrix;\n"),
        ("m/through.slang", "import other;\nimport tiles;\n"),
        ("m/none.slang", "// import matrix;\nimport other;\n"),
        ("shared/matrix.slang", "import tiles;\n"),
        ("shared/tiles.slang", "import matrix;\n"),
        ("shared/other.slang", "import other;\n"),
    ] {
        write(root.join(name), text);
    }
    let sources = Sources::read(&root).unwrap();
    let imports = |name| sources.imports(name, "matrix");
    assert!(imports("m/direct.slang") && imports("m/through.slang"));
    assert!(!imports("m/none.slang"));
}

#[test]
fn committed_modules_are_written_and_read() {
    let root = folder("committed");
    let sources = Sources::read(&root).unwrap();
    let manifest = Manifest {
        compiler: "2026.14.1".into(),
        flags: all_flags(),
        sources: sources.hash(),
        kernels: vec![sample()],
    };
    let modules = BTreeMap::from([("copy_f32.spv".to_owned(), b"abcd".to_vec())]);
    let compiled = Compiled { manifest, modules };
    let target = root.join("compiled");
    let error = committed::update("compiled".as_ref(), &compiled).unwrap_err().to_string();
    assert_contains(&error, "BACKSLANG_UPDATE_SHADERS=compiled: expected an absolute path");

    write(target.join("old_f32.spv"), "");
    committed::update(&target, &compiled).unwrap();
    assert!(!target.join("old_f32.spv").exists());
    let read = committed::load(&target, &sources).unwrap();
    assert_eq!(read.manifest, compiled.manifest);
    assert_eq!(read.modules, compiled.modules);
    assert_eq!(committed::stale_reason(&target, &compiled, &sources), None);

    let other_flags = Manifest { flags: "-O3".into(), ..compiled.manifest.clone() };
    let other = Compiled { manifest: other_flags, modules: compiled.modules.clone() };
    committed::update(&target, &other).unwrap();
    let error = format!("{:#}", committed::load(&target, &sources).err().unwrap());
    assert_contains(&error, "the compiler flags have changed since");
    committed::update(&target, &compiled).unwrap();

    let error = |sources: &Sources| {
        format!("{:#}", committed::load(&target, sources).err().expect("an error"))
    };
    write(target.join("copy_f32.spv"), "abce");
    assert_contains(&error(&sources), "copy_f32.spv is not the file that manifest.json describes");
    fs::remove_file(target.join("copy_f32.spv")).unwrap();
    assert_contains(&error(&sources), "shaders/compiled/copy_f32.spv");
    write(root.join("m/a.slang"), "z");
    let newer = Sources::read(&root).unwrap();
    for text in [error(&newer), committed::stale_reason(&target, &compiled, &newer).unwrap()] {
        assert_contains(&text, "shaders/compiled is stale: the sources have changed since");
        assert_contains(&text, "tools/setup");
        assert_contains(&text, "tools/shaders");
    }
    fs::remove_file(target.join("manifest.json")).unwrap();
    assert_contains(&error(&sources), "manifest.json cannot be read; run tools/setup");
}

/// Whatever a build takes, the committed modules are those of the committed sources.
#[test]
fn what_is_committed_belongs_together() {
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let sources = Sources::read(&shaders).unwrap();
    let compiled = committed::load(&shaders.join(sources::COMPILED), &sources).unwrap();
    let kernels = &compiled.manifest.kernels;
    assert_eq!(kernels.len(), backslang::manifest::KERNELS.len());
    assert_eq!(kernels.len(), compiled.modules.len());
    let built = kernels.iter().zip(backslang::manifest::KERNELS);
    for (committed, built) in built {
        assert_eq!((&*committed.name, &*committed.dtype), (built.name, built.dtype));
    }
    let mut files: Vec<_> = fs::read_dir(shaders.join(sources::COMPILED))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "manifest.json")
        .collect();
    files.sort();
    assert!(files.iter().eq(compiled.modules.keys()), "{files:?}");
}

fn sample() -> Kernel {
    let first = |name: &str, offset| PushField { name: name.into(), offset, kind: Scalar::U32 };
    let push_fields = vec![first("first_group_x", 0), first("first_group_y", 4)];
    Kernel {
        name: "copy".into(),
        dtype: "f32".into(),
        domain: "ssm".into(),
        variant: "fused".into(),
        status: "stable".into(),
        source: "m/copy.slang".into(),
        entry_point: "copy_f32".into(),
        spirv: sources::hash(b"abcd"),
        workgroup_size: [Axis::Constant(1), Axis::Fixed(2), Axis::Fixed(1)],
        interface: Interface { push_size: 8, push_fields, constants: Vec::new() },
    }
}

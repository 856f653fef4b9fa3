//! The build script with the real compiler, found as in a build; ignored where there is none.

mod build;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use build::compile::{Compiled, Form, compile};
use build::model::{Axis, Scalar};
use build::slangc::{self, Slangc};
use build::sources::Sources;
use build::{assert_contains, folder, write};
use libtest_mimic::{Arguments, Trial};

/// A test with the compiler at hand.
type Test = fn(&Slangc);

const TESTS: &[(&str, Test)] = &[
    ("a_file_is_compiled", a_file_is_compiled),
    ("modules_do_not_depend_on_the_folder", modules_do_not_depend_on_the_folder),
    ("outputs_are_reused", outputs_are_reused),
    ("all_failures_are_reported", all_failures_are_reported),
    ("warnings_are_failures", warnings_are_failures),
];

fn main() -> ExitCode {
    let found = slangc::find(slangc::ALL, |name| env::var_os(name), |_| ());
    let found = found.ok().flatten().filter(|found| Slangc::new(found).is_ok());
    let mut trials = Vec::new();
    for (name, test) in TESTS {
        let found = found.clone();
        let is_missing = found.is_none();
        let run = move || {
            if let Some(found) = found {
                test(&Slangc::new(&found).map_err(|error| format!("{error:#}"))?);
            }
            Ok(())
        };
        trials.push(Trial::test(*name, run).with_ignored_flag(is_missing));
    }
    if found.is_none() {
        eprintln!("ignored: there is no slangc of version {} or newer", slangc::MINIMUM);
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

const SHARED: &str = r#"
[__AttributeUsage(_AttributeTargets.Function)] struct kernel_nameAttribute { string value; };
[__AttributeUsage(_AttributeTargets.Function)] struct domainAttribute { string value; };
[__AttributeUsage(_AttributeTargets.Function)] struct variantAttribute { string value; };
[__AttributeUsage(_AttributeTargets.Function)] struct dtypeAttribute { string value; };
[__AttributeUsage(_AttributeTargets.Function)] struct statusAttribute { string value; };
[[vk::binding(0, 0)]] RWByteAddressBuffer storage_buffers[];
[vk::constant_id(0)] const uint lanes = 32;
float twice(float x) { return x + x; }
"#;

const KERNEL: &str = r#"
import common;
[vk::constant_id(2)] const float factor = 1.5;
[vk::constant_id(1)] const bool on = true;
struct PushConstants { uint first_group_x; uint first_group_y; uint source; int shift; float scale; };
[[vk::push_constant]] PushConstants push;
[kernel_name("scale")] [domain("test")] [variant("plain")] [dtype("f32")] [status("stable")]
[shader("compute")] [numthreads(lanes, 2, 1)]
void scale_f32(uint3 group : SV_GroupID) {
    float sum = WaveActiveSum(twice(push.scale) * factor + float(push.shift));
    storage_buffers[push.source].Store(4 * group.x, asuint(sum));
}
[kernel_name("clear")] [domain("test")] [variant("plain")] [dtype("f32")] [status("stable")]
[shader("compute")] [numthreads(64, 1, 1)]
void clear_f32(uint3 group : SV_GroupID) {
    if (on) storage_buffers[push.source].Store(4 * group.x, 0);
}
"#;

/// A package with these shaders beside the shared module.
fn package(name: &str, shaders: &[(&str, &str)]) -> PathBuf {
    let root = folder(name);
    write(root.join("shaders/shared/common.slang"), SHARED);
    for (name, text) in shaders {
        write(root.join("shaders").join(name), text);
    }
    root
}

fn build(slangc: &Slangc, package: &Path) -> anyhow::Result<Compiled> {
    let sources = Sources::read(&package.join("shaders"))?;
    compile(slangc, package, &package.join("scratch"), &sources, Form::Heap)
}

fn a_file_is_compiled(slangc: &Slangc) {
    let root = package("compiled", &[("test/scale.slang", KERNEL)]);
    let Compiled { manifest, modules } = build(slangc, &root).unwrap();
    let names: Vec<_> = manifest.kernels.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(names, ["clear", "scale"]);
    assert_eq!(Vec::from_iter(modules.keys()), ["clear_f32.spv", "scale_f32.spv"]);
    let [clear, scale] = &manifest.kernels[..] else { unreachable!() };
    assert_eq!(scale.workgroup_size, [Axis::Constant(0), Axis::Fixed(2), Axis::Fixed(1)]);
    assert_eq!(clear.workgroup_size, [64, 1, 1].map(Axis::Fixed));
    assert_eq!(scale.interface, clear.interface);
    let constants: Vec<_> = scale.interface.constants.iter().collect();
    // Each default is in one of the two modules only.
    let found = constants.iter().map(|c| (c.name.as_str(), c.id, c.kind, c.default));
    assert_eq!(
        Vec::from_iter(found),
        [
            ("lanes", 0, Scalar::U32, 32),
            ("on", 1, Scalar::Bool, 1),
            ("factor", 2, Scalar::F32, 1.5f32.to_bits()),
        ]
    );
    let fields = scale.interface.push_fields.iter().map(|f| (f.name.as_str(), f.offset, f.kind));
    assert_eq!(
        Vec::from_iter(fields),
        [
            ("first_group_x", 0, Scalar::U32),
            ("first_group_y", 4, Scalar::U32),
            ("source", 8, Scalar::U32),
            ("shift", 12, Scalar::I32),
            ("scale", 16, Scalar::F32),
        ]
    );
}

fn modules_do_not_depend_on_the_folder(slangc: &Slangc) {
    let shaders = [("test/scale.slang", KERNEL)];
    let first = build(slangc, &package("here", &shaders)).unwrap();
    let second = build(slangc, &package("elsewhere/and/deeper", &shaders)).unwrap();
    assert_eq!(first.manifest, second.manifest);
    assert_eq!(first.modules, second.modules);
}

fn outputs_are_reused(slangc: &Slangc) {
    let root = package("reused", &[("test/scale.slang", KERNEL)]);
    let output = root.join("scratch/test.scale.slang.scale_f32.spv");
    let time = || fs::metadata(&output).unwrap().modified().unwrap();
    let first = build(slangc, &root).unwrap();
    let written = time();
    assert_eq!(build(slangc, &root).unwrap().modules, first.modules);
    assert_eq!(time(), written);
    let changed = SHARED.replace("x + x", "2.0 * x");
    write(root.join("shaders/shared/common.slang"), changed);
    assert_ne!(build(slangc, &root).unwrap().modules, first.modules);
}

fn all_failures_are_reported(slangc: &Slangc) {
    let no_status = KERNEL.replacen(r#" [status("stable")]"#, "", 1);
    let shaders = [
        ("test/attributes.slang", no_status.as_str()),
        ("test/fine.slang", KERNEL),
        ("test/module.slang", "float nothing() { return 0; }"),
        ("test/syntax.slang", &KERNEL.replace("push.scale)", "push.size)")),
        ("test/workgroup.slang", &KERNEL.replace("(lanes, 2, 1)", "(2 * lanes, 1, 1)")),
    ];
    let error = build(slangc, &package("failures", &shaders)).err().unwrap().to_string();
    assert_contains(&error, "4 shader(s) failed");
    let place =
        "shaders/test/attributes.slang: entry point `scale_f32`: missing attribute(s): status";
    assert_contains(&error, place);
    assert_contains(&error, "shaders/test/module.slang: no entry point");
    assert_contains(&error, "shaders/test/syntax.slang");
    assert_contains(&error, "'size'");
    assert_contains(&error, "shaders/test/workgroup.slang");
    assert!(!error.contains("fine.slang"), "{error}");

    let twice = [("test/a.slang", KERNEL), ("test/b.slang", KERNEL)];
    let error = build(slangc, &package("twice", &twice)).err().unwrap().to_string();
    assert_contains(&error, "shaders/test/b.slang, entry point `scale_f32`");
    assert_contains(&error, "kernel `scale` for `f32` is there already: shaders/test/a.slang");
}

fn warnings_are_failures(slangc: &Slangc) {
    // A capability that the flags do not name.
    let clock = KERNEL.replace("4 * group.x, 0)", "4 * group.x, uint(getRealtimeClockLow()))");
    let root = package("warnings", &[("test/clock.slang", &clock)]);
    let error = build(slangc, &root).err().unwrap().to_string();
    assert_contains(&error, "spvShaderClockKHR");
}

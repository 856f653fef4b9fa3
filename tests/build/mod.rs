//! The parts of the build script, for the tests.
#![allow(dead_code)]

#[path = "../../build/codegen.rs"]
pub(crate) mod codegen;
#[path = "../../build/committed.rs"]
pub(crate) mod committed;
#[path = "../../build/compile.rs"]
pub(crate) mod compile;
#[path = "../../build/model.rs"]
pub(crate) mod model;
#[path = "../../build/reflection.rs"]
pub(crate) mod reflection;
#[path = "../../build/slangc.rs"]
pub(crate) mod slangc;
#[path = "../../build/sources.rs"]
pub(crate) mod sources;
#[path = "../../build/spirv.rs"]
pub(crate) mod spirv;

use std::fs;
use std::path::{Path, PathBuf};

/// An empty folder of this name, for one test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a file and the folders that it is in.
pub(crate) fn write(path: PathBuf, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[track_caller]
pub(crate) fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "no `{part}` in: {text}");
}

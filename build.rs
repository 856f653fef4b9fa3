//! Compiles the shaders with slangc, or takes the committed SPIR-V where there is no slangc, and
//! generates the manifest that `src/manifest.rs` includes. With the feature `forms` all kernels are
//! compiled in their further forms too, for `src/forms.rs`.
//!
//! The compiler is looked for through `SLANGC`, `SLANG_DIR`, `VULKAN_SDK` and `PATH`. With
//! `BACKSLANG_UPDATE_SHADERS=FOLDER` the modules and their manifest are written there as well.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

#[path = "build/codegen.rs"]
mod codegen;
#[path = "build/committed.rs"]
mod committed;
#[path = "build/compile.rs"]
mod compile;
#[path = "build/model.rs"]
mod model;
#[path = "build/reflection.rs"]
mod reflection;
#[path = "build/slangc.rs"]
mod slangc;
#[path = "build/sources.rs"]
mod sources;
#[path = "build/spirv.rs"]
mod spirv;

use compile::{Compiled, Form, HEAP_SLOTS};
use slangc::Slangc;
use sources::Sources;

const UPDATE: &str = "BACKSLANG_UPDATE_SHADERS";
const NO_COMPILER: &str = "there is no slangc to use (by SLANGC, SLANG_DIR, VULKAN_SDK or PATH)";

fn main() -> Result<()> {
    let package = folder("CARGO_MANIFEST_DIR")?;
    let out = folder("OUT_DIR")?;
    let shaders = package.join("shaders");
    println!("cargo::rerun-if-changed=shaders");
    watch(UPDATE);
    let sources = Sources::read(&shaders)?;
    let compiler = compiler(&package)?;
    if env::var_os("CARGO_FEATURE_FORMS").is_some() {
        let slangc = compiler.as_ref().context("the feature `forms` compiles the shaders");
        compile_forms(slangc.context(NO_COMPILER)?, &package, &out, &sources)?;
    }
    let compiled = match compiler {
        Some(slangc) => compile_fresh(&slangc, &package, &out, &sources)?,
        None => {
            ensure!(env::var_os(UPDATE).is_none(), "{UPDATE} is set, but {NO_COMPILER}");
            committed::load(&shaders.join(sources::COMPILED), &sources).context(NO_COMPILER)?
        }
    };
    generate(&out, Form::Heap, "manifest.rs", &compiled)
}

/// Writes the modules of a form and the source that includes them.
fn generate(out: &Path, form: Form, file: &str, compiled: &Compiled) -> Result<()> {
    committed::write_modules(&out.join(form.name()), compiled)?;
    let generated = codegen::generate(&compiled.manifest, form.name());
    committed::write_if_changed(&out.join(file), generated.as_bytes())
}

fn compile_forms(slangc: &Slangc, package: &Path, out: &Path, sources: &Sources) -> Result<()> {
    for form in [Form::FixedHeap, Form::Plain] {
        let scratch = out.join("slang").join(form.name());
        let compiled = compile::compile(slangc, package, &scratch, sources, form)?;
        generate(out, form, &format!("{}.rs", form.name()), &compiled)?;
    }
    let slots = format!("pub(crate) const HEAP_SLOTS: u32 = {HEAP_SLOTS};\n");
    committed::write_if_changed(&out.join("heap_slots.rs"), slots.as_bytes())
}

fn folder(variable: &str) -> Result<PathBuf> {
    let value = env::var_os(variable).with_context(|| format!("{variable} is not set"))?;
    Ok(PathBuf::from(value))
}

/// The compiler to use, if any: none on docs.rs. One that the user named has to do; one that merely
/// lies about is passed over when it is too old, and in a published package, where the committed
/// modules are as tested.
fn compiler(package: &Path) -> Result<Option<Slangc>> {
    watch("DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        return Ok(None);
    }
    let is_published = package.join("Cargo.toml.orig").exists();
    let ways = if is_published { slangc::NAMED } else { slangc::ALL };
    let Some(found) = slangc::find(ways, |name| env::var_os(name), watch)? else {
        return Ok(None);
    };
    println!("cargo::rerun-if-changed={}", found.program.display());
    match Slangc::new(&found) {
        Ok(slangc) => Ok(Some(slangc)),
        Err(error) if found.is_named() => Err(error),
        Err(error) => {
            warn(&format!("shaders/compiled is used: {error:#}"));
            Ok(None)
        }
    }
}

fn compile_fresh(
    slangc: &Slangc,
    package: &Path,
    out: &Path,
    sources: &Sources,
) -> Result<Compiled> {
    let compiled = compile::compile(slangc, package, &out.join("slang"), sources, Form::Heap)?;
    let committed = package.join("shaders").join(sources::COMPILED);
    if let Some(target) = env::var_os(UPDATE) {
        committed::update(Path::new(&target), &compiled)?;
    } else if let Some(reason) = committed::stale_reason(&committed, &compiled, sources) {
        warn(&reason);
    }
    Ok(compiled)
}

fn watch(variable: &str) {
    println!("cargo::rerun-if-env-changed={variable}");
}

fn warn(text: &str) {
    println!("cargo::warning={}", text.replace('\n', " "));
}

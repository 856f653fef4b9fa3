//! The SPIR-V in `shaders/compiled/`, for builds without slangc.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::compile::{self, Compiled};
use super::model::Manifest;
use super::sources::{self, Sources};

const MANIFEST: &str = "manifest.json";
const REMEDY: &str = "run tools/setup, which finds or installs slangc, then tools/shaders";

/// Reads the committed kernels; it is an error when they do not belong to the sources.
pub(crate) fn load(folder: &Path, sources: &Sources) -> Result<Compiled> {
    let manifest = read_manifest(folder)?;
    if let Some(reason) = stale(&manifest, sources) {
        bail!("shaders/compiled is stale: {reason}; {REMEDY}");
    }
    manifest.check()?;
    let mut modules = BTreeMap::new();
    for kernel in &manifest.kernels {
        let name = kernel.file_name();
        let path = folder.join(&name);
        let module = fs::read(&path).with_context(|| format!("shaders/compiled/{name}"))?;
        ensure!(
            sources::hash(&module) == kernel.spirv,
            "shaders/compiled/{name} is not the file that {MANIFEST} describes; {REMEDY}"
        );
        modules.insert(name, module);
    }
    Ok(Compiled { manifest, modules })
}

/// Why the committed kernels are not those just compiled, if so.
pub(crate) fn stale_reason(
    folder: &Path,
    compiled: &Compiled,
    sources: &Sources,
) -> Option<String> {
    let committed = match read_manifest(folder) {
        Ok(manifest) => manifest,
        Err(error) => return Some(format!("{error:#}")),
    };
    let fresh = &compiled.manifest;
    // Another compiler may produce other modules from the same sources.
    let differs = committed.compiler == fresh.compiler && committed != *fresh;
    let reason = stale(&committed, sources)
        .or_else(|| differs.then_some("the modules differ from those just compiled"))?;
    Some(format!("shaders/compiled is stale: {reason}; {REMEDY}"))
}

/// Writes the kernels and the manifest, and removes modules that no longer belong.
pub(crate) fn update(folder: &Path, compiled: &Compiled) -> Result<()> {
    ensure!(
        folder.is_absolute(),
        "BACKSLANG_UPDATE_SHADERS={}: expected an absolute path",
        folder.display()
    );
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".spv") && !compiled.modules.contains_key(&name) {
            fs::remove_file(&path)?;
        }
    }
    write_modules(folder, compiled)?;
    let json = serde_json::to_string_pretty(&compiled.manifest)? + "\n";
    write_if_changed(&folder.join(MANIFEST), json.as_bytes())
}

/// Writes each module under its name.
pub(crate) fn write_modules(folder: &Path, compiled: &Compiled) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (name, module) in &compiled.modules {
        write_if_changed(&folder.join(name), module)?;
    }
    Ok(())
}

/// Leaves a file that is right already alone, and with it its time.
pub(crate) fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("{}", path.display()))
}

fn read_manifest(folder: &Path) -> Result<Manifest> {
    let text = fs::read_to_string(folder.join(MANIFEST))
        .with_context(|| format!("shaders/compiled/{MANIFEST} cannot be read; {REMEDY}"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("shaders/compiled/{MANIFEST} is broken; {REMEDY}"))
}

fn stale(committed: &Manifest, sources: &Sources) -> Option<&'static str> {
    if committed.sources != sources.hash() {
        return Some("the sources have changed since");
    }
    (committed.flags != compile::all_flags()).then_some("the compiler flags have changed since")
}

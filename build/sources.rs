//! The shader sources: their list in a fixed order and their hash.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Modules that kernels import; they have no entry points.
pub(crate) const SHARED: &str = "shared";
/// The committed SPIR-V.
pub(crate) const COMPILED: &str = "compiled";

/// All `.slang` files below one folder, sorted, with `/` between the parts of their names.
pub(crate) struct Sources {
    files: Vec<(String, String)>,
}

impl Sources {
    /// Reads every source below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(root, "", &mut files)?;
        files.sort();
        Ok(Self { files })
    }

    /// Names of the files that are compiled.
    pub(crate) fn kernels(&self) -> Vec<&str> {
        self.files.iter().map(|(name, _)| name.as_str()).filter(|n| !is_shared(n)).collect()
    }

    /// Whether a file imports a shared module, itself or through other shared modules.
    pub(crate) fn imports(&self, file: &str, module: &str) -> bool {
        let mut seen = vec![file.to_owned()];
        let mut next = 0;
        while let Some(name) = seen.get(next).cloned() {
            next += 1;
            let text = self.files.iter().find(|(found, _)| *found == name).map(|(_, text)| text);
            let lines = text.into_iter().flat_map(|text| text.lines());
            for import in lines.filter_map(|line| line.trim().strip_prefix("import ")) {
                let import = import.trim_end_matches(';');
                if import == module {
                    return true;
                }
                let path = format!("{SHARED}/{import}.slang");
                if !seen.contains(&path) {
                    seen.push(path);
                }
            }
        }
        false
    }

    /// SHA-256 over names and contents; line endings do not matter.
    pub(crate) fn hash(&self) -> String {
        hash_files(self.files.iter())
    }

    /// The hash of what one kernel file is compiled from: itself and the shared modules.
    pub(crate) fn hash_for(&self, kernel: &str) -> String {
        hash_files(self.files.iter().filter(|(name, _)| name == kernel || is_shared(name)))
    }
}

fn is_shared(name: &str) -> bool {
    name.strip_prefix(SHARED).is_some_and(|rest| rest.starts_with('/'))
}

fn hash_files<'a>(files: impl Iterator<Item = &'a (String, String)>) -> String {
    let mut hash = Sha256::new();
    for (name, text) in files {
        let text = text.replace("\r\n", "\n");
        hash.update(format!("{name}\n{}\n", text.len()));
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// SHA-256 of bytes, in hexadecimal.
pub(crate) fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) -> Result<()> {
    let listing = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in listing {
        let entry = entry?;
        let path = entry.path();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            if name != COMPILED {
                collect(&path, &format!("{name}/"), files)?;
            }
        } else if name.ends_with(".slang") {
            let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
            files.push((name, text));
        }
    }
    Ok(())
}

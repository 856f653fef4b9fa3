//! The modules of this crate's kernels, for files to import.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The files of `shaders/shared`.
const FILES: &[(&str, &str)] = &[
    ("attention.slang", include_str!("../../shaders/shared/attention.slang")),
    ("attention_gradient.slang", include_str!("../../shaders/shared/attention_gradient.slang")),
    ("attributes.slang", include_str!("../../shaders/shared/attributes.slang")),
    ("element_bits.slang", include_str!("../../shaders/shared/element_bits.slang")),
    ("float_math.slang", include_str!("../../shaders/shared/float_math.slang")),
    ("half.slang", include_str!("../../shaders/shared/half.slang")),
    ("matrix.slang", include_str!("../../shaders/shared/matrix.slang")),
    ("matrix_tile.slang", include_str!("../../shaders/shared/matrix_tile.slang")),
    ("row_copy.slang", include_str!("../../shaders/shared/row_copy.slang")),
    ("rows.slang", include_str!("../../shaders/shared/rows.slang")),
    ("softmax.slang", include_str!("../../shaders/shared/softmax.slang")),
    ("ssm_math.slang", include_str!("../../shaders/shared/ssm_math.slang")),
    ("ssm_row.slang", include_str!("../../shaders/shared/ssm_row.slang")),
    ("storage.slang", include_str!("../../shaders/shared/storage.slang")),
    ("subgroup.slang", include_str!("../../shaders/shared/subgroup.slang")),
    ("tiles.slang", include_str!("../../shaders/shared/tiles.slang")),
];

/// The module `storage` leaves the heap's usual name to kernels that declare it, and has functions for them as well.
/// Names that are defined in a module stay there.
const STORAGE: &str = concat!(
    "#define storage_buffers heap_buffers\n#line 1\n",
    include_str!("../../shaders/shared/storage.slang"),
    include_str!("heap.slang"),
);

/// A folder that has the modules, as the compiler wants files; it goes when this is dropped.
pub(super) struct Library(PathBuf);

impl Library {
    pub(super) fn unpack() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("backslang-modules-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // Fails where somebody else has put something there.
        fs::create_dir(&folder)?;
        let library = Self(folder);
        for (name, text) in FILES {
            let text = if *name == "storage.slang" { STORAGE } else { text };
            fs::write(library.0.join(name), text)?;
        }
        Ok(library)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!("{} is left behind: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shared_module_is_here() {
        let listed: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        let shared = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/shared");
        let mut found: Vec<_> = fs::read_dir(shared)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        assert_eq!(listed, found);
    }

    #[test]
    fn the_folder_goes() {
        let library = Library::unpack().unwrap();
        let folder = library.folder().to_owned();
        assert!(folder.join("storage.slang").is_file());
        drop(library);
        assert!(!folder.exists());
    }
}

//! NumPy's files: `.npy` arrays, `.npz` archives and folders of arrays.
//!
//! Readers trust nothing that a file says of itself: a header's sizes are compared with what is
//! there before memory is asked for. Writers leave whole files or none.
//!
//! The header is parsed here rather than by a crate, as neither of the two well-kept ones can be
//! held to that: both allocate what the header's length field says, up to 4 GiB, and `npyz`
//! multiplies the sizes unchecked.

mod catalog;
mod data;
mod descr;
mod header;
mod latch;
mod staged;
mod wanted;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

#[cfg(feature = "slang")]
pub(crate) use catalog::Numbers;
pub(crate) use catalog::{Catalog, Entry, text_in};
pub(crate) use descr::Spelling;
#[cfg(any(unix, windows))]
pub(crate) use staged::abandon;
pub(crate) use wanted::Wanted;
pub(crate) use writer::{OutputArray, OutputValues, Target, WriteError, Written};

/// Text out of a file as messages show it: the start of it, control characters escaped.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST: usize = 60;
    let shown = super::talk::escaped(text.chars().take(MOST));
    if text.chars().nth(MOST).is_some() { shown + "…" } else { shown }
}

/// What is wrong with a file; the caller adds the array's name and the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is a folder.
    #[error("expected a .npy file, found a folder")]
    Folder,
    /// It is not an array as NumPy writes them.
    #[error("not a valid .npy file: {0}")]
    Header(String),
    /// The header promises another number of bytes than there are.
    #[error("the header promises {expected} bytes of data, but there are {found}")]
    Length {
        /// What the header's shape and element type come to.
        expected: u64,
        /// What is there, such as `12` or `more`.
        found: String,
    },
    /// The element type is not what is read here.
    #[error("expected {expected}, found dtype {found}")]
    Dtype {
        /// The accepted types.
        expected: String,
        /// The type found.
        found: String,
    },
    /// The array has another number of axes than asked for.
    #[error("expected {expected}, found shape {found:?}")]
    Shape {
        /// The accepted shapes.
        expected: &'static str,
        /// The shape found.
        found: Vec<usize>,
    },
    /// The host cannot give the memory.
    #[error("out of host memory: asked for {0} bytes")]
    Memory(u64),
    /// The archive is broken, or uses what is not supported.
    #[error("not a readable .npz archive: {0}")]
    Archive(String),
    /// What results should go to is a file, or called like one.
    #[error("--output: expected a folder or a path that ends in .npz, found `{}`", .0.display())]
    Target(PathBuf),
}

impl FileError {
    /// A short, stable word for the kind, as the JSON report has it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Io(_)
            | Self::Folder
            | Self::Header(_)
            | Self::Length { .. }
            | Self::Archive(_) => "file",
            Self::Dtype { .. } => "dtype",
            Self::Shape { .. } => "shape",
            Self::Target(_) => "usage",
            Self::Memory(_) => "out-of-memory",
        }
    }
}

impl From<zip::result::ZipError> for FileError {
    fn from(error: zip::result::ZipError) -> Self {
        match error {
            zip::result::ZipError::Io(error) => Self::Io(error),
            error => Self::Archive(error.to_string()),
        }
    }
}

//! Writing a set of arrays: all of them, or nothing.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use backslang::HostTensor;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::FileError;
use super::descr::{ByteOrder, Spelling};
use super::latch::Latch;
use super::staged::Staged;

/// An array to write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputArray {
    /// Its name, without the `.npy`.
    pub(crate) name: String,
    /// Its shape; empty for a single value.
    pub(crate) shape: Vec<usize>,
    /// Its elements in C order.
    pub(crate) values: OutputValues,
    /// How floats are spelled; the byte order of all else, too.
    pub(crate) spelling: Spelling,
}

/// The elements of an array to write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputValues {
    /// float32, float16 or bfloat16.
    Floats(HostTensor),
    /// float64.
    Doubles(Vec<f64>),
    /// int32.
    Integers(Vec<i32>),
    /// uint32.
    #[cfg(feature = "slang")]
    Words(Vec<u32>),
    /// One bool.
    Flag(bool),
}

/// Where a set of arrays goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Each into its own file of this folder.
    Folder(PathBuf),
    /// All into this `.npz` archive.
    Archive(PathBuf),
}

/// An array that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// Its name.
    pub(crate) name: String,
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Its element type in the words of the library: `f32`.
    pub(crate) dtype: &'static str,
    /// The file that holds it.
    pub(crate) path: PathBuf,
}

/// Why a set could not be written; nothing of it is there then.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub(crate) struct WriteError {
    /// The file or folder concerned.
    pub(crate) path: PathBuf,
    /// What the system said.
    pub(crate) source: io::Error,
}

impl OutputArray {
    /// An array of floats.
    pub(crate) fn floats(name: &str, tensor: HostTensor, spelling: Spelling) -> Self {
        let shape = tensor.shape().to_vec();
        Self { name: name.into(), shape, values: OutputValues::Floats(tensor), spelling }
    }

    fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
        sink.write_all(&self.head())?;
        match &self.values {
            OutputValues::Flag(flag) => sink.write_all(&[u8::from(*flag)]),
            OutputValues::Doubles(values) => {
                self.write_words::<8>(sink, bytemuck::cast_slice(values))
            }
            OutputValues::Integers(values) => {
                self.write_words::<4>(sink, bytemuck::cast_slice(values))
            }
            #[cfg(feature = "slang")]
            OutputValues::Words(values) => {
                self.write_words::<4>(sink, bytemuck::cast_slice(values))
            }
            OutputValues::Floats(tensor) if tensor.dtype().is_half() => {
                self.write_words::<2>(sink, tensor.bytes())
            }
            OutputValues::Floats(tensor) => self.write_words::<4>(sink, tensor.bytes()),
        }
    }

    /// Words of `N` bytes, in the order asked for.
    fn write_words<const N: usize>(&self, sink: &mut dyn Write, native: &[u8]) -> io::Result<()> {
        if self.spelling.order == ByteOrder::NATIVE {
            return sink.write_all(native);
        }
        native.as_chunks::<N>().0.iter().try_for_each(|&(mut word)| {
            word.reverse();
            sink.write_all(&word)
        })
    }

    /// Magic, version 1.0 and the dictionary, padded so that the elements are aligned.
    fn head(&self) -> Vec<u8> {
        let shape = match self.shape.as_slice() {
            [one] => format!("({one},)"),
            axes => {
                let axes = axes.iter().map(usize::to_string).collect::<Vec<_>>();
                format!("({})", axes.join(", "))
            }
        };
        let descr = self.descr();
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        let unpadded = 10 + text.len() + 1;
        text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
        text.push('\n');
        // At most some 64 axes of 20 digits: far below the 65,535 bytes of version 1.0.
        let length = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes()].concat()
    }

    fn descr(&self) -> &'static str {
        match &self.values {
            OutputValues::Flag(_) => "|b1",
            OutputValues::Doubles(_) => self.spelling.doubles(),
            OutputValues::Integers(_) if self.spelling.order == ByteOrder::Big => ">i4",
            OutputValues::Integers(_) => "<i4",
            #[cfg(feature = "slang")]
            OutputValues::Words(_) if self.spelling.order == ByteOrder::Big => ">u4",
            #[cfg(feature = "slang")]
            OutputValues::Words(_) => "<u4",
            OutputValues::Floats(tensor) => self.spelling.descr(tensor.dtype()),
        }
    }

    fn dtype(&self) -> &'static str {
        match &self.values {
            OutputValues::Flag(_) => "bool",
            OutputValues::Doubles(_) => "f64",
            OutputValues::Integers(_) => "i32",
            #[cfg(feature = "slang")]
            OutputValues::Words(_) => "u32",
            OutputValues::Floats(tensor) => tensor.dtype().name(),
        }
    }
}

impl Target {
    /// A folder, unless `path` ends in `.npz` and is no folder. A new folder cannot be called like a single array.
    pub(crate) fn resolve(path: &Path) -> Result<Self, FileError> {
        // `x.npz/` cannot be a file.
        let folder = path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
        let ends_in = |what| {
            !folder
                && path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(what))
        };
        let archive = ends_in("npz");
        if path.is_dir() || !archive && !ends_in("npy") && !path.exists() {
            Ok(Self::Folder(path.into()))
        } else if archive {
            Ok(Self::Archive(path.into()))
        } else {
            Err(FileError::Target(path.into()))
        }
    }

    /// The file that an array of this name goes to.
    pub(crate) fn file_of(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(format!("{name}.npy")),
            Self::Archive(archive) => archive.clone(),
        }
    }

    /// The place of a text, which an archive holds inside.
    fn text_of(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(name),
            Self::Archive(archive) => archive.clone(),
        }
    }

    /// Makes sure that arrays of these names can be written; a folder made for them goes again unless they are.
    pub(crate) fn open<'a>(
        self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<OpenTarget, WriteError> {
        self.open_beside(names, None)
    }

    /// As [`Target::open`], and a text of this name beside the arrays.
    pub(crate) fn open_beside<'a>(
        self,
        names: impl IntoIterator<Item = &'a str>,
        text: Option<&str>,
    ) -> Result<OpenTarget, WriteError> {
        let folder = match &self {
            Self::Folder(folder) => folder.as_path(),
            Self::Archive(archive) => archive.parent().unwrap_or(Path::new("")),
        };
        let staged = Staged::in_folder(folder)?;
        match &self {
            Self::Folder(_) => {
                names.into_iter().try_for_each(|name| staged.probe(&self.file_of(name)))?;
                text.map_or(Ok(()), |name| staged.probe(&self.text_of(name)))?;
            }
            Self::Archive(archive) => staged.probe(archive)?,
        }
        Ok(OpenTarget { target: self, staged })
    }
}

/// A target that can be written to, as far as can be told before.
#[derive(Debug)]
pub(crate) struct OpenTarget {
    target: Target,
    staged: Staged,
}

impl OpenTarget {
    /// Writes the arrays: under temporary names first, renamed when all are complete.
    pub(crate) fn write(self, arrays: &[OutputArray]) -> Result<Vec<Written>, WriteError> {
        self.write_beside(arrays, None)
    }

    /// As [`OpenTarget::write`], and a text of this name beside the arrays.
    pub(crate) fn write_beside(
        self,
        arrays: &[OutputArray],
        text: Option<(&str, &str)>,
    ) -> Result<Vec<Written>, WriteError> {
        let Self { target, mut staged } = self;
        match &target {
            Target::Folder(_) => {
                for array in arrays {
                    staged.add(&target.file_of(&array.name), |file| {
                        let mut sink = BufWriter::new(file);
                        array.write(&mut sink)?;
                        sink.flush()
                    })?;
                }
                if let Some((name, text)) = text {
                    let write = |mut file: &fs::File| file.write_all(text.as_bytes());
                    staged.add(&target.text_of(name), write)?;
                }
            }
            Target::Archive(archive) => {
                staged.add(archive, |file| write_archive(file, arrays, text))?;
            }
        }
        staged.commit()?;
        let written = |array: &OutputArray| Written {
            name: array.name.clone(),
            shape: array.shape.clone(),
            dtype: array.dtype(),
            path: target.file_of(&array.name),
        };
        Ok(arrays.iter().map(written).collect())
    }
}

/// Stored, not compressed, and with a fixed time: the same arrays give the same bytes.
fn write_archive(
    file: &fs::File,
    arrays: &[OutputArray],
    text: Option<(&str, &str)>,
) -> io::Result<()> {
    let mut archive = ZipWriter::new(Latch::new(BufWriter::new(file)));
    let options = |bytes: u64| {
        SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .unix_permissions(0o644)
            .large_file(bytes > u64::from(u32::MAX) / 2)
    };
    for array in arrays {
        let bytes = array.shape.iter().product::<usize>() as u64 * 8;
        archive.start_file(format!("{}.npy", array.name), options(bytes))?;
        array.write(&mut archive)?;
    }
    if let Some((name, text)) = text {
        archive.start_file(name, options(text.len() as u64))?;
        archive.write_all(text.as_bytes())?;
    }
    archive.finish()?.into_result()
}

//! Where the arrays of a call are: found by name first, read only when asked for.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use backslang::HostTensor;
use zip::ZipArchive;

use super::FileError;
use super::data::{self, Available};
use super::descr::Spelling;
use super::header::Header;
use super::wanted::Wanted;

/// The arrays found, by name.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    entries: BTreeMap<String, Entry>,
}

/// Where one array is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A `.npy` file.
    File(PathBuf),
    /// An array in a `.npz` archive.
    Archived {
        /// The archive.
        archive: PathBuf,
        /// The name inside it, with the `.npy`.
        name: String,
    },
}

/// An array of any type that a kernel may take.
#[cfg(feature = "slang")]
#[derive(Debug)]
pub(crate) enum Numbers {
    /// Floats, and how they are spelled in the file.
    Floats(HostTensor, Spelling),
    /// Shape and elements.
    Integers(Vec<usize>, Vec<i128>),
}

impl Catalog {
    /// Adds the arrays of a folder or of a `.npz` archive; a name seen before now means these.
    pub(crate) fn add(&mut self, path: &Path) -> Result<(), FileError> {
        if fs::metadata(path)?.is_dir() { self.add_folder(path) } else { self.add_archive(path) }
    }

    /// Adds one array.
    pub(crate) fn add_file(&mut self, name: &str, path: &Path) {
        self.entries.insert(name.into(), Entry::File(path.into()));
    }

    /// Where the array is.
    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Whether there is such an array.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The names, in order, with where they are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    fn add_folder(&mut self, folder: &Path) -> Result<(), FileError> {
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let Some(name) = name.strip_suffix(".npy") else { continue };
            self.entries.insert(name.into(), Entry::File(path.clone()));
        }
        Ok(())
    }

    fn add_archive(&mut self, archive: &Path) -> Result<(), FileError> {
        for inside in open_archive(archive)?.file_names() {
            // Only ever looked up by name, never unpacked: a name such as `../x` leads nowhere.
            let inside = inside?;
            let Some(name) = inside.strip_suffix(".npy") else { continue };
            let entry = Entry::Archived { archive: archive.into(), name: inside.to_string() };
            self.entries.insert(name.into(), entry);
        }
        Ok(())
    }
}

impl Entry {
    /// The array as floats, and how they are spelled in the file.
    pub(crate) fn floats(&self, wanted: Wanted) -> Result<(HostTensor, Spelling), FileError> {
        self.visit(|header, available, reader| {
            let tensor = data::floats(&header, wanted, available, reader)?;
            Ok((tensor, header.descr.spelling()))
        })
    }

    /// The elements of an array of float64, in C order, and how they are spelled in the file.
    pub(crate) fn doubles(&self) -> Result<(Vec<f64>, Spelling), FileError> {
        self.visit(|header, available, reader| {
            let values = data::doubles(&header, available, reader)?;
            Ok((values, header.descr.spelling()))
        })
    }

    /// The array's shape, once the file is found to be as long as its header says.
    pub(crate) fn shape(&self) -> Result<Vec<usize>, FileError> {
        self.visit(|header, available, _| {
            available.check(&header)?;
            Ok(header.shape)
        })
    }

    /// The array as what it is.
    #[cfg(feature = "slang")]
    pub(crate) fn numbers(&self, wanted: Wanted) -> Result<Numbers, FileError> {
        self.visit(|header, available, reader| {
            if wanted.is_met_by_integers(&header.descr) {
                let values = data::integers(&header, available, reader)?;
                return Ok(Numbers::Integers(header.shape, values));
            }
            let tensor = data::floats(&header, wanted.beside(&header.descr), available, reader)?;
            Ok(Numbers::Floats(tensor, header.descr.spelling()))
        })
    }

    /// The array's shape and elements, of any integer type.
    pub(crate) fn integers(&self) -> Result<(Vec<usize>, Vec<i128>), FileError> {
        self.visit(|header, available, reader| {
            let values = data::integers(&header, available, reader)?;
            Ok((header.shape, values))
        })
    }

    /// The one value of a 0-d array of any real type.
    pub(crate) fn scalar(&self) -> Result<f64, FileError> {
        self.visit(|header, available, reader| data::scalar(&header, available, reader))
    }

    fn visit<T>(
        &self,
        read: impl FnOnce(Header, Available, &mut dyn Read) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        match self {
            Self::File(path) => {
                // Not every system says so when it opens one.
                if path.is_dir() {
                    return Err(FileError::Folder);
                }
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                let available = if metadata.is_file() {
                    Available::File(metadata.len())
                } else {
                    Available::Unknown
                };
                let mut reader = BufReader::new(file);
                read(Header::read(&mut reader)?, available, &mut reader)
            }
            Self::Archived { archive, name } => {
                let mut archive = open_archive(archive)?;
                let mut entry = archive.by_name(name)?;
                let available = Available::Claimed(entry.size());
                read(Header::read(&mut entry)?, available, &mut entry)
            }
        }
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Archived { archive, name } => write!(f, "{}:{name}", archive.display()),
        }
    }
}

/// The text of a file in a folder or in a `.npz` archive; `None` where there is none of that name.
pub(crate) fn text_in(path: &Path, name: &str) -> Result<Option<String>, FileError> {
    /// More than any text that is looked for.
    const MOST: u64 = 64 << 20;
    let mut text = String::new();
    let mut read = |from: &mut dyn Read| from.take(MOST).read_to_string(&mut text);
    if fs::metadata(path)?.is_dir() {
        match File::open(path.join(name)) {
            Ok(mut file) => read(&mut file)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        return Ok(Some(text));
    }
    let mut archive = open_archive(path)?;
    match archive.by_name(name) {
        Ok(mut entry) => read(&mut entry)?,
        Err(zip::result::ZipError::FileNotFound) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(text))
}

fn open_archive(path: &Path) -> Result<ZipArchive<BufReader<File>>, FileError> {
    Ok(ZipArchive::new(BufReader::new(File::open(path)?))?)
}

//! Files under temporary names that all get their real names at the end, or none does.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::writer::WriteError;

/// Every set that is being written; whoever holds the lock keeps an interrupt waiting.
static SETS: Mutex<BTreeMap<u64, Files>> = Mutex::new(BTreeMap::new());

/// A set of files being written. What is not committed is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Staged {
    id: u64,
}

/// Removes everything that is being written, then calls `end`, from whose start on nothing more is written.
#[cfg(any(unix, windows))]
pub(crate) fn abandon(end: impl FnOnce()) {
    let mut sets = sets();
    sets.clear();
    end();
}

fn sets() -> MutexGuard<'static, BTreeMap<u64, Files>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staged {
    /// Makes the folder when it is missing.
    pub(super) fn in_folder(folder: &Path) -> Result<Self, WriteError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let staged = Self { id: NEXT.fetch_add(1, Ordering::Relaxed) };
        sets().entry(staged.id).or_insert_with(|| Files::new(folder)).make_folder(folder)?;
        Ok(staged)
    }

    /// Whether a file can be made that might become `target`.
    pub(super) fn probe(&self, target: &Path) -> Result<(), WriteError> {
        self.with(target, |files| files.probe(target))
    }

    /// Writes a file that will be `target`.
    pub(super) fn add(
        &mut self,
        target: &Path,
        write: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let file = self.with(target, |files| files.create(target))?;
        // Some systems report a full disk only when the data is flushed.
        write(&file).and_then(|()| file.sync_all()).map_err(at(target))
    }

    /// Gives every file its name; when one cannot have it, every name means again what it meant before.
    pub(super) fn commit(self) -> Result<(), WriteError> {
        self.with(Path::new(""), Files::commit)
    }

    fn with<T>(
        &self,
        target: &Path,
        work: impl FnOnce(&mut Files) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        match sets().get_mut(&self.id) {
            Some(files) => work(files),
            None => Err(at(target)(io::ErrorKind::Interrupted.into())),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Removes the files before an interrupt may end the process.
        let mut sets = sets();
        drop(sets.remove(&self.id));
    }
}

/// What has been made of a set so far.
#[derive(Debug)]
struct Files {
    files: Vec<StagedFile>,
    /// Folders that are made for these files, the innermost first.
    made: Vec<PathBuf>,
    /// Keeps the temporary names of concurrent and of earlier, killed processes apart.
    tag: String,
    committed: bool,
}

#[derive(Debug)]
struct StagedFile {
    temporary: PathBuf,
    target: PathBuf,
    /// Where the file lies that had the name before.
    backup: Option<PathBuf>,
    renamed: bool,
}

impl Files {
    fn new(folder: &Path) -> Self {
        let made = folder
            .ancestors()
            .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
            .map(Path::to_path_buf)
            .collect();
        let nanos =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let tag = format!("{}-{nanos}", std::process::id());
        Self { files: Vec::new(), made, tag, committed: false }
    }

    fn make_folder(&self, folder: &Path) -> Result<(), WriteError> {
        if folder.as_os_str().is_empty() {
            return Ok(());
        }
        fs::create_dir_all(folder).map_err(|error| {
            // The system would say that it exists.
            let dangling = folder.is_symlink() && !folder.exists();
            let message = "it is a link to nothing";
            at(folder)(if dangling { io::Error::new(error.kind(), message) } else { error })
        })
    }

    fn probe(&self, target: &Path) -> Result<(), WriteError> {
        check_no_folder(target)?;
        let temporary = self.beside(target, "probe");
        create_new(&temporary).map_err(at(target))?;
        fs::remove_file(&temporary).map_err(at(target))
    }

    fn create(&mut self, target: &Path) -> Result<File, WriteError> {
        check_no_folder(target)?;
        let temporary = self.beside(target, "tmp");
        let file = create_new(&temporary).map_err(at(target))?;
        let target = target.to_path_buf();
        self.files.push(StagedFile { temporary, target, backup: None, renamed: false });
        Ok(file)
    }

    fn commit(&mut self) -> Result<(), WriteError> {
        for index in 0..self.files.len() {
            let backup = self.beside(&self.files[index].target, "old");
            self.files[index].take_name(backup)?;
        }
        self.committed = true;
        Ok(())
    }

    fn beside(&self, target: &Path, ending: &str) -> PathBuf {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        target.with_file_name(format!(".{name}.{}.{ending}", self.tag))
    }
}

impl StagedFile {
    fn take_name(&mut self, backup: PathBuf) -> Result<(), WriteError> {
        check_no_folder(&self.target)?;
        if fs::symlink_metadata(&self.target).is_ok() {
            // A second name where the file system has them: the first is then never without a file.
            fs::hard_link(&self.target, &backup)
                .or_else(|_| fs::rename(&self.target, &backup))
                .map_err(at(&self.target))?;
            self.backup = Some(backup);
        }
        fs::rename(&self.temporary, &self.target).map_err(at(&self.target))?;
        self.renamed = true;
        Ok(())
    }

    /// Best effort on the way out of an error: the error itself is what gets reported.
    fn undo(&self) {
        let _ = match &self.backup {
            Some(backup) => fs::rename(backup, &self.target),
            None if self.renamed => fs::remove_file(&self.target),
            None => Ok(()),
        };
        // Still there when both names were of one file, which a rename leaves alone.
        let _ = self.backup.as_ref().map(fs::remove_file);
        let _ = fs::remove_file(&self.temporary);
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.committed {
            for backup in self.files.iter().filter_map(|file| file.backup.as_ref()) {
                let _ = fs::remove_file(backup);
            }
            return;
        }
        self.files.iter().rev().for_each(StagedFile::undo);
        for folder in &self.made {
            // Refuses a folder that somebody else has put something into.
            let _ = fs::remove_dir(folder);
        }
    }
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A rename would move a folder out of the way, and nobody asked for that.
fn check_no_folder(target: &Path) -> Result<(), WriteError> {
    if !target.is_dir() {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::IsADirectory, "there is a folder of that name");
    Err(WriteError { path: target.into(), source })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_path_buf();
    |source| WriteError { path, source }
}

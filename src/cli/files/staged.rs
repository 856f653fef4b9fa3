//! Files under temporary names that all get their real names at the end, or none does.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::writer::WriteError;

/// Files being written. What is not committed is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Staged {
    files: Vec<StagedFile>,
    /// Folders that were made for these files, the innermost first.
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

impl Staged {
    /// Makes the folder when it is missing.
    pub(super) fn in_folder(folder: &Path) -> Result<Self, WriteError> {
        let made = folder
            .ancestors()
            .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
            .map(Path::to_path_buf)
            .collect();
        let nanos =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let tag = format!("{}-{nanos}", std::process::id());
        let staged = Self { files: Vec::new(), made, tag, committed: false };
        if !folder.as_os_str().is_empty() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        Ok(staged)
    }

    /// Writes a file that will be `target`.
    pub(super) fn add(
        &mut self,
        target: &Path,
        write: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        check_no_folder(target)?;
        let temporary = self.beside(target, "tmp");
        let file =
            OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(at(target))?;
        let target = target.to_path_buf();
        self.files.push(StagedFile {
            temporary,
            target: target.clone(),
            backup: None,
            renamed: false,
        });
        // Some systems report a full disk only when the data is flushed.
        write(&file).and_then(|()| file.sync_all()).map_err(at(&target))
    }

    /// Gives every file its name; when one cannot have it, every name means again what it meant before.
    pub(super) fn commit(mut self) -> Result<(), WriteError> {
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

impl Drop for Staged {
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

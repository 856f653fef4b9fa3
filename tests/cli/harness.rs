//! Running the command, and making files for it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// What a run left.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Failed with this exit code, saying all of `parts` in one line.
    pub(crate) fn failed(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let message = self.stderr.strip_prefix("error: ").unwrap_or_else(|| panic!("{self:?}"));
        assert_eq!(message.trim_end().lines().count(), 1, "{self:?}");
        for part in parts {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
        self
    }

    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backslang"));
    command.env_remove("BACKSLANG_DEVICE").env_remove("BACKSLANG_VALIDATE");
    command.env("BACKSLANG_PIPELINE_CACHE", "none");
    command
}

/// The command where libraries are looked for in `folder` first.
pub(crate) fn command_with_libraries(folder: &Path) -> Command {
    // What it needs beside the loader stays within reach.
    let rest = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let all = [folder.to_owned()].into_iter().chain(std::env::split_paths(&rest));
    let mut command = command();
    command.env("LD_LIBRARY_PATH", std::env::join_paths(all).unwrap());
    command
}

pub(crate) fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs the command as it is given.
pub(crate) fn run<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Outcome {
    outcome(command().args(words))
}

/// Runs `words`, split at spaces, on the reference.
pub(crate) fn reference(words: &str) -> Outcome {
    outcome(command().args(["--device", "reference"]).args(words.split(' ')))
}

/// What a standard error can be that takes nothing, with a name for each: a full disk, a pipe that nobody reads.
#[cfg(target_os = "linux")]
pub(crate) fn unwritable() -> [(Stdio, &'static str); 2] {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (_, broken) = std::io::pipe().unwrap();
    [(full.into(), "full"), (broken.into(), "broken")]
}

/// A folder of its own, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("backslang-cli-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with small inputs of `command`, made by `sample` with `sizes`, in `in`.
    pub(crate) fn sample(command: &str, sizes: &str) -> Self {
        let folder = Self::new();
        let words = format!("sample {command} -o {} --seed 5 {sizes}", folder.at("in"));
        run(words.split_whitespace()).succeeded();
        folder
    }

    /// Small inputs of paged attention.
    pub(crate) fn attention() -> Self {
        Self::sample("paged-attention-backward", ATTENTION)
    }

    /// Small inputs of paged attention with latent history.
    pub(crate) fn mla() -> Self {
        Self::sample("paged-attention-backward", MLA)
    }

    /// Small inputs of the Mamba-3 preprocess.
    pub(crate) fn mamba3() -> Self {
        Self::sample("mamba3-preprocess-backward", MAMBA3)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.0.join(name)).unwrap();
    }

    /// The names in a folder, in order; none when it does not exist.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let Ok(items) = fs::read_dir(self.0.join(name)) else { return Vec::new() };
        let name = |item: fs::DirEntry| item.file_name().to_string_lossy().into_owned();
        let mut names: Vec<_> = items.map(|item| name(item.unwrap())).collect();
        names.sort();
        names
    }

    /// The data of a `.npy` file that the command wrote.
    pub(crate) fn data(&self, name: &str) -> Vec<u8> {
        split(&self.read(name)).1.to_vec()
    }

    /// The dictionary of a `.npy` file that the command wrote.
    pub(crate) fn head(&self, name: &str) -> String {
        split(&self.read(name)).0.to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) const ATTENTION: &str = "--queries 6 --heads 4 --kv-heads 2 --key-dim 4 --value-dim 3 --page-size 2 --pages 9 --sequences 2";
pub(crate) const MLA: &str = "--mla --queries 6 --heads 2 --key-dim 4 --position-dim 2 --page-size 2 --pages 9 --sequences 2";
pub(crate) const MAMBA3: &str =
    "--rows 6 --inner-size 5 --bc-rows 2 --state-size 3 --heads 4 --rope-angles 2";

/// A `.npy` file of version 1.0.
pub(crate) fn npy(descr: &str, fortran_order: bool, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let axes: String = shape.iter().map(|axis| format!("{axis}, ")).collect();
    let order = if fortran_order { "True" } else { "False" };
    let text = format!(
        "{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}), }}\n",
        axes.trim_end()
    );
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes(), data].concat()
}

fn split(npy: &[u8]) -> (&str, &[u8]) {
    let end = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    (std::str::from_utf8(&npy[10..end]).unwrap(), &npy[end..])
}

/// Every 4-byte element with its bytes reversed.
pub(crate) fn swapped(data: &[u8]) -> Vec<u8> {
    swapped_by(4, data)
}

/// Every element of so many bytes with its bytes reversed.
pub(crate) fn swapped_by(size: usize, data: &[u8]) -> Vec<u8> {
    data.chunks(size).flat_map(|word| word.iter().rev().copied()).collect()
}

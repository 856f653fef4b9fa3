//! What a driver compiled, in a file for the processes to come.
//!
//! Drivers trust the data that they are given: a file is theirs only when the header says that it was written by this
//! version of the crate for this device and this driver, and when no byte of it has changed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::info::DeviceInfo;

const MAGIC: &[u8; 8] = b"BSLPIPE1";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Bytes of the version's field, which ends in zeros.
const VERSION_BYTES: usize = 32;
/// Bytes up to the length: what the file is of.
const IDENTITY: usize = MAGIC.len() + VERSION_BYTES + 3 * 16;
/// Bytes before the data: identity, length and checksum, the last two 64-bit words, least significant byte first.
const HEADER: usize = IDENTITY + 16;

/// Bytes of the largest file that is read or written. One that has grown to it is begun anew.
const LARGEST: u64 = 128 << 20;

/// Where the pipelines of one device are kept.
pub(super) struct PipelineFile {
    path: PathBuf,
    identity: [u8; IDENTITY],
}

impl PipelineFile {
    /// The file of a device in a folder.
    pub(super) fn new(folder: &Path, device: &DeviceInfo) -> Self {
        let hex =
            |uuid: &[u8; 16]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let [driver, uuid] = [&device.driver_uuid, &device.uuid].map(hex);
        let path = folder.join(format!("{VERSION}-{uuid}-{driver}.pipelines"));
        Self { path, identity: identity(device) }
    }

    /// The data, when there is any for this driver; what is not is ignored with a warning.
    pub(super) fn load(&self) -> Option<Vec<u8>> {
        let path = self.path.display();
        let mut bytes = match read(&self.path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                tracing::debug!(
                    "the pipeline cache {path} is begun anew: it is no file, or too large"
                );
                return None;
            }
            Err(error) => {
                tracing::debug!("the pipeline cache {path} is not read: {error}");
                return None;
            }
        };
        match self.check(&bytes) {
            Ok(()) => {
                let data = bytes.split_off(HEADER);
                tracing::debug!("the pipeline cache {path} holds {} bytes", data.len());
                Some(data)
            }
            Err(reason) => {
                tracing::warn!("the pipeline cache {path} is ignored: {reason}");
                None
            }
        }
    }

    /// Replaces the file, whole or not at all. A folder that cannot be written is left as it is.
    pub(super) fn save(&self, data: &[u8]) {
        let path = self.path.display();
        if data.len() as u64 > LARGEST - HEADER as u64 {
            return tracing::debug!(
                "the pipeline cache {path} is not written: it would be too large"
            );
        }
        match replace(&self.path, &[&self.header(data), data]) {
            Ok(()) => tracing::debug!("the pipeline cache {path} has {} bytes now", data.len()),
            Err(error) => tracing::debug!("the pipeline cache {path} is not written: {error}"),
        }
    }

    fn header(&self, data: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..IDENTITY].copy_from_slice(&self.identity);
        header[IDENTITY..][..8].copy_from_slice(&(data.len() as u64).to_le_bytes());
        let sum = checksum(&[&header[..HEADER - 8], data]);
        header[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// Whether the whole file is as this crate wrote it for this driver.
    fn check(&self, bytes: &[u8]) -> Result<(), &'static str> {
        let Some((header, data)) = bytes.split_at_checked(HEADER) else {
            return Err("it is shorter than its header");
        };
        if !header.starts_with(MAGIC) {
            return Err("it is not a pipeline cache");
        }
        if header[..IDENTITY] != self.identity {
            return Err("it is of another version, device or driver");
        }
        if header[IDENTITY..][..8] != (data.len() as u64).to_le_bytes() {
            return Err("it is cut off");
        }
        if header != self.header(data) { Err("it is damaged") } else { Ok(()) }
    }
}

fn identity(device: &DeviceInfo) -> [u8; IDENTITY] {
    const { assert!(VERSION.len() <= VERSION_BYTES) }
    let mut version = [0; VERSION_BYTES];
    version[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
    let parts: [&[u8]; 5] =
        [MAGIC, &version, &device.driver_uuid, &device.uuid, &device.pipeline_cache_uuid];
    let mut identity = [0; IDENTITY];
    for (to, from) in identity.iter_mut().zip(parts.concat()) {
        *to = from;
    }
    identity
}

/// The contents of a file; `None` of anything else, and of what is too large.
fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    // Before it is opened: that of a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= LARGEST).then_some(bytes))
}

/// Writes a file beside it that then takes its name: readers find the old one or the new one.
fn replace(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension(format!("{}-{count}.tmp", std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut file| parts.iter().try_for_each(|part| file.write_all(part)))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// FNV-1a over 64-bit words: a change of any one word shows for certain.
fn checksum(parts: &[&[u8]]) -> u64 {
    let word = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let start = 0xcbf2_9ce4_8422_2325;
    parts.iter().fold(start, |sum, part| {
        let (words, rest) = part.as_chunks::<8>();
        let sum = words.iter().fold(sum, |sum, bytes| word(sum, u64::from_le_bytes(*bytes)));
        rest.iter().fold(sum, |sum, &byte| word(sum, byte.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::info::DeviceKind;
    use super::super::info::tests::device;
    use super::*;

    /// A folder of its own, removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("backslang-pipelines-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn file(&self) -> PipelineFile {
            PipelineFile::new(&self.0, &device(3, "a", DeviceKind::Discrete))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn data_come_back_and_leave_nothing_else() {
        let folder = Folder::new("whole");
        let file = folder.file();
        assert_eq!(file.load(), None);
        for data in [&b"first"[..], b"the second one", b""] {
            file.save(data);
            assert_eq!(file.load().as_deref(), Some(data));
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_changed_is_ignored() {
        let folder = Folder::new("changed");
        let file = folder.file();
        let data: Vec<u8> = (0..100).collect();
        file.save(&data);
        let whole = fs::read(&file.path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(file.check(&bytes).is_err(), "{at}");
            assert!(file.check(&whole[..at]).is_err(), "{at}");
        }
        assert!(file.check(&[&whole[..], &[0]].concat()).is_err());
        assert!(file.check(&whole).is_ok());
        fs::write(&file.path, b"something else").unwrap();
        assert_eq!(file.load(), None);
        file.save(&data);
        assert_eq!(file.load(), Some(data));
    }

    #[test]
    fn a_file_of_another_driver_is_ignored() {
        let folder = Folder::new("foreign");
        let ours = folder.file();
        ours.save(b"data");
        let changes: [fn(&mut DeviceInfo); 3] = [
            |device| device.uuid[15] ^= 1,
            |device| device.driver_uuid[0] ^= 1,
            |device| device.pipeline_cache_uuid[7] ^= 1,
        ];
        for change in changes {
            let mut other = device(3, "a", DeviceKind::Discrete);
            change(&mut other);
            let theirs = PipelineFile::new(&folder.0, &other);
            if theirs.path != ours.path {
                fs::copy(&ours.path, &theirs.path).unwrap();
            }
            assert_eq!(theirs.load(), None);
        }
        assert_eq!(ours.load().as_deref(), Some(&b"data"[..]));
    }

    #[test]
    fn places_that_cannot_be_written_are_left() {
        let folder = Folder::new("unwritable");
        fs::write(&folder.0, b"a file").unwrap();
        folder.file().save(b"data");
        assert_eq!(folder.file().load(), None);
        assert_eq!(fs::read(&folder.0).unwrap(), b"a file");
        fs::remove_file(&folder.0).unwrap();
        // A folder in the file's place.
        let file = folder.file();
        fs::create_dir_all(&file.path).unwrap();
        assert_eq!(file.load(), None);
        file.save(b"data");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }
}

//! Archives: what NumPy packs, and what is packed to do harm.

use std::io::Write;
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::allocation::allocated;
use super::{Folder, MEBIBYTE, dictionary, little, npy};
use crate::cli::files::{Catalog, Wanted};

pub(super) fn archive(path: &Path, entries: &[(&str, Vec<u8>)], method: CompressionMethod) {
    let mut archive = ZipWriter::new(std::fs::File::create(path).unwrap());
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in entries {
        archive.start_file(*name, options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn archives_are_read_stored_and_deflated() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let array = npy(1, &dictionary("<f4", "False", "(3,)"), &little(&[1.0, 2.0, 3.0]));
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        archive(&path, &[("q.npy", array.clone()), ("notes.txt", vec![1])], method);
        let mut catalog = Catalog::default();
        catalog.add(&path).unwrap();
        assert_eq!(catalog.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["q"]);
        let (tensor, _) = catalog.get("q").unwrap().floats(Wanted::Any).unwrap();
        assert_eq!(tensor.as_f32().unwrap(), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn archives_that_lie_cost_no_memory() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let header = dictionary("<f4", "False", "(1000000000000,)");
    archive(&path, &[("q.npy", npy(1, &header, &[0; 64]))], CompressionMethod::Deflated);
    let mut bytes = std::fs::read(&path).unwrap();
    // The sizes that the central directory and the local header claim: just as large as the array's own lie.
    for (at, signature) in [(24, b"PK\x01\x02"), (22, b"PK\x03\x04")] {
        let start = bytes.windows(4).position(|window| window == signature).unwrap();
        bytes[start + at..start + at + 4].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let before = allocated();
    let mut catalog = Catalog::default();
    let result = catalog.add(&path).and_then(|()| match catalog.get("q") {
        Some(entry) => entry.floats(Wanted::Any).map(|_| ()),
        None => Ok(()),
    });
    assert!(result.is_err());
    assert!(allocated() - before < MEBIBYTE, "{}", allocated() - before);
}

/// Where a record of the archive's directory begins.
fn directory(bytes: &[u8]) -> usize {
    bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap()
}

/// Inflates to far more than is promised: no more of it is read than that.
#[test]
fn bombs_are_not_inflated() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let header = npy(1, &dictionary("<f4", "False", "(6,)"), &[]);
    let promised = (header.len() + 24) as u32;
    let bomb = [header, vec![0; 8 * MEBIBYTE]].concat();
    archive(&path, &[("q.npy", bomb), ("other.npy", vec![0; 4096])], CompressionMethod::Deflated);
    let honest = std::fs::read(&path).unwrap();
    assert!(honest.len() < 20_000);
    let mut lying = honest.clone();
    for (start, at) in [(directory(&honest), 24), (0, 22)] {
        lying[start + at..start + at + 4].copy_from_slice(&promised.to_le_bytes());
    }
    for (bytes, expected) in [
        (honest, "promises 24 bytes of data, but there are 8388608"),
        (lying, "larger than its declared"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let before = allocated();
        let mut catalog = Catalog::default();
        catalog.add(&path).unwrap();
        let message = catalog.get("q").unwrap().floats(Wanted::Any).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(allocated() - before < MEBIBYTE, "{}", allocated() - before);
    }
}

#[test]
fn names_that_climb_are_only_names() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let array = npy(1, &dictionary("<f4", "False", "(1,)"), &[0; 4]);
    let names =
        ["../../q.npy", "/k.npy", "..\\q.npy", "C:\\q.npy", "inner/q.npy", "./q.npy", "Q.NPY"];
    let entries = names.map(|name| (name, array.clone()));
    archive(&path, &entries, CompressionMethod::Stored);
    let mut catalog = Catalog::default();
    catalog.add(&path).unwrap();
    assert!(!catalog.contains("q") && !catalog.contains("k"));
    // Looked up by that very name they are arrays of the archive, wherever they point.
    assert!(catalog.get("../../q").unwrap().floats(Wanted::Any).is_ok());
    assert_eq!(folder.names(), ["a.npz"]);
}

/// As NumPy has it: the last one counts.
#[test]
fn of_entries_of_one_name_the_last_counts() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let array = |value| npy(1, &dictionary("<f4", "False", "(1,)"), &little(&[value]));
    let entries = [("q.npy", array(1.0)), ("r.npy", array(2.0))];
    archive(&path, &entries, CompressionMethod::Stored);
    let mut bytes = std::fs::read(&path).unwrap();
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"r.npy" {
            bytes[at] = b'q';
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let mut catalog = Catalog::default();
    catalog.add(&path).unwrap();
    assert_eq!(catalog.iter().count(), 1);
    let (tensor, _) = catalog.get("q").unwrap().floats(Wanted::Any).unwrap();
    assert_eq!(tensor.as_f32().unwrap(), [2.0]);
}

#[test]
fn archives_in_archives_are_not_opened() {
    let folder = Folder::new();
    let (inner, outer) = (folder.0.join("inner.npz"), folder.0.join("outer.npz"));
    let array = npy(1, &dictionary("<f4", "False", "(1,)"), &[0; 4]);
    archive(&inner, &[("q.npy", array)], CompressionMethod::Stored);
    let inner = std::fs::read(inner).unwrap();
    let entries = [("inner.npz", inner.clone()), ("k.npy", inner)];
    archive(&outer, &entries, CompressionMethod::Stored);
    let mut catalog = Catalog::default();
    catalog.add(&outer).unwrap();
    assert_eq!(catalog.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["k"]);
    let message = catalog.get("k").unwrap().floats(Wanted::Any).unwrap_err().to_string();
    assert!(message.contains("it is a .npz archive"), "{message}");
}

#[test]
fn truncated_archives_are_refused() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let array = npy(1, &dictionary("<f4", "False", "(3,)"), &little(&[1.0, 2.0, 3.0]));
    archive(&path, &[("q.npy", array)], CompressionMethod::Deflated);
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Catalog::default().add(&path).unwrap_err();
        assert!(error.to_string().contains("archive"), "{length}: {error}");
    }
}

#[test]
fn broken_archives_are_refused() {
    let folder = Folder::new();
    for bytes in [b"".to_vec(), b"PK\x05\x06".to_vec(), vec![7; 5000]] {
        let path = folder.file("a.npz", &bytes);
        let error = Catalog::default().add(&path).unwrap_err();
        assert!(error.to_string().contains("archive"), "{error}");
    }
    assert!(Catalog::default().add(&folder.0.join("none")).is_err());
}

#[test]
fn damaged_archives_never_cost_more_than_a_refusal() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    let array = npy(1, &dictionary("<f4", "False", "(3,)"), &little(&[1.0, 2.0, 3.0]));
    archive(&path, &[("q.npy", array)], CompressionMethod::Deflated);
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            std::fs::write(&path, &bytes).unwrap();
            let before = allocated();
            let mut catalog = Catalog::default();
            if catalog.add(&path).is_ok()
                && let Some(Ok((tensor, _))) =
                    catalog.get("q").map(|entry| entry.floats(Wanted::Any))
            {
                assert_eq!(tensor.as_f32().unwrap(), [1.0, 2.0, 3.0], "byte {at} = {value}");
            }
            assert!(
                allocated() - before < MEBIBYTE,
                "byte {at} = {value}: {}",
                allocated() - before
            );
        }
    }
}

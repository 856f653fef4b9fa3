//! Reading: every spelling that NumPy has for the same array, and headers that lie.

use std::io::Write;
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::allocation::allocated;
use super::{Folder, dictionary, npy};
use crate::cli::files::data::{self, Available};
use crate::cli::files::header::Header;
use crate::cli::files::{Catalog, Entry, FileError};

const MEBIBYTE: usize = 1 << 20;

fn read(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f32>), FileError> {
    let folder = Folder::new();
    let (tensor, _) = Entry::File(folder.file("x.npy", bytes)).floats()?;
    Ok((tensor.shape().to_vec(), tensor.as_f32().unwrap().to_vec()))
}

fn refusal(bytes: &[u8]) -> String {
    let before = allocated();
    let error = read(bytes).unwrap_err();
    // The test's own copies included.
    assert!(allocated() - before < MEBIBYTE + 4 * bytes.len(), "{error}");
    error.to_string()
}

fn little(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn versions_orders_and_endings_give_the_same_values() {
    let values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let expected = (vec![2, 3], values.to_vec());
    for version in 1..=3 {
        let file = npy(version, &dictionary("<f4", "False", "(2, 3)"), &little(&values));
        assert_eq!(read(&file).unwrap(), expected);
    }
    let big: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
    assert_eq!(read(&npy(1, &dictionary(">f4", "False", "(2, 3)"), &big)).unwrap(), expected);
    let columns = little(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(read(&npy(1, &dictionary("<f4", "True", "(2, 3)"), &columns)).unwrap(), expected);
    let spelled = "{\"shape\":(2L,3L,) , \"fortran_order\":False,\"descr\":\"<f4\"}   ";
    assert_eq!(read(&npy(2, spelled, &little(&values))).unwrap(), expected);
}

#[test]
fn empty_and_single_arrays_keep_their_shape() {
    for (shape, axes, count) in [
        ("()", vec![], 1),
        ("(1,)", vec![1], 1),
        ("(0,)", vec![0], 0),
        ("(3, 0, 2)", vec![3, 0, 2], 0),
    ] {
        let file = npy(1, &dictionary("<f4", "True", shape), &little(&vec![2.5; count]));
        assert_eq!(read(&file).unwrap(), (axes, vec![2.5; count]));
    }
}

#[test]
fn a_byte_less_or_more_is_refused_with_both_sizes() {
    let header = dictionary("<f4", "False", "(2, 3)");
    for found in [0, 23, 25, 1000] {
        let message = refusal(&npy(1, &header, &vec![0; found]));
        assert!(
            message.contains("24 bytes") && message.contains(&format!("are {found}")),
            "{message}"
        );
    }
}

#[test]
fn text_out_of_a_file_is_escaped_and_cut() {
    let long = "9".repeat(5000);
    for (header, part) in [
        (dictionary("\x1b[31m\x07", "False", "(2, 3)"), "'\\u{1b}[31m\\u{7}'"),
        (dictionary(&long, "False", "(2, 3)"), "9999…'"),
        (dictionary("<f4", "False", &format!("({long},)")), "9999…"),
        (dictionary("<f4", "False", &format!("(-{long},)")), "-9999"),
        (format!("{{'\r{long}': 1}}"), "`\\r9999"),
    ] {
        let message = refusal(&npy(1, &header, &[0; 24]));
        assert!(message.contains(part) && message.len() < 200, "{message}");
        assert!(!message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn sizes_that_lie_are_refused_before_memory_is_asked_for() {
    let huge = [
        "(4611686018427387904, 4)",
        "(18446744073709551615,)",
        "(18446744073709551616,)",
        "(99999999999999999999999999999999999999,)",
        "(4294967296, 4294967296)",
        "(0, 4611686018427387904, 4)",
        "(1000000000000,)",
        "(2305843009213693951,)",
    ];
    for shape in huge {
        let message = refusal(&npy(1, &dictionary("<f4", "False", shape), &[0; 16]));
        assert!(message.contains("too large") || message.contains("promises"), "{message}");
    }
    let message = refusal(&npy(1, &dictionary("<f4", "False", "(-1, 3)"), &[0; 12]));
    assert!(message.contains("negative size -1"), "{message}");
    let message = refusal(&npy(1, &dictionary("<f18446744073709551615", "False", "(2,)"), &[0; 8]));
    assert!(message.contains("too large"), "{message}");
}

#[test]
fn broken_headers_are_refused() {
    let ours = dictionary("<f4", "False", "(2,)");
    let cases = [
        (b"PK\x03\x04 not an array".to_vec(), "it is a .npz archive"),
        (b"GIF89a not an array".to_vec(), "\\x93NUMPY"),
        (b"\x93NUM".to_vec(), "first 8 bytes"),
        (b"".to_vec(), "first 8 bytes"),
        (npy(4, &ours, &[0; 8]), "found 4.0"),
        (b"\x93NUMPY\x01\x00\xff\xff{".to_vec(), "ends within its header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec(), "4294967295 bytes"),
        (npy(1, "{'descr': '<f4', 'fortran_order': False}", &[]), "lacks the key `shape`"),
        (npy(1, &ours.replace("descr", "dtype"), &[]), "unknown key `dtype`"),
        (npy(1, &ours.replace("}", "'shape': (2,)}"), &[]), "`shape` twice"),
        (npy(1, &ours.replace("False", "Maybe"), &[]), "neither True nor False"),
        (npy(1, &ours.replace("(2,)", "(2, 'x')"), &[]), "where a size is expected"),
        (npy(1, &ours.replace("(2,)", "(2.0,)"), &[]), "`)` is expected"),
        (npy(1, &format!("{ours} 1"), &[]), "goes on"),
        (
            npy(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}", &[]),
            "structured",
        ),
        (npy(1, &format!("{{'descr': {}", "(".repeat(60_000)), &[]), "structured"),
        (npy(1, &"(".repeat(60_000), &[]), "`{` is expected"),
        (npy(1, &format!("{{'shape': ({})", "1,".repeat(20_000)), &[]), "64 axes"),
        (npy(1, "{'descr", &[]), "open string"),
        (npy(1, "\u{fffd}\u{93}", &[]), "`{` is expected"),
    ];
    for (bytes, expected) in cases {
        let message = refusal(&bytes);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
    let mut raw = npy(1, &ours, &[0; 8]);
    raw[20] = 0xff;
    assert!(refusal(&raw).contains("not text"));
}

#[test]
fn other_element_types_are_named() {
    for (descr, expected) in [
        ("<f8", "(float64); convert it with `.astype('float32')`"),
        ("<f2", "'<f2' (float16)"),
        ("|V2", "bfloat16"),
        ("<u2", "'<u2'"),
        ("<i4", "'<i4'"),
        ("<c8", "'<c8'"),
        ("|O", "'|O'"),
        ("", "''"),
    ] {
        let message = refusal(&npy(1, &dictionary(descr, "False", "(2,)"), &[0; 16]));
        assert!(message.contains("float32") && message.contains(expected), "{message}");
    }
}

#[test]
fn integers_of_every_type_are_read_exactly() {
    let folder = Folder::new();
    let integers = |descr: &str, data: &[u8], shape: &str| {
        let file = npy(1, &dictionary(descr, "False", shape), data);
        Entry::File(folder.file("i.npy", &file)).integers()
    };
    assert_eq!(integers("|i1", &[0xff, 2], "(2,)").unwrap(), (vec![2], vec![-1, 2]));
    assert_eq!(integers("|u1", &[0xff], "(1,)").unwrap().1, [255]);
    assert_eq!(integers("<i2", &[1, 0x80], "(1,)").unwrap().1, [-32767]);
    assert_eq!(integers(">u2", &[1, 0x80], "(1,)").unwrap().1, [0x180]);
    assert_eq!(integers(">i4", &[0xff, 0xff, 0xff, 0xfe], "(1,)").unwrap().1, [-2]);
    assert_eq!(integers("<i8", &i64::MIN.to_le_bytes(), "(1,)").unwrap().1, [i64::MIN.into()]);
    assert_eq!(integers(">u8", &u64::MAX.to_be_bytes(), "()").unwrap().1, [u64::MAX.into()]);
    for descr in ["<f4", "|b1", "<f8"] {
        let message = integers(descr, &[0; 8], "(1,)").unwrap_err().to_string();
        assert!(message.contains("an integer type") && message.contains(descr), "{message}");
    }
}

#[test]
fn scalars_of_every_real_type_are_read() {
    let folder = Folder::new();
    let scalar = |descr: &str, data: &[u8], shape: &str| {
        Entry::File(folder.file("s.npy", &npy(1, &dictionary(descr, "False", shape), data)))
            .scalar()
    };
    assert_eq!(scalar("<f8", &0.1f64.to_le_bytes(), "()").unwrap(), 0.1);
    assert_eq!(scalar(">f4", &0.5f32.to_be_bytes(), "()").unwrap(), 0.5);
    assert_eq!(scalar("|b1", &[1], "()").unwrap(), 1.0);
    assert_eq!(scalar("<i8", &(-3i64).to_le_bytes(), "()").unwrap(), -3.0);
    for (bits, value) in [(0x3c00u16, 1.0), (0x0001, 2f64.powi(-24)), (0xfbff, -65504.0)] {
        assert_eq!(scalar("<f2", &bits.to_le_bytes(), "()").unwrap(), value);
    }
    assert_eq!(scalar(">f2", &0x7c00u16.to_be_bytes(), "()").unwrap(), f64::INFINITY);
    assert!(scalar("<f2", &0x7e00u16.to_le_bytes(), "()").unwrap().is_nan());
    let message = scalar("<f4", &[0; 4], "(1,)").unwrap_err().to_string();
    assert!(message.contains("0-d") && message.contains("[1]"), "{message}");
    assert!(scalar("<c8", &[0; 8], "()").unwrap_err().to_string().contains("'<c8'"));
}

fn archive(path: &Path, entries: &[(&str, Vec<u8>)], method: CompressionMethod) {
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
        let (tensor, _) = catalog.get("q").unwrap().floats().unwrap();
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
        Some(entry) => entry.floats().map(|_| ()),
        None => Ok(()),
    });
    assert!(result.is_err());
    assert!(allocated() - before < MEBIBYTE, "{}", allocated() - before);
}

#[test]
fn names_that_climb_are_only_names() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    archive(&path, &[("../../q.npy", vec![]), ("/k.npy", vec![])], CompressionMethod::Stored);
    let mut catalog = Catalog::default();
    catalog.add(&path).unwrap();
    assert!(!catalog.contains("q") && !catalog.contains("k"));
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

/// Every byte of a file replaced by every other: refused, or read within bounds, but never worse.
#[test]
fn damaged_files_never_cost_more_than_a_refusal() {
    let whole = npy(1, &dictionary("<f4", "False", "(2, 3)"), &[0; 24]);
    for at in 0..whole.len() - 24 {
        for value in 0..=255 {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let before = allocated();
            let mut reader = bytes.as_slice();
            if let Ok(header) = Header::read(&mut reader) {
                let available = Available::File(bytes.len() as u64);
                let read = data::floats(&header, available, &mut reader);
                assert!(read.is_err() || header.data_bytes() == Some(24));
            }
            assert!(allocated() - before < MEBIBYTE);
        }
    }
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length}");
    }
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
                && let Some(Ok((tensor, _))) = catalog.get("q").map(Entry::floats)
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

//! Reading: every spelling that NumPy has for the same array, and headers that lie.

use super::allocation::allocated;
use super::{Folder, MEBIBYTE, dictionary, little, npy};
use crate::cli::files::data::{self, Available};
use crate::cli::files::header::Header;
use crate::cli::files::{Entry, FileError, Wanted};

fn read(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f32>), FileError> {
    let folder = Folder::new();
    let (tensor, _) = Entry::File(folder.file("x.npy", bytes)).floats(Wanted::Any)?;
    Ok((tensor.shape().to_vec(), tensor.as_f32().unwrap().to_vec()))
}

fn refusal(bytes: &[u8]) -> String {
    let before = allocated();
    let error = read(bytes).unwrap_err();
    // The test's own copies included.
    assert!(allocated() - before < MEBIBYTE + 4 * bytes.len(), "{error}");
    error.to_string()
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
        ("|V2", "bfloat16 is read with --dtype bf16"),
        ("<V2", "bfloat16 is read with --dtype bf16"),
        ("bfloat16", "'bfloat16'; bfloat16 is read with --dtype bf16"),
        ("<u2", "'<u2' (uint16); bfloat16 is read with --dtype bf16"),
        ("|V4", "'|V4'"),
        ("<i4", "'<i4'"),
        ("<c8", "'<c8'"),
        ("|O", "'|O'"),
        ("", "''"),
    ] {
        let message = refusal(&npy(1, &dictionary(descr, "False", "(2,)"), &[0; 16]));
        assert!(message.contains("float32 or float16, found"), "{message}");
        assert!(message.contains(expected), "{message}");
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
    let either = |letters: &str, value: f64, little: &[u8]| {
        let big = little.iter().rev().copied().collect::<Vec<_>>();
        for (descr, data) in [
            (format!("<{letters}"), little),
            (format!("|{letters}"), little),
            (format!(">{letters}"), &big),
        ] {
            assert_eq!(scalar(&descr, data, "()").unwrap(), value, "{descr}");
        }
    };
    for value in [0i8, 1, -3, i8::MIN] {
        either("i1", value.into(), &value.to_le_bytes());
        either("i2", value.into(), &i16::from(value).to_le_bytes());
        either("i4", value.into(), &i32::from(value).to_le_bytes());
        either("i8", value.into(), &i64::from(value).to_le_bytes());
        either("f4", value.into(), &f32::from(value).to_le_bytes());
        either("f8", value.into(), &f64::from(value).to_le_bytes());
    }
    either("u1", 255.0, &[255]);
    either("u2", 65535.0, &u16::MAX.to_le_bytes());
    either("u4", 4294967295.0, &u32::MAX.to_le_bytes());
    either("u8", 2f64.powi(64), &u64::MAX.to_le_bytes());
    either("f8", 0.1, &0.1f64.to_le_bytes());
    either("b1", 0.0, &[0]);
    either("b1", 1.0, &[1]);
    for (bits, value) in [(0x3c00u16, 1.0), (0x0001, 2f64.powi(-24)), (0xfbff, -65504.0)] {
        either("f2", value, &bits.to_le_bytes());
    }
    either("f2", f64::INFINITY, &0x7c00u16.to_le_bytes());
    assert!(scalar("<f2", &0x7e00u16.to_le_bytes(), "()").unwrap().is_nan());
    for shape in ["(1,)", "(1, 1)", "(0,)"] {
        let message = scalar("<f4", &[0; 4], shape).unwrap_err().to_string();
        assert!(message.contains("0-d"), "{message}");
    }
    for (descr, size) in [
        ("<c8", 8),
        ("<c16", 16),
        ("|V2", 2),
        ("|O", 8),
        ("<U4", 16),
        ("|S4", 4),
        ("<M8[s]", 8),
        ("<f16", 16),
        ("|b2", 2),
        ("<i16", 16),
        ("<u3", 3),
    ] {
        let message = scalar(descr, &vec![0; size], "()").unwrap_err().to_string();
        assert!(message.contains(&format!("'{descr}'")), "{message}");
    }
    for bytes in [0, 3, 5] {
        let message = scalar("<f4", &vec![0; bytes], "()").unwrap_err().to_string();
        assert!(message.contains("promises 4 bytes"), "{message}");
    }
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
                let read = data::floats(&header, Wanted::Any, available, &mut reader);
                assert!(read.is_err() || header.data_bytes() == Some(24));
            }
            assert!(allocated() - before < MEBIBYTE);
        }
    }
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length}");
    }
}

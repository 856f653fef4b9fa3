//! Random files: any bytes, damaged arrays and archives, and every spelling of random arrays. A failure prints its seed,
//! which `BACKSLANG_TEST_SEED` runs again.

use backslang::Dtype;
use fastrand::Rng;
use zip::CompressionMethod;

use super::allocation::allocated;
use super::archive_tests::archive;
use super::{Folder, MEBIBYTE, npy};
use crate::cli::files::data::{self, Available};
use crate::cli::files::header::Header;
use crate::cli::files::{Catalog, Wanted};

/// Runs `property` with many generators; a panic in it says with which seed.
fn for_seeds(count: u64, property: impl Fn(&mut Rng)) {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("BACKSLANG_TEST_SEED={}", self.0);
            }
        }
    }
    let fixed = std::env::var("BACKSLANG_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    for _ in 0..if fixed.is_some() { 1 } else { count } {
        let seed = fixed.unwrap_or_else(|| fastrand::u64(..));
        let _tell = Tell(seed);
        property(&mut Rng::with_seed(seed));
    }
}

/// Reads bytes in every way that there is: refused, or as long as promised, and never at more memory than that.
fn read_every_way(bytes: &[u8], rng: &mut Rng) {
    let size = bytes.len() as u64;
    let available = [
        Available::File(size),
        Available::Claimed(size),
        Available::Claimed(rng.u64(..)),
        Available::Unknown,
    ];
    for available in available {
        for way in 0..5 {
            let before = allocated();
            let mut reader = bytes;
            let Ok(header) = Header::read(&mut reader) else { continue };
            let mut floats = |wanted| {
                let tensor = data::floats(&header, wanted, available, &mut reader)?;
                Ok(tensor.bytes().len() / tensor.dtype().size())
            };
            let count = match way {
                0 => floats(Wanted::Any),
                1 => floats(Wanted::Flag(Dtype::Bf16)),
                2 => floats(Wanted::Like(Dtype::F16, "q")),
                3 => data::integers(&header, available, &mut reader).map(|values| values.len()),
                _ => data::scalar(&header, available, &mut reader).map(|_| 1),
            };
            if let Ok(count) = count {
                assert_eq!(count, header.elements());
                assert_eq!(Some(size - header.length), header.data_bytes());
            }
            // Widened integers take up to 16 bytes for one, twice when reordered.
            assert!(allocated() - before < MEBIBYTE + 64 * bytes.len());
        }
    }
}

#[test]
fn any_bytes_are_read_within_bounds() {
    for_seeds(20_000, |rng| {
        let mut bytes = (0..rng.usize(0..200)).map(|_| rng.u8(..)).collect::<Vec<_>>();
        if rng.bool() {
            // As far as the text.
            let head = npy(rng.u8(1..=4), "", &[]);
            let length = bytes.len() as u16;
            bytes.splice(0..0, head);
            bytes[8..10].copy_from_slice(&length.min(rng.u16(..)).to_le_bytes());
        }
        read_every_way(&bytes, rng);
    });
}

/// What headers are made of, and what breaks readers.
const TOKENS: [&str; 29] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "'",
    "\"",
    ",",
    ":",
    "-1",
    "0",
    "1",
    "18446744073709551615",
    "4294967296",
    "1e9",
    "0x10",
    "L",
    "True",
    "False",
    "None",
    "descr",
    "shape",
    "fortran_order",
    "<f4",
    ">f2",
    "|V2",
    "bfloat16",
    ">i8",
    "\u{fffd}",
];

/// Removes, repeats, flips or inserts something.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.usize(0..=bytes.len());
    let end = rng.usize(at..=bytes.len().min(at + 20));
    match rng.u8(0..5) {
        0 => drop(bytes.drain(at..end)),
        1 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        2 => bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 << rng.u8(0..8)),
        3 => bytes[at..end]
            .iter_mut()
            .for_each(|byte| *byte = [0, 0xff, 0x7f, 0x80][rng.usize(0..4)]),
        _ => drop(bytes.splice(at..at, TOKENS[rng.usize(0..TOKENS.len())].bytes())),
    }
}

#[test]
fn damaged_arrays_are_read_within_bounds() {
    for_seeds(20_000, |rng| {
        let mut bytes = Array::random(rng).file(rng);
        for _ in 0..rng.usize(1..4) {
            damage(&mut bytes, rng);
        }
        read_every_way(&bytes, rng);
    });
}

/// An array of integers small enough for every element type.
struct Array {
    shape: Vec<usize>,
    values: Vec<i8>,
    /// Letter and size; bfloat16 has the letter `B` here.
    kind: (char, usize),
}

impl Array {
    fn random(rng: &mut Rng) -> Self {
        let shape = (0..rng.usize(0..5)).map(|_| rng.usize(0..5)).collect::<Vec<_>>();
        let kinds = [
            ('f', 4),
            ('f', 2),
            ('B', 2),
            ('i', 1),
            ('i', 2),
            ('i', 4),
            ('i', 8),
            ('u', 1),
            ('u', 2),
            ('u', 4),
            ('u', 8),
        ];
        let kind = kinds[rng.usize(0..kinds.len())];
        let least = if kind.0 == 'u' { 0 } else { i8::MIN };
        let values = (0..shape.iter().product()).map(|_| rng.i8(least..)).collect();
        Self { shape, values, kind }
    }

    /// A wish by which it is read.
    fn wanted(&self, rng: &mut Rng) -> Wanted {
        let dtype = match self.kind {
            ('f', 4) => Dtype::F32,
            ('f', _) => Dtype::F16,
            _ => Dtype::Bf16,
        };
        match rng.u8(0..3) {
            0 if dtype != Dtype::Bf16 => Wanted::Any,
            1 => Wanted::Like(dtype, "q"),
            _ => Wanted::Flag(dtype),
        }
    }

    /// One of the many ways to write it, not by the product's own writer.
    fn file(&self, rng: &mut Rng) -> Vec<u8> {
        let (letter, size) = self.kind;
        let big = rng.bool();
        let fortran = rng.bool();
        let order = if big { '>' } else { ['<', '=', '|'][rng.usize(0..3)] };
        let descr = match letter {
            'B' if !big && rng.bool() => "bfloat16".into(),
            'B' => format!("{order}{}2", ['V', 'u'][rng.usize(0..2)]),
            _ => format!("{order}{letter}{size}"),
        };
        let space = |rng: &mut Rng| " ".repeat(rng.usize(0..3));
        let quoted = |text: &str, rng: &mut Rng| {
            let quote = if rng.bool() { '"' } else { '\'' };
            format!("{quote}{text}{quote}")
        };
        let axes = self
            .shape
            .iter()
            .map(|axis| format!("{}{axis}{}", space(rng), space(rng)))
            .collect::<Vec<_>>();
        let comma = if axes.len() == 1 || !axes.is_empty() && rng.bool() { "," } else { "" };
        let mut entries = [
            ("descr", quoted(&descr, rng)),
            ("fortran_order", if fortran { "True" } else { "False" }.into()),
            ("shape", format!("({}{comma}{})", axes.join(","), space(rng))),
        ];
        rng.shuffle(&mut entries);
        let entries = entries.map(|(key, value)| {
            format!("{}{}{}:{}{value}", space(rng), quoted(key, rng), space(rng), space(rng))
        });
        let last = if rng.bool() { "," } else { "" };
        let text = format!("{{{}{last}{}}}{}", entries.join(","), space(rng), space(rng));
        let data = self.in_order(fortran).into_iter().flat_map(|value| self.element(value, big));
        npy(rng.u8(1..=3), &text, &data.collect::<Vec<_>>())
    }

    /// The values with the first axis varying fastest, or the last one.
    fn in_order(&self, fortran: bool) -> Vec<i8> {
        if !fortran {
            return self.values.clone();
        }
        let place = |mut index: usize| {
            let mut place = 0;
            let mut stride = self.values.len();
            for &axis in &self.shape {
                stride /= axis;
                place += index % axis * stride;
                index /= axis;
            }
            place
        };
        (0..self.values.len()).map(|index| self.values[place(index)]).collect()
    }

    fn element(&self, value: i8, big: bool) -> Vec<u8> {
        let (letter, size) = self.kind;
        let mut bytes = match letter {
            'f' if size == 2 => half::f16::from_f32(value.into()).to_le_bytes().to_vec(),
            'B' => half::bf16::from_f32(value.into()).to_le_bytes().to_vec(),
            'f' => f32::from(value).to_le_bytes().to_vec(),
            _ => i64::from(value).to_le_bytes()[..size].to_vec(),
        };
        if big {
            bytes.reverse();
        }
        bytes
    }
}

#[test]
fn every_spelling_of_an_array_is_read_alike() {
    for_seeds(5000, |rng| {
        let array = Array::random(rng);
        let bytes = array.file(rng);
        let available = [
            Available::File(bytes.len() as u64),
            Available::Claimed(bytes.len() as u64),
            Available::Unknown,
        ];
        let available = available[rng.usize(0..3)];
        let mut reader = bytes.as_slice();
        let header = Header::read(&mut reader).unwrap();
        assert_eq!(header.shape, array.shape);
        let found: Vec<i128> = match array.kind.0 {
            'f' | 'B' => {
                let wanted = array.wanted(rng);
                let tensor = data::floats(&header, wanted, available, &mut reader).unwrap();
                assert_eq!(tensor.shape(), array.shape);
                tensor.to_f64().iter().map(|&value| value as i128).collect()
            }
            _ => data::integers(&header, available, &mut reader).unwrap(),
        };
        assert!(
            found.iter().eq(array
                .values
                .iter()
                .map(|&value| i128::from(value))
                .collect::<Vec<_>>()
                .iter())
        );
    });
}

/// Archives of a few arrays, damaged: refused, or the arrays that they held.
#[test]
fn damaged_archives_are_read_within_bounds() {
    let folder = Folder::new();
    let path = folder.0.join("a.npz");
    for_seeds(500, |rng| {
        let arrays = ["q", "k", "v"].map(|name| {
            let array = loop {
                let array = Array::random(rng);
                if array.kind.0 == 'f' {
                    break array;
                }
            };
            (name, array)
        });
        let method =
            if rng.bool() { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        let entries =
            arrays.each_ref().map(|(name, array)| (format!("{name}.npy"), array.file(rng)));
        let entries = entries.each_ref().map(|(name, bytes)| (name.as_str(), bytes.clone()));
        archive(&path, &entries, method);
        let mut bytes = std::fs::read(&path).unwrap();
        let damages = rng.usize(0..3);
        (0..damages).for_each(|_| damage(&mut bytes, rng));
        std::fs::write(&path, &bytes).unwrap();
        let before = allocated();
        let mut catalog = Catalog::default();
        let opened = catalog.add(&path);
        let mut read = 0;
        for (name, array) in &arrays {
            if let Some(Ok((tensor, _))) = catalog.get(name).map(|entry| entry.floats(Wanted::Any))
            {
                let found = tensor.to_f64().iter().map(|&value| value as i8).collect::<Vec<_>>();
                // The checksum leaves no other array than one of these.
                let same = |array: &Array| tensor.shape() == array.shape && found == array.values;
                assert!(arrays.iter().any(|(_, array)| same(array)), "{name}");
                read += usize::from(same(array));
            }
        }
        assert!(damages > 0 || opened.is_ok() && read == 3);
        assert!(allocated() - before < MEBIBYTE + 64 * bytes.len(), "{}", allocated() - before);
    });
}

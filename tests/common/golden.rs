//! The golden cases of `tests/data`.
#![allow(dead_code, unreachable_pub, reason = "each test binary includes it and uses its share")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use backslang::kernels::attention::{BackwardInputs, ForwardInputs, History, Options, Schedule};
use ndarray::{ArrayD, IxDyn};

/// The arrays of one archive, widened to float64 (exact for every type in it).
pub struct Case {
    name: String,
    arrays: BTreeMap<String, ArrayD<f64>>,
}

impl Case {
    pub fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut archive = zip::ZipArchive::new(file).unwrap();
        let mut arrays = BTreeMap::new();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            let array = entry.name().unwrap().trim_end_matches(".npy").to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            arrays.insert(array, parse(&bytes));
        }
        Self { name: name.to_owned(), arrays }
    }

    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    pub fn remove(&mut self, name: &str) {
        self.arrays.remove(name);
    }

    pub fn array(&self, name: &str) -> ArrayD<f64> {
        let found = self.arrays.get(name);
        found.unwrap_or_else(|| panic!("{}: no array {name}", self.name)).clone()
    }

    pub fn scalar(&self, name: &str) -> f64 {
        *self.array(name).first().unwrap()
    }

    pub fn integers(&self, name: &str) -> Vec<i128> {
        self.array(name).iter().map(|&value| value as i128).collect()
    }

    pub fn schedule(&self) -> Schedule {
        Schedule {
            block_table: self.integers("block_table"),
            table_width: self.array("block_table").shape()[1],
            sequence_lengths: self.integers("sequence_lengths"),
            sequence_ids: self.integers("sequence_ids"),
            positions: self.has("positions").then(|| self.integers("positions")),
        }
    }

    /// `causal` and `scale` of the case; the scale rounded to f32.
    pub fn options(&self) -> Options {
        let causal = self.scalar("causal") != 0.0;
        Options { causal, ..Options::new(self.scalar("scale") as f32) }
    }

    pub fn forward_inputs(&self) -> ForwardInputs<ArrayD<f64>> {
        ForwardInputs { q: self.array("q"), history: self.history() }
    }

    pub fn backward_inputs(&self) -> BackwardInputs<ArrayD<f64>> {
        let optional = |name| self.has(name).then(|| self.array(name));
        BackwardInputs {
            q: self.array("q"),
            history: self.history(),
            output_gradient: self.array("output_gradient"),
            statistics: optional("statistics"),
            output: optional("output"),
        }
    }

    fn history(&self) -> History<ArrayD<f64>> {
        if self.has("latent") {
            History::Latent {
                latent: self.array("latent"),
                q_position: self.array("q_position"),
                k_position: self.array("k_position"),
            }
        } else {
            History::Separate { k: self.array("k"), v: self.array("v") }
        }
    }
}

/// The relative Frobenius error; NaN when one side has a NaN. Shapes must agree.
pub fn relative_error(found: &ArrayD<f64>, expected: &ArrayD<f64>) -> f64 {
    assert_eq!(found.shape(), expected.shape());
    let error = (found - expected).mapv(|x| x * x).sum().sqrt();
    let norm = expected.mapv(|x| x * x).sum().sqrt();
    if error == 0.0 { 0.0 } else { error / norm }
}

/// One `.npy` file in C order and little-endian, of a type that the cases use.
fn parse(bytes: &[u8]) -> ArrayD<f64> {
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\0");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..end]).unwrap();
    let field = |key: &str, close: &str| {
        let from = header.split_once(key).unwrap().1;
        from.split_once(close).unwrap().0
    };
    assert_eq!(field("'fortran_order': ", ","), "False");
    let axes = field("'shape': (", ")").split(',').map(str::trim).filter(|axis| !axis.is_empty());
    let shape = axes.map(|axis| axis.parse().unwrap()).collect::<Vec<usize>>();
    let values = elements(field("'descr': '", "'"), &bytes[end..]);
    ArrayD::from_shape_vec(IxDyn(&shape), values).unwrap()
}

fn elements(descr: &str, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], widen: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|&element| widen(element)).collect()
    }
    match descr {
        "<f8" => each(bytes, f64::from_le_bytes),
        "<f4" => each(bytes, |b| f32::from_le_bytes(b).into()),
        "<f2" => each(bytes, |b| from_f16(u16::from_le_bytes(b))),
        // bfloat16, the only 16-bit words and bytes here.
        "<u2" | "|V2" => {
            each(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into())
        }
        "<i4" => each(bytes, |b| i32::from_le_bytes(b).into()),
        "<i8" => each(bytes, |b| i64::from_le_bytes(b) as f64),
        _ => panic!("type {descr}"),
    }
}

fn from_f16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f64::from(bits & 1023) / 1024.0;
    sign * match exponent {
        0 => fraction * f64::from(-14).exp2(),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * f64::from(exponent - 15).exp2(),
    }
}

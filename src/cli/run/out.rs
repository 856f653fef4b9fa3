//! `--out`: the arrays that a kernel writes.

use backslang::Dtype;

use super::groups;
use crate::cli::failure::{Failure, Result};

/// An element type of outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A floating-point type.
    Float(Dtype),
    /// Words.
    Unsigned,
    /// Words with a sign.
    Signed,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "f32" => Self::Float(Dtype::F32),
            "f16" => Self::Float(Dtype::F16),
            "bf16" => Self::Float(Dtype::Bf16),
            "u32" => Self::Unsigned,
            "i32" => Self::Signed,
            _ => return None,
        })
    }

    /// The type of its elements in device memory.
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Float(dtype) => dtype,
            Self::Unsigned | Self::Signed => Dtype::U32,
        }
    }
}

/// An array to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Out {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) kind: Kind,
}

impl Out {
    /// Reads `NAME=[AXES]:TYPE`.
    pub(super) fn parse(text: &str, value: &dyn Fn(&str) -> Option<u64>) -> Result<Self> {
        let malformed = || {
            let expected = "expected NAME=[AXES]:TYPE, such as y=[64,32]:f32";
            Failure::usage(format!("--out: {expected}, found `{text}`"))
        };
        let (name, rest) = text.split_once('=').ok_or_else(malformed)?;
        let (axes, kind) = rest.split_once("]:").ok_or_else(malformed)?;
        let axes = axes.strip_prefix('[').ok_or_else(malformed)?;
        let kind = Kind::parse(kind).ok_or_else(|| {
            let expected = "expected the type f32, f16, bf16, u32 or i32";
            Failure::usage(format!("--out {name}: {expected}, found `{kind}`"))
        })?;
        let fault = |message| Failure::usage(format!("--out {name}: {message}"));
        // A single value has no axes.
        let shape = match axes.trim() {
            "" => Vec::new(),
            axes => groups::sizes(axes, value).map_err(fault)?,
        };
        if shape.iter().try_fold(4usize, |n, &axis| n.checked_mul(axis)).is_none() {
            return Err(fault(format!("{shape:?} is too large")));
        }
        Ok(Self { name: name.into(), shape, kind })
    }

    /// Bytes in device memory.
    pub(super) fn bytes(&self) -> usize {
        self.kind.dtype().size() * self.shape.iter().product::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Out> {
        Out::parse(text, &|name| (name == "rows").then_some(64))
    }

    #[test]
    fn outputs_are_read() {
        let out = |shape: &[usize], kind| Out { name: "y".into(), shape: shape.to_vec(), kind };
        assert_eq!(read("y=[64,32]:f32"), Ok(out(&[64, 32], Kind::Float(Dtype::F32))));
        assert_eq!(read("y=[rows, rows/3]:bf16"), Ok(out(&[64, 22], Kind::Float(Dtype::Bf16))));
        assert_eq!(read("y=[]:i32"), Ok(out(&[], Kind::Signed)));
        assert_eq!(read("y=[0]:u32"), Ok(out(&[0], Kind::Unsigned)));
    }

    #[test]
    fn what_is_no_output_is_told() {
        for (text, part) in [
            ("y", "NAME=[AXES]:TYPE"),
            ("y=64:f32", "NAME=[AXES]:TYPE"),
            ("y=[64]", "NAME=[AXES]:TYPE"),
            ("y=[64]:f64", "`f64`"),
            ("y=[cols]:f32", "`cols`"),
            ("y=[18446744073709551615]:f32", "too large"),
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.input && failure.message.contains(part), "{text}: {failure:?}");
        }
    }
}

//! Which element type an array of floats is to have, and what is said when it has another one.

use std::fmt;

use backslang::Dtype;

use super::FileError;
use super::descr::{Descr, Kind};

/// What an array of floats is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What its file says, of the types that a file can say.
    Any,
    /// As `--dtype` says.
    Flag(Dtype),
    /// As another array is.
    Like(Dtype, &'static str),
    /// This type in every call.
    Always(Dtype),
}

impl Wanted {
    /// The type to read the elements as. Two bytes are bfloat16 only where that is asked for, and float16 never is.
    pub(super) fn read_as(self, descr: &Descr) -> Result<Dtype, FileError> {
        let wanted = match self {
            Self::Any => None,
            Self::Flag(dtype) | Self::Like(dtype, _) | Self::Always(dtype) => Some(dtype),
        };
        let found = match (descr.kind, descr.size) {
            (Kind::Float, Some(4)) => Some(Dtype::F32),
            (Kind::Float, Some(2)) => Some(Dtype::F16),
            (Kind::Raw | Kind::Unsigned, Some(2)) if wanted == Some(Dtype::Bf16) => wanted,
            _ => None,
        };
        match found {
            Some(dtype) if wanted.is_none_or(|wanted| wanted == dtype) => Ok(dtype),
            _ => Err(FileError::Dtype { expected: self.to_string(), found: self.words(descr) }),
        }
    }

    /// Whether an array is one of integers, where those are taken as well.
    #[cfg(feature = "slang")]
    pub(super) fn is_met_by_integers(self, descr: &Descr) -> bool {
        match descr.kind {
            Kind::Signed => true,
            Kind::Unsigned => !(self == Self::Flag(Dtype::Bf16) && descr.size == Some(2)),
            _ => false,
        }
    }

    /// As which floats an array is read beside others: bfloat16 is asked for where a file cannot say it, and leaves other
    /// arrays as they are.
    #[cfg(feature = "slang")]
    pub(super) fn beside(self, descr: &Descr) -> Self {
        let told = self == Self::Flag(Dtype::Bf16) && descr.kind == Kind::Float;
        if told { Self::Any } else { self }
    }

    /// The type found, and what to do about it.
    fn words(self, descr: &Descr) -> String {
        match (descr.kind, descr.size) {
            (Kind::Bool | Kind::Signed | Kind::Float | Kind::Object, _) => {
                format!("{descr}; convert it with `.astype({})`", self.conversion())
            }
            (Kind::Raw | Kind::Unsigned, Some(2)) if matches!(self, Self::Any | Self::Like(..)) => {
                format!("{descr}; bfloat16 is read with --dtype bf16")
            }
            // Two bytes may be bfloat16, whose conversion as numbers would be wrong.
            _ => descr.to_string(),
        }
    }

    fn conversion(self) -> &'static str {
        match self {
            Self::Any => "'float32'",
            Self::Flag(dtype) | Self::Like(dtype, _) | Self::Always(dtype) => match dtype {
                Dtype::F16 => "'float16'",
                Dtype::Bf16 => "ml_dtypes.bfloat16",
                _ => "'float32'",
            },
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Any => f.write_str("float32 or float16"),
            Self::Flag(dtype) => write!(f, "{}, as --dtype {dtype} says", name(dtype)),
            Self::Like(dtype, array) => write!(f, "{}, which `{array}` is", name(dtype)),
            Self::Always(dtype) => f.write_str(name(dtype)),
        }
    }
}

/// What NumPy's users call it.
fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        _ => "float32",
    }
}

//! Parts of a call, for several devices or machines: together they give the same bits as one.
//!
//! A call is divided into [`Shard`]s, counted from 0. What is divided are units that no two shards share: rows of the
//! Mamba-3 preprocess (of its backward, chunks of
//! [`DT_BIAS_CHUNK_ROWS`](crate::kernels::mamba3::preprocess_backward::DT_BIAS_CHUNK_ROWS) rows), key/value heads × query
//! rows of attention and of its query gradients, key/value heads × pages of its history gradients, pages of an append.
//! Attention's units are dealt by what they cost, that is by the pairs of rows and tokens that see each other; the heads
//! are divided before the pages, so that of `heads` shards each has one head. Which shard has which units follows from
//! the call and the number of shards alone. There may be more shards than units: some are empty then.
//!
//! A shard takes of the inputs what its units need. History gradients need the statistics of all rows that see the pages:
//! complete ones that are given are taken as they are; otherwise a shard computes those that its own query rows do not
//! give, so that shards which share a head both compute that head's.
//!
//! The same bits come from devices of the same kind, with the same driver and subgroup size.
//!
//! [`run`] spreads a call over devices; [`part`] and [`Assembly`] do the same over processes, as the command line does:
//!
//! ```no_run
//! use backslang::kernels::attention::{BackwardInputs, Options, Schedule};
//! use backslang::runtime::{Runtime, RuntimeOptions};
//! use backslang::shard::{self, AttentionBackward, Drive};
//! use backslang::{HostTensor, Result};
//!
//! fn gradients(inputs: &BackwardInputs<HostTensor>, schedule: &Schedule, options: Options) -> Result<()> {
//!     let runtimes = Runtime::all(&RuntimeOptions::default())?;
//!     let call = AttentionBackward { inputs, schedule, options, onto: &[], save_statistics: false };
//!     for (name, tensor) in shard::run(&runtimes, &call, Drive::default())?.outputs {
//!         println!("{name}: {:?}", tensor.shape());
//!     }
//!     Ok(())
//! }
//! ```

mod append;
mod assembly;
mod backward;
mod cost;
mod engine;
mod forward;
mod mamba3;
mod slices;
mod spread;
mod units;

use std::fmt;
use std::str::FromStr;

pub use append::Append;
pub use assembly::{Assembly, Output, Source};
pub use backward::AttentionBackward;
pub use engine::{Drive, Engine, Record};
pub use forward::AttentionForward;
pub use mamba3::{PreprocessBackward, PreprocessForward};
pub use spread::{Spread, part, run};
pub use units::Units;

use std::ops::Range;

use crate::error::{Error, Result};
use crate::host::HostTensor;

/// One of several parts of a call.
///
/// As text `I/N`, from `0/N` to `N-1/N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// All of the call.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The most shards that a call can be divided into.
    pub const MOST: usize = 1 << 20;

    /// Part `index` of `count`, counted from 0.
    ///
    /// # Errors
    /// [`Error::Parameter`] when there is no such part.
    pub fn new(index: usize, count: usize) -> Result<Self> {
        if index < count && count <= Self::MOST {
            return Ok(Self { index, count });
        }
        Err(Error::Parameter {
            name: "shard",
            expected: match count {
                1..=Self::MOST => {
                    format!("0/{count} to {}/{count}, as shards are counted from 0", count - 1)
                }
                _ => format!("I/N with N from 1 to {}", Self::MOST),
            },
            found: format!("{index}/{count}"),
        })
    }

    /// Which one, counted from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// Of how many.
    pub fn count(self) -> usize {
        self.count
    }

    /// Part `index` of `count` parts of this one; together they have its units.
    pub(crate) fn divided(self, index: usize, count: usize) -> Self {
        Self { index: self.index * count + index, count: self.count * count }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let numbers = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let Some((index, count)) = numbers else {
            return Err(Error::Parameter {
                name: "shard",
                expected: "I/N, part I of N counted from 0, such as 0/4".into(),
                found: format!("`{text}`"),
            });
        };
        Self::new(index, count)
    }
}

/// A call on host arrays that can be divided.
pub trait Divide: Sync {
    /// The outputs of the whole call, in order, and how they come from the parts.
    ///
    /// # Errors
    /// Shapes, element types and options that do not fit.
    fn outputs(&self) -> Result<Vec<Output>>;

    /// Computes one part.
    ///
    /// # Errors
    /// As [`Divide::outputs`]; a schedule that does not fit; what the device reports.
    fn part(&self, shard: Shard, engine: &mut Engine<'_>) -> Result<Vec<PartArray>>;
}

/// What a part has of an array.
#[derive(Debug, Clone, PartialEq)]
pub struct PartArray {
    /// The array's name.
    pub name: String,
    /// Which units of it.
    pub units: Range<usize>,
    /// `[units, …]`.
    pub values: Values,
}

/// The elements of a part's array.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Of an element type of tensors.
    Tensor(HostTensor),
    /// Sums in float64, as the reference has them, `[units, width]`.
    Doubles {
        /// Elements a unit.
        width: usize,
        /// In row-major order.
        values: Vec<f64>,
    },
}

impl PartArray {
    fn new(name: &str, units: Range<usize>, tensor: HostTensor) -> Self {
        Self { name: name.into(), units, values: Values::Tensor(tensor) }
    }

    /// The arrays of parts that follow each other as that of one part. One call's are all of one kind.
    fn joined(arrays: Vec<Self>) -> Option<Self> {
        // Empty ones may lie anywhere.
        let (mut arrays, empty): (Vec<_>, Vec<_>) =
            arrays.into_iter().partition(|array| !array.units.is_empty());
        if arrays.len() < 2 {
            return arrays.pop().or_else(|| empty.into_iter().next());
        }
        let (first, last) = (arrays.first()?, arrays.last()?);
        let (name, units) = (first.name.clone(), first.units.start..last.units.end);
        let tensor = |array: &Self| match &array.values {
            Values::Tensor(tensor) => Some(tensor.clone()),
            Values::Doubles { .. } => None,
        };
        if let Some(tensors) = arrays.iter().map(tensor).collect::<Option<Vec<_>>>() {
            let (dtype, shape) = (tensors.first()?.dtype(), tensors.first()?.shape());
            return Some(Self::new(&name, units, slices::joined(dtype, shape, &tensors)));
        }
        let mut all = Vec::new();
        let mut width = 0;
        for array in arrays {
            if let Values::Doubles { width: of, values } = array.values {
                width = of;
                all.extend(values);
            }
        }
        Some(Self { name, units, values: Values::Doubles { width, values: all } })
    }
}

impl Values {
    /// The shape.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Tensor(tensor) => tensor.shape().to_vec(),
            Self::Doubles { width, values } => vec![values.len() / (*width).max(1), *width],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_counted_from_zero() {
        let parse = |text: &str| text.parse::<Shard>();
        assert_eq!(parse("0/1").unwrap(), Shard::WHOLE);
        assert_eq!(parse("6/7").unwrap().to_string(), "6/7");
        for (text, part) in [
            ("4/4", "0/4 to 3/4"),
            ("0/0", "N from 1"),
            ("0/1048577", "N from 1"),
            ("1", "`1`"),
            ("", "``"),
            ("-1/4", "`-1/4`"),
            ("1/4/2", "I/N"),
            (" 1/4", "I/N"),
            ("a/b", "I/N"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("`shard`"), "{error}");
        }
    }
}

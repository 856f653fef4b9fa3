//! The manifest of a part: what it is a part of, and where its arrays belong.

use backslang::runtime::Runtime;
use backslang::shard::{Output, PartArray, Shard, Source, Units, Values};
use backslang::{Dtype, HostTensor};
use serde::{Deserialize, Serialize};

use super::identity::{Identity, sha256};
use crate::cli::listings;

/// What lies beside a part's arrays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The version of backslang that wrote it.
    pub(crate) version: String,
    /// The command.
    pub(crate) command: String,
    pub(crate) shard: Part,
    /// What computed it.
    pub(crate) devices: Vec<Device>,
    #[serde(flatten)]
    pub(crate) identity: Identity,
    /// The outputs of the whole call, in order.
    pub(crate) outputs: Vec<Entry>,
}

/// Which part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) count: usize,
}

/// What computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// Its name, or `reference`.
    pub(crate) name: String,
    /// The driver's name and version; empty of the reference.
    pub(crate) driver: String,
    /// 0 of the reference.
    pub(crate) subgroup_size: u32,
}

/// An output, and what of it a part has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) output: Whole,
    /// First unit of the part, and the one behind the last.
    pub(crate) units: [usize; 2],
    /// Of the part's array: the elements in C order.
    pub(crate) sha256: String,
}

/// An output of the whole call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Whole {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
    /// The part's array.
    pub(crate) array: String,
    /// Where units go; null of a sum.
    pub(crate) placed: Option<Placed>,
    /// What is summed; null of what is placed.
    pub(crate) summed: Option<Summed>,
}

/// How an output falls into units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placed {
    /// The shape that it is seen as.
    pub(crate) view: Vec<usize>,
    /// The axes of it that count the units, the slowest first.
    pub(crate) axes: Vec<usize>,
}

/// An output that is a sum of the parts' terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summed {
    /// How many terms there are in all parts.
    pub(crate) terms: usize,
    /// `f32`, or `f64` on the reference.
    pub(crate) dtype: String,
    /// The bits of the float32 values to add to; null without any.
    pub(crate) onto: Option<Vec<u32>>,
}

impl Part {
    pub(crate) fn new(shard: Shard) -> Self {
        Self { index: shard.index(), count: shard.count() }
    }
}

impl Device {
    /// The CPU in float64.
    pub(crate) fn reference() -> Self {
        Self { name: "reference".into(), driver: String::new(), subgroup_size: 0 }
    }

    pub(crate) fn of(runtime: &Runtime) -> Self {
        let info = runtime.device();
        Self {
            name: info.name.clone(),
            driver: listings::driver(info),
            subgroup_size: runtime.lanes(),
        }
    }

    /// Whether it is the CPU in float64.
    pub(crate) fn is_reference(&self) -> bool {
        *self == Self::reference()
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_reference() {
            return f.write_str(&self.name);
        }
        write!(f, "{} ({}, subgroups of {})", self.name, self.driver, self.subgroup_size)
    }
}

impl Entry {
    /// What `part` is of an output.
    pub(crate) fn new(output: &Output, part: &PartArray) -> Self {
        let Output { name, shape, dtype, source } = output;
        let placed =
            |units: &Units| Placed { view: units.view().to_vec(), axes: units.axes().to_vec() };
        let (placed, summed) = match source {
            Source::Placed(units) => (Some(placed(units)), None),
            Source::Summed { terms, onto, .. } => {
                let bits = |old: &HostTensor| {
                    old.as_f32().unwrap_or_default().iter().map(|x| x.to_bits()).collect()
                };
                let dtype = dtype_of(&part.values).into();
                let onto = onto.as_ref().map(bits);
                (None, Some(Summed { terms: *terms, dtype, onto }))
            }
        };
        let (name, shape, dtype) = (name.clone(), shape.clone(), dtype.name().into());
        Self {
            output: Whole { name, shape, dtype, array: part.name.clone(), placed, summed },
            units: [part.units.start, part.units.end],
            sha256: hash(&part.values),
        }
    }
}

impl Whole {
    /// The output as the library has it; what is wrong with it otherwise.
    pub(crate) fn output(&self) -> Result<Output, String> {
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16];
        let dtype = dtype.into_iter().find(|dtype| dtype.name() == self.dtype);
        let dtype = dtype.ok_or_else(|| format!("no element type `{}`", self.dtype))?;
        let source = match (&self.placed, &self.summed) {
            (Some(Placed { view, axes }), None) if self.array == self.name => {
                Source::Placed(Units::new(view, axes).map_err(|error| error.to_string())?)
            }
            (None, Some(Summed { terms, onto, .. })) => {
                let old = |bits: &Vec<u32>| {
                    let values = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
                    HostTensor::from_f32(&self.shape, values)
                };
                let onto = onto.as_ref().map(old).transpose();
                let onto = onto.map_err(|error| error.to_string())?;
                Source::Summed { array: self.array.clone(), terms: *terms, onto }
            }
            _ => return Err(format!("`{}` is neither placed nor summed", self.name)),
        };
        Ok(Output { name: self.name.clone(), shape: self.shape.clone(), dtype, source })
    }
}

/// The hash of an array's elements.
pub(super) fn hash(values: &Values) -> String {
    match values {
        Values::Tensor(tensor) => sha256([tensor.bytes()]),
        Values::Doubles { values, .. } => sha256(values.iter().map(|value| value.to_le_bytes())),
    }
}

fn dtype_of(values: &Values) -> &'static str {
    match values {
        Values::Tensor(tensor) => tensor.dtype().name(),
        Values::Doubles { .. } => "f64",
    }
}

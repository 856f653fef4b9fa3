//! Arrays in host memory, as they enter and leave the library.

use ndarray::{ArrayD, ArrayViewD, IxDyn};

use crate::error::{Error, Result};

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// Unsigned 32-bit words: plans and other index data.
    U32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
        }
    }

    /// The name that kernels and manifests use, such as `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::U32 => "u32",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A row-major array in host memory with a run-time element type.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: Data,
}

#[derive(Debug, Clone, PartialEq)]
enum Data {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

impl HostTensor {
    /// An f32 tensor of `shape` over `data` in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements is not the product of `shape`.
    pub fn from_f32(shape: &[usize], data: Vec<f32>) -> Result<Self> {
        check_len(shape, data.len())?;
        Ok(Self { shape: shape.to_vec(), data: Data::F32(data) })
    }

    /// A one-dimensional tensor of u32 words.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { shape: vec![words.len()], data: Data::U32(words) }
    }

    /// A copy of an ndarray view of any memory order.
    pub fn from_array(view: ArrayViewD<'_, f32>) -> Self {
        Self { shape: view.shape().to_vec(), data: Data::F32(view.iter().copied().collect()) }
    }

    /// A float64 array rounded once, to nearest even, to `dtype`.
    ///
    /// # Errors
    /// [`Error::Dtype`] when `dtype` is not a floating-point type.
    pub fn from_f64(dtype: Dtype, array: &ArrayD<f64>) -> Result<Self> {
        match dtype {
            Dtype::F32 => Ok(Self {
                shape: array.shape().to_vec(),
                data: Data::F32(array.iter().map(|&x| x as f32).collect()),
            }),
            Dtype::U32 => Err(Error::Dtype {
                array: "(result)".into(),
                expected: "f32",
                found: dtype.to_string(),
            }),
        }
    }

    /// The tensor made of `bytes` in native byte order, as a download gives them.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of bytes does not fit `shape` and `dtype`.
    pub fn from_bytes(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        check_len(shape, bytes.len() / dtype.size())?;
        let data = match dtype {
            Dtype::F32 => Data::F32(bytemuck::allocation::pod_collect_to_vec(bytes)),
            Dtype::U32 => Data::U32(bytemuck::allocation::pod_collect_to_vec(bytes)),
        };
        Ok(Self { shape: shape.to_vec(), data })
    }

    /// The shape; empty for a single value.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self.data {
            Data::F32(_) => Dtype::F32,
            Data::U32(_) => Dtype::U32,
        }
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs.
    pub fn reshape(mut self, shape: &[usize]) -> Result<Self> {
        check_len(shape, self.shape.iter().product())?;
        self.shape = shape.to_vec();
        Ok(self)
    }

    /// The elements as bytes in native order.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::F32(data) => bytemuck::cast_slice(data),
            Data::U32(data) => bytemuck::cast_slice(data),
        }
    }

    /// The elements, when they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            Data::F32(data) => Some(data),
            Data::U32(_) => None,
        }
    }

    /// The elements for writing, when they are f32.
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.data {
            Data::F32(data) => Some(data),
            Data::U32(_) => None,
        }
    }

    /// The elements widened to float64, exactly.
    pub fn to_f64(&self) -> ArrayD<f64> {
        let values = match &self.data {
            Data::F32(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Data::U32(data) => data.iter().map(|&x| f64::from(x)).collect(),
        };
        ArrayD::from_shape_vec(IxDyn(&self.shape), values)
            .unwrap_or_else(|_| unreachable!("the length was checked at construction"))
    }
}

fn check_len(shape: &[usize], found: usize) -> Result<()> {
    let expected = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if expected == Some(found) {
        return Ok(());
    }
    Err(Error::Shape {
        array: "(data)",
        expected: match expected {
            Some(n) => format!("{shape:?}, that is {n} elements"),
            None => format!("{shape:?}, more elements than there can be"),
        },
        found: vec![found],
    })
}

//! Arrays in host memory, as they enter and leave the library.

use bytemuck::Pod;
use bytemuck::allocation::{cast_vec, pod_collect_to_vec};
use half::{bf16, f16};
use ndarray::{ArrayD, ArrayViewD, IxDyn};

use crate::error::{Error, Result};

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// Unsigned 32-bit words: plans and other index data.
    U32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Whether it is a 16-bit floating-point type.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// The name that kernels and manifests use, such as `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
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
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
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

    /// A tensor of `shape` over the bits of 16-bit floats in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements is not the product of `shape`; [`Error::Dtype`] when `dtype` is
    /// neither f16 nor bf16.
    pub fn from_halves(dtype: Dtype, shape: &[usize], bits: Vec<u16>) -> Result<Self> {
        check_len(shape, bits.len())?;
        let data = match dtype {
            Dtype::F16 => Data::F16(cast_vec(bits)),
            Dtype::Bf16 => Data::Bf16(cast_vec(bits)),
            Dtype::F32 | Dtype::U32 => {
                return Err(Error::Dtype {
                    array: "(data)".into(),
                    expected: "f16 or bf16",
                    found: dtype.to_string(),
                });
            }
        };
        Ok(Self { shape: shape.to_vec(), data })
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
        let data = match dtype {
            Dtype::F32 => Data::F32(array.iter().map(|&x| x as f32).collect()),
            Dtype::F16 => Data::F16(array.iter().map(|&x| f16::from_f32(to_odd(x))).collect()),
            Dtype::Bf16 => Data::Bf16(array.iter().map(|&x| bf16::from_f32(to_odd(x))).collect()),
            Dtype::U32 => {
                return Err(Error::Dtype {
                    array: "(result)".into(),
                    expected: "f32, f16 or bf16",
                    found: dtype.to_string(),
                });
            }
        };
        Ok(Self { shape: array.shape().to_vec(), data })
    }

    /// The tensor made of `bytes` in native byte order, as a download gives them.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of bytes does not fit `shape` and `dtype`.
    pub fn from_bytes(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        check_len(shape, bytes.len() / dtype.size())?;
        let data = match dtype {
            Dtype::F32 => Data::F32(pod_collect_to_vec(bytes)),
            Dtype::F16 => Data::F16(pod_collect_to_vec(bytes)),
            Dtype::Bf16 => Data::Bf16(pod_collect_to_vec(bytes)),
            Dtype::U32 => Data::U32(pod_collect_to_vec(bytes)),
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
            Data::F16(_) => Dtype::F16,
            Data::Bf16(_) => Dtype::Bf16,
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
            Data::F16(data) => bytemuck::cast_slice(data),
            Data::Bf16(data) => bytemuck::cast_slice(data),
            Data::U32(data) => bytemuck::cast_slice(data),
        }
    }

    /// The elements as bytes in native order, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        fn bytes<T: Pod>(data: &mut [T]) -> &mut [u8] {
            bytemuck::cast_slice_mut(data)
        }
        match &mut self.data {
            Data::F32(data) => bytes(data),
            Data::F16(data) => bytes(data),
            Data::Bf16(data) => bytes(data),
            Data::U32(data) => bytes(data),
        }
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: Dtype, shape: &[usize]) -> Self {
        let n = shape.iter().product();
        let data = match dtype {
            Dtype::F32 => Data::F32(vec![0.0; n]),
            Dtype::F16 => Data::F16(vec![f16::ZERO; n]),
            Dtype::Bf16 => Data::Bf16(vec![bf16::ZERO; n]),
            Dtype::U32 => Data::U32(vec![0; n]),
        };
        Self { shape: shape.to_vec(), data }
    }

    /// The elements, when they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            Data::F32(data) => Some(data),
            _ => None,
        }
    }

    /// The elements for writing, when they are f32.
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.data {
            Data::F32(data) => Some(data),
            _ => None,
        }
    }

    /// The elements widened to float64, exactly.
    pub fn to_f64(&self) -> ArrayD<f64> {
        let values = match &self.data {
            Data::F32(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Data::F16(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Data::Bf16(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Data::U32(data) => data.iter().map(|&x| f64::from(x)).collect(),
        };
        ArrayD::from_shape_vec(IxDyn(&self.shape), values)
            .unwrap_or_else(|_| unreachable!("the length was checked at construction"))
    }
}

/// The value to f32, rounded to odd where it is not exact: a second rounding, to a half, is then as good as one alone.
fn to_odd(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) == x || x.is_nan() {
        return y;
    }
    let towards_zero = if f64::from(y).abs() > x.abs() { y.to_bits() - 1 } else { y.to_bits() };
    f32::from_bits(towards_zero | 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(dtype: Dtype, x: f64) -> u16 {
        let array = ArrayD::from_elem(IxDyn(&[]), x);
        let host = HostTensor::from_f64(dtype, &array).unwrap();
        u16::from_ne_bytes(host.bytes().try_into().unwrap())
    }

    #[test]
    fn f64_is_rounded_once_to_halves() {
        let tie = 2049.0;
        for (x, bits) in [
            (tie, 0x6800),
            (tie + 1e-9, 0x6801),
            (-tie - 1e-9, 0xe801),
            (2051.0, 0x6802),
            (65519.99999999, 0x7bff),
            (65520.0, 0x7c00),
            (1e300, 0x7c00),
            (2f64.powi(-25), 0),
            (2f64.powi(-25) * (1.0 + 1e-12), 1),
            (3.0 * 2f64.powi(-25), 2),
            (f64::NEG_INFINITY, 0xfc00),
        ] {
            assert_eq!(rounded(Dtype::F16, x), bits, "{x:e}");
        }
        for (x, bits) in [
            (f64::from(f32::from_bits(0x3e89_ccd5)), 0x3e8a),
            (f64::from(f32::from_bits(0x3f80_8000)), 0x3f80),
            (f64::from(f32::from_bits(0x3f80_8000)) * (1.0 + 1e-14), 0x3f81),
            (f64::from(f32::from_bits(0x3f81_8000)), 0x3f82),
            (f64::from(f32::MAX), 0x7f80),
            (1e300, 0x7f80),
            (-1e-320, 0x8000),
        ] {
            assert_eq!(rounded(Dtype::Bf16, x), bits, "{x:e}");
        }
        assert!(f16::from_bits(rounded(Dtype::F16, f64::NAN)).is_nan());
        assert!(bf16::from_bits(rounded(Dtype::Bf16, f64::NAN)).is_nan());
    }
}

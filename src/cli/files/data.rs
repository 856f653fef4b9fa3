//! The elements after the head of a `.npy` file.

use std::io::{ErrorKind, Read};

use backslang::HostTensor;
use bytemuck::Pod;
use ndarray::{ArrayView, IxDyn, ShapeBuilder};

use super::FileError;
use super::descr::{ByteOrder, Kind};
use super::header::Header;
use super::wanted::Wanted;

/// How far the amount of data can be relied on before it is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Available {
    /// The size of a regular file, from the system.
    File(u64),
    /// What an archive says of its entry: compared, but not relied on.
    Claimed(u64),
    /// A pipe: known at its end.
    Unknown,
}

impl Available {
    /// Compares what the header promises with what is there.
    pub(super) fn check(self, header: &Header) -> Result<(), FileError> {
        let (Self::File(total) | Self::Claimed(total)) = self else { return Ok(()) };
        let found = total.saturating_sub(header.length);
        match header.data_bytes() {
            Some(expected) if expected != found => {
                Err(FileError::Length { expected, found: found.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// Elements that are asked for at once where the amount of data is not certain.
const CHUNK: usize = 1 << 16;

/// An array of floats, in C order.
pub(super) fn floats(
    header: &Header,
    wanted: Wanted,
    available: Available,
    reader: &mut dyn Read,
) -> Result<HostTensor, FileError> {
    let dtype = wanted.read_as(&header.descr)?;
    let tensor = if dtype.is_half() {
        let words = words(header, available, reader, u16::swap_bytes)?;
        HostTensor::from_halves(dtype, &header.shape, words)
    } else {
        let words = words(header, available, reader, u32::swap_bytes)?;
        HostTensor::from_f32(&header.shape, bytemuck::allocation::cast_vec(words))
    };
    tensor.map_err(|error| FileError::Header(error.to_string()))
}

/// An array of float64, in C order.
pub(super) fn doubles(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
) -> Result<Vec<f64>, FileError> {
    if (header.descr.kind, header.descr.size) != (Kind::Float, Some(8)) {
        let (expected, found) = ("float64".into(), header.descr.to_string());
        return Err(FileError::Dtype { expected, found });
    }
    let words = words(header, available, reader, u64::swap_bytes)?;
    Ok(bytemuck::allocation::cast_vec(words))
}

/// The elements as words of this machine, in C order.
fn words<T: Pod>(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
    swap: impl Fn(T) -> T,
) -> Result<Vec<T>, FileError> {
    let mut words: Vec<T> = elements(header, available, reader)?;
    if header.descr.order != ByteOrder::NATIVE {
        words.iter_mut().for_each(|word| *word = swap(*word));
    }
    c_order(header, words)
}

/// The elements of an array of any integer type, in C order.
pub(super) fn integers(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
) -> Result<Vec<i128>, FileError> {
    let values = match (header.descr.kind, header.descr.size) {
        (Kind::Signed, Some(1)) => widened(header, available, reader, i8::from_be_bytes)?,
        (Kind::Signed, Some(2)) => widened(header, available, reader, i16::from_be_bytes)?,
        (Kind::Signed, Some(4)) => widened(header, available, reader, i32::from_be_bytes)?,
        (Kind::Signed, Some(8)) => widened(header, available, reader, i64::from_be_bytes)?,
        (Kind::Unsigned, Some(1)) => widened(header, available, reader, u8::from_be_bytes)?,
        (Kind::Unsigned, Some(2)) => widened(header, available, reader, u16::from_be_bytes)?,
        (Kind::Unsigned, Some(4)) => widened(header, available, reader, u32::from_be_bytes)?,
        (Kind::Unsigned, Some(8)) => widened(header, available, reader, u64::from_be_bytes)?,
        _ => {
            let expected = "an integer type".into();
            let found = match header.descr.kind {
                Kind::Float => format!("{}; convert it with `.astype('int32')`", header.descr),
                _ => header.descr.to_string(),
            };
            return Err(FileError::Dtype { expected, found });
        }
    };
    c_order(header, values)
}

/// The one value of a 0-d array of any real type.
pub(super) fn scalar(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
) -> Result<f64, FileError> {
    if !header.shape.is_empty() {
        let expected = "one value, that is a 0-d array";
        return Err(FileError::Shape { expected, found: header.shape.clone() });
    }
    let value = match (header.descr.kind, header.descr.size) {
        (Kind::Bool, Some(1)) => one(header, available, reader, u8::from_be_bytes)?.min(1).into(),
        (Kind::Float, Some(2)) => half(one(header, available, reader, u16::from_be_bytes)?),
        (Kind::Float, Some(4)) => one(header, available, reader, f32::from_be_bytes)?.into(),
        (Kind::Float, Some(8)) => one(header, available, reader, f64::from_be_bytes)?,
        (Kind::Signed | Kind::Unsigned, _) => {
            integers(header, available, reader)?.first().copied().unwrap_or_default() as f64
        }
        _ => {
            let expected = "a real number".into();
            return Err(FileError::Dtype { expected, found: header.descr.to_string() });
        }
    };
    Ok(value)
}

/// Integers of `N` bytes, widened; `decode` takes the most significant byte first.
fn widened<const N: usize, T: Into<i128>>(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
    decode: impl Fn([u8; N]) -> T,
) -> Result<Vec<i128>, FileError>
where
    [u8; N]: Pod,
{
    let raw: Vec<[u8; N]> = elements(header, available, reader)?;
    collected(raw.into_iter().map(|bytes| decode(big_endian(header, bytes)).into()))
}

fn one<const N: usize, T>(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
    decode: impl Fn([u8; N]) -> T,
) -> Result<T, FileError>
where
    [u8; N]: Pod,
{
    let raw: Vec<[u8; N]> = elements(header, available, reader)?;
    let bytes = raw.first().copied().unwrap_or([0; N]);
    Ok(decode(big_endian(header, bytes)))
}

fn big_endian<const N: usize>(header: &Header, mut bytes: [u8; N]) -> [u8; N] {
    if header.descr.order == ByteOrder::Little {
        bytes.reverse();
    }
    bytes
}

/// Reads the elements as stored, and makes sure that they are all there is.
fn elements<T: Pod>(
    header: &Header,
    available: Available,
    reader: &mut dyn Read,
) -> Result<Vec<T>, FileError> {
    available.check(header)?;
    let (count, size) = (header.elements(), size_of::<T>());
    let expected = (count * size) as u64;
    let mut data: Vec<T> = Vec::new();
    while data.len() < count {
        let step = match available {
            Available::File(_) => count,
            // Grows with what has been read: a false claim costs no memory.
            Available::Claimed(_) | Available::Unknown => data.len().max(CHUNK),
        }
        .min(count - data.len());
        let start = data.len();
        data.try_reserve_exact(step).map_err(|_| FileError::Memory(expected))?;
        data.resize(start + step, T::zeroed());
        let read = read_full(reader, bytemuck::cast_slice_mut(&mut data[start..]))?;
        if read < step * size {
            let found = (start * size + read).to_string();
            return Err(FileError::Length { expected, found });
        }
    }
    if read_full(reader, &mut [0])? > 0 {
        return Err(FileError::Length { expected, found: "more".into() });
    }
    Ok(data)
}

/// Fills the buffer as far as the reader goes.
fn read_full(reader: &mut dyn Read, buffer: &mut [u8]) -> Result<usize, FileError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

fn c_order<T: Copy>(header: &Header, data: Vec<T>) -> Result<Vec<T>, FileError> {
    if !header.fortran_order || header.shape.len() < 2 {
        return Ok(data);
    }
    match ArrayView::from_shape(IxDyn(&header.shape).f(), &data) {
        Ok(view) => collected(view.iter().copied()),
        // `data` has the product of the shape, and that fits: there is no other case.
        Err(_) => Ok(data),
    }
}

/// The values in memory that is asked for without insisting.
fn collected<T>(values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, FileError> {
    let mut data = Vec::new();
    let bytes = values.len() as u64 * size_of::<T>() as u64;
    data.try_reserve_exact(values.len()).map_err(|_| FileError::Memory(bytes))?;
    data.extend(values);
    Ok(data)
}

/// Binary16 widened, exactly.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

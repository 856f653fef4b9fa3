//! Tensors in device memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Core;
use super::heap::DUMMY_SLOT;
use super::raw::{Buffer, Memory};
use crate::error::{Error, Result};
use crate::host::Dtype;

/// Kernels address memory in words of this many bytes.
const WORD: u64 = 4;

/// A row-major array in device memory.
///
/// Clones share the memory, which returns to its runtime when the last one is dropped and the device is done with it.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    name: Box<str>,
    dtype: Dtype,
    shape: Box<[usize]>,
    bytes: u64,
    /// `None` when the tensor is empty.
    storage: Option<Storage>,
    core: Arc<Core>,
}

/// A range of a buffer, and the slot that shows it to kernels.
struct Storage {
    buffer: Pooled,
    slot: u32,
    range: Range<u64>,
}

impl Tensor {
    /// A new tensor, contents undefined.
    pub(super) fn new(core: &Arc<Core>, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Self> {
        let bytes = byte_size(core, name, dtype, shape)?;
        let storage = if bytes == 0 { None } else { Some(Storage::new(core, name, bytes)?) };
        Ok(Self(Arc::new(Inner {
            name: name.into(),
            dtype,
            shape: shape.into(),
            bytes,
            storage,
            core: core.clone(),
        })))
    }

    /// The name that errors call it by.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// The shape; empty for a single value.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Whether the tensor belongs to this runtime.
    pub(super) fn belongs_to(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.0.core, core)
    }

    /// The heap slot; the dummy's when the tensor is empty.
    pub(super) fn slot(&self) -> u32 {
        self.0.storage.as_ref().map_or(DUMMY_SLOT, |s| s.slot)
    }

    /// The buffer and the bytes of it that are the tensor's, rounded up to words; `None` when it is empty.
    pub(super) fn memory(&self) -> Option<(&Buffer, Range<u64>)> {
        self.0.storage.as_ref().and_then(|s| Some((s.buffer.get()?, s.range.clone())))
    }

    /// An identity that differs from that of every tensor alive.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor(`{}`: {} {:?})", self.name(), self.dtype(), self.shape())
    }
}

impl Storage {
    fn new(core: &Arc<Core>, name: &str, bytes: u64) -> Result<Self> {
        // A kernel that reads the last 16-bit element reads the word around it.
        let guard = core.strain.guard.load(Ordering::Relaxed);
        let range = 0..bytes.next_multiple_of(WORD) + guard;
        let buffer = Pooled::new(core, Memory::Device, range.end, name)?;
        let slot = match buffer.get() {
            Some(inner) => core.slot(inner, range.end)?,
            None => DUMMY_SLOT,
        };
        Ok(Self { buffer, slot, range })
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Before the buffer goes back to the pool. Recordings hold their tensors until the device is done.
        self.buffer.core.heap.give(self.slot);
    }
}

/// A buffer that returns to the pool.
pub(super) struct Pooled {
    /// There until it is dropped.
    buffer: Option<Buffer>,
    core: Arc<Core>,
}

impl Pooled {
    pub(super) fn new(core: &Arc<Core>, memory: Memory, bytes: u64, name: &str) -> Result<Self> {
        let buffer = core.buffer(memory, bytes, name)?;
        Ok(Self { buffer: Some(buffer), core: core.clone() })
    }

    pub(super) fn get(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut Buffer> {
        self.buffer.as_mut()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.core.pool.give(buffer);
        }
    }
}

/// The bytes of a tensor, held against the limit of a binding before anything is allocated.
pub(super) fn byte_size(core: &Core, name: &str, dtype: Dtype, shape: &[usize]) -> Result<u64> {
    let limits = &core.info.limits;
    let limit = limits
        .max_storage_buffer_range
        .min(limits.max_buffer_size)
        .min(limits.max_memory_allocation_size)
        / WORD
        * WORD;
    let bytes = shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d as u64));
    match bytes {
        Some(bytes) if bytes <= limit => Ok(bytes),
        // An empty axis makes the tensor empty whatever the others are.
        _ if shape.contains(&0) => Ok(0),
        _ => Err(Error::TensorTooLarge {
            tensor: name.into(),
            bytes: bytes.unwrap_or(u64::MAX),
            limit,
            device: core.info.name.clone(),
        }),
    }
}

//! A caller's buffers as tensors.

use std::sync::Arc;

use ash::vk::{self, Handle};

use super::Keep;
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::runtime::core::Core;
use crate::runtime::tensor::Storage;
use crate::runtime::{Runtime, Tensor};

/// A caller's buffer.
pub struct BufferDesc {
    /// The buffer, bound to memory.
    pub handle: vk::Buffer,
    /// Its size in bytes, as it was created.
    pub bytes: u64,
    /// Its usage, as it was created: `STORAGE_BUFFER` at least. Fills and uploads also take `TRANSFER_DST`, downloads
    /// `TRANSFER_SRC`; without them they are refused.
    pub usage: vk::BufferUsageFlags,
    /// Dropped when the device is done with the last tensor of the buffer, such as a handle that keeps it alive.
    pub keep: Option<Keep>,
}

/// A buffer of a caller's, whose ranges can be tensors.
///
/// Imports of one buffer share what the runtime knows of it while one of them or of their tensors lives, so hazards
/// between them are seen.
pub struct Buffer {
    storage: Arc<Storage>,
    core: Arc<Core>,
}

impl Buffer {
    /// Takes a caller's buffer in. It stays the caller's: nothing is allocated, and nothing is destroyed.
    ///
    /// # Safety
    /// - The handle is a buffer of the runtime's device of just this size and usage, bound to memory that no other
    ///   buffer or image in use shares, and neither sparse nor protected.
    /// - It lives until the device is done with every tensor of it: tensors and views dropped, submissions done, each
    ///   [`Recorded`](super::Recorded) dropped. [`BufferDesc::keep`] can hold what sees to it.
    /// - It belongs to the runtime's queue family, or is shared with it, whenever its tensors are used; and what others
    ///   do with its memory is ordered against that, by barriers or semaphores, as Vulkan asks of any two accesses.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a size beyond the memory that the buffer needs, for a usage without `STORAGE_BUFFER`, and
    /// when an import that is still in use says otherwise.
    pub unsafe fn import(runtime: &Runtime, desc: BufferDesc) -> Result<Self> {
        let core = runtime.core().clone();
        if !desc.usage.contains(vk::BufferUsageFlags::STORAGE_BUFFER) {
            return Err(Error::Parameter {
                name: "usage",
                expected: "STORAGE_BUFFER in the buffer's".into(),
                found: format!("{:?}", desc.usage),
            });
        }
        // SAFETY: the caller's promise.
        let most = unsafe { core.device.handle.get_buffer_memory_requirements(desc.handle) }.size;
        if desc.bytes > most {
            return Err(Error::Parameter {
                name: "bytes",
                expected: format!("the buffer's size, at most the {most} bytes that it needs"),
                found: desc.bytes.to_string(),
            });
        }
        let BufferDesc { handle, bytes, usage, keep } = desc;
        let make = || super::super::Buffer::of_caller(&core.device, handle, bytes, usage);
        let storage = core.imports.get(handle.as_raw(), || Storage::of_caller(&core, make()));
        if !storage.buffer().is_some_and(|buffer| buffer.keep(bytes, usage, keep)) {
            return Err(Error::Parameter {
                name: "buffer",
                expected: "the size and usage of its import that is still in use".into(),
                found: format!("{bytes} bytes for {usage:?}"),
            });
        }
        Ok(Self { storage, core })
    }

    /// A part of the buffer as a tensor, `offset` bytes from the buffer's start on. Errors call it `name`.
    ///
    /// Kernels that take views take it from any element on; others ask for an offset that is a multiple of
    /// [`min_storage_buffer_offset_alignment`](crate::runtime::Limits::min_storage_buffer_offset_alignment).
    ///
    /// # Errors
    /// [`Error::Parameter`] for an offset that is no multiple of the element's size and for a range beyond the buffer's
    /// end, where halves are read by whole words; [`Error::TensorTooLarge`]; [`Error::HeapFull`].
    pub fn tensor(&self, name: &str, dtype: Dtype, shape: &[usize], offset: u64) -> Result<Tensor> {
        Tensor::within(&self.core, &self.storage, name, dtype, shape, offset)
    }
}

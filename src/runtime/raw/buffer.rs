//! Buffers with their memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ash::vk;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};
use gpu_allocator::{AllocationError, MemoryLocation};

use super::embed::Keep;
use super::{Device, Named};
use crate::error::{Error, Result};
use crate::runtime::lock;

/// Where a buffer lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::runtime) enum Memory {
    /// Fast for the device; the host reaches it through staging.
    Device,
    /// Written by the host in order, read by the device.
    Upload,
    /// Written by the device, read by the host through its caches.
    Readback,
}

/// A buffer bound to memory of its own, or a caller's.
pub(in crate::runtime) struct Buffer {
    handle: vk::Buffer,
    /// There until the buffer is dropped, unless it is a caller's.
    allocation: Option<Allocation>,
    bytes: u64,
    memory: Memory,
    id: u64,
    device: Arc<Device>,
    /// What there is to know of a caller's buffer.
    callers: Option<Callers>,
}

/// A caller's buffer.
struct Callers {
    usage: vk::BufferUsageFlags,
    /// Dropped when nothing uses the buffer any more.
    keep: Mutex<Vec<Keep>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Buffer {
    /// A new buffer of at least one byte, contents undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], leaving nothing behind.
    pub(in crate::runtime) fn new(
        device: &Arc<Device>,
        bytes: u64,
        memory: Memory,
        name: &str,
    ) -> Result<Self> {
        let transfer = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(match memory {
                Memory::Device => transfer | vk::BufferUsageFlags::STORAGE_BUFFER,
                Memory::Upload | Memory::Readback => transfer,
            })
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: the device is alive; the caller has held the size against `maxBufferSize`.
        let handle = unsafe { device.handle.create_buffer(&info, None) }
            .named("vkCreateBuffer")
            .map_err(|error| sized(error, device, name, bytes))?;
        let mut buffer = Self {
            handle,
            allocation: None,
            bytes,
            memory,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            callers: None,
        };
        buffer.bind(name).map_err(|error| sized(error, device, name, bytes))?;
        Ok(buffer)
    }

    /// A caller's buffer, which is left as it is.
    pub(super) fn of_caller(
        device: &Arc<Device>,
        handle: vk::Buffer,
        bytes: u64,
        usage: vk::BufferUsageFlags,
    ) -> Self {
        Self {
            handle,
            allocation: None,
            bytes,
            memory: Memory::Device,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            callers: Some(Callers { usage, keep: Mutex::default() }),
        }
    }

    /// Whether it is a caller's of this size and usage, which then also keeps `keep`.
    pub(super) fn keep(&self, bytes: u64, usage: vk::BufferUsageFlags, keep: Option<Keep>) -> bool {
        let Some(callers) = &self.callers else { return false };
        let same = self.bytes == bytes && callers.usage == usage;
        if same {
            lock(&callers.keep).extend(keep);
        }
        same
    }

    /// Whether it is a caller's.
    pub(in crate::runtime) fn is_callers(&self) -> bool {
        self.callers.is_some()
    }

    /// Fails when a caller has made the buffer so that copies cannot read it, or write it.
    pub(in crate::runtime) fn check_copies(&self, name: &str, write: bool) -> Result<()> {
        let (needed, text) = match write {
            true => (vk::BufferUsageFlags::TRANSFER_DST, "TRANSFER_DST"),
            false => (vk::BufferUsageFlags::TRANSFER_SRC, "TRANSFER_SRC"),
        };
        let Some(callers) = &self.callers else { return Ok(()) };
        if callers.usage.contains(needed) {
            return Ok(());
        }
        Err(Error::Parameter {
            name: "usage",
            expected: format!("{text} in the buffer of `{name}`, for copies and fills"),
            found: format!("{:?}", callers.usage),
        })
    }

    fn bind(&mut self, name: &str) -> Result<()> {
        let device = &self.device;
        // SAFETY: the buffer was just made by this device.
        let requirements = unsafe { device.handle.get_buffer_memory_requirements(self.handle) };
        let allocation = lock(&device.allocator)
            .as_mut()
            .ok_or(AllocationError::OutOfMemory)
            .and_then(|allocator| {
                allocator.allocate(&AllocationCreateDesc {
                    name,
                    requirements,
                    location: match self.memory {
                        Memory::Device => MemoryLocation::GpuOnly,
                        // The host's own, cached memory either way: the part of a GPU's memory that the host can
                        // write may be small, and copies into it are slower than the device's own reads.
                        Memory::Upload | Memory::Readback => MemoryLocation::GpuToCpu,
                    },
                    linear: true,
                    allocation_scheme: AllocationScheme::GpuAllocatorManaged,
                })
            })
            .map_err(allocation_error)?;
        let allocation = self.allocation.insert(allocation);
        // SAFETY: the allocation has the size, alignment and type that the buffer requires, and is bound once.
        unsafe {
            device.handle.bind_buffer_memory(self.handle, allocation.memory(), allocation.offset())
        }
        .named("vkBindBufferMemory")
    }

    /// An identity that no other buffer of the process ever has.
    pub(in crate::runtime) fn id(&self) -> u64 {
        self.id
    }

    pub(in crate::runtime) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(in crate::runtime) fn memory(&self) -> Memory {
        self.memory
    }

    pub(super) fn handle(&self) -> vk::Buffer {
        self.handle
    }

    /// The bytes, for buffers that the host writes; empty for those that it cannot reach.
    pub(in crate::runtime) fn mapped_mut(&mut self) -> &mut [u8] {
        self.allocation.as_mut().and_then(Allocation::mapped_slice_mut).unwrap_or_default()
    }

    /// The bytes, for buffers that the host reads; empty for those that it cannot reach.
    pub(in crate::runtime) fn mapped(&self) -> &[u8] {
        self.allocation.as_ref().and_then(Allocation::mapped_slice).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_callers() {
            return;
        }
        // SAFETY: commands that use the buffer keep it alive until the device is done with them.
        unsafe { self.device.handle.destroy_buffer(self.handle, None) };
        if let (Some(allocation), Some(allocator)) =
            (self.allocation.take(), lock(&self.device.allocator).as_mut())
            && let Err(error) = allocator.free(allocation)
        {
            tracing::error!(%error, "device memory could not be freed");
        }
    }
}

fn allocation_error(error: AllocationError) -> Error {
    let out_of = |place, call: &str| Error::OutOfMemory {
        place,
        what: call.into(),
        asked: None,
        available: None,
    };
    match error {
        AllocationError::OutOfMemory => out_of("device", "vkAllocateMemory"),
        AllocationError::FailedToMap(_) => out_of("host", "vkMapMemory"),
        // The allocator has no kind for it.
        AllocationError::Internal(text) if text.contains("ERROR_OUT_OF_HOST_MEMORY") => {
            out_of("host", "vkAllocateMemory")
        }
        other => Error::Vulkan { call: "gpu_allocator", code: other.to_string() },
    }
}

/// Fills in what an allocation was for and how much there is.
fn sized(error: Error, device: &Device, name: &str, bytes: u64) -> Error {
    match error {
        Error::OutOfMemory { place, what: call, .. } => Error::OutOfMemory {
            place,
            what: format!("`{name}` ({call})"),
            asked: Some(bytes),
            available: (place == "device").then(|| device.available_memory()),
        },
        other => other,
    }
}

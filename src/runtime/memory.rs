//! Buffers, kept for reuse by size class.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::info::DeviceInfo;
use super::lock;
use super::raw::{Buffer, Device, Memory};
use crate::error::{Error, Result};

const MIB: u64 = 1 << 20;

/// Bytes of idle staging buffers that are kept.
const IDLE_STAGING: u64 = 256 * MIB;
/// Bytes of idle tensors that are kept where the device shares the host's memory.
const IDLE_SHARED: u64 = 256 * MIB;

/// Makes buffers and keeps those that nobody uses.
pub(super) struct Pool {
    idle: Mutex<Idle>,
    /// Bytes of buffers that are taken.
    in_use: AtomicU64,
    /// Buffers made so far.
    made: AtomicU64,
    /// Bytes of the device's memory heap.
    heap: u64,
    largest: u64,
    device: Arc<Device>,
}

impl Pool {
    pub(super) fn new(device: &Arc<Device>, info: &DeviceInfo) -> Self {
        let own_memory = info.kind == super::DeviceKind::Discrete;
        let limits = &info.limits;
        Self {
            idle: Mutex::new(Idle::new(if own_memory { info.memory / 4 } else { IDLE_SHARED })),
            in_use: AtomicU64::new(0),
            made: AtomicU64::new(0),
            heap: info.memory,
            largest: limits.max_buffer_size.min(limits.max_memory_allocation_size),
            device: device.clone(),
        }
    }

    /// A buffer of at least `bytes`, contents undefined; `name` says what for.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], after idle buffers were given up in vain.
    pub(super) fn take(&self, memory: Memory, bytes: u64, name: &str) -> Result<Buffer> {
        let buffer = self.find(memory, bytes, name)?;
        self.in_use.fetch_add(buffer.bytes(), Ordering::Relaxed);
        Ok(buffer)
    }

    fn find(&self, memory: Memory, bytes: u64, name: &str) -> Result<Buffer> {
        let class = size_class(bytes).min(self.largest).max(bytes);
        if let Some(buffer) = lock(&self.idle).take(memory, class) {
            return Ok(buffer);
        }
        let (budget, used) = self.device.memory_budget();
        if memory == Memory::Device && class > budget.saturating_sub(used) {
            // The driver may grant more, at a price that others pay: what is idle goes first.
            self.trim();
        }
        let first = self.make(memory, class, name);
        if !matches!(first, Err(Error::OutOfMemory { .. })) || !self.trim() {
            return first;
        }
        self.make(memory, class, name)
    }

    fn make(&self, memory: Memory, bytes: u64, name: &str) -> Result<Buffer> {
        // Drivers with overcommitted memory grant what they do not have, and may even say that they have it.
        let left = match memory {
            Memory::Device => self.heap.saturating_sub(self.device.allocated_memory()),
            Memory::Upload | Memory::Readback => u64::MAX,
        };
        if bytes > left.min(self.largest) {
            return Err(Error::OutOfMemory {
                place: "device",
                what: format!("`{name}`"),
                asked: Some(bytes),
                available: Some(self.device.available_memory().min(self.largest).min(left)),
            });
        }
        let buffer = Buffer::new(&self.device, bytes, memory, name)?;
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(buffer)
    }

    /// Bytes in use, bytes idle, and buffers made so far.
    pub(super) fn usage(&self) -> (u64, u64, u64) {
        let idle = lock(&self.idle).bytes.values().sum();
        (self.in_use.load(Ordering::Relaxed), idle, self.made.load(Ordering::Relaxed))
    }

    /// Takes back a buffer that no command in flight uses.
    pub(super) fn give(&self, buffer: Buffer) {
        self.in_use.fetch_sub(buffer.bytes(), Ordering::Relaxed);
        let evicted = lock(&self.idle).give(buffer);
        drop(evicted);
    }

    /// Frees all idle buffers; says whether there were any.
    pub(super) fn trim(&self) -> bool {
        let evicted = lock(&self.idle).clear();
        !evicted.is_empty()
    }
}

/// The idle buffers by kind and size.
struct Idle {
    buffers: HashMap<(Memory, u64), Vec<Buffer>>,
    bytes: HashMap<Memory, u64>,
    device_limit: u64,
}

impl Idle {
    fn new(device_limit: u64) -> Self {
        Self { buffers: HashMap::new(), bytes: HashMap::new(), device_limit }
    }

    fn take(&mut self, memory: Memory, bytes: u64) -> Option<Buffer> {
        let buffer = self.buffers.get_mut(&(memory, bytes))?.pop()?;
        *self.bytes.entry(memory).or_default() -= bytes;
        Some(buffer)
    }

    /// Keeps the buffer. When that is too much, everything kept of its kind goes: sizes of a past job, most likely.
    fn give(&mut self, buffer: Buffer) -> Vec<Buffer> {
        let (memory, bytes) = (buffer.memory(), buffer.bytes());
        let limit = match memory {
            Memory::Device => self.device_limit,
            Memory::Upload | Memory::Readback => IDLE_STAGING,
        };
        if bytes > limit {
            return vec![buffer];
        }
        let mut evicted = Vec::new();
        let kept = self.bytes.entry(memory).or_default();
        if *kept + bytes > limit {
            *kept = 0;
            for (_, list) in self.buffers.extract_if(|&(kind, _), _| kind == memory) {
                evicted.extend(list);
            }
        }
        *kept += bytes;
        self.buffers.entry((memory, bytes)).or_default().push(buffer);
        evicted
    }

    fn clear(&mut self) -> Vec<Buffer> {
        self.bytes.clear();
        self.buffers.drain().flat_map(|(_, list)| list).collect()
    }
}

/// The size that buffers of `bytes` are made in: at most an eighth larger, so that tensors of similar size can take
/// each other's place, and a multiple of 256.
fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(1);
    let step = (bytes.checked_next_power_of_two().unwrap_or(1 << 63) / 16).max(256);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_close_and_ordered() {
        assert_eq!(size_class(0), 256);
        assert_eq!(size_class(1), 256);
        assert_eq!(size_class(256), 256);
        assert_eq!(size_class(257), 512);
        assert_eq!(size_class(64 * MIB), 64 * MIB);
        assert_eq!(size_class(u64::MAX), u64::MAX);
        let mut last = 0;
        for bytes in (1..100_000u64).step_by(37).chain((1 << 33..1 << 34).step_by(99_999_989)) {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(256) && class >= last);
            assert!(class - bytes < 256.max(bytes / 8 + 1), "{bytes} {class}");
            assert_eq!(size_class(class), class);
            last = class;
        }
    }
}

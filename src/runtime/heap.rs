//! The bindless heap: one slot a tensor.

use std::ops::{Range, RangeFrom};
use std::sync::{Arc, Mutex};

use super::lock;
use super::raw::{Buffer, Descriptors, Device, Memory};
use crate::error::{Error, Result};

/// The slot that always holds the dummy buffer.
pub(super) const DUMMY_SLOT: u32 = 0;

/// Bytes of the dummy buffer.
const DUMMY_BYTES: u64 = 256;

/// The descriptor array and who owns which slot. Slots that nobody owns hold a dummy buffer, so that whatever slot a
/// kernel reaches is backed by memory.
pub(super) struct Heap {
    slots: Mutex<Slots>,
    descriptors: Descriptors,
    dummy: Buffer,
}

impl Heap {
    /// A heap for `wanted` tensors, or as many as the device's limit leaves beside the dummy. The slots from
    /// `filled` on hold the dummy.
    pub(super) fn new(
        device: &Arc<Device>,
        wanted: u32,
        limit: u32,
        filled: RangeFrom<u32>,
    ) -> Result<Self> {
        let total = wanted.saturating_add(1).min(limit);
        let dummy = Buffer::new(device, DUMMY_BYTES, Memory::Device, "dummy")?;
        let descriptors = Descriptors::new(device, total, filled, &dummy)?;
        Ok(Self { slots: Mutex::new(Slots::new(total)), descriptors, dummy })
    }

    pub(super) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    pub(super) fn dummy(&self) -> &Buffer {
        &self.dummy
    }

    /// Slots for tensors, taken or not.
    pub(super) fn capacity(&self) -> u32 {
        lock(&self.slots).total - 1
    }

    /// Slots that tensors hold.
    pub(super) fn used(&self) -> u32 {
        let slots = lock(&self.slots);
        slots.fresh - 1 - slots.returned.len() as u32
    }

    /// Takes a slot for bytes of a buffer that outlives it; `None` when all are taken.
    pub(super) fn take(&self, buffer: &Buffer, bytes: Range<u64>) -> Option<u32> {
        let mut slots = lock(&self.slots);
        let slot = slots.take()?;
        self.descriptors.write(slot, buffer, bytes);
        Some(slot)
    }

    /// Gives a slot back that no command in flight uses.
    pub(super) fn give(&self, slot: u32) {
        let mut slots = lock(&self.slots);
        self.descriptors.write(slot, &self.dummy, 0..DUMMY_BYTES);
        slots.give(slot);
    }

    /// The error for a full heap.
    pub(super) fn full(&self) -> Error {
        Error::HeapFull { slots: self.capacity() }
    }
}

/// Which slots are free.
#[derive(Debug)]
struct Slots {
    /// All slots from here on were never taken.
    fresh: u32,
    returned: Vec<u32>,
    total: u32,
}

impl Slots {
    fn new(total: u32) -> Self {
        Self { fresh: DUMMY_SLOT + 1, returned: Vec::new(), total }
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.returned.pop() {
            return Some(slot);
        }
        let slot = self.fresh;
        (slot < self.total).then(|| {
            self.fresh += 1;
            slot
        })
    }

    fn give(&mut self, slot: u32) {
        self.returned.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_distinct_until_given_back() {
        let mut slots = Slots::new(4);
        assert_eq!([slots.take(), slots.take(), slots.take()], [Some(1), Some(2), Some(3)]);
        assert_eq!(slots.take(), None);
        slots.give(2);
        assert_eq!(slots.take(), Some(2));
        assert_eq!(slots.take(), None);
    }
}

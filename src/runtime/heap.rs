//! The bindless heap: one slot a tensor, or consecutive ones for a tensor that needs several bindings.

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

    /// Takes consecutive slots for bytes of buffers that outlive them; `None` when so many are not left in a row.
    pub(super) fn take(&self, bindings: &[(&Buffer, Range<u64>)]) -> Option<u32> {
        let mut slots = lock(&self.slots);
        let first = slots.take(bindings.len() as u32)?;
        for (slot, (buffer, bytes)) in (first..).zip(bindings) {
            self.descriptors.write(slot, buffer, bytes.clone());
        }
        Some(first)
    }

    /// Gives slots back that no command in flight uses.
    pub(super) fn give(&self, taken: Range<u32>) {
        let mut slots = lock(&self.slots);
        for slot in taken {
            self.descriptors.write(slot, &self.dummy, 0..DUMMY_BYTES);
            slots.give(slot);
        }
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

    /// The first of `count` consecutive slots.
    fn take(&mut self, count: u32) -> Option<u32> {
        if count == 1
            && let Some(slot) = self.returned.pop()
        {
            return Some(slot);
        }
        let slot = self.fresh;
        if count <= self.total - slot {
            self.fresh += count;
            return Some(slot);
        }
        self.take_returned(count as usize)
    }

    fn take_returned(&mut self, count: usize) -> Option<u32> {
        self.returned.sort_unstable();
        let is_run = |run: &[u32]| run.iter().zip(run[0]..).all(|(slot, place)| *slot == place);
        let at = self.returned.windows(count).position(is_run)?;
        self.returned.drain(at..at + count).next()
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
        assert_eq!([slots.take(1), slots.take(1), slots.take(1)], [Some(1), Some(2), Some(3)]);
        assert_eq!(slots.take(1), None);
        slots.give(2);
        assert_eq!(slots.take(1), Some(2));
        assert_eq!(slots.take(1), None);
    }

    #[test]
    fn several_slots_are_consecutive() {
        let mut slots = Slots::new(8);
        assert_eq!([slots.take(3), slots.take(2)], [Some(1), Some(4)]);
        assert_eq!(slots.take(3), None);
        [5, 2, 1].into_iter().for_each(|slot| slots.give(slot));
        assert_eq!(slots.take(3), None);
        assert_eq!([slots.take(2), slots.take(2), slots.take(2)], [Some(6), Some(1), None]);
        assert_eq!([slots.take(1), slots.take(1)], [Some(5), None]);
    }
}

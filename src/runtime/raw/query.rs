//! Timestamp queries.

use std::sync::Arc;

use ash::vk;

use super::{Device, Named};
use crate::error::Result;

/// A pool of timestamp queries.
pub(in crate::runtime) struct Queries {
    handle: vk::QueryPool,
    device: Arc<Device>,
}

impl Queries {
    /// Timestamps that one pool holds.
    pub(in crate::runtime) const CAPACITY: u32 = 256;

    pub(in crate::runtime) fn new(device: &Arc<Device>) -> Result<Self> {
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(Self::CAPACITY);
        // SAFETY: the device is alive, and its queue has timestamps, or no pool is made.
        let handle =
            unsafe { device.handle.create_query_pool(&info, None) }.named("vkCreateQueryPool")?;
        Ok(Self { handle, device: device.clone() })
    }

    pub(super) fn handle(&self) -> vk::QueryPool {
        self.handle
    }

    /// The first `count` timestamps in ticks, of commands that are done.
    pub(in crate::runtime) fn read(&self, count: u32) -> Result<Vec<u64>> {
        let mut ticks = vec![0u64; count.min(Self::CAPACITY) as usize];
        if ticks.is_empty() {
            return Ok(ticks);
        }
        // SAFETY: that many queries exist, and the buffer holds a 64-bit word for each.
        unsafe {
            self.device.handle.get_query_pool_results(
                self.handle,
                0,
                &mut ticks,
                vk::QueryResultFlags::TYPE_64,
            )
        }
        .named("vkGetQueryPoolResults")?;
        Ok(ticks)
    }
}

impl Drop for Queries {
    fn drop(&mut self) {
        // SAFETY: commands that use the pool keep it alive until the device is done with them.
        unsafe { self.device.handle.destroy_query_pool(self.handle, None) };
    }
}

impl Device {
    /// Valid bits of a timestamp, 0 where there are none, and nanoseconds a tick.
    pub(in crate::runtime) fn timestamps(&self) -> (u32, f32) {
        (self.queue_family.timestamp_bits, self.queue_family.timestamp_period)
    }
}

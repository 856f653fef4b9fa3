//! Timeline semaphores, which count finished submissions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;

use super::{Device, Named};
use crate::error::Result;

/// How long a wait polls before it blocks: a blocked thread takes longer to wake than a short kernel to run.
const POLL: Duration = Duration::from_micros(50);

/// A timeline semaphore.
pub(in crate::runtime) struct Timeline {
    handle: vk::Semaphore,
    device: Arc<Device>,
}

impl Timeline {
    /// A semaphore at 0.
    pub(in crate::runtime) fn new(device: &Arc<Device>) -> Result<Self> {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is alive and has timeline semaphores.
        let handle =
            unsafe { device.handle.create_semaphore(&info, None) }.named("vkCreateSemaphore")?;
        Ok(Self { handle, device: device.clone() })
    }

    pub(super) fn handle(&self) -> vk::Semaphore {
        self.handle
    }

    /// The value reached.
    pub(in crate::runtime) fn reached(&self) -> Result<u64> {
        // SAFETY: the semaphore is a timeline.
        unsafe { self.device.handle.get_semaphore_counter_value(self.handle) }
            .named("vkGetSemaphoreCounterValue")
    }

    /// Waits until `value` is reached, polling at first; says whether it was reached within `limit`.
    pub(in crate::runtime) fn wait(&self, value: u64, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < POLL {
            if self.reached()? >= value {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        let (semaphores, values) = ([self.handle], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let limit = limit.as_nanos().try_into().unwrap_or(u64::MAX);
        // SAFETY: the semaphore is a timeline.
        match unsafe { self.device.handle.wait_semaphores(&info, limit) } {
            Err(vk::Result::TIMEOUT) => Ok(false),
            waited => waited.named("vkWaitSemaphores").map(|()| true),
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: the runtime waits for its last submission, or the device is lost.
        unsafe { self.device.handle.destroy_semaphore(self.handle, None) };
    }
}

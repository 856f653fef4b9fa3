//! The runtime within a caller's own use of Vulkan; `backslang::raw` says how.

mod buffer;
mod device;
mod record;

use std::any::Any;

use ash::vk;

pub use buffer::{Buffer, BufferDesc};
pub use device::{Device, Needs, open};
pub use record::{Recorded, record, submit};

/// Something that stays alive until the runtime has no more use for what it was given with.
pub type Keep = Box<dyn Any + Send + Sync>;

/// Calls what it is given, once, while it holds the caller's lock of the queue.
pub type QueueLock = Box<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// A value of a timeline semaphore, to wait for or to signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimelinePoint {
    /// A timeline semaphore of the runtime's device.
    pub semaphore: vk::Semaphore,
    /// Its value.
    pub value: u64,
}

/// What a submission waits for and signals, of the caller's.
#[derive(Default)]
pub(in crate::runtime) struct Links<'a> {
    pub(super) waits: &'a [TimelinePoint],
    pub(super) signals: &'a [TimelinePoint],
}

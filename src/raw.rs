//! The runtime within a program that uses Vulkan itself: on its device, its buffers and its command buffers.
//!
//! [`Runtime::new`](crate::runtime::Runtime::new) makes an instance and a device of its own. A program that has these
//! already, or a framework such as wgpu, shares them instead:
//!
//! - [`Needs`] says what to create the device with, [`open`] opens a runtime on it and names what is missing.
//! - [`Buffer::import`] takes a buffer in, and its ranges become tensors, without a copy.
//! - [`record`] records kernels into a command buffer that the program submits; [`submit`] submits a recording that
//!   waits for and signals the program's timeline semaphores.
//!
//! What the program hands over stays its own: nothing of it is destroyed, and it lives as long as the runtime may use it.
//! This is what no type can see to, so these functions are `unsafe`, and each says what it relies on. Tensors, recorders
//! and kernels are then used as ever.
//!
//! Handles are those of [`ash`], which is public here: its versions are part of this module's interface.
//!
//! ```no_run
//! use backslang::raw::{self, ash::vk};
//! use backslang::runtime::RuntimeOptions;
//! use backslang::Dtype;
//!
//! # fn embed(device: raw::Device<'_>, x: raw::BufferDesc, commands: vk::CommandBuffer) -> backslang::Result<()> {
//! // SAFETY: instance, device and queue are this program's, and outlive the runtime; no other thread uses the queue.
//! let runtime = unsafe { raw::open(device, &RuntimeOptions::default()) }?;
//! // SAFETY: the buffer is as it is described, and lives until `recorded` is dropped.
//! let buffer = unsafe { raw::Buffer::import(&runtime, x) }?;
//! let x = buffer.tensor("x", Dtype::F32, &[16, 64], 4096)?;
//! // SAFETY: the command buffer is recording; on an error it is thrown away.
//! let ((), recorded) = unsafe { raw::record(&runtime, commands, |recorder| recorder.fill(&x, 0)) }?;
//! // The program ends and submits the command buffer, and waits for its fence.
//! drop(recorded);
//! # Ok(())
//! # }
//! ```

pub use ash;

pub use crate::runtime::embed::{
    Buffer, BufferDesc, Device, Keep, Needs, QueueLock, Recorded, TimelinePoint, open, record,
    submit,
};

//! Recording into a caller's command buffer, and submissions with a caller's semaphores.

use std::sync::Arc;

use ash::vk;

use super::super::Commands;
use super::{Links, TimelinePoint};
use crate::error::{Error, Result};
use crate::runtime::core::Core;
use crate::runtime::recorder::{Recorder, Recording};
use crate::runtime::{Runtime, Submission};

/// What commands in a caller's command buffer use: tensors and all else that must live until the device is done with
/// them. The caller drops it then.
#[must_use = "what the commands use must live until the device is done with them"]
pub struct Recorded {
    _recording: Recording,
    /// The last to go: pipelines and descriptors are its.
    _core: Arc<Core>,
}

/// Records into a caller's command buffer what `work` records, for the caller to submit.
///
/// The commands are ordered among themselves as in any recording. As a whole they come behind a barrier that waits for
/// all commands before them in the command buffer and earlier in the queue, and makes their writes visible; a second one
/// lets everything behind wait for them and see their writes, the host included once it knows that they are done. They
/// are not timed.
///
/// Of the command buffer's state they change the compute pipeline, the compute descriptor sets and the push constants:
/// a caller that computes further binds its own anew.
///
/// # Safety
/// - The command buffer is of the runtime's device and queue family, is recording outside of a render pass, is not used
///   by others meanwhile, and allows commands of compute and transfer.
/// - It is submitted at most once at a time, to the runtime's queue, or where semaphores order it behind all that the
///   runtime submitted to that queue before [`record`] returned, and all later submissions of the runtime that touch
///   the same tensors behind it.
/// - [`Recorded`] is dropped only when the device is done with the command buffer and it will not be submitted again.
/// - After an error the command buffer may hold a part of the commands: it is never submitted.
///
/// # Errors
/// Those of `work`; [`Error::Parameter`] when it puts another recorder in place of the one that it was given.
pub unsafe fn record<T>(
    runtime: &Runtime,
    command_buffer: vk::CommandBuffer,
    work: impl FnOnce(&mut Recorder<'_>) -> Result<T>,
) -> Result<(T, Recorded)> {
    let core = runtime.core();
    let commands = Commands::of_caller(&core.device, command_buffer);
    let mut recorder = Recorder::on(runtime, commands)?.untimed();
    let value = work(&mut recorder)?;
    let mut recording = recorder.into_recording();
    if recording.commands.handle() != command_buffer {
        return Err(Error::Parameter {
            name: "recorder",
            expected: "the recorder that was given".into(),
            found: "another one in its place".into(),
        });
    }
    recording.commands.end()?;
    Ok((value, Recorded { _recording: recording, _core: core.clone() }))
}

/// As [`Recorder::submit`], behind what the caller's timeline semaphores are to reach, and signalling others.
///
/// Submissions of the runtime that follow wait for the same: they are behind this one in the queue.
///
/// # Safety
/// - Each semaphore is a timeline of the runtime's device, and lives until the submission is done.
/// - The values are ones that Vulkan allows: those signalled grow, and differ from the present one by no more than
///   `maxTimelineSemaphoreValueDifference`.
/// - What is waited for comes about without this thread and without the runtime, which may wait for the submission at
///   any time, as when memory is short.
///
/// # Errors
/// Those of [`Recorder::submit`].
pub unsafe fn submit(
    recorder: Recorder<'_>,
    waits: &[TimelinePoint],
    signals: &[TimelinePoint],
) -> Result<Submission> {
    recorder.submit_linked(&Links { waits, signals })
}

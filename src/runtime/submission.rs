//! Submitted work.

use std::sync::Arc;

use super::core::{Core, Outcome, Ticket};
use super::timing::Timing;
use crate::error::Result;

/// Work that was handed to the device.
///
/// Dropping it waits for nothing: the runtime keeps what the device still uses.
pub struct Submission {
    core: Arc<Core>,
    ticket: Ticket,
    outcome: Arc<Outcome>,
}

impl Submission {
    pub(super) fn new(core: Arc<Core>, ticket: Ticket, outcome: Arc<Outcome>) -> Self {
        Self { core, ticket, outcome }
    }

    /// Waits until the device is done: polls for some 50 µs, then blocks.
    ///
    /// # Errors
    /// [`DeviceLost`](crate::Error::DeviceLost), [`Validation`](crate::Error::Validation) and other failures of the
    /// device; [`TimedOut`](crate::Error::TimedOut), after which one can wait again.
    pub fn wait(&self) -> Result<()> {
        self.core.wait(self.ticket)
    }

    /// Whether the device is done.
    pub fn done(&self) -> bool {
        self.core.reap();
        self.outcome.get().is_some()
    }

    /// Waits, then says what each fill and dispatch took, in order of recording; empty on a device without timestamps.
    ///
    /// # Errors
    /// Those of [`Submission::wait`].
    pub fn timings(&self) -> Result<Vec<Timing>> {
        self.wait()?;
        self.outcome.get().cloned().unwrap_or_else(|| Ok(Vec::new()))
    }
}

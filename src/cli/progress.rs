//! A spinner on the terminal while something takes its time, with a bar where it is known how far it is.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of a bar: more than a terminal has columns.
const LENGTH: u64 = 10_000;

/// The spinner that is shown now.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Something that takes its time; the spinner goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Step(Option<ProgressBar>);

impl Step {
    /// Shows a spinner with the name of the step.
    pub(super) fn shown(name: String) -> Self {
        let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(name);
        bar.enable_steady_tick(Duration::from_millis(120));
        show(Some(bar.clone()));
        Self(Some(bar))
    }

    /// Shows nothing.
    pub(super) fn hidden() -> Self {
        Self(None)
    }

    /// Shows how far it is, from 0 to 1.
    pub(crate) fn reach(&self, fraction: f64) {
        let Some(bar) = &self.0 else { return };
        if bar.length().is_none() {
            bar.set_length(LENGTH);
            let style =
                ProgressStyle::with_template("{spinner} {msg} {wide_bar} {percent:>3}% {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            // However soon it is over.
            bar.force_draw();
        }
        bar.set_position((fraction * LENGTH as f64) as u64);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            show(None);
            bar.finish_and_clear();
        }
    }
}

fn show(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Wipes the spinner off the terminal when the process is about to end, waiting for nobody.
#[cfg(any(unix, windows))]
pub(crate) fn wipe() {
    if SHOWN.try_lock().is_ok_and(|bar| bar.is_some()) {
        let _ = io::stderr().write_all(b"\r\x1b[2K");
    }
}

/// Does something that prints to the terminal, the spinner out of its way.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let bar = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(work),
        None => work(),
    }
}

/// Standard error, the spinner out of its way.
#[derive(Debug)]
pub(crate) struct Aside;

impl Write for Aside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        aside(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

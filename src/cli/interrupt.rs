//! Signals that ask the process to end: what is being written goes, and the process ends.
//!
//! Where the device is at work, that is first stopped between two submissions and taken down in order. When this takes
//! long, or a signal comes again, the process ends with no word to the driver: the system takes back what it holds.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{files, progress};

/// Watches for those signals from now on.
pub(crate) fn listen() {
    // Where there can be no watch, signals do what they do by default.
    let _ = watch();
}

#[cfg(unix)]
fn watch() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGXFSZ};
    use signal_hook::iterator::Signals;

    // A file at its size limit is then an error of the write, as a full disk is, and no end of the process.
    signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default())?;
    let ignored = ignored();
    let asking = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU];
    let mut signals = Signals::new(asking.iter().filter(|&signal| !ignored.contains(signal)))?;
    spawn(move || {
        if let Some(signal) = signals.forever().next() {
            stop_device(|| signals.pending().next().is_some());
            end(signal);
        }
    })
}

/// Signals that the process was started to ignore, by `nohup` or by a shell that puts it into the background.
#[cfg(unix)]
fn ignored() -> Vec<i32> {
    // Only Linux says; elsewhere a hangup, which is what gets ignored, keeps what it does.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return vec![signal_hook::consts::SIGHUP];
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[cfg(windows)]
fn watch() -> io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use signal_hook::consts::{SIGINT, SIGTERM};

    let watched = [SIGINT, SIGTERM].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
    for (signal, came) in &watched {
        signal_hook::flag::register(*signal, came.clone())?;
    }
    let came = move || {
        let mut watched = watched.iter();
        watched.find(|(_, came)| came.swap(false, Ordering::Relaxed)).map(|(signal, _)| *signal)
    };
    // There is nothing to wait for but the flags.
    spawn(move || {
        loop {
            match came() {
                Some(signal) => {
                    stop_device(|| came().is_some());
                    end(signal);
                }
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
    })
}

#[cfg(not(any(unix, windows)))]
fn watch() -> io::Result<()> {
    Ok(())
}

#[cfg(any(unix, windows))]
fn spawn(watch: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("interrupts".into()).spawn(watch).map(drop)
}

#[cfg(any(unix, windows))]
fn end(signal: i32) {
    files::abandon(|| {
        progress::wipe();
        signal_hook::low_level::exit(128 + signal)
    });
}

/// How long the device is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the device does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Idle,
    Busy,
    /// Busy, but asked to come to an end.
    Ending,
    /// No longer busy because it was asked.
    Ended,
}

static DEVICE: (Mutex<Device>, Condvar) = (Mutex::new(Device::Idle), Condvar::new());

fn device() -> MutexGuard<'static, Device> {
    DEVICE.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while there is a device at work. When it is dropped after a signal, the process ends there.
#[derive(Debug)]
pub(crate) struct DeviceWork(());

impl DeviceWork {
    pub(crate) fn begin() -> Self {
        *device() = Device::Busy;
        Self(())
    }

    /// Whether a signal asks for the end.
    pub(crate) fn is_to_end(&self) -> bool {
        *device() == Device::Ending
    }
}

impl Drop for DeviceWork {
    fn drop(&mut self) {
        let mut device = device();
        if *device == Device::Busy {
            *device = Device::Idle;
            return;
        }
        tracing::debug!("the device came to an end");
        *device = Device::Ended;
        drop(device);
        DEVICE.1.notify_all();
        loop {
            // The thread that waits for this ends the process.
            thread::park();
        }
    }
}

/// Lets the device come to an end, unless it takes long or `again` is so.
#[cfg(any(unix, windows))]
fn stop_device(mut again: impl FnMut() -> bool) {
    let mut device = device();
    if *device != Device::Busy {
        return;
    }
    *device = Device::Ending;
    let until = Instant::now() + PATIENCE;
    while *device == Device::Ending && Instant::now() < until && !again() {
        let wait = DEVICE.1.wait_timeout(device, Duration::from_millis(20));
        device = wait.unwrap_or_else(PoisonError::into_inner).0;
    }
}

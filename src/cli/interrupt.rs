//! Signals that ask the process to end: what is being written goes, and the process ends.
//!
//! It ends at once, with no word to the driver: the device may be busy, and the system takes back what it holds.

use std::io;
use std::thread;

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
    use std::time::Duration;

    use signal_hook::consts::{SIGINT, SIGTERM};

    let watched = [SIGINT, SIGTERM].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
    for (signal, came) in &watched {
        signal_hook::flag::register(*signal, came.clone())?;
    }
    // There is nothing to wait for but the flags.
    spawn(move || {
        loop {
            match watched.iter().find(|(_, came)| came.load(Ordering::Relaxed)) {
                Some((signal, _)) => end(*signal),
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

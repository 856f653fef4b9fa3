//! SIGINT and SIGTERM: what is being written goes, and the process ends.

/// Watches for signals that ask the process to end.
///
/// It ends at once, with no word to the driver: the device may be busy, and the system takes back what it holds.
#[cfg(unix)]
pub(crate) fn listen() {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    use super::{files, progress};

    // Where there can be no watch, signals do what they do by default.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let watch = move || {
        if let Some(signal) = signals.forever().next() {
            files::abandon(|| {
                progress::wipe();
                signal_hook::low_level::exit(128 + signal)
            });
        }
    };
    let _ = std::thread::Builder::new().name("interrupts".into()).spawn(watch);
}

/// Signals are a matter of Unix.
#[cfg(not(unix))]
pub(crate) fn listen() {}

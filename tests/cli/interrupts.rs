//! Signals that end the command: nothing half-written is left.

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Folder, command};

/// Runs `words`, sends the signal as soon as `ready` holds, and gives the exit code: 0 where it came too late, none
/// where it came before anybody listens.
fn interrupted(words: &str, signal: Signal, ready: impl Fn() -> bool) -> Option<i32> {
    let mut child = command()
        .args(words.split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !ready() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The child may have ended by itself; nobody has waited for it, so that the number is still its own.
    let _ = kill_process(Pid::from_child(&child), signal);
    child.wait().unwrap().code()
}

/// Whether the tests were started to ignore a signal, as by `nohup` or in a script's background: then so is the command.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Tries until the signal comes in time.
fn in_time(attempt: impl Fn() -> Option<i32>, code: i32) {
    let codes = (0..100).map(|_| attempt());
    assert_eq!(codes.into_iter().find(|code| *code != Some(0)), Some(Some(code)));
}

const LARGE: &str = "--rows 20000";

#[test]
fn while_files_are_written() {
    let folder = Folder::new();
    let words = format!("sample mamba3-preprocess-backward --rows 6000 -o {}", folder.at("out"));
    for signal in [Signal::HUP, Signal::QUIT, Signal::TERM, Signal::XCPU] {
        if is_ignored(signal) {
            continue;
        }
        let attempt = || {
            let _ = std::fs::remove_dir_all(folder.at("out"));
            std::fs::create_dir(folder.at("out")).unwrap();
            folder.write("out/projected.npy", b"old");
            let begun = || folder.names("out").iter().any(|name| name.ends_with(".tmp"));
            interrupted(&words, signal, begun)
        };
        in_time(attempt, 128 + signal.as_raw());
        assert_eq!(folder.names("out"), ["projected.npy"]);
        assert_eq!(folder.read("out/projected.npy"), b"old");
    }
}

/// What `nohup` and shells with background jobs ask for stays as they ask.
#[cfg(target_os = "linux")]
#[test]
fn ignored_signals_stay_ignored() {
    let folder = Folder::new();
    let built = env!("CARGO_BIN_EXE_backslang");
    let words = format!("sample mamba3-preprocess-backward --rows 5000 -o {}", folder.at("out"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("trap '' HUP INT QUIT; exec {built} {words}")]);
    let mut child = shell.stdout(Stdio::null()).spawn().unwrap();
    while !folder.path().join("out").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(folder.names("out").len(), 14);
}

/// Whenever the signal comes, what is there is the old set or the new one, whole.
#[test]
fn at_any_moment() {
    let folder = Folder::new();
    let make = |seed: u32, out: &str| {
        let out = folder.at(out);
        format!("sample mamba3-preprocess-backward --rows 1500 --seed {seed} -o {out}")
    };
    let started = std::time::Instant::now();
    for (seed, out) in [(1, "1"), (2, "2"), (1, "1.npz"), (2, "2.npz")] {
        interrupted(&make(seed, out), Signal::INT, || false);
        assert!(folder.path().join(out).exists());
    }
    let whole = started.elapsed() / 4;
    let sets = ["1", "2"].map(|set| contents(&folder, set));
    let archives = ["1.npz", "2.npz"].map(|archive| folder.read(archive));
    for round in 0..30 {
        let delay = whole.mul_f64(1.2 * fastrand::f64());
        let begun = std::time::Instant::now();
        let signal = [Signal::INT, Signal::TERM, Signal::HUP][round % 3];
        let out = ["1", "1.npz"][round % 2];
        interrupted(&make(1 + round as u32 / 2 % 2, out), signal, || begun.elapsed() >= delay);
        assert!(sets.contains(&contents(&folder, "1")), "after {delay:?}");
        assert!(archives.contains(&folder.read("1.npz")), "after {delay:?}");
        assert_eq!(folder.names(""), ["1", "1.npz", "2", "2.npz"], "after {delay:?}");
    }
}

fn contents(folder: &Folder, set: &str) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), folder.read(&format!("{set}/{name}")));
    folder.names(set).into_iter().map(read).collect()
}

#[test]
fn while_results_are_computed() {
    if is_ignored(Signal::INT) {
        return;
    }
    let folder = Folder::sample("mamba3-preprocess-backward", LARGE);
    for out in ["new/out", "new/out.npz"] {
        let words = format!("--device reference mamba3-preprocess-backward -o {}", folder.at(out));
        let words = format!("{words} -i {}", folder.at("in"));
        let attempt = || {
            let _ = std::fs::remove_dir_all(folder.at("new"));
            interrupted(&words, Signal::INT, || folder.path().join("new").exists())
        };
        in_time(attempt, 130);
        assert_eq!(folder.names(""), ["in"]);
    }
}

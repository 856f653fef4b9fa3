//! Signals that end the command: nothing half-written is left.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Folder, command};

/// Runs `words`, sends the signal as soon as `ready` holds, and gives the exit code: 0 where it came too late.
fn interrupted(words: &str, signal: &str, ready: impl Fn() -> bool) -> Option<i32> {
    let mut child = command()
        .args(words.split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !ready() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    assert!(status.signal().is_none(), "{sent} {status}");
    status.code()
}

/// Tries until the signal comes in time.
fn in_time(attempt: impl Fn() -> Option<i32>, code: i32) {
    let codes = (0..10).map(|_| attempt());
    assert_eq!(codes.into_iter().find(|code| *code != Some(0)), Some(Some(code)));
}

const LARGE: &str = "--rows 20000";

#[test]
fn while_files_are_written() {
    let folder = Folder::new();
    let words = format!("sample mamba3-preprocess-backward {LARGE} -o {}", folder.at("out"));
    let attempt = || {
        let _ = std::fs::remove_dir_all(folder.at("out"));
        std::fs::create_dir(folder.at("out")).unwrap();
        folder.write("out/projected.npy", b"old");
        let begun = || folder.names("out").iter().any(|name| name.ends_with(".tmp"));
        interrupted(&words, "-TERM", begun)
    };
    in_time(attempt, 143);
    assert_eq!(folder.names("out"), ["projected.npy"]);
    assert_eq!(folder.read("out/projected.npy"), b"old");
}

#[test]
fn while_results_are_computed() {
    let folder = Folder::sample("mamba3-preprocess-backward", LARGE);
    for out in ["new/out", "new/out.npz"] {
        let words = format!("--device reference mamba3-preprocess-backward -o {}", folder.at(out));
        let words = format!("{words} -i {}", folder.at("in"));
        let attempt = || {
            let _ = std::fs::remove_dir_all(folder.at("new"));
            interrupted(&words, "-INT", || folder.path().join("new").exists())
        };
        in_time(attempt, 130);
        assert_eq!(folder.names(""), ["in"]);
    }
}

//! Signals that end the command: nothing half-written is left.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Folder, command};

/// Runs `words`, sends the signal as soon as `ready` holds, and gives the exit code.
fn interrupted(words: &str, signal: &str, ready: impl Fn() -> bool) -> Option<i32> {
    let mut child = command()
        .args(words.split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < patience, "never ready");
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), None);
    status.code()
}

const LARGE: &str = "--rows 20000";

#[test]
fn while_files_are_written() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("out")).unwrap();
    folder.write("out/projected.npy", b"old");
    let begun = || folder.names("out").iter().any(|name| name.ends_with(".tmp"));
    let words = format!("sample mamba3-preprocess-backward {LARGE} -o {}", folder.at("out"));
    assert_eq!(interrupted(&words, "-TERM", begun), Some(143));
    assert_eq!(folder.names("out"), ["projected.npy"]);
    assert_eq!(folder.read("out/projected.npy"), b"old");
}

#[test]
fn while_results_are_computed() {
    let folder = Folder::sample("mamba3-preprocess-backward", LARGE);
    for out in ["new/out", "new/out.npz"] {
        let words = format!("--device reference mamba3-preprocess-backward -o {}", folder.at(out));
        let words = format!("{words} -i {}", folder.at("in"));
        let begun = || folder.path().join("new").exists();
        assert_eq!(interrupted(&words, "-INT", begun), Some(130));
        assert_eq!(folder.names(""), ["in"]);
    }
}

//! The examples of the help texts work.

use std::process::Command;

use crate::harness::{Folder, outcome};
use crate::help::{COMMANDS, help};

/// The lines of the help's examples.
fn examples(command: &str) -> Vec<String> {
    let help = help(command, "--help");
    let Some((_, tail)) = help.split_once("\nExample") else { return Vec::new() };
    let lines = tail.lines().map(str::trim).filter(|line| line.contains("backslang "));
    lines.map(str::to_owned).collect()
}

#[test]
fn examples_work_when_pasted() {
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_backslang")).parent().unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    let bash = Command::new("bash").arg("--version").output().is_ok();
    for command in COMMANDS {
        let folder = Folder::new();
        let lines = examples(command);
        assert!(!lines.is_empty(), "{command}");
        for line in lines {
            assert!(line.len() <= 76, "narrow terminals break it: {line}");
            let needs_device = ["devices", "check", "bench"].iter().any(|word| line.contains(word));
            let shell = if line.contains("<(") { "bash" } else { "sh" };
            if shell == "bash" && !bash {
                continue;
            }
            let mut pasted = Command::new(shell);
            pasted.args(["-c", &line]).current_dir(folder.path()).env("PATH", &path);
            pasted.env("BACKSLANG_DEVICE", "reference").env_remove("BACKSLANG_VALIDATE");
            if needs_device {
                // Its words are right where it gets as far as to look for one.
                pasted.env("VK_DRIVER_FILES", "/nowhere").env("VK_ICD_FILENAMES", "/nowhere");
                pasted.env_remove("BACKSLANG_DEVICE");
                outcome(&mut pasted).failed(1, &["Vulkan"]);
            } else {
                outcome(&mut pasted).succeeded();
            }
        }
    }
}

//! Help texts: whole, narrow, and with examples that work.

use std::process::Command;

use serde_json::json;

use crate::harness::{Folder, command, outcome, run};

const COMMANDS: [&str; 12] = [
    "",
    "mamba3-preprocess-backward",
    "paged-attention-backward",
    "history-backward",
    "devices",
    "kernels",
    "sample",
    "sample mamba3-preprocess-backward",
    "sample paged-attention-backward",
    "sample history-backward",
    "check",
    "completions",
];

fn help(command: &str, flag: &str) -> String {
    run(command.split_whitespace().chain([flag])).succeeded().stdout
}

/// Each flag of the help with what it says of it, in one line.
fn flags(help: &str) -> Vec<(String, String)> {
    let mut flags: Vec<(String, String)> = Vec::new();
    for line in help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1) {
        let text = line.trim();
        if text.starts_with('-') && !text.starts_with("- ") {
            flags.push((text.into(), String::new()));
        } else if line.starts_with("          ")
            && let Some((_, said)) = flags.last_mut()
        {
            *said += &format!("{text} ");
        }
    }
    flags
}

#[test]
fn lines_fit() {
    for command in COMMANDS {
        for flag in ["-h", "--help"] {
            let help = help(command, flag);
            let wide = help.lines().find(|line| line.chars().count() > 100);
            assert_eq!(wide, None, "{command} {flag}");
        }
    }
}

/// Each flag has a sentence; with a value it says which it has when it is left out, unless it must be given.
#[test]
fn flags_are_explained_with_their_defaults() {
    for command in COMMANDS {
        let flags = flags(&help(command, "--help"));
        assert!(flags.len() >= 6, "{flags:?}");
        for (flag, said) in flags {
            assert!(said.starts_with(|c: char| c.is_uppercase() || c == '`'), "{flag}: {said}");
            let told = ["[default: ", "By default", "Needed unless"];
            let told = told.iter().any(|words| said.contains(words));
            let required = command.starts_with("sample") && flag.ends_with("--output <PATH>");
            assert!(told || required || !flag.contains('<'), "{command}: {flag}: {said}");
        }
    }
}

/// The lines of the help's examples.
fn examples(command: &str) -> Vec<String> {
    let help = help(command, "--help");
    let Some((_, tail)) = help.split_once("\nExample") else { return Vec::new() };
    let lines = tail.lines().map(str::trim).filter(|line| line.contains("backslang "));
    lines.map(str::to_owned).collect()
}

#[cfg(unix)]
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
            let needs_device = ["devices", "check"].iter().any(|word| line.contains(word));
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

#[test]
fn json_has_help_and_version_too() {
    for (words, key) in [("--help", "help"), ("check -h", "help"), ("--version", "version")] {
        let text = run(words.split(' ')).succeeded().stdout;
        for flags in [format!("--json {words}"), format!("{words} --json -q")] {
            let json = run(flags.split(' ')).succeeded().json();
            assert!(text.ends_with(&format!("{}\n", json[key].as_str().unwrap().trim_end())));
            assert!(json["error"].is_null() && json["outputs"].as_object().unwrap().is_empty());
            let expected = if words.starts_with("check") { "check".into() } else { json!(null) };
            assert_eq!(json["command"], expected);
        }
    }
}

/// A reader of a narrow terminal, whose width the variable gives where there is none.
#[test]
fn narrow_terminals_get_narrow_lines() {
    let help = outcome(command().args(["check", "-h"]).env("COLUMNS", "60")).succeeded().stdout;
    assert!(help.lines().all(|line| line.chars().count() <= 60), "{help}");
}

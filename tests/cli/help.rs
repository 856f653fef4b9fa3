//! Help texts: whole, and within the terminal.

use serde_json::json;

use crate::harness::{command, outcome, run};

pub(crate) const COMMANDS: &[&str] = &[
    "",
    "mamba3-preprocess",
    "paged-attention",
    "paged-append",
    "sample mamba3-preprocess",
    "sample paged-attention",
    "sample paged-append",
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
    "bench",
    "bench host",
    "bench scaling",
    "merge",
    "completions",
    #[cfg(feature = "slang")]
    "run",
];

pub(crate) fn help(command: &str, flag: &str) -> String {
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
            let required = command.starts_with("sample") || *command == "merge";
            let required = required && flag.ends_with("--output <PATH>");
            assert!(told || required || !flag.contains('<'), "{command}: {flag}: {said}");
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

//! Arguments that could not be read: what is wrong with them, and which command they were for.

use std::ffi::OsString;

use backslang::runtime::Validation;
use clap::CommandFactory;
use clap::error::ErrorKind;

use super::args::Cli;
use super::failure::{Failure, Result};
use super::report::Report;

/// What comes of arguments that name no work to do: a text that they ask for, or a failure.
pub(crate) fn outcome(error: &clap::Error, words: &[OsString]) -> Result<Report> {
    let text = error.render().to_string();
    let extra = match error.kind() {
        ErrorKind::DisplayHelp => ("help", text.clone().into()),
        ErrorKind::DisplayVersion => ("version", env!("CARGO_PKG_VERSION").into()),
        _ => return Err(failure(error, words)),
    };
    Ok(Report { text, extra: Some(extra), ..Report::default() })
}

/// Whether `--json` is among the flags, given a value by mistake perhaps.
pub(crate) fn json(words: &[OsString]) -> bool {
    let flags = words.iter().take_while(|word| *word != "--");
    flags.map(|word| word.to_string_lossy()).any(|word| word.split('=').next() == Some("--json"))
}

/// The failure that clap's error comes to.
fn failure(error: &clap::Error, words: &[OsString]) -> Failure {
    let mut message = one_line(error);
    if let Some(checks) = spaced_checks(words).filter(|checks| message.contains(checks)) {
        message += &format!("; did you mean --validate={checks}?");
    }
    Failure::usage(message + " (see --help)")
}

/// The command that was typed, as far as the arguments tell.
pub(crate) fn command(words: &[OsString]) -> Option<String> {
    let cli = Cli::command();
    let known = |word: &str| cli.get_subcommands().any(|command| command.get_name() == word);
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next().map(|word| word.to_string_lossy()) {
        if ["--device", "--pipeline-cache"].contains(&&*word) {
            words.next();
        } else if known(&word) {
            return Some(word.into_owned());
        }
    }
    None
}

/// clap's message without its label, the usage and the pointer to the help.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>();
    // What follows a colon is a list of its own.
    let message = lines.join("; ").replace(":; ", ": ");
    message.strip_prefix("error: ").unwrap_or(&message).into()
}

/// What follows a `--validate` without `=`, when it reads like a list of checks.
fn spaced_checks(words: &[OsString]) -> Option<&str> {
    let flag = words.iter().position(|word| word == "--validate")?;
    let next = words.get(flag + 1)?.to_str()?;
    next.parse().is_ok_and(Validation::any).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_is_told_from_what_precedes_it() {
        let typed = |line| command(&words(line));
        assert_eq!(typed("backslang --json check --nonsense").as_deref(), Some("check"));
        assert_eq!(typed("backslang --device check -q devices x").as_deref(), Some("devices"));
        assert_eq!(typed("backslang --device=check kernels").as_deref(), Some("kernels"));
        assert_eq!(typed("backslang --pipeline-cache check kernels").as_deref(), Some("kernels"));
        assert_eq!(typed("backslang nonsense"), None);
        assert_eq!(typed("check"), None);
    }

    #[test]
    fn json_is_a_flag_wherever_flags_may_be() {
        assert!(json(&words("backslang --json")) && json(&words("backslang check --json=1 x")));
        assert!(!json(&words("backslang -- --json")) && !json(&words("backslang --jsonl")));
    }

    #[test]
    fn only_checks_after_the_flag_are_taken_for_its_value() {
        assert_eq!(spaced_checks(&words("backslang --validate core,sync")), Some("core,sync"));
        for line in ["backslang --validate check", "backslang core", "backslang --validate"] {
            assert_eq!(spaced_checks(&words(line)), None);
        }
    }
}

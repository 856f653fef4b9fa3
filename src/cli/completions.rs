//! `completions`: what shells need to complete the command's words.

use clap::CommandFactory;

use super::args::{Cli, CompletionsArgs};
use super::report::Report;

/// The script for the shell.
pub(crate) fn script(args: &CompletionsArgs) -> Report {
    let mut cli = Cli::command();
    let name = cli.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, name, &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    Report { extra: Some(("completions", text.clone().into())), text, ..Report::default() }
}

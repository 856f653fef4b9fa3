//! `completions`: what shells need to complete the command's words.

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::{Cli, CompletionsArgs};
use super::report::Report;

/// The script for the shell.
pub(crate) fn script(args: &CompletionsArgs) -> Report {
    let mut cli = Cli::command();
    let name = cli.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, name, &mut script);
    let mut text = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Fish {
        text += &fish_values(&cli);
    }
    Report { extra: Some(("completions", text.clone().into())), text, ..Report::default() }
}

/// The values of arguments that are no flags, which the generator leaves out for fish.
fn fish_values(cli: &clap::Command) -> String {
    let name = cli.get_name();
    let mut lines = String::new();
    for command in cli.get_subcommands() {
        for argument in command.get_positionals() {
            let values = argument.get_possible_values();
            let values = values.iter().map(|value| value.get_name()).collect::<Vec<_>>().join(" ");
            let condition = format!("__fish_{name}_using_subcommand {}", command.get_name());
            lines += &format!("complete -c {name} -n \"{condition}\" -f -a \"{values}\"\n");
        }
    }
    lines
}

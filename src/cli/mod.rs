//! The command line: flags are parsed, resolved into a checked job, run, and reported.

mod alike;
mod args;
mod bench;
mod check;
mod commands;
mod completions;
mod compute;
mod failure;
mod files;
mod inputs;
mod interrupt;
mod jobs;
mod listings;
mod place;
mod plan;
mod progress;
mod report;
#[cfg(feature = "slang")]
mod run;
mod sample;
mod shards;
mod talk;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use args::{Cli, Command};
use failure::Result;
use report::Report;
use talk::Talk;

/// Runs the command that the process was called with.
pub(crate) fn main() -> ExitCode {
    let started = Instant::now();
    let words: Vec<OsString> = std::env::args_os().collect();
    match Cli::try_parse_from(&words) {
        Ok(cli) => {
            let talk = Talk::new(&cli.global);
            talk.start_log();
            interrupt::listen();
            let outcome = run(&cli, &talk);
            report::finish(&talk, Some(cli.command.name()), started.elapsed(), outcome)
        }
        Err(error) => {
            let talk = Talk::unparsed(usage::json(&words));
            let command = usage::command(&words);
            let outcome = usage::outcome(&error, &words);
            report::finish(&talk, command.as_deref(), started.elapsed(), outcome)
        }
    }
}

#[cfg(feature = "slang")]
use run::run as user_kernel;

/// `run`, where there is no compiler.
#[cfg(not(feature = "slang"))]
fn user_kernel(_: &args::RunArgs, _: &args::GlobalArgs, _: &Talk) -> Result<Report> {
    let message =
        "run: this build has no Slang compiler (build it with `cargo build --features slang`)";
    Err(failure::Failure::usage(message))
}

fn run(cli: &Cli, talk: &Talk) -> Result<Report> {
    let global = &cli.global;
    if let Command::Kernels | Command::Sample(_) | Command::Completions(_) | Command::Merge(_) =
        &cli.command
    {
        place::without_device(global, cli.command.name())?;
    }
    match &cli.command {
        Command::Mamba3Preprocess(args) => commands::mamba3(args, global, talk),
        Command::Mamba3PreprocessBackward(args) => commands::mamba3_backward(args, global, talk),
        Command::PagedAttention(args) => commands::attention(args, global, talk),
        Command::PagedAppend(args) => commands::append(args, global, talk),
        Command::PagedAttentionBackward(args) => commands::attention_backward(args, global, talk),
        Command::HistoryBackward(args) => commands::history(args, global, talk),
        Command::Run(args) => user_kernel(args, global, talk),
        Command::Devices => listings::devices(global),
        Command::Kernels => Ok(listings::kernels()),
        Command::Sample(sample) => sample::write(sample, talk),
        Command::Check(args) => check::check(args, global, talk),
        Command::Bench(args) => bench::bench(args, global, talk),
        Command::Merge(args) => shards::merge(args, talk),
        Command::Completions(args) => Ok(completions::script(args)),
    }
}

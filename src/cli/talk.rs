//! What is said besides the results: errors, notes and the library's log, all on standard error.

use std::io::{self, Write};

use tracing_subscriber::filter::LevelFilter;

use super::args::GlobalArgs;

/// How much to say, and in which form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Talk {
    /// The result is one JSON object.
    pub(crate) json: bool,
    /// Errors only.
    pub(crate) quiet: bool,
    /// How often `-v` was given.
    pub(crate) verbose: u8,
}

impl Talk {
    /// What the flags ask for.
    pub(crate) fn new(args: &GlobalArgs) -> Self {
        Self { json: args.json, quiet: args.quiet, verbose: args.verbose }
    }

    /// When the flags could not be read.
    pub(crate) fn of_failed_parse(json: bool) -> Self {
        Self { json, quiet: false, verbose: 0 }
    }

    /// Shows the library's log: from one `-v` what it does, from two how.
    pub(crate) fn start_log(self) {
        let level = match self.verbose {
            _ if self.quiet => LevelFilter::OFF,
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::stderr)
            .without_time()
            .with_target(false);
        // Fails when there is a log already, which is as good.
        let _ = log.try_init();
    }

    /// An error, in one line.
    pub(crate) fn error(self, message: &str) {
        say("error", message);
    }

    /// Something worth knowing.
    pub(crate) fn note(self, message: &str) {
        if !self.quiet {
            say("note", message);
        }
    }

    /// Something worth knowing for those who asked for more.
    pub(crate) fn detail(self, message: &str) {
        if self.verbose > 0 {
            say("note", message);
        }
    }
}

/// A closed standard error is no reason to fail.
fn say(label: &str, message: &str) {
    let line = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "{label}: {line}");
}

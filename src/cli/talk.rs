//! What is said besides the results: errors, notes and the library's log, all on standard error.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::args::GlobalArgs;
use super::progress::{Aside, Step};

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

    /// When the flags were not read to their end.
    pub(crate) fn unparsed(json: bool) -> Self {
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
            .with_writer(|| Aside)
            // What cannot be written is lost, as everything that is said; the crate would panic over it.
            .log_internal_errors(false)
            .event_format(Labelled);
        // Fails when there is a log already, which is as good.
        let _ = log.try_init();
    }

    /// An error, in one line.
    pub(crate) fn error(self, message: &str) {
        say("error", message);
    }

    /// An error that the Slang compiler has more than a line to say of.
    pub(crate) fn error_lines(self, message: &str) {
        let mut text = String::from("error: ");
        for line in message.trim_end().lines() {
            text += &escaped(line.trim_end().chars());
            text.push('\n');
        }
        let _ = Aside.write_all(text.as_bytes());
    }

    /// Something worth knowing.
    pub(crate) fn note(self, message: &str) {
        if !self.quiet {
            say("note", message);
        }
    }

    /// Shows that something takes its time, where somebody watches and no log tells.
    pub(crate) fn step(self, name: &str) -> Step {
        let told = self.json || self.quiet || self.verbose > 0;
        if told || !io::stderr().is_terminal() {
            return Step::hidden();
        }
        Step::shown(escaped(name.chars()))
    }

    /// Something worth knowing for those who asked for more.
    pub(crate) fn detail(self, message: &str) {
        if self.verbose > 0 {
            say("note", message);
        }
    }
}

/// Events of the library in the form of everything else that is said: `warning: …`.
struct Labelled;

impl<S, N> FormatEvent<S, N> for Labelled
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let label = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        write!(writer, "{label}: ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Without control characters, which would play tricks on a terminal.
pub(crate) fn escaped(text: impl Iterator<Item = char>) -> String {
    let mut shown = String::new();
    for c in text {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A closed standard error is no reason to fail.
fn say(label: &str, message: &str) {
    let line = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let line = format!("{label}: {}\n", escaped(line.chars()));
    let _ = Aside.write_all(line.as_bytes());
}

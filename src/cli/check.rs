//! `check`: whether this device computes what it should.

use backslang::check::{self, CaseReport, Command};
use serde_json::{Value, json};

use super::args::{CheckArgs, GlobalArgs};
use super::failure::{Failure, Result};
use super::listings::aligned;
use super::place::Place;
use super::report::{self, Report};
use super::talk::Talk;

/// Checks some commands, or all of them, and tells of each case at its end.
pub(crate) fn check(args: &CheckArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let runtime = Place::resolve(global)?.open()?;
    let commands = match &args.commands[..] {
        [] => &Command::ALL,
        some => some,
    };
    let dtypes = args.dtype.map_or_else(|| check::DTYPES.to_vec(), |dtype| vec![dtype]);
    let mut table = Table::begin(commands, talk)?;
    let step = talk.step("checking");
    let reports = check::run(&runtime, commands, &dtypes, |report| table.add(report))?;
    drop(step);
    let failed = reports.iter().filter(|report| !report.passed()).count();
    let device = runtime.device().name.clone();
    // Waits for the device: what the layers say of its end counts too.
    runtime.finish()?;
    table.printed?;
    let failure = || {
        let message = format!("{failed} of {} cases failed on {device}", reports.len());
        Failure::work("check", message)
    };
    Ok(Report {
        failed: (failed > 0).then(failure),
        extra: Some(("checks", Value::from(reports.iter().map(object).collect::<Vec<_>>()))),
        device: Some(device),
        ..Report::default()
    })
}

/// A table that is printed row by row, so that its widths are known before its cells.
struct Table<'a> {
    widths: [usize; 7],
    talk: &'a Talk,
    /// The first failure to print.
    printed: Result<()>,
}

impl<'a> Table<'a> {
    fn begin(commands: &[Command], talk: &'a Talk) -> Result<Self> {
        let longest = |names: Vec<&str>| names.iter().map(|name| name.len()).max().unwrap_or(0);
        let names = longest(commands.iter().map(|command| command.name()).collect());
        let cases = longest(commands.iter().flat_map(|&command| check::cases(command)).collect());
        let mut table = Self { widths: [names, 4, cases, 7, 7, 9, 0], talk, printed: Ok(()) };
        let titles = ["command", "type", "case", "error", "allowed", "GPU ms", "result"];
        table.print(&titles.map(String::from));
        match table.printed {
            Ok(()) => Ok(table),
            Err(failure) => Err(failure),
        }
    }

    fn add(&mut self, report: &CaseReport) {
        self.print(&row(report));
        if self.talk.json {
            let verdict = if report.passed() { "passed" } else { "failed" };
            let name = report.command.name();
            let CaseReport { dtype, case, .. } = report;
            self.talk.detail(&format!("{name}: {dtype}: {case}: {verdict}"));
        }
    }

    fn print(&mut self, cells: &[String]) {
        if !self.talk.json && !self.talk.quiet && self.printed.is_ok() {
            self.printed = report::say(&aligned(cells, &self.widths));
        }
    }
}

fn row(report: &CaseReport) -> [String; 7] {
    [
        report.command.name().into(),
        report.dtype.name().into(),
        report.case.into(),
        format!("{:.1e}", report.error),
        format!("{:.1e}", report.tolerance),
        report.gpu.map_or_else(|| "-".into(), |gpu| format!("{:.3}", report::ms(gpu))),
        if report.passed() { "ok".into() } else { format!("FAILED: {}", report.faults.join("; ")) },
    ]
}

fn object(report: &CaseReport) -> Value {
    json!({
        "command": report.command.name(),
        "dtype": report.dtype.name(),
        "case": report.case,
        "error": report.error,
        "tolerance": report.tolerance,
        "gpu_ms": report.gpu.map(report::ms),
        "passed": report.passed(),
        "faults": report.faults,
    })
}

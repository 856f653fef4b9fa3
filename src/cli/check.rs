//! `check`: whether this device computes what it should.

use backslang::check::{self, CaseReport, Command};
use serde_json::{Value, json};

use super::args::{CheckArgs, GlobalArgs};
use super::failure::{Failure, Result};
use super::listings::table;
use super::place::Place;
use super::report::Report;
use super::talk::Talk;

/// Checks one command, or all of them.
pub(crate) fn check(args: &CheckArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let runtime = Place::resolve(global)?.open()?;
    let commands = args.command.map_or_else(|| Command::ALL.to_vec(), |command| vec![command]);
    let reports = check::run(&runtime, &commands, |report| {
        let verdict = if report.passed() { "passed" } else { "failed" };
        talk.detail(&format!("{}: {}: {verdict}", report.command.name(), report.case));
    })?;
    let header = ["command", "case", "error", "allowed", "GPU ms", "result"];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(reports.iter().map(row));
    let failed = reports.iter().filter(|report| !report.passed()).count();
    let device = runtime.device().name.clone();
    // Waits for the device: what the layers say of its end counts too.
    runtime.finish()?;
    let failure = || {
        let message = format!("{failed} of {} cases failed on {device}", reports.len());
        Failure::work("check", message)
    };
    Ok(Report {
        failed: (failed > 0).then(failure),
        text: table(&rows),
        extra: Some(("checks", Value::from(reports.iter().map(object).collect::<Vec<_>>()))),
        device: Some(device),
        ..Report::default()
    })
}

fn row(report: &CaseReport) -> Vec<String> {
    vec![
        report.command.name().into(),
        report.case.into(),
        format!("{:.1e}", report.error),
        format!("{:.1e}", report.tolerance),
        format!("{:.3}", report.gpu.as_secs_f64() * 1e3),
        if report.passed() { "ok".into() } else { format!("FAILED: {}", report.faults.join("; ")) },
    ]
}

fn object(report: &CaseReport) -> Value {
    json!({
        "command": report.command.name(),
        "case": report.case,
        "error": report.error,
        "tolerance": report.tolerance,
        "gpu_ms": report.gpu.as_secs_f64() * 1e3,
        "passed": report.passed(),
        "faults": report.faults,
    })
}

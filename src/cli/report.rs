//! The results on standard output: a short text, or one JSON object.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::failure::{Failure, Result};
use super::files::Written;
use super::progress;
use super::talk::Talk;

/// What a command has to say when it is done.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Where it ran: a device's name, or `reference`.
    pub(crate) device: Option<String>,
    /// The arrays written.
    pub(crate) outputs: Vec<Written>,
    /// Time on the GPU.
    pub(crate) gpu: Option<Duration>,
    /// What else there is, as text.
    pub(crate) text: String,
    /// What else there is, as a key and value of the JSON object.
    pub(crate) extra: Option<(&'static str, Value)>,
    /// The command did all it should, and found that something is wrong.
    pub(crate) failed: Option<Failure>,
}

/// Prints the outcome and gives the exit code.
pub(crate) fn finish(
    talk: &Talk,
    command: Option<&str>,
    wall: Duration,
    outcome: Result<Report>,
) -> ExitCode {
    let (report, failure) = match outcome {
        Ok(mut report) => {
            let failed = report.failed.take();
            (report, failed)
        }
        Err(failure) => (Report::default(), Some(failure)),
    };
    if let Some(failure) = &failure {
        match failure.kind {
            "slang" => talk.error_lines(&failure.message),
            _ => talk.error(&failure.message),
        }
    }
    let printed = if talk.json {
        write(&format!("{}\n", object(command, wall, &report, failure.as_ref())))
    } else if talk.quiet {
        Ok(())
    } else {
        write(&text(wall, &report))
    };
    match (failure, printed) {
        (Some(failure), _) => ExitCode::from(if failure.input { 2 } else { 1 }),
        (None, Ok(())) => ExitCode::SUCCESS,
        (None, Err(error)) => {
            talk.error(&unprinted(&error));
            ExitCode::from(1)
        }
    }
}

/// Prints a part of the text before the rest is known.
pub(crate) fn say(text: &str) -> Result<()> {
    progress::aside(|| write(text)).map_err(|error| Failure::work("output", unprinted(&error)))
}

fn unprinted(error: &io::Error) -> String {
    format!("cannot write to standard output: {error}")
}

/// A reader that has seen enough and closed the pipe is no error.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn text(wall: Duration, report: &Report) -> String {
    let mut text = report.text.clone();
    let width =
        |measure: fn(&Written) -> usize| report.outputs.iter().map(measure).max().unwrap_or(0);
    let (names, shapes) = (width(|o| o.name.len()), width(|o| format!("{:?}", o.shape).len()));
    for Written { name, shape, dtype, path } in &report.outputs {
        let shape = format!("{shape:?}");
        text += &format!("{name:names$}  {shape:shapes$}  {dtype}  {}\n", path.display());
    }
    match (&report.device, report.gpu) {
        (Some(device), Some(gpu)) => {
            text +=
                &format!("{device}: {:.3} ms on the device, {:.0} ms in all\n", ms(gpu), ms(wall));
        }
        (Some(device), None) => text += &format!("{device}: {:.0} ms in all\n", ms(wall)),
        (None, _) => {}
    }
    text
}

fn object(
    command: Option<&str>,
    wall: Duration,
    report: &Report,
    failure: Option<&Failure>,
) -> Value {
    let output = |written: &Written| {
        let path = written.path.to_string_lossy();
        (
            written.name.clone(),
            json!({ "shape": written.shape, "dtype": written.dtype, "path": path }),
        )
    };
    let mut object = json!({
        "command": command,
        "device": report.device,
        "outputs": report.outputs.iter().map(output).collect::<Map<_, _>>(),
        "gpu_ms": report.gpu.map(ms),
        "wall_ms": ms(wall),
        "error": failure.map(|failure| json!({ "kind": failure.kind, "message": failure.message })),
    });
    if let Some((key, value)) = &report.extra {
        object[*key] = value.clone();
    }
    object
}

/// Milliseconds, as results show times.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

//! From the start of a process to its first result.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{Geometry, Parameters};
use backslang::kernels::mamba3::preprocess_backward;

use crate::cli::args::GlobalArgs;
use crate::cli::failure::{Failure, Result};
use crate::cli::place::Place;
use crate::cli::report::{self, Report};

/// Said when the result is there.
const READY: &str = "ready";

/// `bench first-result`, which [`start`] runs: opens the device, computes something small and says so.
pub(super) fn result(global: &GlobalArgs) -> Result<Report> {
    let runtime = Place::resolve(global)?.open()?;
    let sizes = Geometry {
        leading: vec![4],
        rows: 4,
        inner_size: 8,
        bc_rows: 2,
        state_size: 8,
        heads: 2,
        rope_angles: 2,
    };
    let ones = |shape: Vec<usize>| HostTensor::from_f32(&shape, vec![1.0; shape.iter().product()]);
    let inputs = sizes.backward_inputs().try_map(|_, shape| ones(shape))?;
    preprocess_backward::run(&runtime, &inputs, &Parameters::default())?;
    report::say(&format!("{READY}\n"))?;
    let device = runtime.device().name.clone();
    runtime.finish()?;
    Ok(Report { device: Some(device), ..Report::default() })
}

/// Which kernels compiled earlier a process finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// None: neither ours nor, of the drivers that can be told so by a variable, the driver's own.
    Cold,
    /// Those that processes before it left where this one keeps them.
    Warm,
}

/// Starts a process, and says how long it took to its first result.
pub(super) fn start(global: &GlobalArgs, start: Start) -> Result<Duration> {
    let failed = |error: std::io::Error| {
        Failure::work("bench", format!("cannot run this program once more: {error}"))
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // What there is to note, this process has noted.
    command.arg("--quiet");
    command.args(global.device.iter().flat_map(|device| ["--device", device]));
    match (start, &global.pipeline_cache) {
        (Start::Cold, _) => {
            command.args(["--pipeline-cache", "none"]);
            command.env("MESA_SHADER_CACHE_DISABLE", "true").env("__GL_SHADER_DISK_CACHE", "0");
        }
        (Start::Warm, Some(folder)) => drop(command.arg("--pipeline-cache").arg(folder)),
        (Start::Warm, None) => {}
    }
    command.args(["bench", "first-result"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let begin = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line).map_err(failed)?;
        let took = begin.elapsed();
        // To its end, or what it says last would be an error of its.
        std::io::copy(&mut stdout, &mut std::io::sink()).map_err(failed)?;
        if child.wait().map_err(failed)?.success() && line.trim_end() == READY {
            return Ok(took);
        }
    }
    Err(Failure::work("bench", "a process gave no first result"))
}

//! Where the work is done: on a device, or in float64 on the CPU.

use std::time::Duration;

use backslang::runtime::Runtime;

use super::failure::Result;
use super::jobs::{Job, Results};
use super::place::Place;

/// What a job gave.
#[derive(Debug)]
pub(crate) struct Computed {
    /// The results, by name.
    pub(crate) results: Results,
    /// The device's name, or `reference`.
    pub(crate) device: String,
    /// Time on the GPU.
    pub(crate) gpu: Option<Duration>,
}

/// Runs a job.
pub(crate) fn run(job: &dyn Job, place: &Place) -> Result<Computed> {
    match place {
        Place::Reference => {
            Ok(Computed { results: job.on_reference()?, device: "reference".into(), gpu: None })
        }
        Place::Device { .. } => on_device(job, place.open()?),
    }
}

fn on_device(job: &dyn Job, runtime: Runtime) -> Result<Computed> {
    let (results, timings) = job.on_device(&runtime)?;
    // A queue without timestamps gives none.
    let gpu = (!timings.is_empty()).then(|| timings.iter().map(|timing| timing.gpu).sum());
    for timing in &timings {
        tracing::info!("{}: {:.3} ms", timing.kernel, timing.gpu.as_secs_f64() * 1e3);
    }
    let device = runtime.device().name.clone();
    // What the validation layer says of the device's end counts too.
    runtime.finish()?;
    Ok(Computed { results, device, gpu })
}

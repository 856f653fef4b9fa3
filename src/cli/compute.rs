//! Where the work is done: on a device, or in float64 on the CPU.

use std::ops::ControlFlow;
use std::time::Duration;

use backslang::runtime::Runtime;

use super::failure::Result;
use super::interrupt::DeviceWork;
use super::jobs::{Job, Results};
use super::place::Place;
use super::progress::Step;

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

/// Runs a job; on a device in submissions within `bound`, all in one if that is 0, and `step` shows how far it is.
pub(crate) fn run(job: &dyn Job, place: &Place, bound: Duration, step: &Step) -> Result<Computed> {
    match place {
        Place::Reference => {
            Ok(Computed { results: job.on_reference()?, device: "reference".into(), gpu: None })
        }
        Place::Device { .. } => {
            let work = DeviceWork::begin();
            on_device(job, place.open()?, bound, step, &work)
        }
    }
}

fn on_device(
    job: &dyn Job,
    runtime: Runtime,
    bound: Duration,
    step: &Step,
    work: &DeviceWork,
) -> Result<Computed> {
    let execution = runtime.execution().bound(bound).watch(|progress| {
        step.reach(progress.fraction());
        if work.is_to_end() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let (results, timings) = job.on_device(execution)?;
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

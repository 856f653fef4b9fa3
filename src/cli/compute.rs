//! Where the work is done: the only calls into the library's kernels and their reference.

use std::time::Duration;

use backslang::kernels::attention;
use backslang::kernels::mamba3::{preprocess, preprocess_backward};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor, reference};

use super::failure::Result;
use super::jobs::{AttentionJob, Job, Mamba3Job, Results};
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
pub(crate) fn run(job: &Job, place: &Place) -> Result<Computed> {
    match place {
        Place::Reference => {
            let results = match job {
                Job::Mamba3(job) => mamba3_reference(job)?,
                Job::Attention(job) => attention_reference(job)?,
            };
            Ok(Computed { results, device: "reference".into(), gpu: None })
        }
        Place::Device { .. } => on_device(job, place.open()?),
    }
}

fn on_device(job: &Job, runtime: Runtime) -> Result<Computed> {
    let (results, timings) = match job {
        Job::Mamba3(job) => {
            let run = preprocess_backward::run(&runtime, &job.inputs, &job.parameters)?;
            (mamba3_results(run.outputs), run.timings)
        }
        Job::Attention(job) => {
            let run = attention::backward::run(&runtime, &job.inputs, &job.schedule, &job.options)?;
            (attention_results(job, run.outputs), run.timings)
        }
    };
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

fn mamba3_reference(job: &Mamba3Job) -> Result<Results> {
    let inputs = job.inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let outputs = reference::mamba3::preprocess_backward(&inputs, &job.parameters)?;
    let dtype = job.inputs.projected.dtype();
    let round = |name, array| HostTensor::from_f64(preprocess::dtype_of(name, dtype), array);
    let rounded = outputs.as_ref().try_map(round)?;
    Ok(mamba3_results(rounded))
}

fn mamba3_results(outputs: preprocess::BackwardOutputs<HostTensor>) -> Results {
    let mut results = Vec::new();
    outputs.map(|name, tensor| results.push((name, tensor)));
    results
}

fn attention_reference(job: &AttentionJob) -> Result<Results> {
    let inputs = job.inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let outputs = reference::attention::backward(&inputs, &job.schedule, &job.options)?;
    let dtype = job.inputs.q.dtype();
    let gradients =
        outputs.gradients.iter().map(|(g, array)| Ok((*g, HostTensor::from_f64(dtype, array)?)));
    Ok(attention_results(
        job,
        attention::BackwardOutputs {
            gradients: gradients.collect::<Result<_>>()?,
            statistics: HostTensor::from_f64(Dtype::F32, &outputs.statistics)?,
        },
    ))
}

fn attention_results(
    job: &AttentionJob,
    outputs: attention::BackwardOutputs<HostTensor>,
) -> Results {
    let gradients = outputs.gradients.into_iter().map(|(g, tensor)| (g.output_name(), tensor));
    let statistics = job.save_statistics.then_some(("statistics", outputs.statistics));
    gradients.chain(statistics).collect()
}

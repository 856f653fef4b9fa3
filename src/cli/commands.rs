//! One function a command.

use super::args::{AttentionArgs, GlobalArgs, HistoryArgs, InputArgs, Mamba3Args, OutputArgs};
use super::compute;
use super::failure::{Failure, Result};
use super::files::Target;
use super::jobs::{AttentionJob, Job, Mamba3Job};
use super::place::Place;
use super::plan;
use super::report::Report;
use super::talk::Talk;

/// `mamba3-preprocess-backward`.
pub(crate) fn mamba3(args: &Mamba3Args, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let (job, ignored) = Mamba3Job::resolve(args, talk)?;
    perform(Job::Mamba3(job), ignored, &args.input, &args.output, global, talk)
}

/// `paged-attention-backward`.
pub(crate) fn attention(args: &AttentionArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let (job, ignored) = AttentionJob::resolve(&args.shared, args.save_statistics, false, talk)?;
    perform(Job::Attention(job), ignored, &args.shared.input, &args.shared.output, global, talk)
}

/// `history-backward`.
pub(crate) fn history(args: &HistoryArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let (job, ignored) = AttentionJob::resolve(args, false, true, talk)?;
    perform(Job::Attention(job), ignored, &args.input, &args.output, global, talk)
}

fn perform(
    job: Job,
    ignored: Vec<(String, bool)>,
    input: &InputArgs,
    output: &OutputArgs,
    global: &GlobalArgs,
    talk: &Talk,
) -> Result<Report> {
    for (message, spelled_out) in ignored {
        // Whoever spelled a name out surely meant it: said without being asked.
        if spelled_out { talk.note(&message) } else { talk.detail(&message) }
    }
    let place = Place::resolve(global)?;
    if output.plan {
        return plan::describe(&job);
    }
    let Some(output) = &output.output else {
        return Err(Failure::usage("--output: expected a path, found none"));
    };
    let target = Target::resolve(output)?;
    keep_inputs(input, &target)?;
    let target = target.open(job.output_names())?;
    let step = talk.step("computing");
    let computed = compute::run(&job, &place)?;
    drop(step);
    let _step = talk.step(&format!("writing {}", output.display()));
    let outputs = target.write(&job.outputs(computed.results))?;
    Ok(Report { device: Some(computed.device), outputs, gpu: computed.gpu, ..Report::default() })
}

/// A folder keeps its other files, but an archive is replaced: with its inputs, were it one of them.
fn keep_inputs(input: &InputArgs, target: &Target) -> Result<()> {
    let Target::Archive(archive) = target else { return Ok(()) };
    let Ok(place) = archive.canonicalize() else { return Ok(()) };
    if input.inputs.iter().any(|path| path.canonicalize().is_ok_and(|path| path == place)) {
        let message = "--output: expected another archive than those of --input, found";
        return Err(Failure::usage(format!("{message} `{}`", archive.display())));
    }
    Ok(())
}

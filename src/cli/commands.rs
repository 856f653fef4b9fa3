//! One function a command that computes.

use std::path::{Path, PathBuf};

use super::args::{
    AppendArgs, AttentionArgs, BackwardArgs, FileArgs, GlobalArgs, HistoryArgs, InputArgs,
    Mamba3BackwardArgs, Mamba3ForwardArgs,
};
use super::compute;
use super::failure::{Failure, Result};
use super::files::Target;
use super::jobs::{
    AppendJob, AttentionBackwardJob, AttentionJob, Job, Mamba3BackwardJob, Mamba3Job, Resolved,
};
use super::place::Place;
use super::report::Report;
use super::shards;
use super::talk::Talk;

/// `mamba3-preprocess`.
pub(crate) fn mamba3(args: &Mamba3ForwardArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    perform("mamba3-preprocess", Mamba3Job::resolve(args, talk), &args.files, global, talk)
}

/// `mamba3-preprocess-backward`.
pub(crate) fn mamba3_backward(
    args: &Mamba3BackwardArgs,
    global: &GlobalArgs,
    talk: &Talk,
) -> Result<Report> {
    perform(
        "mamba3-preprocess-backward",
        Mamba3BackwardJob::resolve(args, talk),
        &args.files,
        global,
        talk,
    )
}

/// `paged-attention`.
pub(crate) fn attention(args: &AttentionArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    perform("paged-attention", AttentionJob::resolve(args, talk), &args.files, global, talk)
}

/// `paged-append`.
pub(crate) fn append(args: &AppendArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    perform("paged-append", AppendJob::resolve(args, talk), &args.files, global, talk)
}

/// `paged-attention-backward`.
pub(crate) fn attention_backward(
    args: &BackwardArgs,
    global: &GlobalArgs,
    talk: &Talk,
) -> Result<Report> {
    perform(
        "paged-attention-backward",
        AttentionBackwardJob::resolve(args, talk),
        &args.shared.files,
        global,
        talk,
    )
}

/// `history-backward`.
pub(crate) fn history(args: &HistoryArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    perform(
        "history-backward",
        AttentionBackwardJob::resolve_history(args, talk),
        &args.files,
        global,
        talk,
    )
}

fn perform<J: Job>(
    command: &str,
    resolved: Resolved<J>,
    files: &FileArgs,
    global: &GlobalArgs,
    talk: &Talk,
) -> Result<Report> {
    let (job, ignored) = resolved?;
    for (message, spelled_out) in ignored {
        // Whoever spelled a name out surely meant it: said without being asked.
        if spelled_out { talk.note(&message) } else { talk.detail(&message) }
    }
    let bound = files.device.bound();
    let place = Place::resolve(global)?.unhurried(bound.is_zero());
    let shard = files.output.shard;
    if files.output.plan {
        let machine = place.machine()?;
        let outline = match shard {
            Some(shard) => job.outline_of(shard, machine.target),
            None => job.outline(machine.target),
        };
        return Ok(outline?.report(&machine));
    }
    let Some(output) = &files.output.output else {
        return Err(Failure::usage("--output: expected a path, found none"));
    };
    let target = Target::resolve(output)?;
    keep_inputs(&files.input, &target, shard.is_some())?;
    if let Some(shard) = shard {
        return shards::write(command, &job, shard, &place, bound, target, talk);
    }
    let target = target.open(job.output_names())?;
    let step = talk.step("computing");
    let computed = compute::run(&job, &place, bound, &step, talk)?;
    drop(step);
    let _step = talk.step(&format!("writing {}", output.display()));
    let (device, gpu) = (Some(computed.device()), computed.gpu);
    let outputs = target.write(&job.outputs(computed.results))?;
    Ok(Report { device, outputs, gpu, ..Report::default() })
}

/// A folder keeps its other files, but an archive is replaced: with its inputs, were it one of them. A part would take
/// the place of the array that the other parts are computed from.
pub(super) fn keep_inputs(input: &InputArgs, target: &Target, part: bool) -> Result<()> {
    let (place, what) = match target {
        Target::Archive(archive) => (archive, "archive than those of --input"),
        Target::Folder(folder) if part => (folder, "folder than those of the inputs for a part"),
        Target::Folder(_) => return Ok(()),
    };
    let single = input.arrays.iter().filter_map(|array| Some(array.split_once('=')?.1));
    let folders =
        single.filter_map(|file| Some(Path::new(file).canonicalize().ok()?.parent()?.into()));
    if is_one_of(place, input.inputs.iter().cloned().chain(folders)) {
        let message = format!("--output: expected another {what}, found `{}`", place.display());
        return Err(Failure::usage(message));
    }
    Ok(())
}

/// Whether a place that is there is one of these, however they are spelled.
pub(super) fn is_one_of(place: &Path, places: impl IntoIterator<Item = PathBuf>) -> bool {
    let Ok(place) = place.canonicalize() else { return false };
    places.into_iter().any(|other| other.canonicalize().is_ok_and(|other| other == place))
}

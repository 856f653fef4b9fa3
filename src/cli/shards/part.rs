//! `--shard`: a part of the work.

use std::time::Duration;

use backslang::shard::{Output, PartArray, Shard, Values};

use super::MANIFEST;
use super::manifest::{Entry, Manifest, Part};
use crate::cli::compute;
use crate::cli::failure::Result;
use crate::cli::files::{OutputArray, OutputValues, Target};
use crate::cli::jobs::{Job, Spellings};
use crate::cli::place::Place;
use crate::cli::report::Report;
use crate::cli::talk::Talk;

/// Computes a part and writes it with its manifest.
pub(crate) fn write(
    command: &str,
    job: &dyn Job,
    shard: Shard,
    place: &Place,
    bound: Duration,
    target: Target,
    talk: &Talk,
) -> Result<Report> {
    let call = job.call();
    let outputs = call.outputs()?;
    let target = target.open_beside(outputs.iter().map(Output::array), Some(MANIFEST))?;
    let step = talk.step("hashing the inputs");
    let identity = job.identity();
    drop(step);
    let step = talk.step("computing");
    let computed = compute::part(&*call, shard, place, bound, talk)?;
    let device = Some(computed.device());
    drop(step);
    let _step = talk.step("writing");
    let pairs = outputs.iter().zip(&computed.results);
    let manifest = Manifest {
        version: env!("CARGO_PKG_VERSION").into(),
        command: command.into(),
        shard: Part::new(shard),
        devices: computed.devices,
        identity,
        outputs: pairs.map(|(output, part)| Entry::new(output, part)).collect(),
    };
    let spellings = job.spellings();
    let arrays = outputs.iter().zip(computed.results);
    let arrays = arrays.map(|(output, part)| array(output, part, spellings)).collect::<Vec<_>>();
    let manifest = serde_json::json!(manifest);
    let text = format!("{manifest:#}\n");
    let outputs = target.write_beside(&arrays, Some((MANIFEST, &text)))?;
    let extra = Some(("shard", manifest));
    Ok(Report { device, outputs, gpu: computed.gpu, extra, ..Report::default() })
}

/// An array of a part, spelled as its output is.
fn array(output: &Output, part: PartArray, spellings: &Spellings) -> OutputArray {
    let shape = part.values.shape();
    let values = match part.values {
        Values::Tensor(tensor) => OutputValues::Floats(tensor),
        Values::Doubles { values, .. } => OutputValues::Doubles(values),
    };
    OutputArray { name: part.name, shape, values, spelling: spellings.of(&output.name) }
}

//! Where the work is done: on devices, or in float64 on the CPU.

use std::ops::ControlFlow;
use std::time::Duration;

use backslang::runtime::{Runtime, Timing};
use backslang::shard::{self, Divide, Drive, Engine, PartArray, Record, Shard};

use super::failure::Result;
use super::interrupt::DeviceWork;
use super::jobs::{Job, Results};
use super::place::Place;
use super::progress::Step;
use super::shards::{Device, talk_of_kinds};
use super::talk::Talk;

/// What a job gave.
#[derive(Debug)]
pub(crate) struct Computed<T> {
    /// The results.
    pub(crate) results: T,
    /// What computed them.
    pub(crate) devices: Vec<Device>,
    /// Time on the GPU: of several, on the one that took longest.
    pub(crate) gpu: Option<Duration>,
}

impl<T> Computed<T> {
    /// The device's name, or `reference`; of several devices, each name with how many there are of it.
    pub(crate) fn device(&self) -> String {
        let mut names: Vec<(&str, usize)> = Vec::new();
        for Device { name, .. } in &self.devices {
            match names.iter_mut().find(|(other, _)| other == name) {
                Some((_, count)) => *count += 1,
                None => names.push((name, 1)),
            }
        }
        let names = names.into_iter().map(|(name, count)| match count {
            1 => name.to_owned(),
            _ => format!("{count} x {name}"),
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

/// Runs a job; on devices in submissions within `bound`, all in one if that is 0, and `step` shows how far one device is.
pub(crate) fn run(
    job: &dyn Job,
    place: &Place,
    bound: Duration,
    step: &Step,
    talk: &Talk,
) -> Result<Computed<Results>> {
    let Some((work, runtimes)) = open(place)? else {
        let (results, devices) = (job.on_reference()?, vec![Device::reference()]);
        return Ok(Computed { results, devices, gpu: None });
    };
    let devices = devices(&runtimes, talk);
    let (results, gpu) = match &runtimes[..] {
        [runtime] => {
            let execution = runtime.execution().bound(bound).watch(|progress| {
                step.reach(progress.fraction());
                if work.is_to_end() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let (results, timings) = job.on_device(execution)?;
            (results, time(&timings))
        }
        several => {
            let drive = Drive { bound, stop: &|| work.is_to_end() };
            let spread = shard::run(several, &*job.call(), drive)?;
            let results = spread.outputs.into_iter().map(|(_, tensor)| tensor);
            (job.output_names().into_iter().zip(results).collect(), longest(&spread.records))
        }
    };
    finish(runtimes)?;
    Ok(Computed { results, devices, gpu })
}

/// Runs a part of a job, as [`run`] does.
pub(crate) fn part(
    call: &dyn Divide,
    shard: Shard,
    place: &Place,
    bound: Duration,
    talk: &Talk,
) -> Result<Computed<Vec<PartArray>>> {
    let Some((work, runtimes)) = open(place)? else {
        let results = call.part(shard, &mut Engine::reference())?;
        return Ok(Computed { results, devices: vec![Device::reference()], gpu: None });
    };
    let devices = devices(&runtimes, talk);
    let drive = Drive { bound, stop: &|| work.is_to_end() };
    let spread = shard::part(&runtimes, call, shard, drive)?;
    finish(runtimes)?;
    Ok(Computed { results: spread.outputs, devices, gpu: longest(&spread.records) })
}

/// The devices, taken down before the work is said to be over; nothing on the reference.
fn open(place: &Place) -> Result<Option<(DeviceWork, Vec<Runtime>)>> {
    if *place == Place::Reference {
        return Ok(None);
    }
    let work = DeviceWork::begin();
    let runtimes = place.open_each()?;
    Ok(Some((work, runtimes)))
}

/// What computes; says so when it is of several kinds.
fn devices(runtimes: &[Runtime], talk: &Talk) -> Vec<Device> {
    let devices = runtimes.iter().map(Device::of).collect::<Vec<_>>();
    talk_of_kinds(&devices, talk);
    devices
}

/// What the validation layer says of the devices' end counts too.
fn finish(runtimes: Vec<Runtime>) -> Result<()> {
    for runtime in runtimes {
        runtime.finish()?;
    }
    Ok(())
}

fn longest(records: &[Record]) -> Option<Duration> {
    records.iter().filter_map(|record| time(&record.timings)).max()
}

/// A queue without timestamps gives none.
pub(crate) fn time(timings: &[Timing]) -> Option<Duration> {
    for timing in timings {
        tracing::info!("{}: {:.3} ms", timing.kernel, timing.gpu.as_secs_f64() * 1e3);
    }
    (!timings.is_empty()).then(|| timings.iter().map(|timing| timing.gpu).sum())
}

//! `bench host`: what the host adds to the device's work.

use std::time::Duration;

use backslang::kernels::ceilings;
use backslang::runtime::{Runtime, Tensor};
use backslang::{Dtype, HostTensor};

use super::first::{self, Start};
use super::measure::{self, Measure, time};
use crate::cli::args::{GlobalArgs, HostBenchArgs};
use crate::cli::failure::Result;
use crate::cli::place::Place;
use crate::cli::report::{Report, ms};
use crate::cli::talk::Talk;

/// Round trips that one value is the mean of.
const TRIPS: usize = 50;
/// Dispatches of one submission.
const DISPATCHES: usize = 5000;
/// Bytes of the array that is moved, where the device allows it.
const ARRAY: usize = 256 << 20;

/// Measures starts, submissions and transfers.
pub(crate) fn bench(args: &HostBenchArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let place = Place::resolve(global)?;
    let runtime = place.open()?;
    let device = runtime.device().name.clone();
    let repeats = args.repeats;
    let mut measures = Vec::new();
    let step = talk.step("submissions");
    measures.extend(round_trips(&runtime, repeats)?);
    measures.extend(dispatches(&runtime, repeats)?);
    drop(step);
    let step = talk.step("transfers");
    let limits = &runtime.device().limits;
    let most = limits.max_storage_buffer_range.min(limits.max_memory_allocation_size) as usize;
    let bytes = args.size.map_or(ARRAY.min(most / 4 * 4), |size| size << 20);
    measures.extend(transfers(&runtime, bytes, repeats)?);
    measures.push(overlap(&runtime, bytes, repeats)?);
    drop(step);
    runtime.finish()?;
    let step = talk.step("starts");
    measures.extend(starts(global, repeats)?);
    drop(step);
    Ok(measure::report(device, &measures))
}

/// A tensor for the probe kernel to write.
fn words(runtime: &Runtime) -> Result<Tensor> {
    Ok(runtime.tensor("words", Dtype::U32, &[runtime.lanes() as usize])?)
}

/// One dispatch and the wait for it: as the runtime does it, and the driver's part of that.
fn round_trips(runtime: &Runtime, repeats: usize) -> Result<[Measure; 2]> {
    let words = words(runtime)?;
    let mean = |trips: &dyn Fn() -> Result<f64>| {
        let sum = (0..TRIPS).map(|_| trips()).sum::<Result<f64>>()?;
        Ok(sum / TRIPS as f64)
    };
    let ours = || {
        let trip = time(|| {
            let mut recorder = runtime.recorder()?.untimed();
            recorder.probe(&words)?;
            Ok(recorder.submit()?.wait()?)
        });
        Ok(1e6 * trip?.as_secs_f64())
    };
    let theirs = || {
        let mut recorder = runtime.recorder()?.untimed();
        recorder.probe(&words)?;
        Ok(1e6 * recorder.submit_bare()?.as_secs_f64())
    };
    Ok([
        Measure::new("record, submit and wait", "us", repeats, || mean(&ours))?,
        Measure::new("of that in the driver", "us", repeats, || mean(&theirs))?,
    ])
}

/// Many dispatches in one submission, each of which waits for the one before.
fn dispatches(runtime: &Runtime, repeats: usize) -> Result<[Measure; 2]> {
    let words = words(runtime)?;
    let rate = |took: Duration| DISPATCHES as f64 / took.as_secs_f64();
    let mut recorded = Vec::new();
    let run = Measure::new("dispatches, run", "1/s", repeats, || {
        let mut recorder = runtime.recorder()?.untimed();
        let recording = time(|| {
            (0..DISPATCHES).try_for_each(|_| recorder.probe(&words))?;
            Ok(())
        });
        recorded.push(rate(recording?));
        Ok(rate(time(|| Ok(recorder.submit()?.wait()?))?))
    })?;
    // The first was to warm up.
    let recorded = recorded.split_off(1);
    Ok([Measure::of("dispatches, recorded", "1/s", recorded), run])
}

/// Large arrays to the device and back, and within the host's memory.
fn transfers(runtime: &Runtime, bytes: usize, repeats: usize) -> Result<[Measure; 4]> {
    let rate = |took: Duration| bytes as f64 / 1e9 / took.as_secs_f64();
    let source = vec![1u8; bytes];
    let mut target = vec![0u8; bytes];
    let memcpy = Measure::new("copy in host memory, one thread", "GB/s", repeats, || {
        Ok(rate(time(|| {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
            Ok(())
        })?))
    })?;
    let tensor = runtime.tensor("array", Dtype::U32, &[bytes / 4])?;
    let upload = Measure::new("upload", "GB/s", repeats, || {
        Ok(rate(time(|| {
            runtime.write(&tensor, &source)?;
            Ok(runtime.wait()?)
        })?))
    })?;
    let download = Measure::new("download", "GB/s", repeats, || {
        Ok(rate(time(|| Ok(runtime.read(&tensor, &mut target)?))?))
    })?;
    drop(target);
    let fresh = Measure::new("download to new memory", "GB/s", repeats, || {
        let mut host = None;
        let took = time(|| {
            host = Some(runtime.download(&tensor)?);
            Ok(())
        })?;
        drop::<Option<HostTensor>>(host);
        Ok(rate(took))
    })?;
    Ok([memcpy, upload, download, fresh])
}

/// An upload beside kernels that take about as long: what both take one after the other, over what they take together.
fn overlap(runtime: &Runtime, bytes: usize, repeats: usize) -> Result<Measure> {
    let source = vec![1u8; bytes];
    let array = runtime.tensor("array", Dtype::U32, &[bytes / 4])?;
    let [from, to] = ["from", "to"].map(|name| runtime.tensor(name, Dtype::U32, &[bytes / 16 * 4]));
    let (from, to) = (from?, to?);
    let kernels = |count: u32| {
        let mut recorder = runtime.recorder()?.untimed();
        (0..count).try_for_each(|_| ceilings::copy(&mut recorder, &from, &to))?;
        Ok(recorder.submit()?)
    };
    let upload = || Ok(runtime.write(&array, &source)?);
    let took = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
        let took = time(|| {
            work()?;
            Ok(runtime.wait()?)
        })?;
        Ok(took.as_secs_f64())
    };
    took(&|| kernels(1).map(drop))?;
    let count = took(&upload)? / took(&|| kernels(1).map(drop))?;
    let count = count.clamp(1.0, 1000.0) as u32;
    Measure::new("kernels and an upload, overlap", "x", repeats, || {
        let apart = took(&|| kernels(count).map(drop))? + took(&upload)?;
        let together = took(&|| {
            let _kernels = kernels(count)?;
            upload()
        })?;
        Ok(apart / together)
    })
}

/// Processes that find nothing compiled, then such that find everything.
fn starts(global: &GlobalArgs, repeats: usize) -> Result<[Measure; 2]> {
    let first = |start| move || Ok(ms(first::start(global, start)?));
    Ok([
        Measure::new("cold start to first result", "ms", repeats, first(Start::Cold))?,
        Measure::new("warm start to first result", "ms", repeats, first(Start::Warm))?,
    ])
}

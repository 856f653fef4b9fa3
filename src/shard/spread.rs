//! Calls spread over several devices.

use super::{Assembly, Divide, Drive, Engine, PartArray, Record, Shard};
use crate::error::{Error, Result};
use crate::host::HostTensor;
use crate::runtime::Runtime;

/// What several devices gave.
#[derive(Debug)]
pub struct Spread<T> {
    /// The results.
    pub outputs: T,
    /// What each device did, in their order.
    pub records: Vec<Record>,
}

/// Computes a call on several devices, a thread each, and puts its outputs together; with their names, in order.
///
/// # Errors
/// What the call reports, the first device's first; [`Error::Parameter`] without devices.
pub fn run(
    runtimes: &[Runtime],
    call: &dyn Divide,
    drive: Drive<'_>,
) -> Result<Spread<Vec<(String, HostTensor)>>> {
    let mut assembly = Assembly::new(call.outputs()?)?;
    let Spread { outputs, records } = each(runtimes, call, Shard::WHOLE, drive)?;
    outputs.into_iter().flatten().try_for_each(|array| assembly.add(array))?;
    Ok(Spread { outputs: assembly.finish()?, records })
}

/// Computes one part of a call on several devices, a thread each.
///
/// # Errors
/// As [`run`].
pub fn part(
    runtimes: &[Runtime],
    call: &dyn Divide,
    shard: Shard,
    drive: Drive<'_>,
) -> Result<Spread<Vec<PartArray>>> {
    let Spread { outputs, records } = each(runtimes, call, shard, drive)?;
    let mut devices = outputs.into_iter().map(Vec::into_iter).collect::<Vec<_>>();
    let mut arrays = Vec::new();
    // All devices have the same arrays, in the same order.
    while let Some(array) =
        PartArray::joined(devices.iter_mut().filter_map(Iterator::next).collect())
    {
        arrays.push(array);
    }
    Ok(Spread { outputs: arrays, records })
}

/// What each device has of the arrays.
fn each(
    runtimes: &[Runtime],
    call: &dyn Divide,
    shard: Shard,
    drive: Drive<'_>,
) -> Result<Spread<Vec<Vec<PartArray>>>> {
    if runtimes.is_empty() {
        let (expected, found) = ("one or more".into(), "none".into());
        return Err(Error::Parameter { name: "runtimes", expected, found });
    }
    let on = &|index: usize, runtime: &Runtime| {
        let mut engine = Engine::on(runtime).driven(drive);
        let arrays = call.part(shard.divided(index, runtimes.len()), &mut engine)?;
        Ok((arrays, engine.into_record()))
    };
    let results = std::thread::scope(|scope| {
        let threads = runtimes.iter().enumerate().map(|(index, runtime)| {
            std::thread::Builder::new().spawn_scoped(scope, move || on(index, runtime))
        });
        // All of them are started before any is waited for.
        let threads = threads.collect::<Vec<_>>();
        let results = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(Error::OutOfMemory {
                place: "host",
                what: format!("a thread: {error}"),
                asked: None,
                available: None,
            }),
        });
        results.collect::<Vec<_>>()
    });
    let results = results.into_iter().collect::<Result<Vec<_>>>()?;
    let (outputs, records) = results.into_iter().unzip();
    Ok(Spread { outputs, records })
}

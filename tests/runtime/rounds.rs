//! Many rounds, after which nothing is left.
//!
//! `BACKSLANG_TEST_MEMORY_ROUNDS=10000 cargo test --features forms --test runtime -- flat` does more of them.

use std::any::Any;

use backslang::runtime::Validation;

use super::*;

pub(crate) const EXCLUSIVE: &[Test] =
    &[("many_rounds_leave_memory_flat", many_rounds_leave_memory_flat)];

pub(crate) const MANY: &[Test] =
    &[("many_runtimes_leave_memory_flat", many_runtimes_leave_memory_flat)];

fn many_rounds_leave_memory_flat(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let round = |i: usize| -> Outcome {
        let host = HostTensor::from_words(pattern(100 + i % 50 * 1000));
        let source = runtime.upload("source", &host)?;
        let target = words(&runtime, "target", host.shape()[0])?;
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&source, &target], [10, 10], [1, 1])?;
        let submission = recorder.submit()?;
        // A recording that never runs, and handles that go in any order.
        let mut idle = runtime.recorder()?;
        mix(&mut idle, [&source, &target], [10, 10], [1, 1])?;
        match i % 4 {
            0 => submission.wait()?,
            1 => drop((idle, target, source)),
            2 => drop((submission, source, idle)),
            _ => drop((source, submission)),
        }
        Ok(())
    };
    (0..200).try_for_each(round)?;
    runtime.wait()?;
    let before = runtime.memory();
    (0..rounds(2000)).try_for_each(round)?;
    runtime.wait()?;
    let after = runtime.memory();
    assert!(after.allocated <= before.allocated + (16 << 20), "{before:?} {after:?}");
    assert_eq!((after.slots_used, after.in_use), (0, 0));
    // A round that happens to find fewer idle buffers makes another; a hundred rounds do not.
    assert!(after.buffers_made <= before.buffers_made + 100, "{before:?} {after:?}");
    runtime.finish()?;
    Ok(())
}

fn many_runtimes_leave_memory_flat(_: &Runtime) -> Outcome {
    let round = |i: usize| -> Outcome {
        // The layer's own memory grows now and then.
        let runtime = open(|o| (o.heap_slots, o.validation) = (8, Validation::NONE))?;
        let source = runtime.upload("source", &HostTensor::from_words(pattern(1000)))?;
        let target = words(&runtime, "target", 1)?;
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&source, &target], [1, 1], [1, 1])?;
        let submission = recorder.submit()?;
        // What outlives the runtime, and in which order it goes, differs from round to round.
        let mut handles: [Option<Box<dyn Any>>; 4] = [
            Some(Box::new(source)),
            Some(Box::new(target)),
            Some(Box::new(submission)),
            Some(Box::new(runtime)),
        ];
        handles.rotate_left(i % 4);
        if i / 4 % 2 == 1 {
            handles.swap(0, 2);
        }
        handles.into_iter().for_each(drop);
        Ok(())
    };
    (0..200).try_for_each(round)?;
    let before = resident();
    (200..200 + rounds(1000)).try_for_each(round)?;
    let after = resident();
    // Eight kilobytes a round; what threads leave unused in the heap of the process comes to less.
    assert!(after < before + (8 << 20), "{before} {after}");
    Ok(())
}

/// Rounds that are asked for, or so many.
fn rounds(default: usize) -> usize {
    let asked = std::env::var("BACKSLANG_TEST_MEMORY_ROUNDS").ok();
    asked.map_or(default, |text| text.parse().expect("BACKSLANG_TEST_MEMORY_ROUNDS"))
}

/// Bytes of memory that the process holds; 0 where the system does not tell.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|word| word.parse().ok());
    4096 * pages.unwrap_or(0u64)
}

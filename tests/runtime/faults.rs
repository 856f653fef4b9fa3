//! Calls of Vulkan that fail: one clear error each, nothing left behind, and a runtime that goes on.

use std::time::Duration;

use backslang::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters};
use backslang::kernels::mamba3::preprocess_backward;
use backslang::runtime::{Fault, Faults};

use super::*;

pub(crate) const MANY: &[Test] = &[
    ("every_call_can_fail", every_call_can_fail),
    ("a_device_that_hangs_is_left_behind", a_device_that_hangs_is_left_behind),
];

pub(crate) const EXCLUSIVE: &[Test] = &[
    ("a_lost_device_is_reported_once_by_kernel", a_lost_device_is_reported_once_by_kernel),
    ("a_wait_is_bounded", a_wait_is_bounded),
];

/// Few slots: filling a heap costs a software driver more than all else here.
fn small() -> Result<Runtime> {
    open(|options| options.heap_slots = 20)
}

/// A round that uses all there is: uploads, a fill, several kernels in one submission, timings, downloads.
fn job(runtime: &Runtime) -> Result<Vec<u8>> {
    job_of(runtime, 2)
}

/// As [`job`], on `rows` rows.
pub(crate) fn job_of(runtime: &Runtime, rows: usize) -> Result<Vec<u8>> {
    let filled = words(runtime, "filled", 50)?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&filled, 3)?;
    mix(&mut recorder, [&filled, &filled], [50, 1], [1, 1])?;
    recorder.submit()?;
    let run = preprocess_backward::run(runtime, &inputs(rows)?, &Parameters::default())?;
    let mut bytes = runtime.download(&filled)?.bytes().to_vec();
    run.outputs.map(|_, tensor| bytes.extend(tensor.bytes()));
    Ok(bytes)
}

fn inputs(rows: usize) -> Result<BackwardInputs<HostTensor>> {
    let sizes = Geometry {
        leading: vec![rows],
        rows,
        inner_size: 4,
        bc_rows: 1,
        state_size: 5,
        heads: 2,
        rope_angles: 1,
    };
    let tensor = |shape: Vec<usize>| {
        let data = pattern(shape.iter().product()).into_iter().map(|word| word as f32 / 4e9);
        HostTensor::from_f32(&shape, data.collect())
    };
    sizes.backward_inputs().try_map(|_, shape| tensor(shape))
}

/// Walks over the calls: the first of a name, the second, and so on, until the round does not make as many.
fn every_call_can_fail(_: &Runtime) -> Outcome {
    let faults = Faults::new().ok_or("other faults are there")?;
    let runtime = small()?;
    let expected = job(&runtime)?;
    runtime.finish()?;
    for call in Faults::calls() {
        let fails = |nth: u64, fault: Fault| {
            faults.fail(call, nth, fault);
            round(call, fault, &expected, &faults)
                .map_err(|error| format!("{call}, call {nth}, {fault:?}: {error:?}"))
        };
        let mut nth = 1;
        loop {
            let mut kinds = vec![Fault::HostMemory, Fault::DeviceMemory, Fault::Unknown];
            if nth > 1 {
                kinds.rotate_left(nth as usize % 3);
                kinds.truncate(1);
            }
            if Faults::LOSING.contains(&call) {
                kinds.push(Fault::DeviceLost);
            }
            if call == "vkWaitSemaphores" {
                kinds.push(Fault::Timeout);
            }
            let mut reached = false;
            for fault in kinds {
                reached |= fails(nth, fault)?;
            }
            if !reached {
                break;
            }
            // A wait asks many times.
            nth += if call == "vkGetSemaphoreCounterValue" { nth } else { 1 };
        }
        // A wait may be over before it blocks, the queue is waited for only when all else failed, and the pipelines here
        // are not kept.
        let seldom = ["vkWaitSemaphores", "vkQueueWaitIdle", "vkGetPipelineCacheData"];
        assert!(nth > 1 || seldom.contains(&call), "{call}");
    }
    Ok(())
}

/// Whether the round got as far as what was to fail.
fn round(
    call: &str,
    fault: Fault,
    expected: &[u8],
    faults: &Faults,
) -> std::result::Result<bool, Failed> {
    let runtime = match small() {
        Ok(runtime) => runtime,
        Err(error) => return clear(&error, call, fault).map(|()| faults.stop()),
    };
    let first = job(&runtime);
    let reached = faults.stop();
    match first {
        // Not reached, or got over.
        Ok(found) => assert!(found == expected),
        Err(error) => clear(&error, call, fault)?,
    }
    let again = job(&runtime);
    if fault == Fault::DeviceLost && reached {
        assert!(matches!(again, Err(Error::DeviceLost { during: None })), "{again:?}");
    } else {
        assert!(again? == expected);
    }
    if !(fault == Fault::DeviceLost && reached) {
        assert_eq!(runtime.memory().slots_used, 0);
    }
    runtime.finish()?;
    Ok(reached)
}

/// Whether an error says what failed.
fn clear(error: &Error, call: &str, fault: Fault) -> Outcome {
    let text = error.to_string();
    let of_memory = ["vkAllocateMemory", "vkMapMemory", "vkCreateBuffer", "vkBindBufferMemory"];
    let right = match (fault, error) {
        (Fault::DeviceLost, Error::DeviceLost { during: Some(_) }) => true,
        (Fault::HostMemory, Error::OutOfMemory { place: "host", asked, .. }) => {
            asked.is_some() == of_memory.contains(&call)
        }
        (Fault::DeviceMemory, Error::OutOfMemory { place: "device", asked, available, .. }) => {
            [asked.is_some(), available.is_some()] == [of_memory.contains(&call); 2]
        }
        // The allocator keeps no code of a failed map.
        (_, Error::OutOfMemory { place: "host", .. }) => call == "vkMapMemory",
        (Fault::Unknown, Error::Vulkan { .. }) => true,
        (Fault::Timeout, Error::TimedOut { .. }) => true,
        _ => false,
    };
    // What hangs or is lost is named by what was running.
    let named = matches!(fault, Fault::DeviceLost | Fault::Timeout) || text.contains(call);
    if right && named && text.lines().count() == 1 {
        return Ok(());
    }
    Err(format!("{error:?}").into())
}

fn a_lost_device_is_reported_once_by_kernel(_: &Runtime) -> Outcome {
    for call in ["vkGetSemaphoreCounterValue", "vkWaitSemaphores"] {
        let faults = Faults::new().ok_or("other faults are there")?;
        let runtime = small()?;
        let tensor = runtime.upload("word", &HostTensor::from_words(vec![1]))?;
        runtime.download(&tensor)?;
        let submission = slow(&runtime, &tensor)?;
        faults.fail(call, 1, Fault::DeviceLost);
        let first = submission.wait();
        assert!(
            matches!(&first, Err(Error::DeviceLost { during: Some(kernel) }) if kernel == "mix"),
            "{first:?}"
        );
        let later = [
            submission.wait(),
            submission.timings().map(drop),
            words(&runtime, "more", 1).map(drop),
            runtime.upload("more", &HostTensor::from_words(vec![1])).map(drop),
            runtime.download(&tensor).map(drop),
            slow(&runtime, &tensor).map(drop),
        ];
        for result in later {
            assert!(matches!(result, Err(Error::DeviceLost { during: None })), "{result:?}");
        }
        drop((tensor, submission));
        runtime.finish()?;
    }
    Ok(())
}

/// Work that takes longer than a wait may is an error that names it; then it is done all the same.
fn a_wait_is_bounded(_: &Runtime) -> Outcome {
    let runtime = small()?;
    let tensor = runtime.upload("word", &HostTensor::from_words(vec![1]))?;
    slow(&runtime, &tensor)?;
    let expected = read(&runtime, &tensor)?;
    runtime.write(&tensor, &1u32.to_ne_bytes())?;
    let submission = slow(&runtime, &tensor)?;
    let limit = Duration::from_millis(1);
    runtime.limit_waits(Some(limit));
    let mut timeouts = 0;
    while let Err(error) = submission.wait() {
        assert_eq!(error.to_string(), "the device did not finish `mix` within 0.001 s");
        assert!(matches!(error, Error::TimedOut { limit: found, .. } if found == limit));
        timeouts += 1;
    }
    assert!(timeouts > 0);
    runtime.limit_waits(None);
    assert_eq!(read(&runtime, &tensor)?, expected);
    drop((tensor, submission));
    runtime.finish()?;
    Ok(())
}

/// In a process of its own: nothing of the runtime is taken down, and faults are for one runtime at a time.
fn a_device_that_hangs_is_left_behind(_: &Runtime) -> Outcome {
    let faults = Faults::new().ok_or("other faults are there")?;
    let runtime = small()?;
    let tensor = runtime.upload("word", &HostTensor::from_words(vec![1]))?;
    let hangs = |error: Error| {
        matches!(&error, Error::TimedOut { during, .. } if during == "mix")
            .then_some(())
            .ok_or(error)
    };
    for last in [false, true] {
        runtime.download(&tensor)?;
        let submission = slow(&runtime, &tensor)?;
        faults.fail("vkWaitSemaphores", 1, Fault::Hang);
        for result in [
            submission.wait(),
            submission.timings().map(drop),
            runtime.download(&tensor).map(drop),
            slow(&runtime, &tensor)?.wait(),
        ] {
            hangs(result.unwrap_err())?;
        }
        assert!(!submission.done());
        if !last {
            faults.stop();
            submission.wait()?;
        }
    }
    drop(tensor);
    hangs(runtime.finish().unwrap_err())?;
    Ok(())
}

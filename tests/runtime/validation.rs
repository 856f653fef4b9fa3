//! Planted errors, which the validation layer must report.

use super::*;

type Test = (&'static str, fn(Runtime) -> Outcome);

pub(crate) const TESTS: &[Test] = &[
    ("validation_sees_a_wrong_binding", validation_sees_a_wrong_binding),
    ("validation_sees_a_missing_barrier", validation_sees_a_missing_barrier),
];

/// The messages of a planted error; none other may come.
fn expect_message(result: Result<()>, part: &str) -> Outcome {
    match result {
        Err(Error::Validation(messages)) if messages.iter().all(|m| m.contains(part)) => Ok(()),
        other => Err(format!("expected a message with `{part}`, found {other:?}").into()),
    }
}

fn validation_sees_a_wrong_binding(runtime: Runtime) -> Outcome {
    let mut spirv = MIX.spirv.to_vec();
    let words = spirv.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
    let words: Vec<_> = words.collect();
    // OpDecorate … Binding 0 becomes Binding 1, which the heap does not have.
    let at = words.windows(4).position(|w| w[0] == (4 << 16 | 71) && w[2..] == [33, 0]).unwrap();
    spirv[4 * (at + 3)] = 1;
    let kernel: &'static Kernel = Box::leak(Box::new(Kernel { spirv: spirv.leak(), ..MIX }));
    let mut recorder = runtime.recorder()?;
    let planted = refused_dispatch(&mut recorder, kernel, &[runtime.lanes()], [1, 1]);
    expect_message(planted, "VUID-VkComputePipelineCreateInfo-layout")?;
    drop(recorder);
    runtime.finish()?;
    Ok(())
}

fn validation_sees_a_missing_barrier(runtime: Runtime) -> Outcome {
    let tensor = words(&runtime, "words", 16)?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor, 1)?;
    recorder.forget_accesses();
    recorder.fill(&tensor, 2)?;
    expect_message(recorder.submit().map(drop), "SYNC-HAZARD-WRITE-AFTER-WRITE")?;
    drop(tensor);
    runtime.finish()?;
    Ok(())
}

//! Work in slices: the same words, progress from 0 to 1, and an end in the middle.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Duration;

use backslang::runtime::{Execution, Progress, Timing};

use super::*;

pub(crate) const TESTS: &[Test] = &[
    ("slices_of_any_size_give_the_same_words", slices_of_any_size_give_the_same_words),
    ("progress_grows_to_1", progress_grows_to_1),
    ("cancelled_work_leaves_the_runtime_usable", cancelled_work_leaves_the_runtime_usable),
    ("what_cannot_be_cut_runs_whole", what_cannot_be_cut_runs_whole),
    ("nothing_to_run_is_done_at_once", nothing_to_run_is_done_at_once),
    ("an_error_of_the_recording_submits_nothing", an_error_of_the_recording_submits_nothing),
];

pub(crate) const EXCLUSIVE: &[Test] =
    &[("slices_asked_for_share_words", slices_asked_for_share_words)];

/// Fills and dispatches that depend on each other, over a grid: what they leave, and their times.
fn steps(execution: Execution<'_>, grid: [usize; 2]) -> Result<(Vec<u32>, Vec<Timing>)> {
    let (runtime, n) = (execution.runtime(), grid[0] * grid[1]);
    let source = runtime.upload("source", &HostTensor::from_words(pattern(n)))?;
    let [a, b] = [words(runtime, "a", n)?, words(runtime, "b", n)?];
    let timings = execution.run(|recorder| {
        recorder.fill(&a, 5)?;
        recorder.fill(&b, 6)?;
        mix(recorder, [&source, &a], grid, [1, 1])?;
        mix(recorder, [&a, &b], grid, [0, 1])?;
        recorder.fill(&source, 7)?;
        mix(recorder, [&b, &b], grid, [2, 0])?; // in place
        mix(recorder, [&b, &a], [grid[0] * grid[1] / 2, 1], [0, 2])?;
        recorder.fill(&source, 8)
    })?;
    let words = [read(runtime, &a)?, read(runtime, &b)?, read(runtime, &source)?].concat();
    Ok((words, timings))
}

/// What [`steps`] leaves, on the host.
fn expected(n: usize) -> Vec<u32> {
    let mix = |word: u32, rounds| {
        (0..rounds).fold(word, |w: u32, _| w.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    };
    let mut a: Vec<_> = pattern(n).into_iter().map(|w| mix(w, 1).wrapping_add(1)).collect();
    let b: Vec<_> = a.iter().map(|w| mix(w.wrapping_add(1), 2)).collect();
    (0..n / 2).for_each(|i| a[i] = b[i].wrapping_add(2));
    [a, b, vec![8; n]].concat()
}

fn hold(execution: Execution<'_>, grid: [usize; 2]) -> Outcome {
    let timed = execution.runtime().device().timestamps;
    let what = format!("{grid:?} {execution:?}");
    let (words, timings) = steps(execution, grid)?;
    assert!(words == expected(grid[0] * grid[1]), "{what}");
    let kernels: Vec<_> = timings.iter().map(|timing| &*timing.kernel).collect();
    let all = ["fill", "fill", "mix", "mix", "fill", "mix", "mix", "fill"];
    assert_eq!(kernels, if timed { &all[..] } else { &[] }, "{what}");
    assert!(timings.iter().all(|timing| timing.kernel != "mix" || timing.gpu > Duration::ZERO));
    Ok(())
}

const GRIDS: [[usize; 2]; 5] = [[2, 1], [300, 7], [1, 1000], [65_536 + 77, 1], [3, 2]];

fn slices_of_any_size_give_the_same_words(runtime: &Runtime) -> Outcome {
    for grid in GRIDS {
        for bound in [Duration::ZERO, Duration::from_nanos(1), Execution::BOUND, Duration::MAX] {
            // A slice a workgroup is slow for a large grid.
            if bound != Duration::from_nanos(1) || grid[0] * grid[1] < 10 {
                hold(runtime.execution().bound(bound), grid)?;
            }
        }
    }
    Ok(())
}

/// As in tests of kernels, which submit.
fn slices_asked_for_share_words(_: &Runtime) -> Outcome {
    let runtime = open(|options| options.heap_slots = 20)?;
    for (groups, split) in [(1, 0), (3, 2), (50, 1), (2000, 7)] {
        runtime.slice_grids(groups);
        runtime.split_grids(split);
        for grid in [[30, 7], [1, 40], [2, 1]] {
            hold(runtime.execution(), grid)?;
            let n = grid[0] * grid[1];
            let source = runtime.upload("source", &HostTensor::from_words(pattern(n)))?;
            let mut recorder = runtime.recorder()?;
            mix(&mut recorder, [&source, &source], grid, [0, 1])?;
            mix(&mut recorder, [&source, &source], grid, [0, 1])?;
            recorder.submit()?;
            let expected: Vec<_> = pattern(n).into_iter().map(|w| w.wrapping_add(2)).collect();
            assert!(read(&runtime, &source)? == expected, "{groups} of {grid:?}");
        }
    }
    runtime.finish()?;
    Ok(())
}

/// What a watch saw.
fn watched(runtime: &Runtime, bound: Duration, grid: [usize; 2]) -> Result<Vec<Progress>> {
    let mut seen = Vec::new();
    let execution = runtime.execution().bound(bound).watch(|progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    });
    steps(execution, grid)?;
    Ok(seen)
}

fn progress_grows_to_1(runtime: &Runtime) -> Outcome {
    for grid in GRIDS {
        let seen = watched(runtime, Execution::BOUND, grid)?;
        assert!(seen.is_sorted_by_key(|progress| progress.done), "{seen:?}");
        assert!(seen.iter().all(|progress| progress.total == seen[0].total));
        let ends = [seen[0], seen[seen.len() - 1]].map(Progress::fraction);
        assert_eq!(ends, [0.0, 1.0]);
        // Each of the four kernels has slices of its own, and a large grid starts with small ones.
        let least = if grid[0] * grid[1] > 100 { 12 } else { 5 };
        assert!(seen.len() >= least, "{grid:?}: {seen:?}");
        let whole = watched(runtime, Duration::ZERO, grid)?;
        assert_eq!(whole.into_iter().map(Progress::fraction).collect::<Vec<_>>(), [0.0, 1.0]);
    }
    Ok(())
}

fn cancelled_work_leaves_the_runtime_usable(runtime: &Runtime) -> Outcome {
    const N: usize = 3000;
    const OLD: u32 = 12345;
    let source = runtime.upload("source", &HostTensor::from_words(pattern(N)))?;
    for calls in [1, 2, 5] {
        let target = runtime.upload("target", &HostTensor::from_words(vec![OLD; N]))?;
        let seen = Cell::new(0);
        let execution = runtime.execution().watch(|_| {
            seen.set(seen.get() + 1);
            if seen.get() < calls { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let cancelled = execution.run(|recorder| mix(recorder, [&source, &target], [N, 1], [0, 1]));
        let Err(error @ Error::Cancelled) = cancelled else { panic!("{cancelled:?}") };
        assert_eq!((error.kind(), error.is_input(), seen.get()), ("cancelled", false, calls));
        let left = read(runtime, &target)?;
        let done = left.iter().filter(|&&word| word != OLD).count();
        assert!(if calls == 1 { done == 0 } else { 0 < done && done < N }, "{calls}: {done}");
        hold(runtime.execution(), [300, 7])?;
    }
    // After the last slice there is nothing to stop, and still no result to rely on.
    let execution = runtime.execution().watch(|progress| {
        if progress.fraction() < 1.0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(matches!(steps(execution, [3, 2]), Err(Error::Cancelled)));
    Ok(())
}

fn what_cannot_be_cut_runs_whole(runtime: &Runtime) -> Outcome {
    static UNCUT: Kernel = Kernel { push_fields: MIX.push_fields.split_at(2).1, ..MIX };
    const N: usize = 1000;
    let source = runtime.upload("source", &HostTensor::from_words(pattern(N)))?;
    let target = words(runtime, "target", N)?;
    let mut calls = 0;
    let execution = runtime.execution().watch(|_| {
        calls += 1;
        ControlFlow::Continue(())
    });
    execution.run(|recorder| {
        let lanes = recorder.runtime().lanes();
        let push = |access: &mut Access<'_>| Push {
            source_index: access.read(&source),
            target_index: access.write(&target),
            width: N as u32,
            add: 1,
            ..Push::default()
        };
        // SAFETY: both tensors have a word a workgroup.
        unsafe { recorder.dispatch(&UNCUT, &[lanes], [N, 1], push) }
    })?;
    let expected: Vec<_> = pattern(N).into_iter().map(|w| w.wrapping_add(1)).collect();
    assert!(read(runtime, &target)? == expected);
    assert_eq!(calls, 2);
    Ok(())
}

fn nothing_to_run_is_done_at_once(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![3]))?;
    let mut fractions = Vec::new();
    let execution = runtime.execution().watch(|progress| {
        fractions.push(progress.fraction());
        ControlFlow::Continue(())
    });
    let timings = execution.run(|recorder| mix(recorder, [&tensor, &tensor], [0, 1], [0, 1]))?;
    assert!(timings.is_empty());
    assert_eq!(fractions, [1.0]);
    // A recorder that takes the place of the one given is run as well.
    runtime.execution().run(|recorder| {
        *recorder = recorder.runtime().recorder()?;
        mix(recorder, [&tensor, &tensor], [1, 1], [0, 1])
    })?;
    assert_eq!(read(runtime, &tensor)?, [4]);
    Ok(())
}

fn an_error_of_the_recording_submits_nothing(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![3]))?;
    let mut calls = 0;
    let execution = runtime.execution().watch(|_| {
        calls += 1;
        ControlFlow::Continue(())
    });
    let failed = execution.run(|recorder| {
        mix(recorder, [&tensor, &tensor], [1, 1], [0, 1])?;
        refused_dispatch(recorder, &MIX, &[], [1, 1])
    });
    assert!(matches!(failed, Err(Error::Unsupported { .. })), "{failed:?}");
    assert_eq!((read(runtime, &tensor)?, calls), (vec![3], 0));
    Ok(())
}

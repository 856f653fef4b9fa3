//! Recording: grids, order, timings, and what is refused.

use std::time::{Duration, Instant};

use super::*;

pub(crate) const TESTS: &[Test] = &[
    ("a_large_grid_is_split", a_large_grid_is_split),
    ("an_empty_grid_records_nothing", an_empty_grid_records_nothing),
    ("dependent_commands_run_in_order", dependent_commands_run_in_order),
    ("barriers_stand_where_data_depend", barriers_stand_where_data_depend),
    ("submissions_run_in_order", submissions_run_in_order),
    ("submissions_wait_for_earlier_ones", submissions_wait_for_earlier_ones),
    ("every_command_is_timed", every_command_is_timed),
    ("query_pools_grow", query_pools_grow),
    ("wrong_use_is_an_error", wrong_use_is_an_error),
    ("workgroups_beyond_the_limits_are_refused", workgroups_beyond_the_limits_are_refused),
    ("damaged_spirv_is_an_error", damaged_spirv_is_an_error),
];

fn a_large_grid_is_split(runtime: &Runtime) -> Outcome {
    for [x, y] in [[65_536 + 77, 1], [1, 65_536 + 5], [300, 231]] {
        let source = runtime.upload("source", &HostTensor::from_words(pattern(x * y)))?;
        let target = words(runtime, "target", x * y)?;
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&source, &target], [x, y], [0, 1])?;
        recorder.submit()?;
        let expected: Vec<_> = pattern(x * y).into_iter().map(|w| w.wrapping_add(1)).collect();
        assert!(read(runtime, &target)? == expected, "{x} × {y}");
    }
    Ok(())
}

fn an_empty_grid_records_nothing(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![3]))?;
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&tensor, &tensor], [0, 1], [0, 1])?;
    mix(&mut recorder, [&tensor, &tensor], [1, 0], [0, 1])?;
    let submission = recorder.submit()?;
    assert!(submission.timings()?.is_empty());
    assert_eq!(read(runtime, &tensor)?, [3]);
    runtime.recorder()?.submit()?.wait()?;
    Ok(())
}

fn dependent_commands_run_in_order(runtime: &Runtime) -> Outcome {
    const N: usize = 500;
    let [a, b] = [words(runtime, "a", N)?, words(runtime, "b", N)?];
    let mut recorder = runtime.recorder()?;
    recorder.fill(&a, 7)?;
    for _ in 0..50 {
        mix(&mut recorder, [&a, &b], [N, 1], [0, 1])?; // write after read, read after write
        mix(&mut recorder, [&b, &a], [N, 1], [0, 1])?;
        mix(&mut recorder, [&a, &a], [N, 1], [0, 1])?; // in place
    }
    recorder.submit()?.wait()?;
    assert_eq!(read(runtime, &a)?, vec![7 + 150; N]);
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&b, &a], [N, 1], [0, 1])?;
    recorder.fill(&a, 11)?; // a fill after a dispatch that wrote
    mix(&mut recorder, [&a, &b], [N, 1], [0, 2])?;
    recorder.submit()?;
    assert_eq!(read(runtime, &b)?, vec![13; N]);
    Ok(())
}

fn barriers_stand_where_data_depend(runtime: &Runtime) -> Outcome {
    let [a, b, c] = [words(runtime, "a", 4)?, words(runtime, "b", 4)?, words(runtime, "c", 4)?];
    let recorded = || -> Result<Recorder<'_>> {
        let mut recorder = runtime.recorder()?;
        recorder.fill(&a, 7)?;
        // Between copies and fills, synchronization validation sees a barrier that is listed and not recorded.
        recorder.fill(&a, 8)?;
        recorder.fill(&b, 9)?;
        mix(&mut recorder, [&a, &c], [4, 1], [0, 1])?;
        mix(&mut recorder, [&c, &b], [4, 1], [0, 1])?;
        mix(&mut recorder, [&a, &c], [4, 1], [0, 1])?;
        Ok(recorder)
    };
    let expected = [
        "all before all", // earlier submissions
        "copies before copies",
        "copies before dispatches",
        "dispatches before dispatches", // reads c
        "dispatches before dispatches", // writes c, which was read
        "copies before host",           // what comes back
    ];
    assert_eq!(recorded()?.into_barriers()?, expected);
    recorded()?.submit()?;
    assert_eq!((read(runtime, &b)?, read(runtime, &c)?), (vec![10; 4], vec![9; 4]));
    Ok(())
}

fn submissions_run_in_order(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![0; 64]))?;
    for _ in 0..100 {
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&tensor, &tensor], [64, 1], [0, 1])?;
        recorder.submit()?;
    }
    assert_eq!(read(runtime, &tensor)?, vec![100; 64]);
    Ok(())
}

/// Behind a kernel that keeps the queue busy, so that synchronization validation has both submissions in view.
fn submissions_wait_for_earlier_ones(runtime: &Runtime) -> Outcome {
    let [busy, target] = [words(runtime, "busy", 1)?, words(runtime, "target", 1000)?];
    slow(runtime, &busy)?;
    for word in [1, 2] {
        let mut recorder = runtime.recorder()?;
        recorder.fill(&target, word)?;
        recorder.submit()?;
    }
    assert_eq!(read(runtime, &target)?, [2; 1000]);
    Ok(())
}

fn every_command_is_timed(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![1; 64]))?;
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&tensor, &tensor], [64, 1], [1, 0])?;
    recorder.fill(&tensor, 1)?;
    mix(&mut recorder, [&tensor, &tensor], [1, 1], [20_000_000, 0])?;
    let start = Instant::now();
    let timings = recorder.submit()?.timings()?;
    let wall = start.elapsed();
    if !runtime.device().timestamps {
        assert!(timings.is_empty());
        return Ok(());
    }
    let mut recorder = runtime.recorder()?.untimed();
    mix(&mut recorder, [&tensor, &tensor], [1, 1], [1, 0])?;
    assert!(recorder.submit()?.timings()?.is_empty());
    let names: Vec<_> = timings.iter().map(|t| &*t.kernel).collect();
    assert_eq!(names, ["mix", "fill", "mix"]);
    let sum: Duration = timings.iter().map(|t| t.gpu).sum();
    assert!(timings[2].gpu > Duration::from_micros(100) && sum <= wall, "{timings:?} {wall:?}");
    Ok(())
}

fn query_pools_grow(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![0]))?;
    for n in [254, 255, 256, 257, 700] {
        let mut recorder = runtime.recorder()?;
        recorder.fill(&tensor, 0)?;
        for _ in 1..n {
            mix(&mut recorder, [&tensor, &tensor], [1, 1], [0, 1])?;
        }
        let timings = recorder.submit()?.timings()?;
        assert!(timings.len() == n || !runtime.device().timestamps);
        assert_eq!(read(runtime, &tensor)?, [n as u32 - 1]);
    }
    Ok(())
}

fn wrong_use_is_an_error(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![1]))?;
    let lanes = runtime.lanes();
    let mut recorder = runtime.recorder()?;
    // SAFETY: what is refused does not run.
    let short =
        unsafe { recorder.dispatch(&MIX, &[lanes], [1, 1], |access| [access.write(&tensor)]) };
    assert!(matches!(short, Err(Error::Parameter { name: "push constants", .. })), "{short:?}");
    let constants = refused_dispatch(&mut recorder, &MIX, &[], [1, 1]);
    assert!(matches!(constants, Err(Error::Unsupported { .. })), "{constants:?}");
    for grid in [[1 << 32, 1], [u32::MAX as usize; 2]] {
        let vast = refused_dispatch(&mut recorder, &MIX, &[lanes], grid);
        assert!(matches!(vast, Err(Error::TooLarge { .. })), "{vast:?}");
    }
    mix(&mut recorder, [&tensor, &tensor], [1, 1], [0, 1])?;
    recorder.submit()?;
    assert_eq!(read(runtime, &tensor)?, [2]);
    Ok(())
}

fn workgroups_beyond_the_limits_are_refused(runtime: &Runtime) -> Outcome {
    let beyond = runtime.device().limits.max_compute_work_group_invocations + 1;
    let mut recorder = runtime.recorder()?;
    for size in [0, beyond, u32::MAX] {
        let refused = refused_dispatch(&mut recorder, &MIX, &[size], [1, 1]);
        let Err(Error::Unsupported { reason, .. }) = refused else { panic!("{size}") };
        assert!(reason.contains("mix") && reason.contains("workgroup"), "{reason}");
    }
    Ok(())
}

fn damaged_spirv_is_an_error(runtime: &Runtime) -> Outcome {
    static TORN: Kernel = Kernel { spirv: MIX.spirv.split_at(400).0, ..MIX };
    let mut recorder = runtime.recorder()?;
    let refused = refused_dispatch(&mut recorder, &TORN, &[runtime.lanes()], [1, 1]);
    let Err(Error::Unsupported { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("SPIR-V"), "{reason}");
    Ok(())
}

//! The Vulkan runtime on a device.

mod common;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use backslang::manifest::{Axis, Constant, Kernel, PushField, Scalar};
use backslang::runtime::{Recorder, Runtime, RuntimeOptions, Tensor};
use backslang::{Dtype, Error, HostTensor};
use bytemuck::{Pod, Zeroable};
use common::gpu_trial;
use libtest_mimic::Failed;

type Outcome = Result<(), Failed>;
type Test = (&'static str, fn(&Runtime) -> Outcome);

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("the_device_is_usable", the_device_is_usable),
        ("contents_survive_a_round_trip", contents_survive_a_round_trip),
        ("empty_tensors_are_legal", empty_tensors_are_legal),
        ("large_contents_go_in_pieces", large_contents_go_in_pieces),
        ("fill_sets_every_word", fill_sets_every_word),
        ("a_large_grid_is_split", a_large_grid_is_split),
        ("an_empty_grid_records_nothing", an_empty_grid_records_nothing),
        ("dependent_commands_run_in_order", dependent_commands_run_in_order),
        ("submissions_run_in_order", submissions_run_in_order),
        ("a_full_heap_is_an_error", a_full_heap_is_an_error),
        ("slots_in_flight_are_not_reused", slots_in_flight_are_not_reused),
        ("memory_can_run_out", memory_can_run_out),
        ("a_tensor_beyond_a_binding_is_refused", a_tensor_beyond_a_binding_is_refused),
        ("handles_drop_in_any_order", handles_drop_in_any_order),
        ("many_rounds_leave_memory_flat", many_rounds_leave_memory_flat),
        ("every_command_is_timed", every_command_is_timed),
        ("query_pools_grow", query_pools_grow),
        ("threads_share_a_runtime", threads_share_a_runtime),
        ("two_runtimes_coexist", two_runtimes_coexist),
        ("wrong_use_is_an_error", wrong_use_is_an_error),
        ("workgroups_beyond_the_limits_are_refused", workgroups_beyond_the_limits_are_refused),
        ("damaged_spirv_is_an_error", damaged_spirv_is_an_error),
    ];
    common::main(tests.iter().map(|&(name, test)| gpu_trial(name, test)).collect())
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Push {
    first_group_x: u32,
    first_group_y: u32,
    source_index: u32,
    target_index: u32,
    width: u32,
    rounds: u32,
    add: u32,
}

const fn word(name: &'static str, offset: u32) -> PushField {
    PushField { name, offset, kind: Scalar::U32 }
}

/// `shaders/mix.slang`: a word a workgroup.
static MIX: Kernel = Kernel {
    name: "mix",
    dtype: "u32",
    domain: "test",
    variant: "test",
    status: "test",
    source: "tests/shaders/mix.slang",
    entry_point: "mix",
    spirv: include_bytes!("shaders/mix.spv"),
    workgroup_size: [Axis::Constant(0), Axis::Fixed(1), Axis::Fixed(1)],
    push_size: 28,
    push_fields: &[
        word("first_group_x", 0),
        word("first_group_y", 4),
        word("source_index", 8),
        word("target_index", 12),
        word("width", 16),
        word("rounds", 20),
        word("add", 24),
    ],
    constants: &[Constant { name: "lanes", id: 0, kind: Scalar::U32, default: 32 }],
};

/// Records `target[i] = mix(source[i], rounds) + add` over a grid.
fn mix(
    recorder: &mut Recorder<'_>,
    [source, target]: [&Tensor; 2],
    grid: [usize; 2],
    [rounds, add]: [u32; 2],
) -> backslang::Result<()> {
    let lanes = recorder.runtime().lanes();
    recorder.dispatch(&MIX, &[lanes], grid, |access| Push {
        source_index: access.read(source),
        target_index: access.write(target),
        width: grid[0] as u32,
        rounds,
        add,
        ..Push::default()
    })
}

fn words(runtime: &Runtime, name: &str, n: usize) -> backslang::Result<Tensor> {
    runtime.tensor(name, Dtype::U32, &[n])
}

fn read(runtime: &Runtime, tensor: &Tensor) -> backslang::Result<Vec<u32>> {
    Ok(bytemuck::allocation::pod_collect_to_vec(runtime.download(tensor)?.bytes()))
}

/// Words that differ from their neighbours and from those some power of two away.
fn pattern(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).rotate_left(7)).collect()
}

fn the_device_is_usable(runtime: &Runtime) -> Outcome {
    let device = runtime.device();
    assert!(device.usable() && !device.name.is_empty() && !device.driver.is_empty(), "{device:?}");
    let [least, most] = device.subgroup_sizes;
    assert!((least..=most).contains(&runtime.lanes()));
    assert!(device.limits.max_storage_buffer_range > 0 && device.memory > 0);
    let devices = backslang::runtime::devices(common::options().validation)?;
    assert!(devices.iter().any(|d| d.uuid == device.uuid && d.index == device.index));
    Ok(())
}

fn contents_survive_a_round_trip(runtime: &Runtime) -> Outcome {
    for n in [1, 2, 3, 63, 64, 65, 1543, 100_003] {
        let host = HostTensor::from_words(pattern(n));
        let tensor = runtime.upload("words", &host)?;
        assert_eq!((tensor.bytes(), tensor.shape()), (4 * n as u64, &[n][..]));
        assert_eq!(runtime.download(&tensor)?, host, "{n}");
    }
    let host = HostTensor::from_f32(&[2, 3], vec![0.0, -0.0, f32::INFINITY, 1e-42, 1.5, -2.0])?;
    assert_eq!(runtime.download(&runtime.upload("floats", &host)?)?, host);
    let scalar = HostTensor::from_f32(&[], vec![7.0])?;
    assert_eq!(runtime.download(&runtime.upload("scalar", &scalar)?)?, scalar);
    Ok(())
}

fn empty_tensors_are_legal(runtime: &Runtime) -> Outcome {
    let empty = HostTensor::from_f32(&[3, 0, 5], vec![])?;
    let tensor = runtime.upload("empty", &empty)?;
    assert_eq!(tensor.bytes(), 0);
    assert_eq!(runtime.download(&tensor)?, empty);
    let full = runtime.upload("full", &HostTensor::from_words(vec![5]))?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor, 1)?;
    // The kernel reads the dummy, which holds zeros.
    mix(&mut recorder, [&tensor, &full], [1, 1], [0, 9])?;
    recorder.submit()?.wait()?;
    assert_eq!(read(runtime, &full)?, [9]);
    Ok(())
}

fn large_contents_go_in_pieces(runtime: &Runtime) -> Outcome {
    // Beyond two pieces of 64 MiB, and not a multiple.
    let n = (130 << 18) + 12_345;
    if runtime.device().limits.max_storage_buffer_range < 4 * n as u64 {
        // One piece and a bit is what this device can hold.
        return pieces(runtime, (64 << 18) + 12_345);
    }
    pieces(runtime, n)
}

fn pieces(runtime: &Runtime, n: usize) -> Outcome {
    let host = HostTensor::from_words(pattern(n));
    let tensor = runtime.upload("large", &host)?;
    assert!(runtime.download(&tensor)? == host);
    Ok(())
}

fn fill_sets_every_word(runtime: &Runtime) -> Outcome {
    let tensor = words(runtime, "filled", 1001)?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor, 0xdead_beef)?;
    recorder.submit()?;
    assert_eq!(read(runtime, &tensor)?, vec![0xdead_beef; 1001]);
    Ok(())
}

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

/// A runtime of the test's own.
fn open(change: impl FnOnce(&mut RuntimeOptions)) -> backslang::Result<Runtime> {
    let mut options = common::options();
    change(&mut options);
    Runtime::new(&options)
}

fn a_full_heap_is_an_error(_: &Runtime) -> Outcome {
    let runtime = open(|o| o.heap_slots = 4)?;
    let mut tensors = Vec::new();
    for _ in 0..4 {
        tensors.push(runtime.upload("word", &HostTensor::from_words(vec![1]))?);
    }
    let full = words(&runtime, "one too many", 1).unwrap_err();
    assert!(matches!(full, Error::HeapFull { slots: 4 }), "{full}");
    tensors.pop();
    tensors.push(words(&runtime, "the freed slot", 1)?);
    drop(tensors);
    runtime.finish()?;
    Ok(())
}

/// A kernel that keeps the device busy for a while.
fn slow(runtime: &Runtime, tensor: &Tensor) -> backslang::Result<backslang::runtime::Submission> {
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [tensor, tensor], [1, 1], [20_000_000, 0])?;
    recorder.submit()
}

fn slots_in_flight_are_not_reused(_: &Runtime) -> Outcome {
    let runtime = open(|o| o.heap_slots = 2)?;
    // The pipeline's first use compiles it on some drivers.
    slow(&runtime, &runtime.upload("warm-up", &HostTensor::from_words(vec![0]))?)?.wait()?;
    let busy = runtime.upload("busy", &HostTensor::from_words(vec![1]))?;
    let submission = slow(&runtime, &busy)?;
    drop(busy);
    let other = runtime.upload("other", &HostTensor::from_words(vec![2]))?;
    // Only when the submission is done can a third tensor have the first one's slot.
    let third = words(&runtime, "third", 1)?;
    assert!(submission.done());
    assert_eq!(read(&runtime, &other)?, [2]);
    drop((other, third, submission));
    runtime.finish()?;
    Ok(())
}

fn memory_can_run_out(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let limits = &runtime.device().limits;
    let n =
        (limits.max_storage_buffer_range.min(limits.max_memory_allocation_size) / 4).min(1 << 28);
    let mut tensors = Vec::new();
    let error = loop {
        match words(&runtime, "filler", n as usize) {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => break error,
        }
    };
    let Error::OutOfMemory { place: "device", asked, available, .. } = error else {
        return Err(error.into());
    };
    assert!(asked >= 4 * n && available < runtime.device().memory, "{asked} {available}");
    drop(tensors);
    let host = HostTensor::from_words(pattern(1000));
    assert_eq!(runtime.download(&runtime.upload("small", &host)?)?, host);
    runtime.finish()?;
    Ok(())
}

fn a_tensor_beyond_a_binding_is_refused(runtime: &Runtime) -> Outcome {
    let limit = runtime.device().limits.max_storage_buffer_range;
    for shape in [vec![limit as usize / 4 + 1], vec![usize::MAX, 3], vec![usize::MAX / 4]] {
        let error = runtime.tensor("vast", Dtype::F32, &shape).unwrap_err();
        assert!(
            matches!(&error, Error::TensorTooLarge { tensor, .. } if tensor == "vast"),
            "{error}"
        );
    }
    assert_eq!(runtime.tensor("empty", Dtype::F32, &[usize::MAX, 3, 0])?.bytes(), 0);
    Ok(())
}

fn handles_drop_in_any_order(_: &Runtime) -> Outcome {
    let make = || -> backslang::Result<_> {
        let runtime = open(|_| ())?;
        let tensor = runtime.upload("word", &HostTensor::from_words(vec![1]))?;
        let submission = slow(&runtime, &tensor)?;
        Ok((runtime, tensor, submission))
    };
    let (runtime, tensor, submission) = make()?;
    drop(runtime);
    assert!(submission.done());
    drop(tensor);
    submission.wait()?;

    let (runtime, tensor, submission) = make()?;
    drop((tensor, submission));
    drop(runtime);

    let (runtime, tensor, submission) = make()?;
    drop(submission);
    let recorder = runtime.recorder()?;
    drop(recorder);
    drop(runtime);
    assert_eq!(tensor.name(), "word");
    drop(tensor);

    let (runtime, tensor, submission) = make()?;
    if common::options().validation.any() {
        assert!(matches!(runtime.finish(), Err(Error::Validation(_))));
    }
    drop((submission, tensor));
    Ok(())
}

fn many_rounds_leave_memory_flat(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let round = |i: usize| -> Outcome {
        let host = HostTensor::from_words(pattern(100 + i % 50 * 1000));
        let source = runtime.upload("source", &host)?;
        let target = words(&runtime, "target", host.shape()[0])?;
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&source, &target], [10, 10], [1, 1])?;
        let submission = recorder.submit()?;
        if i.is_multiple_of(7) {
            submission.wait()?;
        }
        Ok(())
    };
    (0..200).try_for_each(round)?;
    runtime.recorder()?.submit()?.wait()?;
    let before = runtime.memory();
    (0..2000).try_for_each(round)?;
    runtime.recorder()?.submit()?.wait()?;
    let after = runtime.memory();
    assert!(after.allocated <= before.allocated + (16 << 20), "{before:?} {after:?}");
    assert_eq!(after.slots_used, 0);
    runtime.finish()?;
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
    let names: Vec<_> = timings.iter().map(|t| t.kernel).collect();
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

fn threads_share_a_runtime(runtime: &Runtime) -> Outcome {
    let work = |thread: u32| -> backslang::Result<bool> {
        for round in 0..20 {
            let host = HostTensor::from_words(vec![thread; 100 + round]);
            let tensor = runtime.upload("words", &host)?;
            let mut recorder = runtime.recorder()?;
            mix(&mut recorder, [&tensor, &tensor], [100 + round, 1], [0, 1000])?;
            recorder.submit()?;
            if read(runtime, &tensor)? != vec![thread + 1000; 100 + round] {
                return Ok(false);
            }
        }
        Ok(true)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || work(i))).collect();
        for thread in threads {
            assert!(thread.join().unwrap()?);
        }
        Ok(())
    })
}

fn two_runtimes_coexist(first: &Runtime) -> Outcome {
    let second = open(|_| ())?;
    let theirs = second.upload("words", &HostTensor::from_words(vec![4]))?;
    let ours = first.upload("words", &HostTensor::from_words(vec![5]))?;
    let mut recorder = first.recorder()?;
    for tensors in [[&theirs, &ours], [&ours, &theirs]] {
        let error = mix(&mut recorder, tensors, [1, 1], [0, 0]).unwrap_err();
        assert!(matches!(error, Error::Parameter { name: "tensor", .. }), "{error}");
    }
    assert!(matches!(recorder.fill(&theirs, 0), Err(Error::Parameter { .. })));
    assert!(matches!(first.download(&theirs), Err(Error::Parameter { .. })));
    recorder.submit()?.wait()?;
    assert_eq!((read(&second, &theirs)?, read(first, &ours)?), (vec![4], vec![5]));
    drop(theirs);
    second.finish()?;
    Ok(())
}

fn wrong_use_is_an_error(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![1]))?;
    let lanes = runtime.lanes();
    let mut recorder = runtime.recorder()?;
    let short = recorder.dispatch(&MIX, &[lanes], [1, 1], |access| [access.write(&tensor)]);
    assert!(matches!(short, Err(Error::Parameter { name: "push constants", .. })), "{short:?}");
    let constants = recorder.dispatch(&MIX, &[], [1, 1], |_| Push::default());
    assert!(matches!(constants, Err(Error::Unsupported { .. })), "{constants:?}");
    let vast = recorder.dispatch(&MIX, &[lanes], [1 << 32, 1], |_| Push::default());
    assert!(matches!(vast, Err(Error::TooLarge { .. })), "{vast:?}");
    mix(&mut recorder, [&tensor, &tensor], [1, 1], [0, 1])?;
    recorder.submit()?;
    assert_eq!(read(runtime, &tensor)?, [2]);
    Ok(())
}

fn workgroups_beyond_the_limits_are_refused(runtime: &Runtime) -> Outcome {
    let beyond = runtime.device().limits.max_compute_work_group_invocations + 1;
    let mut recorder = runtime.recorder()?;
    for size in [0, beyond, u32::MAX] {
        let refused = recorder.dispatch(&MIX, &[size], [1, 1], |_| Push::default());
        let Err(Error::Unsupported { reason, .. }) = refused else { panic!("{size}") };
        assert!(reason.contains("mix") && reason.contains("workgroup"), "{reason}");
    }
    Ok(())
}

fn damaged_spirv_is_an_error(runtime: &Runtime) -> Outcome {
    static TORN: Kernel = Kernel { spirv: MIX.spirv.split_at(400).0, ..MIX };
    let mut recorder = runtime.recorder()?;
    let refused = recorder.dispatch(&TORN, &[runtime.lanes()], [1, 1], |_| Push::default());
    let Err(Error::Unsupported { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("SPIR-V"), "{reason}");
    Ok(())
}

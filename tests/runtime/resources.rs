//! Slots and memory, and running out of them.

use backslang::runtime::DeviceKind;

use super::*;

pub(crate) const TESTS: &[Test] =
    &[("a_tensor_beyond_the_memory_is_refused", a_tensor_beyond_the_memory_is_refused)];

pub(crate) const EXCLUSIVE: &[Test] = &[
    ("a_full_heap_is_an_error", a_full_heap_is_an_error),
    ("slots_in_flight_are_not_reused", slots_in_flight_are_not_reused),
    ("freed_slots_hold_the_dummy", freed_slots_hold_the_dummy),
    ("the_dummy_is_cleared", the_dummy_is_cleared),
    ("idle_memory_is_kept", idle_memory_is_kept),
    ("submitting_lets_go_of_what_is_done", submitting_lets_go_of_what_is_done),
    ("memory_can_run_out", memory_can_run_out),
    ("tensors_beyond_a_binding_lie_in_parts", tensors_beyond_a_binding_lie_in_parts),
    ("idle_memory_makes_room", idle_memory_makes_room),
    ("idle_memory_is_bounded", idle_memory_is_bounded),
    ("memory_is_told_and_trimmed", memory_is_told_and_trimmed),
    ("a_small_job_takes_little", a_small_job_takes_little),
    ("work_that_repeats_allocates_nothing", work_that_repeats_allocates_nothing),
];

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

fn slots_in_flight_are_not_reused(_: &Runtime) -> Outcome {
    let runtime = open(|o| o.heap_slots = 2)?;
    // The pipeline's first use compiles it on some drivers.
    slow(&runtime, &runtime.upload("warm-up", &HostTensor::from_words(vec![0]))?)?.wait()?;
    let busy = runtime.upload("busy", &HostTensor::from_words(vec![1]))?;
    // Then only the kernel's submission keeps the tensor.
    assert_eq!(read(&runtime, &busy)?, [1]);
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

/// A kernel that keeps an index beyond its tensor's life finds zeros, not what became of the memory.
fn freed_slots_hold_the_dummy(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let freed = runtime.upload("freed", &HostTensor::from_words(vec![77; 64]))?;
    let target = words(&runtime, "target", 1)?;
    let constants = [runtime.lanes()];
    let mut source_index = 0;
    let mut recorder = runtime.recorder()?;
    let mut push = |access: &mut Access<'_>, freed: Option<&Tensor>| {
        source_index = freed.map_or(source_index, |freed| access.read(freed));
        Push {
            source_index,
            target_index: access.write(&target),
            width: 1,
            add: 5,
            ..Push::default()
        }
    };
    // SAFETY: one workgroup touches a word of each.
    unsafe { recorder.dispatch(&MIX, &constants, [1, 1], |access| push(access, Some(&freed))) }?;
    recorder.submit()?.wait()?;
    assert_eq!(read(&runtime, &target)?, [82]);
    drop(freed);
    runtime.memory();
    let mut recorder = runtime.recorder()?;
    // SAFETY: slots without a tensor hold the dummy, which is longer than a word.
    unsafe { recorder.dispatch(&MIX, &constants, [1, 1], |access| push(access, None)) }?;
    recorder.submit()?.wait()?;
    assert_eq!(read(&runtime, &target)?, [5]);
    drop(target);
    runtime.finish()?;
    Ok(())
}

/// Memory comes with whatever was in it; on software drivers that is zeros, so dirt is put there.
fn the_dummy_is_cleared(_: &Runtime) -> Outcome {
    let runtime = Runtime::on_dirty_memory(&gpu::options(), 0xdead_beef)?;
    assert!(runtime.dummy_holds()?);
    let [empty, target] = [words(&runtime, "empty", 0)?, words(&runtime, "target", 1)?];
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&empty, &target], [1, 1], [0, 9])?;
    recorder.submit()?;
    assert_eq!(read(&runtime, &target)?, [9]);
    // What a kernel stores for an empty tensor is seen.
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&target, &empty], [1, 1], [0, 9])?;
    recorder.submit()?;
    assert!(!runtime.dummy_holds()?);
    drop((empty, target));
    runtime.finish()?;
    Ok(())
}

/// Taking one idle tensor's memory again and again does not cost another its own.
fn idle_memory_is_kept(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    for mib in [64, 60] {
        drop(words(&runtime, "passing", mib << 18)?);
    }
    let before = runtime.memory().allocated;
    for _ in 0..5 {
        drop(words(&runtime, "again", 60 << 18)?);
    }
    assert_eq!(runtime.memory().allocated, before);
    runtime.finish()?;
    Ok(())
}

/// Who never waits does not pile up memory.
fn submitting_lets_go_of_what_is_done(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let before = runtime.memory().allocated;
    let mut rounds = 0..100;
    rounds.try_for_each(|_| {
        let tensor = words(&runtime, "passing", 4 << 18)?;
        let mut recorder = runtime.recorder()?;
        recorder.fill(&tensor, 1)?;
        std::thread::sleep(std::time::Duration::from_millis(3));
        recorder.submit().map(drop)
    })?;
    let after = runtime.memory().allocated;
    assert!(after <= before + (128 << 20), "{before} {after}");
    runtime.finish()?;
    Ok(())
}

/// Memory is full but for what the pool keeps of a tensor that is gone; another size needs it.
fn idle_memory_makes_room(_: &Runtime) -> Outcome {
    const MIB: usize = 1 << 18;
    let runtime = open(|_| ())?;
    let limits = &runtime.device().limits;
    let most = limits.max_storage_buffer_range.min(limits.max_memory_allocation_size) >> 20;
    let mut tensors = Vec::new();
    for size in [(most as usize).min(1024), 128, 64, 32] {
        while let Ok(tensor) = words(&runtime, "filler", size * MIB) {
            tensors.push((size, tensor));
        }
    }
    let last = tensors.iter().rposition(|(size, _)| *size == 128);
    let Some(last) = last else { return Err("no tensor of 128 MiB".into()) };
    drop(tensors.remove(last));
    words(&runtime, "in its place", 112 * MIB)?;
    drop(tensors);
    runtime.finish()?;
    Ok(())
}

fn memory_is_told_and_trimmed(_: &Runtime) -> Outcome {
    const BYTES: u64 = 48 << 20;
    let runtime = open(|o| o.heap_slots = 100)?;
    let before = runtime.memory();
    assert_eq!((before.in_use, before.slots_used, before.slots), (0, 0, 100));
    assert!(before.budget > 0 && before.budget <= runtime.device().memory, "{before:?}");
    let tensor = words(&runtime, "large", BYTES as usize / 4)?;
    let held = runtime.memory();
    assert_eq!((held.slots_used, held.buffers_made), (1, before.buffers_made + 1));
    assert!((BYTES..=BYTES / 8 * 9).contains(&held.in_use), "{held:?}");
    assert!(held.allocated >= held.in_use + held.idle, "{held:?}");
    drop(tensor);
    let idle = runtime.memory();
    assert_eq!((idle.in_use, idle.idle), (0, before.idle + held.in_use));
    assert_eq!((idle.allocated, idle.slots_used), (held.allocated, 0));
    let freed = runtime.trim();
    let after = runtime.memory();
    assert!(freed >= BYTES && after.allocated == idle.allocated - freed, "{freed} {after:?}");
    assert_eq!((after.idle, runtime.trim()), (0, 0));
    compute_once(&runtime)?;
    runtime.finish()?;
    Ok(())
}

/// Takes an idle or a new buffer of each kind.
fn compute_once(runtime: &Runtime) -> Outcome {
    let source = runtime.upload("source", &HostTensor::from_words(pattern(1000)))?;
    let target = words(runtime, "target", 1000)?;
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&source, &target], [1000, 1], [0, 1])?;
    recorder.submit()?;
    let expected: Vec<_> = pattern(1000).into_iter().map(|word| word.wrapping_add(1)).collect();
    assert_eq!(read(runtime, &target)?, expected);
    Ok(())
}

fn a_small_job_takes_little(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    compute_once(&runtime)?;
    // A block of the device's memory and one of the host's.
    assert!(runtime.memory().allocated <= 8 << 20, "{:?}", runtime.memory());
    runtime.finish()?;
    Ok(())
}

fn work_that_repeats_allocates_nothing(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    compute_once(&runtime)?;
    let held = || {
        let memory = runtime.memory();
        [memory.allocated, memory.in_use, memory.idle, memory.buffers_made]
    };
    let before = held();
    for _ in 0..20 {
        compute_once(&runtime)?;
        assert_eq!(held(), before);
    }
    runtime.finish()?;
    Ok(())
}

/// Tensors of ever other sizes do not pile up in the pool.
fn idle_memory_is_bounded(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let kept = match runtime.device().kind {
        DeviceKind::Discrete => runtime.device().memory / 4,
        _ => 256 << 20,
    };
    // A quarter of what is kept, or half of what a tensor may have.
    let limits = &runtime.device().limits;
    let largest = limits.max_storage_buffer_range.min(limits.max_memory_allocation_size) / 2;
    let least = (kept / 4).min(largest) >> 20;
    let mut total = 0;
    for i in 0.. {
        let size = (least as usize + 3 * i) << 18;
        drop(words(&runtime, "passing", size)?);
        total += 4 * size as u64;
        assert!(runtime.memory().allocated <= kept + (64 << 20), "{:?}", runtime.memory());
        if total > 3 * kept {
            break;
        }
    }
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
    let Error::OutOfMemory {
        place: "device", asked: Some(asked), available: Some(available), ..
    } = error
    else {
        return Err(error.into());
    };
    let left = runtime.device().memory - 4 * n * tensors.len() as u64;
    assert!(asked >= 4 * n && available <= left, "{asked} {available} {left}");
    // What is in flight makes room, too.
    if let Some(last) = tensors.pop() {
        slow(&runtime, &last)?;
        drop(last);
        words(&runtime, "in its place", n as usize)?;
    }
    drop(tensors);
    let host = HostTensor::from_words(pattern(1000));
    assert_eq!(runtime.download(&runtime.upload("small", &host)?)?, host);
    runtime.finish()?;
    Ok(())
}

fn a_tensor_beyond_the_memory_is_refused(runtime: &Runtime) -> Outcome {
    let memory = runtime.device().memory;
    for shape in [vec![memory as usize / 4 + 1], vec![usize::MAX, 3], vec![usize::MAX / 4]] {
        let error = runtime.tensor("vast", Dtype::F32, &shape).unwrap_err();
        let Error::OutOfMemory { asked: Some(asked), available: Some(available), what, .. } = error
        else {
            return Err(error.into());
        };
        assert!(what == "`vast`" && asked > memory && available <= memory, "{asked} {available}");
    }
    assert_eq!(runtime.tensor("empty", Dtype::F32, &[usize::MAX, 3, 0])?.bytes(), 0);
    Ok(())
}

/// Transfers, fills and views reach all parts; a kernel that takes one binding sees the views within a part alone.
fn tensors_beyond_a_binding_lie_in_parts(_: &Runtime) -> Outcome {
    let runtime = open(|_| ())?;
    let before = runtime.memory().slots_used;
    runtime.limit_bindings(1024);
    runtime.guard_tensors(16);
    let all = pattern(100 * 6);
    let tensor =
        runtime.upload("tensor", &HostTensor::from_words(all.clone()).reshape(&[100, 6])?)?;
    let part = tensor.binding_elements().ok_or("one binding")?;
    assert_eq!(part, 252);
    assert_eq!(runtime.memory().slots_used, before + 600usize.div_ceil(part) as u32);
    assert_eq!(read(&runtime, &tensor)?, all);
    let columns = tensor.narrow(1, 2..4)?;
    assert_eq!(columns.binding_elements(), Some(part));
    let expected: Vec<_> = all.chunks(6).flat_map(|row| &row[2..4]).copied().collect();
    assert_eq!(read(&runtime, &columns)?, expected);
    runtime.write(&columns, bytemuck::cast_slice(&vec![7u32; 200]))?;
    let whole = read(&runtime, &tensor)?;
    let kept = |i: usize| if matches!(i % 6, 2 | 3) { 7 } else { all[i] };
    assert!(whole.iter().enumerate().all(|(i, word)| *word == kept(i)));
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor.reshape(&[600])?.narrow(0, 100..500)?, 9)?;
    recorder.submit()?.wait()?;
    let whole = read(&runtime, &tensor)?;
    assert!((0..600).all(|i| whole[i] == if (100..500).contains(&i) { 9 } else { kept(i) }));
    assert!(runtime.guard_holds(&tensor)?);

    let target = words(&runtime, "target", 6)?;
    let mut recorder = runtime.recorder()?;
    let error = mix(&mut recorder, [&tensor, &target], [6, 1], [0, 1]).unwrap_err();
    let Error::TensorTooLarge { tensor: name, bytes: 2400, limit: 1024, .. } = &error else {
        return Err(error.into());
    };
    assert_eq!(name, "tensor");
    // The first rows of the other parts.
    for row in [part / 6, 2 * part / 6] {
        let view = tensor.narrow(0, row..row + 1)?;
        assert_eq!(view.binding_elements(), None);
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&view, &target], [6, 1], [0, 1])?;
        recorder.submit()?;
        let expected: Vec<_> = whole[6 * row..][..6].iter().map(|w| w.wrapping_add(1)).collect();
        assert_eq!(read(&runtime, &target)?, expected, "row {row}");
    }
    drop((tensor, columns, target));
    assert_eq!(runtime.memory().slots_used, before);
    runtime.finish()?;
    Ok(())
}

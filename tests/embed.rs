//! A runtime on a caller's device: `examples/embed_ash`, and what a caller can get wrong.

#[path = "common/mod.rs"]
mod common;
#[path = "../examples/embed_ash/step.rs"]
mod step;
#[path = "../examples/embed_ash/vulkan.rs"]
mod vulkan;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backslang::kernels::mamba3::preprocess::Parameters;
use backslang::kernels::mamba3::preprocess_backward;
use backslang::raw::ash::vk;
use backslang::raw::{self, TimelinePoint};
use backslang::runtime::{DeviceSelector, Runtime, RuntimeOptions, Validation};
use backslang::{Dtype, Error, HostTensor};
use common::compare::assert_same_bits;
use common::gpu;
use libtest_mimic::{Failed, Trial};
use vulkan::{Buffer, Vulkan};

type Outcome = Result<(), Failed>;

fn main() -> std::process::ExitCode {
    let trial = |name: &'static str, test: fn(&Vulkan) -> Outcome| {
        gpu::exclusive_trial(name, move |_| on_vulkan(test))
    };
    let trials: Vec<Trial> = vec![
        gpu::exclusive_trial("results_are_those_of_an_own_device", |own| {
            on_vulkan(|vulkan| results_are_those_of_an_own_device(vulkan, own))
        }),
        trial("commands_are_ordered_with_the_callers", commands_are_ordered_with_the_callers),
        trial("submissions_wait_and_signal", submissions_wait_and_signal),
        trial("tensors_of_a_buffer_are_as_any", tensors_of_a_buffer_are_as_any),
        trial("imports_of_a_buffer_meet", imports_of_a_buffer_meet),
        trial("wrong_ranges_are_refused", wrong_ranges_are_refused),
        trial("copies_need_their_usage", copies_need_their_usage),
        trial("what_a_device_lacks_is_named", what_a_device_lacks_is_named),
        trial("wrong_queue_families_are_refused", wrong_queue_families_are_refused),
        trial("wrong_options_are_refused", wrong_options_are_refused),
        trial("a_recording_is_the_callers_to_submit", a_recording_is_the_callers_to_submit),
        trial("the_queue_is_locked", the_queue_is_locked),
        trial("all_can_be_dropped_in_any_order", all_can_be_dropped_in_any_order),
    ];
    gpu::main(trials)
}

/// On a caller's device, which is then taken down; what the layer says to the caller fails the test.
fn on_vulkan(test: impl FnOnce(&Vulkan) -> Outcome) -> Outcome {
    let vulkan = Vulkan::new(&std::env::var("BACKSLANG_VALIDATE").unwrap_or_default())?;
    test(&vulkan)?;
    match vulkan.finish() {
        messages if messages.is_empty() => Ok(()),
        messages => Err(messages.join("\n").into()),
    }
}

/// A runtime in the form that the environment asks for; the layer is the caller's.
fn open(vulkan: &Vulkan) -> backslang::Result<Runtime> {
    open_with(vulkan, |_| ())
}

fn open_with(
    vulkan: &Vulkan,
    change: impl FnOnce(&mut raw::Device<'_>),
) -> backslang::Result<Runtime> {
    vulkan.described(|mut device| {
        change(&mut device);
        // SAFETY: one thread uses the queue, and the device outlives the test.
        unsafe { raw::open(device, &options()) }
    })
}

/// Few slots: filling a heap costs a software driver more than all else here.
fn options() -> RuntimeOptions {
    let (device, validation) = (DeviceSelector::Auto, Validation::NONE);
    RuntimeOptions { device, validation, heap_slots: 100, ..gpu::options() }
}

fn import(runtime: &Runtime, buffer: &Buffer<'_>) -> backslang::Result<raw::Buffer> {
    // SAFETY: the buffer is as described, and outlives what uses it.
    unsafe { raw::Buffer::import(runtime, buffer.described()) }
}

fn words(buffer: &mut Buffer<'_>) -> Vec<u32> {
    bytemuck::allocation::pod_collect_to_vec(buffer.contents())
}

fn results_are_those_of_an_own_device(vulkan: &Vulkan, own: &Runtime) -> Outcome {
    let runtime = open(vulkan)?;
    let inputs = step::sample(&mut fastrand::Rng::with_seed(1))?;
    let found = step::gradients(vulkan, &runtime, &inputs)?;
    step::check(&inputs, &found)?;
    if own.device().uuid == runtime.device().uuid {
        let same = preprocess_backward::run(own, &inputs, &Parameters::default())?.outputs;
        for ((name, found), (_, expected)) in found.named().zip(same.named()) {
            assert_same_bits(found, expected, name);
        }
    }
    runtime.finish()?;
    Ok(())
}

/// Synchronization validation sees the fills and copies that no barrier keeps apart.
fn commands_are_ordered_with_the_callers(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let [mut buffer, mut copy] = [Buffer::new(vulkan, 64)?, Buffer::new(vulkan, 64)?];
    let tensor = import(&runtime, &buffer)?.tensor("words", Dtype::U32, &[8], 16)?;
    let (commands, recorded) = vulkan.record(|commands| {
        let device = &vulkan.device;
        // SAFETY: the command buffer is recording, and both buffers have as many bytes.
        unsafe {
            device.cmd_fill_buffer(commands, buffer.handle, 0, 64, 1);
            let recorded = raw::record(&runtime, commands, |recorder| {
                recorder.fill(&tensor, 2)?;
                recorder.fill(&tensor.narrow(0, 2..4)?, 3)
            })?;
            let region = vk::BufferCopy { src_offset: 0, dst_offset: 0, size: 64 };
            device.cmd_copy_buffer(commands, buffer.handle, copy.handle, &[region]);
            Ok(recorded)
        }
    })?;
    vulkan.run(commands)?;
    let expected = [1, 1, 1, 1, 2, 2, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1];
    assert_eq!((words(&mut buffer), words(&mut copy)), (expected.to_vec(), expected.to_vec()));
    drop((recorded, tensor));
    Ok(())
}

fn submissions_wait_and_signal(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let mut buffer = Buffer::new(vulkan, 64)?;
    let tensor = import(&runtime, &buffer)?.tensor("words", Dtype::U32, &[16], 0)?;
    let mut kind =
        vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: the semaphores are destroyed when the device is done with them.
    unsafe {
        let device = &vulkan.device;
        let [before, after] =
            [device.create_semaphore(&info, None)?, device.create_semaphore(&info, None)?];
        let mut recorder = runtime.recorder()?;
        recorder.fill(&tensor, 7)?;
        let [wait, signal] =
            [(before, 5), (after, 3)].map(|(semaphore, value)| TimelinePoint { semaphore, value });
        let submission = raw::submit(recorder, &[wait], &[signal])?;
        assert!(!submission.done());
        assert_eq!(device.get_semaphore_counter_value(after)?, 0);
        device.signal_semaphore(&vk::SemaphoreSignalInfo::default().semaphore(before).value(5))?;
        let (semaphores, values) = ([after], [3]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        device.wait_semaphores(&wait, 30_000_000_000)?;
        submission.wait()?;
        device.destroy_semaphore(before, None);
        device.destroy_semaphore(after, None);
    }
    // Uploads and downloads are submissions, too, and the last one makes what was written before visible to the host.
    runtime.download(&tensor)?;
    assert_eq!(words(&mut buffer), [7; 16]);
    drop(tensor);
    runtime.finish()?;
    Ok(())
}

fn tensors_of_a_buffer_are_as_any(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let mut buffer = Buffer::new(vulkan, 1000)?;
    buffer.contents().fill(9);
    let imported = import(&runtime, &buffer)?;
    let tensor = imported.tensor("words", Dtype::U32, &[2, 3], 20)?;
    assert_eq!((tensor.name(), tensor.shape(), tensor.is_dense()), ("words", &[2, 3][..], true));
    let host = HostTensor::from_words((0..6).collect()).reshape(&[2, 3])?;
    runtime.write(&tensor, host.bytes())?;
    assert_same_bits(&runtime.download(&tensor)?, &host, "words");
    let bytes = buffer.contents();
    assert!(
        bytes[20..44] == *host.bytes() && bytes[..20].iter().chain(&bytes[44..]).all(|b| *b == 9)
    );
    let halves = imported.tensor("halves", Dtype::F16, &[3], 994)?;
    assert_eq!(runtime.download(&halves)?.bytes(), [9; 6]);
    assert_eq!(runtime.download(&imported.tensor("none", Dtype::F32, &[0, 4], 1000)?)?.bytes(), []);
    let used = runtime.memory().slots_used;
    drop((tensor, halves, imported));
    assert_eq!((used, runtime.memory().slots_used), (2, 0));
    runtime.finish()?;
    Ok(())
}

fn imports_of_a_buffer_meet(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let buffer = Buffer::new(vulkan, 256)?;
    let mut whole = raw::BufferDesc { bytes: 128, ..buffer.described() };
    let [first, second] = [import(&runtime, &buffer)?, import(&runtime, &buffer)?];
    // SAFETY: what is refused is not used.
    let other = unsafe { raw::Buffer::import(&runtime, whole) }.map(drop);
    assert!(matches!(other, Err(Error::Parameter { name: "buffer", .. })), "{other:?}");
    let tensors = [&first, &second].map(|b| b.tensor("words", Dtype::U32, &[8], 32));
    let [a, b] = tensors;
    let (a, b) = (a?, b?);
    assert!(a.is_same(&b));
    let mut recorder = runtime.recorder()?;
    recorder.fill(&a, 1)?;
    assert_eq!(recorder.barriers(), 0);
    recorder.fill(&b, 2)?;
    assert_eq!(recorder.barriers(), 1);
    recorder.submit()?.wait()?;
    drop((a, b, first, second));
    // Nobody uses the buffer any more.
    whole = raw::BufferDesc { bytes: 128, ..buffer.described() };
    // SAFETY: a part of the buffer is there, too.
    unsafe { raw::Buffer::import(&runtime, whole) }?;
    runtime.finish()?;
    Ok(())
}

fn wrong_ranges_are_refused(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let buffer = Buffer::new(vulkan, 102)?;
    // SAFETY: what is refused is not used.
    let import = |change: fn(&mut raw::BufferDesc)| unsafe {
        let mut desc = buffer.described();
        change(&mut desc);
        raw::Buffer::import(&runtime, desc)
    };
    for (name, change) in [
        ("bytes", (|desc| desc.bytes = 1 << 40) as fn(&mut raw::BufferDesc)),
        ("usage", |desc| desc.usage = vk::BufferUsageFlags::TRANSFER_DST),
    ] {
        let refused = import(change).map(drop);
        assert!(
            matches!(&refused, Err(Error::Parameter { name: found, .. }) if *found == name),
            "{refused:?}"
        );
    }
    let imported = import(|_| ())?;
    let refused =
        |dtype, shape: &[usize], offset| match imported.tensor("x", dtype, shape, offset).map(drop)
        {
            Err(Error::Parameter { name: "offset", expected, found }) => {
                assert!(expected.contains("`x`"), "{expected}");
                found
            }
            other => panic!("{other:?}"),
        };
    assert_eq!(refused(Dtype::F32, &[4], 2), "2");
    assert_eq!(refused(Dtype::F16, &[4], 3), "3");
    assert_eq!(refused(Dtype::F32, &[26], 0), "104 bytes from 0 on");
    assert_eq!(refused(Dtype::F32, &[5, 5], 4), "100 bytes from 4 on");
    assert_eq!(refused(Dtype::F32, &[1], u64::MAX - 3), "4 bytes from 18446744073709551612 on");
    // The last word has a half only.
    assert_eq!(refused(Dtype::F16, &[1], 100), "2 bytes from 100 on");
    let large = imported.tensor("x", Dtype::F32, &[usize::MAX, 8], 0).map(drop);
    assert!(matches!(large, Err(Error::OutOfMemory { .. })), "{large:?}");
    imported.tensor("x", Dtype::F32, &[24], 4)?;
    imported.tensor("x", Dtype::F16, &[1], 98)?;
    runtime.finish()?;
    Ok(())
}

fn copies_need_their_usage(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let buffer = Buffer::new(vulkan, 64)?;
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER;
    // SAFETY: the buffer allows more than it is said to.
    let imported =
        unsafe { raw::Buffer::import(&runtime, raw::BufferDesc { usage, ..buffer.described() }) }?;
    let tensor = imported.tensor("words", Dtype::U32, &[4], 0)?;
    let refused = [
        runtime.recorder()?.fill(&tensor, 0),
        runtime.write(&tensor, &[0; 16]),
        runtime.download(&tensor).map(drop),
    ];
    for (refused, needed) in refused.into_iter().zip(["DST", "DST", "SRC"]) {
        let Err(Error::Parameter { name: "usage", expected, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert!(expected.contains(needed) && expected.contains("`words`"), "{expected}");
    }
    drop((tensor, imported));
    runtime.finish()?;
    Ok(())
}

fn what_a_device_lacks_is_named(vulkan: &Vulkan) -> Outcome {
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(vulkan.needs.queue_family())
        .queue_priorities(&[1.0])];
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
        .timeline_semaphore(true)
        .runtime_descriptor_array(true)
        .descriptor_binding_partially_bound(true);
    let mut maintenance = vk::PhysicalDeviceMaintenance4Features::default().maintenance4(true);
    let core =
        vk::PhysicalDeviceFeatures::default().shader_storage_buffer_array_dynamic_indexing(true);
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_features(&core)
        .push_next(&mut v12)
        .push_next(&mut maintenance);
    // SAFETY: all of it is offered, and the device is destroyed when nothing is left of it.
    let device = unsafe { vulkan.instance.create_device(vulkan.physical_device, &info, None)? };
    let missing = |info: &vk::DeviceCreateInfo<'_>, api_version| {
        let device = raw::Device { device: &device, api_version, ..vulkan.describe(info) };
        // SAFETY: what is refused is not used.
        match unsafe { raw::open(device, &options()) }.map(drop) {
            Err(Error::MissingFeatures { missing, .. }) => missing,
            other => panic!("{other:?}"),
        }
    };
    let expected = [
        "descriptorBindingStorageBufferUpdateAfterBind",
        "descriptorBindingUpdateUnusedWhilePending",
        "synchronization2",
        "subgroupSizeControl",
        "computeFullSubgroups",
    ];
    assert_eq!(missing(&info, vk::API_VERSION_1_3), expected);
    let old = missing(&info, vk::API_VERSION_1_1);
    assert_eq!(old[0], "Vulkan 1.3 (the instance was created for 1.1)");
    assert_eq!(old[1..], expected);
    let bare = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
    let all = missing(&bare, vk::API_VERSION_1_3);
    assert!(all.len() == 10 && all[1] == "shaderStorageBufferArrayDynamicIndexing", "{all:?}");
    // SAFETY: nothing was made of it.
    unsafe { device.destroy_device(None) };
    Ok(())
}

fn wrong_queue_families_are_refused(vulkan: &Vulkan) -> Outcome {
    let own = vulkan.needs.queue_family();
    let Err(error) = open_with(vulkan, |device| device.queue_family = 7) else { panic!() };
    let text = format!(
        "`queue_family`: expected a family that the device was created with queues of [{own}], found 7"
    );
    assert_eq!(error.to_string(), text);
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(99)];
    let refused = vulkan.described(|device| {
        let create_info =
            vk::DeviceCreateInfo { ..*device.create_info }.queue_create_infos(&queues);
        let device = raw::Device { create_info: &create_info, queue_family: 99, ..device };
        // SAFETY: what is refused is not used.
        unsafe { raw::open(device, &options()) }.map(drop)
    });
    match refused {
        Err(Error::Parameter { name: "queue_family", expected, .. }) => {
            assert_eq!(expected, "a family that computes");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn wrong_options_are_refused(vulkan: &Vulkan) -> Outcome {
    let named = RuntimeOptions { device: DeviceSelector::Index(0), ..options() };
    let validated = RuntimeOptions { validation: Validation::STANDARD, ..options() };
    let telling = RuntimeOptions { pipeline_statistics: true, ..options() };
    let all = [("device", named), ("validation", validated), ("pipeline_statistics", telling)];
    for (name, options) in all {
        // SAFETY: what is refused is not used.
        let refused = vulkan.described(|device| unsafe { raw::open(device, &options) }).map(drop);
        assert!(
            matches!(&refused, Err(Error::Parameter { name: found, .. }) if *found == name),
            "{refused:?}"
        );
    }
    Ok(())
}

fn a_recording_is_the_callers_to_submit(vulkan: &Vulkan) -> Outcome {
    let runtime = open(vulkan)?;
    let recorded = vulkan.record(|commands| {
        // SAFETY: the command buffer is recording, and never submitted.
        let swapped = unsafe {
            raw::record(&runtime, commands, |recorder| {
                let own = recorder.runtime().recorder()?;
                std::mem::replace(recorder, own).submit().map(drop)
            })
        };
        let Err(Error::Parameter { name: "recorder", .. }) = swapped.map(drop) else { panic!() };
        // SAFETY: as above.
        let swapped = unsafe {
            raw::record(&runtime, commands, |recorder| {
                *recorder = recorder.runtime().recorder()?;
                Ok(())
            })
        };
        let Err(Error::Parameter { name: "recorder", .. }) = swapped.map(drop) else { panic!() };
        Ok(())
    });
    recorded?;
    runtime.finish()?;
    Ok(())
}

fn the_queue_is_locked(vulkan: &Vulkan) -> Outcome {
    let locked = Arc::new(AtomicUsize::new(0));
    let count = locked.clone();
    let runtime = open_with(vulkan, |device| {
        device.queue_lock = Some(Box::new(move |work| {
            count.fetch_add(1, Ordering::Relaxed);
            work();
        }));
    })?;
    let opened = locked.load(Ordering::Relaxed);
    let tensor = runtime.upload("word", &HostTensor::from_words(vec![1]))?;
    assert!(opened > 0);
    assert_eq!(locked.load(Ordering::Relaxed), opened + 1);
    drop(tensor);
    runtime.finish()?;
    let Err(error) = open_with(vulkan, |device| device.queue_lock = Some(Box::new(|_| ()))) else {
        panic!()
    };
    assert!(matches!(error, Error::Parameter { name: "queue_lock", .. }), "{error}");
    Ok(())
}

/// Says when it is dropped.
struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The layer sees what is left of a device when the caller destroys it.
fn all_can_be_dropped_in_any_order(vulkan: &Vulkan) -> Outcome {
    let dropped = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let count = || dropped.each_ref().map(|count| count.load(Ordering::Relaxed));
    let buffer = Buffer::new(vulkan, 64)?;
    let keep = |i: usize| Some(Box::new(Kept(dropped[i].clone())) as raw::Keep);

    let runtime = open_with(vulkan, |device| device.keep = keep(0))?;
    let imported = [(); 2].map(|()| {
        // SAFETY: the buffer is as described, and outlives what uses it.
        unsafe {
            raw::Buffer::import(&runtime, raw::BufferDesc { keep: keep(1), ..buffer.described() })
        }
    });
    let tensors = imported.map(|buffer| buffer?.tensor("words", Dtype::U32, &[8], 0));
    let [first, second] = tensors;
    let (first, second) = (first?, second?);
    let (commands, recorded) = vulkan.record(|commands| {
        // SAFETY: the command buffer is recording.
        Ok(unsafe { raw::record(&runtime, commands, |recorder| recorder.fill(&first, 1)) }?.1)
    })?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&second, 2)?;
    let submission = recorder.submit()?;
    drop((first, second));
    drop(runtime);
    assert!(submission.done());
    drop(submission);
    assert_eq!(count(), [0, 0]);
    vulkan.run(commands)?;
    drop(recorded);
    assert_eq!(count(), [1, 2]);

    let runtime = open_with(vulkan, |device| device.keep = keep(0))?;
    let tensor = import(&runtime, &buffer)?.tensor("words", Dtype::U32, &[8], 0)?;
    let (commands, recorded) = vulkan.record(|commands| {
        // SAFETY: the command buffer is recording.
        Ok(unsafe { raw::record(&runtime, commands, |recorder| recorder.fill(&tensor, 1)) }?.1)
    })?;
    vulkan.run(commands)?;
    drop(recorded);
    drop(runtime);
    assert_eq!(count(), [1, 2]);
    drop(tensor);
    assert_eq!(count(), [2, 2]);
    Ok(())
}

//! The logical device, its queues and its memory allocator.

use std::ffi::CStr;
use std::sync::{Arc, Mutex};

use ash::vk;
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings};

use super::embed::{Keep, Links, QueueLock, TimelinePoint};
use super::executable::{self, Executables};
use super::matrices::{self, MatrixSwitches};
use super::physical::QueueFamily;
use super::requirements::Switches;
use super::{Commands, Instance, Named, Physical, Timeline};
use crate::error::{Error, Result};
use crate::runtime::info::Matrices;
use crate::runtime::lock;
use crate::runtime::stream::Stream;

const MIB: u64 = 1 << 20;

/// A logical device with its queues, of our own or a caller's.
pub(in crate::runtime) struct Device {
    pub(super) handle: ash::Device,
    pub(super) queue_family: QueueFamily,
    /// Submission needs exclusive access. That of a stream is the one at its place, or the last.
    queues: Vec<Mutex<vk::Queue>>,
    /// There until the device is dropped.
    pub(super) allocator: Mutex<Option<Allocator>>,
    physical: vk::PhysicalDevice,
    memory_budget: bool,
    /// Whether pipelines can require a subgroup size.
    pub(in crate::runtime) required_subgroup_size: bool,
    /// The matrices that it was opened to multiply.
    pub(in crate::runtime) matrices: Matrices,
    /// Where pipelines are to be asked what became of them.
    pub(super) executables: Option<Executables>,
    instance: Arc<Instance>,
    /// The last to go.
    owner: Owner,
}

/// Whose a device is.
pub(super) enum Owner {
    /// The runtime's, which made it.
    Runtime,
    /// A caller's, who keeps it.
    Caller {
        queue_lock: Option<QueueLock>,
        /// Dropped when nothing uses the device any more.
        _keep: Option<Keep>,
    },
}

impl Device {
    /// Opens a device that lacks nothing; `statistics` says whether it is to tell of pipelines, if it can.
    pub(in crate::runtime) fn open(
        instance: &Arc<Instance>,
        physical: &Physical,
        statistics: bool,
    ) -> Result<Arc<Self>> {
        let asks = statistics && physical.executables;
        let handle = create(instance, physical, asks)?;
        // SAFETY: so many queues were asked for at creation.
        let queue = |at| unsafe { handle.get_device_queue(physical.queue.index, at) };
        let queues = (0..queues(physical) as u32).map(queue).collect();
        let executables = asks.then(|| Executables::new(instance.handle(), &handle));
        Self::new(instance, physical, handle, queues, Owner::Runtime, executables)
    }

    /// A device with the features that are required, and at least one queue of the family in `physical`: of a caller's one,
    /// in whose order it records for itself what the runtime does not see.
    pub(super) fn new(
        instance: &Arc<Instance>,
        physical: &Physical,
        handle: ash::Device,
        queues: Vec<vk::Queue>,
        owner: Owner,
        executables: Option<Executables>,
    ) -> Result<Arc<Self>> {
        let mut device = Self {
            handle,
            queue_family: physical.queue,
            queues: queues.into_iter().map(Mutex::new).collect(),
            allocator: Mutex::new(None),
            physical: physical.handle,
            memory_budget: physical.memory_budget,
            required_subgroup_size: physical.required_subgroup_size,
            matrices: physical.info.matrices,
            executables,
            instance: instance.clone(),
            owner,
        };
        device.allocator = Mutex::new(Some(device.new_allocator()?));
        Ok(Arc::new(device))
    }

    fn new_allocator(&self) -> Result<Allocator> {
        let mut debug_settings = AllocatorDebugSettings::default();
        // Leaks are reported below, where the messages of the validation layer arrive.
        debug_settings.log_leaks_on_shutdown = false;
        Allocator::new(&AllocatorCreateDesc {
            instance: self.instance.handle().clone(),
            device: self.handle.clone(),
            physical_device: self.physical,
            debug_settings,
            buffer_device_address: false,
            // Small first blocks, so that a small job takes little; larger tensors have blocks of their own.
            allocation_sizes: AllocationSizes::new(4 * MIB, 4 * MIB)
                .with_max_device_memblock_size(128 * MIB)
                .with_max_host_memblock_size(64 * MIB),
        })
        .map_err(|e| Error::Vulkan { call: "gpu_allocator", code: e.to_string() })
    }

    /// The instance.
    pub(in crate::runtime) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Whether copies have a queue beside that of the kernels.
    pub(in crate::runtime) fn copies_beside(&self) -> bool {
        self.queues.len() > 1
    }

    /// Uses the queue of a stream while nobody else does.
    fn with_queue<T>(&self, stream: Stream, mut work: impl FnMut(vk::Queue) -> T) -> Result<T> {
        let queue = lock(&self.queues[(stream as usize).min(self.queues.len() - 1)]);
        let Owner::Caller { queue_lock: Some(queue_lock), .. } = &self.owner else {
            return Ok(work(*queue));
        };
        let mut done = None;
        queue_lock(&mut || {
            done.get_or_insert_with(|| work(*queue));
        });
        done.ok_or_else(|| Error::Parameter {
            name: "queue_lock",
            expected: "a call of what it is given".into(),
            found: "none".into(),
        })
    }

    /// Hands recorded commands to the queue of a stream, behind the points `after` and what `links` waits for; `timeline`
    /// reaches `value` and what `links` signals is signalled when they are done.
    pub(in crate::runtime) fn submit(
        &self,
        stream: Stream,
        commands: &Commands,
        (timeline, value): (&Timeline, u64),
        after: Option<(&Timeline, u64)>,
        links: &Links<'_>,
    ) -> Result<()> {
        let buffers = [vk::CommandBufferSubmitInfo::default().command_buffer(commands.handle())];
        let info = |point: &TimelinePoint| {
            vk::SemaphoreSubmitInfo::default()
                .semaphore(point.semaphore)
                .value(point.value)
                .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)
        };
        let point = |(timeline, value): (&Timeline, u64)| TimelinePoint {
            semaphore: timeline.handle(),
            value,
        };
        let (done, after) = (point((timeline, value)), after.map(point));
        let waits: Vec<_> = after.iter().chain(links.waits).map(info).collect();
        let signals: Vec<_> = [&done].into_iter().chain(links.signals).map(info).collect();
        let submit = vk::SubmitInfo2::default()
            .wait_semaphore_infos(&waits)
            .command_buffer_infos(&buffers)
            .signal_semaphore_infos(&signals);
        // SAFETY: the queue is locked, the commands are ended and stay alive with all they use until the timeline
        // reaches `value`, and values only grow: the runtime's in-flight list sees to both. Who gave the links has
        // vouched for them.
        let submit =
            |queue| unsafe { self.handle.queue_submit2(queue, &[submit], vk::Fence::null()) };
        self.with_queue(stream, submit)?.named("vkQueueSubmit2")
    }

    /// Waits until the queues are empty; a lost device counts as done.
    pub(in crate::runtime) fn wait_idle(&self) {
        for stream in Stream::ALL.into_iter().take(self.queues.len()) {
            // SAFETY: the queue is locked.
            let idle = |queue| unsafe { self.handle.queue_wait_idle(queue) };
            let waited = self.with_queue(stream, idle);
            if let Err(error) = waited.and_then(|code| code.named("vkQueueWaitIdle")) {
                tracing::error!(%error, "waiting for the queue");
            }
        }
    }

    /// Bytes that the largest device-local heap still has, as far as the driver says.
    pub(in crate::runtime) fn available_memory(&self) -> u64 {
        let (budget, used) = self.memory_budget();
        budget.saturating_sub(used)
    }

    /// Bytes of the largest device-local heap that this process can have in all, and those that it has.
    pub(in crate::runtime) fn memory_budget(&self) -> (u64, u64) {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut query = vk::PhysicalDeviceMemoryProperties2::default();
        if self.memory_budget {
            query = query.push_next(&mut budget);
        }
        let instance = self.instance.handle();
        // SAFETY: the device comes from this instance, and the budget is chained only where it is known.
        unsafe { instance.get_physical_device_memory_properties2(self.physical, &mut query) };
        let memory = query.memory_properties;
        let heaps = memory.memory_heaps_as_slice();
        let largest = (0..heaps.len())
            .filter(|&i| heaps[i].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
            .max_by_key(|&i| heaps[i].size);
        let Some(i) = largest else { return (0, 0) };
        match self.memory_budget {
            true => (budget.heap_budget[i], budget.heap_usage[i]),
            false => (heaps[i].size, self.allocated_memory()),
        }
    }

    /// Bytes taken from the driver, in use or kept for reuse.
    pub(in crate::runtime) fn allocated_memory(&self) -> u64 {
        lock(&self.allocator).as_ref().map_or(0, Allocator::capacity)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let allocator = self.allocator.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(allocator) = &allocator {
            let leaks = allocator.generate_report().allocations;
            for leak in &leaks {
                let text = format!("{} bytes for `{}`", leak.size, leak.name);
                self.instance.canary().report("device memory leaked", &text);
            }
        }
        drop(allocator);
        if matches!(self.owner, Owner::Caller { .. }) {
            return;
        }
        // SAFETY: every object of the device holds it alive, so none is left, and the runtime waited for the queues
        // before it let go of them.
        unsafe { self.handle.destroy_device(None) };
    }
}

/// How many queues a device is opened with: one a stream, where there are as many.
fn queues(physical: &Physical) -> usize {
    (physical.queue.queues as usize).clamp(1, Stream::ALL.len())
}

fn create(instance: &Arc<Instance>, physical: &Physical, asks: bool) -> Result<ash::Device> {
    let priorities = [1.0; Stream::ALL.len()];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(physical.queue.index)
        .queue_priorities(&priorities[..queues(physical)])];
    let matrices = physical.info.matrices;
    let extensions = physical.extensions.iter().copied().chain(matrices::extensions(matrices));
    let extensions = extensions.chain(asks.then_some(executable::EXTENSION));
    let extensions: Vec<_> = extensions.map(CStr::as_ptr).collect();
    let mut features = executable::Features::default().pipeline_executable_info(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions);
    if asks {
        info = info.push_next(&mut features);
    }
    let (mut switches, mut matrix_switches) = (Switches::default(), MatrixSwitches::default());
    // SAFETY: the handle comes from this instance, and every feature and extension asked for was found there; the chain
    // has nothing but the switches and the extension's feature.
    unsafe {
        let info = matrix_switches.switch_on(switches.switch_on(info), matrices);
        instance.handle().create_device(physical.handle, &info, None)
    }
    .named("vkCreateDevice")
}

//! A thin layer over Vulkan's function tables, through which tests let calls fail.
//!
//! While a [`Faults`] lives, an instance gets a table whose entries for the calls below are shims. They pass calls on,
//! but for the one that is to fail, and those that cannot succeed after a device is lost. Who asks for no faults has
//! the driver's own table. Shims have no argument of ours to find their state by, so there is one state, for one
//! instance with one device at a time.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

use ash::vk;

use crate::runtime::lock;

/// What a call that fails reports.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Out of host memory.
    HostMemory,
    /// Out of device memory.
    DeviceMemory,
    /// The device is lost: from then on, all calls that can report it do.
    DeviceLost,
    /// An error that has no name of its own.
    Unknown,
    /// A wait that ends before the device is done.
    Timeout,
    /// The device does nothing more: from then on, all waits end before it is done, and nothing shows as done.
    Hang,
}

impl Fault {
    fn code(self) -> vk::Result {
        match self {
            Self::HostMemory => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
            Self::DeviceMemory => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            Self::DeviceLost => vk::Result::ERROR_DEVICE_LOST,
            Self::Unknown => vk::Result::ERROR_UNKNOWN,
            Self::Timeout | Self::Hang => vk::Result::TIMEOUT,
        }
    }
}

/// Lets calls fail in the runtime that is opened while it lives.
#[doc(hidden)]
#[derive(Debug)]
pub struct Faults(());

impl Faults {
    /// The calls that can report the loss of a device.
    pub const LOSING: &[&str] = &[
        "vkQueueSubmit2",
        "vkQueueWaitIdle",
        "vkGetSemaphoreCounterValue",
        "vkWaitSemaphores",
        "vkGetQueryPoolResults",
    ];

    /// No fault yet; `None` while another lives.
    pub fn new() -> Option<Self> {
        let mut state = lock(&STATE);
        let free = !std::mem::replace(&mut state.wanted, true);
        free.then(|| Self(()))
    }

    /// The calls that can fail.
    pub fn calls() -> impl Iterator<Item = &'static str> {
        SHIMS.iter().map(|(name, _)| *name)
    }

    /// Lets the `nth` of the calls of this name from now on fail, once, in place of what was to fail before.
    pub fn fail(&self, call: &str, nth: u64, fault: Fault) {
        let mut state = lock(&STATE);
        let call = Self::calls().find(|name| *name == call);
        state.plan = call.map(|call| Plan { call, before: nth.saturating_sub(1), fault });
    }

    /// Lets nothing more fail, and what hangs go on; says whether what was to fail has failed.
    pub fn stop(&self) -> bool {
        let mut state = lock(&STATE);
        state.hung = false;
        state.plan.take().is_none()
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let mut state = lock(&STATE);
        (state.wanted, state.plan, state.hung) = (false, None, false);
    }
}

static STATE: Mutex<State> = Mutex::new(State {
    wanted: false,
    plan: None,
    lost: false,
    hung: false,
    instance: None,
    device: None,
});

struct State {
    /// Whether a [`Faults`] lives.
    wanted: bool,
    plan: Option<Plan>,
    lost: bool,
    hung: bool,
    /// The real tables, while an [`Over`] lives.
    instance: Option<ash::Instance>,
    device: Option<ash::Device>,
}

/// The call that is to fail.
struct Plan {
    call: &'static str,
    /// Calls that still go well.
    before: u64,
    fault: Fault,
}

impl State {
    /// What a call is to fail with.
    fn strike(&mut self, call: &'static str) -> Option<vk::Result> {
        if self.lost && Faults::LOSING.contains(&call) {
            return Some(vk::Result::ERROR_DEVICE_LOST);
        }
        if self.hung && call == "vkWaitSemaphores" {
            return Some(vk::Result::TIMEOUT);
        }
        let plan = self.plan.as_mut().filter(|plan| plan.call == call)?;
        if plan.before > 0 {
            plan.before -= 1;
            return None;
        }
        let fault = plan.fault;
        self.plan = None;
        self.lost = fault == Fault::DeviceLost;
        self.hung = fault == Fault::Hang;
        Some(fault.code())
    }
}

/// Held by the instance whose table has the shims.
pub(super) struct Over(());

impl Over {
    /// The instance with the shims in its table, when tests ask for them.
    pub(super) fn new(
        entry: &ash::Entry,
        instance: ash::Instance,
    ) -> (ash::Instance, Option<Self>) {
        let mut state = lock(&STATE);
        if !state.wanted || state.instance.is_some() {
            return (instance, None);
        }
        let handle = instance.handle();
        state.instance = Some(instance);
        let address = |name: &CStr| {
            let function = match name.to_bytes() {
                b"vkGetDeviceProcAddr" => Some(function(get_device_proc_addr as *const ())),
                _ => shim(name),
            };
            // SAFETY: the instance is this loader's, and the name ends in a zero byte.
            let function =
                function.or_else(|| unsafe { entry.get_instance_proc_addr(handle, name.as_ptr()) });
            function.map_or(std::ptr::null(), |function| function as *const c_void)
        };
        // SAFETY: every address is that of a function of that name.
        (unsafe { ash::Instance::load_with(address, handle) }, Some(Self(())))
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        let mut state = lock(&STATE);
        (state.instance, state.device, state.lost) = (None, None, false);
    }
}

type Function = unsafe extern "system" fn();

fn function(address: *const ()) -> Function {
    // SAFETY: a function's address, which is cast back to its own type before anybody calls it.
    unsafe { std::mem::transmute::<*const (), Function>(address) }
}

fn shim(name: &CStr) -> Option<Function> {
    let found = SHIMS.iter().find(|(known, _)| known.as_bytes() == name.to_bytes());
    found.map(|(_, function)| function())
}

/// The fault that a call is to report, and the real function.
fn look<F>(
    call: &'static str,
    real: impl FnOnce(&State) -> Option<F>,
) -> (Option<vk::Result>, Option<F>) {
    let mut state = lock(&STATE);
    (state.strike(call), real(&state))
}

/// Shims: where the real function's table is, its field there, its name and its arguments.
macro_rules! shims {
    ($($level:ident.$table:ident().$function:ident = $name:literal($($argument:ident: $kind:ty),*);)*) => {
        $(
            unsafe extern "system" fn $function($($argument: $kind),*) -> vk::Result {
                match look($name, |state| state.$level.as_ref().map(|real| real.$table().$function)) {
                    // SAFETY: the arguments of a call of just this function.
                    (None, Some(real)) => unsafe { real($($argument),*) },
                    (fault, _) => fault.unwrap_or(vk::Result::ERROR_UNKNOWN),
                }
            }
        )*

        /// Every call that can fail, with its shim.
        const SHIMS: &[(&str, fn() -> Function)] = &[
            $(($name, || function($function as *const ())),)*
            ("vkCreateComputePipelines", || function(create_compute_pipelines as *const ())),
            ("vkQueueWaitIdle", || function(queue_wait_idle as *const ())),
            ("vkCreateDevice", || function(create_device as *const ())),
            (COUNTER, || function(get_semaphore_counter_value as *const ())),
        ];
    };
}

type Allocator = *const vk::AllocationCallbacks<'static>;

shims! {
    instance.fp_v1_0().enumerate_physical_devices = "vkEnumeratePhysicalDevices"(
        instance: vk::Instance, count: *mut u32, devices: *mut vk::PhysicalDevice);
    device.fp_v1_0().create_buffer = "vkCreateBuffer"(
        device: vk::Device, info: *const vk::BufferCreateInfo<'_>, allocator: Allocator, buffer: *mut vk::Buffer);
    device.fp_v1_0().bind_buffer_memory = "vkBindBufferMemory"(
        device: vk::Device, buffer: vk::Buffer, memory: vk::DeviceMemory, offset: vk::DeviceSize);
    device.fp_v1_0().allocate_memory = "vkAllocateMemory"(
        device: vk::Device, info: *const vk::MemoryAllocateInfo<'_>, allocator: Allocator,
        memory: *mut vk::DeviceMemory);
    device.fp_v1_0().map_memory = "vkMapMemory"(
        device: vk::Device, memory: vk::DeviceMemory, offset: vk::DeviceSize, size: vk::DeviceSize,
        flags: vk::MemoryMapFlags, data: *mut *mut c_void);
    device.fp_v1_0().create_command_pool = "vkCreateCommandPool"(
        device: vk::Device, info: *const vk::CommandPoolCreateInfo<'_>, allocator: Allocator,
        pool: *mut vk::CommandPool);
    device.fp_v1_0().allocate_command_buffers = "vkAllocateCommandBuffers"(
        device: vk::Device, info: *const vk::CommandBufferAllocateInfo<'_>, buffers: *mut vk::CommandBuffer);
    device.fp_v1_0().reset_command_pool = "vkResetCommandPool"(
        device: vk::Device, pool: vk::CommandPool, flags: vk::CommandPoolResetFlags);
    device.fp_v1_0().begin_command_buffer = "vkBeginCommandBuffer"(
        buffer: vk::CommandBuffer, info: *const vk::CommandBufferBeginInfo<'_>);
    device.fp_v1_0().end_command_buffer = "vkEndCommandBuffer"(buffer: vk::CommandBuffer);
    device.fp_v1_0().create_descriptor_set_layout = "vkCreateDescriptorSetLayout"(
        device: vk::Device, info: *const vk::DescriptorSetLayoutCreateInfo<'_>, allocator: Allocator,
        layout: *mut vk::DescriptorSetLayout);
    device.fp_v1_0().create_pipeline_layout = "vkCreatePipelineLayout"(
        device: vk::Device, info: *const vk::PipelineLayoutCreateInfo<'_>, allocator: Allocator,
        layout: *mut vk::PipelineLayout);
    device.fp_v1_0().create_descriptor_pool = "vkCreateDescriptorPool"(
        device: vk::Device, info: *const vk::DescriptorPoolCreateInfo<'_>, allocator: Allocator,
        pool: *mut vk::DescriptorPool);
    device.fp_v1_0().allocate_descriptor_sets = "vkAllocateDescriptorSets"(
        device: vk::Device, info: *const vk::DescriptorSetAllocateInfo<'_>, sets: *mut vk::DescriptorSet);
    device.fp_v1_0().create_pipeline_cache = "vkCreatePipelineCache"(
        device: vk::Device, info: *const vk::PipelineCacheCreateInfo<'_>, allocator: Allocator,
        cache: *mut vk::PipelineCache);
    device.fp_v1_0().get_pipeline_cache_data = "vkGetPipelineCacheData"(
        device: vk::Device, cache: vk::PipelineCache, size: *mut usize, data: *mut c_void);
    device.fp_v1_0().create_shader_module = "vkCreateShaderModule"(
        device: vk::Device, info: *const vk::ShaderModuleCreateInfo<'_>, allocator: Allocator,
        module: *mut vk::ShaderModule);
    device.fp_v1_0().create_query_pool = "vkCreateQueryPool"(
        device: vk::Device, info: *const vk::QueryPoolCreateInfo<'_>, allocator: Allocator,
        pool: *mut vk::QueryPool);
    device.fp_v1_0().get_query_pool_results = "vkGetQueryPoolResults"(
        device: vk::Device, pool: vk::QueryPool, first: u32, count: u32, size: usize, data: *mut c_void,
        stride: vk::DeviceSize, flags: vk::QueryResultFlags);
    device.fp_v1_0().create_semaphore = "vkCreateSemaphore"(
        device: vk::Device, info: *const vk::SemaphoreCreateInfo<'_>, allocator: Allocator,
        semaphore: *mut vk::Semaphore);
    device.fp_v1_2().wait_semaphores = "vkWaitSemaphores"(
        device: vk::Device, info: *const vk::SemaphoreWaitInfo<'_>, timeout: u64);
    device.fp_v1_3().queue_submit2 = "vkQueueSubmit2"(
        queue: vk::Queue, count: u32, submits: *const vk::SubmitInfo2<'_>, fence: vk::Fence);
}

unsafe extern "system" fn create_compute_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: Allocator,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    let real = |state: &State| state.device.as_ref().map(|d| d.fp_v1_0().create_compute_pipelines);
    match look("vkCreateComputePipelines", real) {
        // SAFETY: the arguments of a call of just this function.
        (None, Some(real)) => unsafe { real(device, cache, count, infos, allocator, pipelines) },
        (fault, _) => {
            // SAFETY: the caller has room for as many; what failed is null.
            unsafe { pipelines.write_bytes(0, count as usize) };
            fault.unwrap_or(vk::Result::ERROR_UNKNOWN)
        }
    }
}

const COUNTER: &str = "vkGetSemaphoreCounterValue";

unsafe extern "system" fn get_semaphore_counter_value(
    device: vk::Device,
    semaphore: vk::Semaphore,
    value: *mut u64,
) -> vk::Result {
    let real = |state: &State| {
        let real = state.device.as_ref()?.fp_v1_2().get_semaphore_counter_value;
        Some((real, state.hung))
    };
    match look(COUNTER, real) {
        (None, Some((_, true))) => {
            // SAFETY: the caller has room for the value.
            unsafe { value.write(0) };
            vk::Result::SUCCESS
        }
        // SAFETY: the arguments of a call of just this function.
        (None, Some((real, false))) => unsafe { real(device, semaphore, value) },
        (fault, _) => fault.unwrap_or(vk::Result::ERROR_UNKNOWN),
    }
}

/// Waits in any case: the real device works on while this one is lost.
unsafe extern "system" fn queue_wait_idle(queue: vk::Queue) -> vk::Result {
    let real = |state: &State| state.device.as_ref().map(|d| d.fp_v1_0().queue_wait_idle);
    let (fault, real) = look("vkQueueWaitIdle", real);
    // SAFETY: the argument of a call of just this function.
    let code = real.map_or(vk::Result::ERROR_UNKNOWN, |real| unsafe { real(queue) });
    fault.unwrap_or(code)
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: Allocator,
    device: *mut vk::Device,
) -> vk::Result {
    let instance = |state: &State| state.instance.clone();
    let (fault, Some(instance)) = look("vkCreateDevice", instance) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    if let Some(fault) = fault {
        return fault;
    }
    // SAFETY: the arguments of a call of just this function.
    let code = unsafe { (instance.fp_v1_0().create_device)(physical, info, allocator, device) };
    if code == vk::Result::SUCCESS {
        // SAFETY: the device was just made by this instance.
        let real = unsafe { ash::Device::load(instance.fp_v1_0(), *device) };
        lock(&STATE).device.get_or_insert(real);
    }
    code
}

/// Gives out the shims for the device that they are for.
unsafe extern "system" fn get_device_proc_addr(
    device: vk::Device,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    let state = lock(&STATE);
    let ours = state.device.as_ref().is_some_and(|ours| ours.handle() == device);
    let real = state.instance.as_ref().map(|instance| instance.fp_v1_0().get_device_proc_addr);
    drop(state);
    // SAFETY: the name ends in a zero byte.
    let shim = if ours { shim(unsafe { CStr::from_ptr(name) }) } else { None };
    // SAFETY: the arguments of a call of just this function.
    shim.or_else(|| unsafe { real?(device, name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every call that the runtime checks for failure, but for those before there is an instance.
    #[test]
    fn all_calls_can_fail() {
        let sources = concat!(
            include_str!("buffer.rs"),
            include_str!("command.rs"),
            include_str!("descriptor.rs"),
            include_str!("device.rs"),
            include_str!("pipeline.rs"),
            include_str!("query.rs"),
            include_str!("timeline.rs"),
        );
        let named = sources.split(".named(\"").skip(1);
        let named: Vec<_> = named.filter_map(|rest| rest.split('"').next()).collect();
        assert!(named.len() > 15);
        for call in named {
            assert!(Faults::calls().any(|known| known == call), "{call}");
        }
        assert!(Faults::LOSING.iter().all(|call| Faults::calls().any(|known| known == *call)));
    }
}

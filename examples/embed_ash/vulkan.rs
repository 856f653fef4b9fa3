//! What a program on Vulkan has of its own: instance, device, queue, buffers and command buffers.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::sync::Mutex;

use backslang::raw::ash::{self, ext, vk};
use backslang::raw::{self, Needs};

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const API_VERSION: u32 = vk::API_VERSION_1_3;
const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Messages of the validation layer.
type Heard = Mutex<Vec<String>>;

pub(crate) struct Vulkan {
    pub(crate) instance: ash::Instance,
    pub(crate) physical_device: vk::PhysicalDevice,
    pub(crate) device: ash::Device,
    pub(crate) queue: vk::Queue,
    pub(crate) needs: Needs,
    pool: vk::CommandPool,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    heard: Box<Heard>,
    /// The loader's library, which everything else comes from.
    _entry: ash::Entry,
}

impl Vulkan {
    /// Opens the first device that backslang can use, with the validation layer when there are `checks`: a list of
    /// `core` and `sync`.
    pub(crate) fn new(checks: &str) -> Result<Self> {
        // SAFETY: the system's Vulkan loader is what the program runs on.
        let entry = unsafe { ash::Entry::load() }?;
        let heard = Box::<Heard>::default();
        let instance = create_instance(&entry, checks, &heard)?;
        let messenger = listen(&entry, &instance, checks, &heard)?;
        // SAFETY: the instance is alive.
        let devices = unsafe { instance.enumerate_physical_devices() }?;
        // SAFETY: the devices are the instance's.
        let needs =
            |&device: &_| unsafe { Needs::of(&instance, device) }.map(|needs| (device, needs));
        let (usable, unusable): (Vec<_>, Vec<_>) =
            devices.iter().map(needs).partition(std::result::Result::is_ok);
        let why = unusable.into_iter().find_map(std::result::Result::err);
        let usable = usable.into_iter().find_map(std::result::Result::ok);
        let Some((physical_device, needs)) = usable else {
            return Err(why.map_or("there is no device".into(), Into::into));
        };
        // SAFETY: all that is asked for is offered.
        let device = with_info(&needs, |info| unsafe {
            instance.create_device(physical_device, info, None)
        })?;
        let family = needs.queue_family();
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
        // SAFETY: the device has a queue of the family.
        let (queue, pool) = unsafe {
            (device.get_device_queue(family, 0), device.create_command_pool(&info, None)?)
        };
        Ok(Self {
            instance,
            physical_device,
            device,
            queue,
            needs,
            pool,
            messenger,
            heard,
            _entry: entry,
        })
    }

    /// Describes the device to backslang.
    pub(crate) fn described<T>(&self, work: impl FnOnce(raw::Device<'_>) -> T) -> T {
        with_info(&self.needs, |create_info| work(self.describe(create_info)))
    }

    pub(crate) fn describe<'a>(
        &'a self,
        create_info: &'a vk::DeviceCreateInfo<'a>,
    ) -> raw::Device<'a> {
        raw::Device {
            entry: None,
            instance: &self.instance,
            api_version: API_VERSION,
            physical_device: self.physical_device,
            device: &self.device,
            create_info,
            queue: self.queue,
            queue_family: self.needs.queue_family(),
            queue_lock: None,
            keep: None,
        }
    }

    /// A command buffer with what `record` records.
    pub(crate) fn record<T>(
        &self,
        record: impl FnOnce(vk::CommandBuffer) -> Result<T>,
    ) -> Result<(vk::CommandBuffer, T)> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .command_buffer_count(1);
        let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
        let begin = vk::CommandBufferBeginInfo::default().flags(once);
        // SAFETY: one thread uses the pool, which outlives the command buffer.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info)?[0];
            self.device.begin_command_buffer(commands, &begin)?;
            let recorded = record(commands)?;
            self.device.end_command_buffer(commands)?;
            Ok((commands, recorded))
        }
    }

    /// Submits a command buffer and waits for it.
    pub(crate) fn run(&self, commands: vk::CommandBuffer) -> Result<()> {
        let commands = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        let submit = vk::SubmitInfo2::default().command_buffer_infos(&commands);
        // SAFETY: one thread uses the queue, and the command buffer is ended.
        unsafe {
            let fence = self.device.create_fence(&vk::FenceCreateInfo::default(), None)?;
            let submitted = self.device.queue_submit2(self.queue, &[submit], fence);
            let waited =
                submitted.and_then(|()| self.device.wait_for_fences(&[fence], true, u64::MAX));
            self.device.destroy_fence(fence, None);
            Ok(waited?)
        }
    }

    /// What the validation layer has said since the last look.
    pub(crate) fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    /// Takes everything down; what the validation layer said of it, and before.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.take_down();
        self.heard()
    }

    fn take_down(&mut self) {
        if self.pool == vk::CommandPool::null() {
            return;
        }
        // SAFETY: nothing that the program or backslang made of it is left, and nothing is in flight.
        unsafe {
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            if let Some((debug_utils, messenger)) = self.messenger.take() {
                debug_utils.destroy_debug_utils_messenger(messenger, None);
            }
            self.instance.destroy_instance(None);
        }
        self.pool = vk::CommandPool::null();
    }
}

impl Drop for Vulkan {
    fn drop(&mut self) {
        self.take_down();
    }
}

/// What the device is created with: all that backslang needs. A program adds what it needs itself.
fn with_info<T>(needs: &Needs, work: impl FnOnce(&vk::DeviceCreateInfo<'_>) -> T) -> T {
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(needs.queue_family())
        .queue_priorities(&[1.0])];
    let extensions: Vec<_> = needs.extensions().iter().map(|name| name.as_ptr()).collect();
    let mut needs = needs.clone();
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions);
    // SAFETY: the chain is empty.
    work(&unsafe { needs.switch_on(info) })
}

fn create_instance(entry: &ash::Entry, checks: &str, heard: &Heard) -> Result<ash::Instance> {
    let on = 1u32.to_ne_bytes();
    let setting = |name| {
        let mut setting = vk::LayerSettingEXT::default()
            .layer_name(LAYER)
            .setting_name(name)
            .ty(vk::LayerSettingTypeEXT::BOOL32)
            .values(&on);
        // The builder counts bytes, the layer counts values.
        setting.value_count = 1;
        setting
    };
    let sync = [setting(c"validate_sync"), setting(c"syncval_shader_accesses_heuristic")];
    let sync = if checks.contains("sync") { &sync[..] } else { &[] };
    let mut sync = vk::LayerSettingsCreateInfoEXT::default().settings(sync);
    let mut messenger = messenger(heard);
    let application = vk::ApplicationInfo::default().api_version(API_VERSION);
    let (layers, extensions) = ([LAYER.as_ptr()], [ext::debug_utils::NAME.as_ptr()]);
    let mut info = vk::InstanceCreateInfo::default().application_info(&application);
    if !checks.is_empty() {
        info = info.enabled_layer_names(&layers).enabled_extension_names(&extensions);
        info = info.push_next(&mut messenger).push_next(&mut sync);
    }
    // SAFETY: the chain is of locals, and what is heard lives as long as the instance.
    Ok(unsafe { entry.create_instance(&info, None) }?)
}

fn listen(
    entry: &ash::Entry,
    instance: &ash::Instance,
    checks: &str,
    heard: &Heard,
) -> Result<Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>> {
    if checks.is_empty() {
        return Ok(None);
    }
    let debug_utils = ext::debug_utils::Instance::new(entry, instance);
    // SAFETY: the extension is enabled, and what is heard lives as long as the instance.
    let made = unsafe { debug_utils.create_debug_utils_messenger(&messenger(heard), None) }?;
    Ok(Some((debug_utils, made)))
}

fn messenger(heard: &Heard) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    type Severity = vk::DebugUtilsMessageSeverityFlagsEXT;
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::WARNING | Severity::ERROR)
        .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
        .pfn_user_callback(Some(hear))
        .user_data(std::ptr::from_ref(heard).cast_mut().cast())
}

unsafe extern "system" fn hear(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _types: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    heard: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the messages that `messenger` was made with, and what the layer says now.
    let (heard, text) = unsafe { (&*heard.cast::<Heard>(), (*data).message_as_c_str()) };
    let text = text.unwrap_or(c"?").to_string_lossy().into_owned();
    heard.lock().unwrap().push(text);
    vk::FALSE
}

/// A buffer in memory that the host sees, too.
pub(crate) struct Buffer<'a> {
    pub(crate) handle: vk::Buffer,
    pub(crate) bytes: u64,
    memory: vk::DeviceMemory,
    mapped: *mut u8,
    vulkan: &'a Vulkan,
}

impl<'a> Buffer<'a> {
    pub(crate) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
        vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
            | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
            | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
    );

    pub(crate) fn new(vulkan: &'a Vulkan, bytes: u64) -> Result<Self> {
        let visible =
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(Self::USAGE);
        let (device, physical) = (&vulkan.device, vulkan.physical_device);
        // SAFETY: the memory is as the buffer wants it, and mapped once.
        unsafe {
            let handle = device.create_buffer(&info, None)?;
            let wanted = device.get_buffer_memory_requirements(handle);
            let memory = vulkan.instance.get_physical_device_memory_properties(physical);
            let fits = |(index, kind): &(u32, &vk::MemoryType)| {
                wanted.memory_type_bits & 1 << index != 0 && kind.property_flags.contains(visible)
            };
            let kinds = memory.memory_types_as_slice();
            let (kind, _) = (0..).zip(kinds).find(fits).ok_or("no memory that the host sees")?;
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(wanted.size)
                .memory_type_index(kind);
            let memory = device.allocate_memory(&info, None)?;
            device.bind_buffer_memory(handle, memory, 0)?;
            let all = vk::MemoryMapFlags::empty();
            let mapped = device.map_memory(memory, 0, vk::WHOLE_SIZE, all)?.cast();
            Ok(Self { handle, bytes, memory, mapped, vulkan })
        }
    }

    /// What backslang is to know of it.
    pub(crate) fn described(&self) -> raw::BufferDesc {
        let Self { handle, bytes, .. } = *self;
        raw::BufferDesc { handle, bytes, usage: Self::USAGE, keep: None }
    }

    /// Its contents, while the device does not use it.
    pub(crate) fn contents(&mut self) -> &mut [u8] {
        // SAFETY: that many bytes are mapped, and this is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.mapped, self.bytes as usize) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: whoever gave the buffer to the device has waited for it.
        unsafe {
            self.vulkan.device.destroy_buffer(self.handle, None);
            self.vulkan.device.free_memory(self.memory, None);
        }
    }
}

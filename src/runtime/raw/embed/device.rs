//! A runtime on a caller's device.

use std::ffi::{CStr, c_char};

use ash::vk;

use super::super::device::Owner;
use super::super::matrices;
use super::super::requirements::{self, Switches};
use super::super::{Instance, Physical};
use super::{Keep, QueueLock};
use crate::error::{Error, Rejected, Result};
use crate::runtime::{DeviceSelector, Matrices, Runtime, RuntimeOptions};

/// What a device must be created with so that the runtime can use it.
///
/// ```no_run
/// use backslang::raw::{Needs, ash::{self, vk}};
///
/// # fn create(instance: &ash::Instance, physical_device: vk::PhysicalDevice) -> Result<ash::Device, Box<dyn std::error::Error>> {
/// // SAFETY: the physical device is this instance's.
/// let mut needs = unsafe { Needs::of(instance, physical_device) }?;
/// let queues = [vk::DeviceQueueCreateInfo::default()
///     .queue_family_index(needs.queue_family())
///     .queue_priorities(&[1.0])];
/// let extensions: Vec<_> = needs.extensions().iter().map(|name| name.as_ptr()).collect();
/// let info = vk::DeviceCreateInfo::default() // and what the program itself needs
///     .queue_create_infos(&queues)
///     .enabled_extension_names(&extensions);
/// // SAFETY: the chain is empty, and all that is asked for is offered.
/// let device = unsafe {
///     let info = needs.switch_on(info);
///     instance.create_device(physical_device, &info, None)?
/// };
/// # Ok(device)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Needs {
    extensions: Vec<&'static CStr>,
    queue_family: u32,
    switches: Switches,
}

impl Needs {
    /// What is needed on this physical device.
    ///
    /// # Safety
    /// The instance was created for Vulkan 1.1 or later, and the physical device is one of its own.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with everything that the device does not offer.
    pub unsafe fn of(
        instance: &ash::Instance,
        physical_device: vk::PhysicalDevice,
    ) -> Result<Self> {
        let physical = query(&Instance::of_caller(instance.clone(), None), physical_device)?;
        Ok(Self {
            extensions: physical.extensions,
            queue_family: physical.queue.index,
            switches: Switches::default(),
        })
    }

    /// The device extensions to enable: `VK_KHR_portability_subset`, which a device that has it demands, and
    /// `VK_EXT_memory_budget`, for what errors say of free memory.
    pub fn extensions(&self) -> &[&'static CStr] {
        &self.extensions
    }

    /// The queue family that the runtime would choose: one that computes, and times.
    pub fn queue_family(&self) -> u32 {
        self.queue_family
    }

    /// Switches on every feature that the runtime needs: in the structs that the chain of `info` has, else in others
    /// that are added to it. What is on already stays on.
    ///
    /// # Safety
    /// Every struct of the chain lives for `'a` and can be written, and `p_enabled_features` is null or valid, as it is
    /// where `info` was made by its builder functions alone.
    pub unsafe fn switch_on<'a>(
        &'a mut self,
        info: vk::DeviceCreateInfo<'a>,
    ) -> vk::DeviceCreateInfo<'a> {
        // SAFETY: the caller's promise.
        unsafe { self.switches.switch_on(info) }
    }
}

/// A caller's device, and the queue of it that the runtime is to use.
pub struct Device<'a> {
    /// The loader's functions, which tell what matrices the device multiplies; `None` leaves matrices out. They are used
    /// where `create_info` switched on all that belongs to them: the extension `VK_KHR_cooperative_matrix` with its
    /// feature, `vulkanMemoryModel`, `vulkanMemoryModelDeviceScope`, and `shaderFloat16` or, of
    /// `VK_KHR_shader_bfloat16`, `shaderBFloat16Type` and `shaderBFloat16CooperativeMatrix`.
    pub entry: Option<&'a ash::Entry>,
    /// The instance.
    pub instance: &'a ash::Instance,
    /// The version that the instance was created for, `apiVersion` of its `VkApplicationInfo`.
    pub api_version: u32,
    /// The physical device.
    pub physical_device: vk::PhysicalDevice,
    /// The device.
    pub device: &'a ash::Device,
    /// What the device was created with.
    pub create_info: &'a vk::DeviceCreateInfo<'a>,
    /// A queue of the device.
    pub queue: vk::Queue,
    /// The family of the queue.
    pub queue_family: u32,
    /// How the runtime takes its turn on the queue, where others use it at the same time; see [`open`].
    pub queue_lock: Option<QueueLock>,
    /// Dropped when the runtime and all that came from it are gone, such as a handle that keeps the device alive; never
    /// when the device did not finish in time what it was given ([`Error::TimedOut`] of [`Runtime::finish`]).
    pub keep: Option<Keep>,
}

/// Opens a runtime on a caller's device.
///
/// The runtime owns nothing of it: device, instance and queue stay as they are when it goes. As any runtime it proves
/// at once, with a tiny kernel, that subgroups are what kernels rely on, and has its own memory, descriptors and
/// pipelines on the device.
///
/// # Safety
/// - The handles are valid and belong together: the device was created from the physical device of the instance with
///   `create_info`, whose chain is still there, and the queue is one of the family, without flags.
/// - Instance, device and the loader's library live until the runtime, its tensors, submissions and [`super::Recorded`]
///   are dropped, and its last submission is done. [`Device::keep`] can hold what sees to it.
/// - Vulkan lets one thread at a time use a queue. Either `queue_lock` takes the lock that all others take, and calls
///   what it is given before it returns, or nobody else uses the queue while a call into this crate may:
///   [`open`] itself, [`Recorder::submit`](crate::runtime::Recorder::submit), uploads, downloads, and the drop of the
///   runtime. `queue_lock` calls nothing of this crate.
///
/// # Errors
/// [`Error::NoDevice`] with what the physical device lacks, [`Error::MissingFeatures`] with what it has but `create_info`
/// did not enable, [`Error::Parameter`] for a queue family that the device was created without or that does not
/// compute, and for options that say which device, validation or extension to open: all are the caller's. Else as
/// [`Runtime::new`].
pub unsafe fn open(device: Device<'_>, options: &RuntimeOptions) -> Result<Runtime> {
    check_options(options)?;
    let instance = Instance::of_caller(device.instance.clone(), device.entry.cloned());
    // SAFETY: the caller's promise.
    let missing = unsafe { missing(&device) };
    if device.api_version < vk::API_VERSION_1_3 {
        // Of a device an older instance cannot be asked more.
        // SAFETY: the physical device is the instance's.
        let basic =
            unsafe { device.instance.get_physical_device_properties(device.physical_device) };
        let name = basic.device_name_as_c_str().unwrap_or(c"the device").to_string_lossy();
        return Err(Error::MissingFeatures { device: name.into_owned(), missing });
    }
    let physical = query(&instance, device.physical_device)?;
    if !missing.is_empty() {
        return Err(Error::MissingFeatures { device: physical.info.name, missing });
    }
    // SAFETY: the caller's promise.
    let families = unsafe { queue_families(device.create_info) };
    if !families.contains(&device.queue_family) {
        return Err(Error::Parameter {
            name: "queue_family",
            expected: format!("a family that the device was created with queues of {families:?}"),
            found: device.queue_family.to_string(),
        });
    }
    let mut physical = physical.with_family(&instance, device.queue_family)?;
    // SAFETY: the caller's promise.
    let on = unsafe { switched_on_matrices(device.create_info) };
    physical.info.matrices = physical.info.matrices.and(on);
    let owner = Owner::Caller { queue_lock: device.queue_lock, _keep: device.keep };
    let handle = device.device.clone();
    let own =
        super::super::Device::new(&instance, &physical, handle, vec![device.queue], owner, None)?;
    Runtime::start(own, physical.info, Vec::new(), options, None)
}

fn check_options(options: &RuntimeOptions) -> Result<()> {
    let refuse = |name, expected: &str, found| {
        Err(Error::Parameter { name, expected: expected.into(), found })
    };
    if options.device != DeviceSelector::Auto {
        let expected = "DeviceSelector::Auto, for the device is the caller's";
        return refuse("device", expected, format!("{:?}", options.device));
    }
    if options.pipeline_statistics {
        let expected = "false, for the extensions are those of the caller's device";
        return refuse("pipeline_statistics", expected, "true".into());
    }
    if options.validation.any() {
        let expected = "Validation::NONE, for the layers are those of the caller's instance";
        return refuse("validation", expected, format!("{:?}", options.validation));
    }
    Ok(())
}

/// The physical device, if it offers everything.
fn query(instance: &Instance, handle: vk::PhysicalDevice) -> Result<Physical> {
    let physical = instance.physical_device(handle)?;
    match physical.info.usable() {
        true => Ok(physical),
        false => Err(Error::NoDevice {
            asked: None,
            rejected: vec![Rejected {
                device: physical.info.name.clone(),
                reason: format!("lacks {}", physical.info.lacks.join(", ")),
            }],
        }),
    }
}

/// The names of what was not enabled.
///
/// # Safety
/// The chain of the device's `create_info` is valid.
unsafe fn missing(device: &Device<'_>) -> Vec<String> {
    let mut missing = Vec::new();
    if device.api_version < vk::API_VERSION_1_3 {
        let [major, minor] =
            [vk::api_version_major, vk::api_version_minor].map(|part| part(device.api_version));
        missing.push(format!("Vulkan 1.3 (the instance was created for {major}.{minor})"));
    }
    // SAFETY: the caller's promise.
    missing.extend(unsafe { requirements::switched_off(device.create_info) });
    missing
}

/// The matrices for which everything was enabled.
///
/// # Safety
/// The chain of the info is valid, and its pointer to the extensions' names for as many as there are.
unsafe fn switched_on_matrices(info: &vk::DeviceCreateInfo<'_>) -> Matrices {
    let mut names: &[*const c_char] = &[];
    if info.enabled_extension_count > 0 {
        let count = info.enabled_extension_count as usize;
        // SAFETY: the caller's promise.
        names = unsafe { std::slice::from_raw_parts(info.pp_enabled_extension_names, count) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        let enabled = |name: &CStr| names.iter().any(|other| CStr::from_ptr(*other) == name);
        matrices::within(requirements::switched_on_matrices(info), enabled)
    }
}

/// # Safety
/// The pointer to the queues is valid for as many as there are.
unsafe fn queue_families(info: &vk::DeviceCreateInfo<'_>) -> Vec<u32> {
    if info.queue_create_info_count == 0 {
        return Vec::new();
    }
    let count = info.queue_create_info_count as usize;
    // SAFETY: the caller's promise.
    let infos = unsafe { std::slice::from_raw_parts(info.p_queue_create_infos, count) };
    infos.iter().map(|info| info.queue_family_index).collect()
}

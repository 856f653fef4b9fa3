//! The loader and the instance, with the messenger that hears the validation layer.

use std::borrow::Cow;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use ash::{ext, khr, vk};

use super::faults::Over;
use super::{Named, Physical};
use crate::error::{Error, Result};
use crate::runtime::validation::{Canary, Validation};

const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// A Vulkan instance, of our own or a caller's.
pub(in crate::runtime) struct Instance {
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    handle: ash::Instance,
    /// What the messenger writes to; outlives the handle.
    canary: Arc<Canary>,
    /// There when tests let calls fail.
    _over: Option<Over>,
    /// The loaded library; outlives everything that came from it. Of a caller's instance, what the caller gave.
    entry: Option<ash::Entry>,
    /// Whether it is a caller's.
    is_callers: bool,
}

impl Instance {
    /// Opens the loader and creates an instance, with the layer when validation is asked for.
    ///
    /// # Errors
    /// [`Error::NoLoader`], [`Error::NoValidationLayer`] and [`Error::NoDriver`].
    pub(in crate::runtime) fn new(validation: Validation) -> Result<Arc<Self>> {
        // SAFETY: loading runs the initialisers of the system's Vulkan loader, which is the purpose of this crate.
        let entry = unsafe { ash::Entry::load() }.map_err(|e| Error::NoLoader(e.to_string()))?;
        let canary = Arc::new(Canary::default());
        let layer_extensions = if validation.any() { layer_extensions(&entry)? } else { vec![] };
        let handle = create(&entry, validation, &layer_extensions, &canary)?;
        let (handle, over) = Over::new(&entry, handle);
        let debug_utils =
            validation.any().then(|| ext::debug_utils::Instance::new(&entry, &handle));
        let mut instance = Self {
            messenger: None,
            handle,
            canary,
            _over: over,
            entry: Some(entry),
            is_callers: false,
        };
        if let Some(debug_utils) = debug_utils {
            // SAFETY: the canary that the messenger points to lives as long as the instance.
            let messenger = unsafe {
                debug_utils.create_debug_utils_messenger(&messenger_info(&instance.canary), None)
            }
            .named("vkCreateDebugUtilsMessengerEXT")?;
            instance.messenger = Some((debug_utils, messenger));
        }
        Ok(Arc::new(instance))
    }

    /// A caller's instance, which is left as it is. Its layers report to the caller.
    pub(super) fn of_caller(handle: ash::Instance, entry: Option<ash::Entry>) -> Arc<Self> {
        let canary = Arc::new(Canary::default());
        Arc::new(Self { messenger: None, handle, canary, _over: None, entry, is_callers: true })
    }

    pub(super) fn handle(&self) -> &ash::Instance {
        &self.handle
    }

    /// Where messages of the validation layer arrive.
    pub(in crate::runtime) fn canary(&self) -> &Arc<Canary> {
        &self.canary
    }

    /// The devices, in the loader's order.
    pub(in crate::runtime) fn physical_devices(&self) -> Result<Vec<Physical>> {
        // SAFETY: the instance is alive.
        let handles = match unsafe { self.handle.enumerate_physical_devices() } {
            // How a loader says that no driver found a device.
            Err(vk::Result::ERROR_INITIALIZATION_FAILED) => Vec::new(),
            found => found.named("vkEnumeratePhysicalDevices")?,
        };
        Ok(handles
            .into_iter()
            .enumerate()
            .map(|(index, handle)| {
                Physical::query(self.entry.as_ref(), &self.handle, handle, index)
            })
            .collect())
    }

    /// A device of the instance's.
    pub(super) fn physical_device(&self, handle: vk::PhysicalDevice) -> Result<Physical> {
        // SAFETY: the instance is alive.
        let handles = unsafe { self.handle.enumerate_physical_devices() }
            .named("vkEnumeratePhysicalDevices")?;
        let index = handles.iter().position(|other| *other == handle);
        let index = index.ok_or_else(|| Error::Parameter {
            name: "physical_device",
            expected: format!("one of the {} of the instance", handles.len()),
            found: "another handle".into(),
        })?;
        Ok(Physical::query(self.entry.as_ref(), &self.handle, handle, index))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.is_callers {
            return;
        }
        // SAFETY: every object of the instance holds it alive, so none is left; the canary is still there.
        unsafe {
            if let Some((debug_utils, messenger)) = self.messenger.take() {
                debug_utils.destroy_debug_utils_messenger(messenger, None);
            }
            self.handle.destroy_instance(None);
        }
    }
}

/// The instance extensions of the validation layer.
fn layer_extensions(entry: &ash::Entry) -> Result<Vec<vk::ExtensionProperties>> {
    // SAFETY: the loader is open.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .named("vkEnumerateInstanceLayerProperties")?;
    if !layers.iter().any(|l| l.layer_name_as_c_str() == Ok(LAYER)) {
        let names: Vec<_> = layers.iter().map(|l| text(l.layer_name_as_c_str())).collect();
        return Err(Error::NoValidationLayer(match names.len() {
            0 => "is not installed (the loader lists no layers)".into(),
            _ => format!("is not installed (the loader lists {})", names.join(", ")),
        }));
    }
    // SAFETY: the loader is open.
    unsafe { entry.enumerate_instance_extension_properties(Some(LAYER)) }
        .named("vkEnumerateInstanceExtensionProperties")
}

fn create(
    entry: &ash::Entry,
    validation: Validation,
    layer_extensions: &[vk::ExtensionProperties],
    canary: &Arc<Canary>,
) -> Result<ash::Instance> {
    // SAFETY: the loader is open.
    let extensions = unsafe { entry.enumerate_instance_extension_properties(None) }
        .named("vkEnumerateInstanceExtensionProperties")?;
    let portability = has(&extensions, khr::portability_enumeration::NAME);
    let mut names = Vec::new();
    let mut layers = Vec::new();
    if validation.any() {
        names.push(ext::debug_utils::NAME.as_ptr());
        layers.push(LAYER.as_ptr());
    }
    if portability {
        names.push(khr::portability_enumeration::NAME.as_ptr());
    }
    let application = vk::ApplicationInfo::default()
        .application_name(c"backslang")
        .api_version(vk::API_VERSION_1_3);
    let mut messenger = messenger_info(canary);
    let toggles = Toggles::new(validation);
    let settings = toggles.settings();
    let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&settings);
    let mut features = vk::ValidationFeaturesEXT::default()
        .enabled_validation_features(&toggles.enabled)
        .disabled_validation_features(&toggles.disabled);
    let mut info = vk::InstanceCreateInfo::default()
        .application_info(&application)
        .enabled_extension_names(&names)
        .enabled_layer_names(&layers);
    if portability {
        info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
    }
    if validation.any() {
        info = info.push_next(&mut messenger);
        // Loaders older than the settings extension do not list it, but hand the struct on to the layer.
        info = if has(layer_extensions, ext::layer_settings::NAME) {
            info.push_next(&mut settings)
        } else {
            info.push_next(&mut features)
        };
    }
    // SAFETY: every pointer in the chain is to a local that outlives the call; the canary outlives the instance.
    unsafe { entry.create_instance(&info, None) }.map_err(|code| match code {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => no_driver(entry, &extensions),
        vk::Result::ERROR_LAYER_NOT_PRESENT => {
            Error::NoValidationLayer("cannot be loaded, though the loader lists it".into())
        }
        _ => super::failed("vkCreateInstance", code),
    })
}

/// Asks once more, listening to what the loader says.
fn no_driver(entry: &ash::Entry, extensions: &[vk::ExtensionProperties]) -> Error {
    let canary = Arc::new(Canary::default());
    if has(extensions, ext::debug_utils::NAME) {
        let names = [ext::debug_utils::NAME.as_ptr()];
        let mut messenger = messenger_info(&canary);
        let info = vk::InstanceCreateInfo::default()
            .enabled_extension_names(&names)
            .push_next(&mut messenger);
        // SAFETY: every pointer in the chain is to a local that outlives the call and, should it succeed, the instance.
        unsafe {
            if let Ok(instance) = entry.create_instance(&info, None) {
                instance.destroy_instance(None);
            }
        }
    }
    let mut said = canary.loader();
    said.retain(|line| !line.contains("Found no drivers"));
    said.truncate(3);
    let asked = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].into_iter().find_map(|variable| {
        let value = std::env::var(variable).ok().filter(|value| !value.is_empty())?;
        Some(format!("{variable} is {value}"))
    });
    said.splice(0..0, Some(asked.unwrap_or_else(|| "the loader found none".into())));
    Error::NoDriver(said.join("; "))
}

/// The layer's switches, for layers of either age.
struct Toggles {
    values: [(&'static CStr, [u8; 4]); 4],
    enabled: Vec<vk::ValidationFeatureEnableEXT>,
    disabled: Vec<vk::ValidationFeatureDisableEXT>,
}

impl Toggles {
    fn new(validation: Validation) -> Self {
        let Validation { core, sync, gpu } = validation;
        let word = |on: bool| u32::from(on).to_ne_bytes();
        let (mut enabled, mut disabled) = (Vec::new(), Vec::new());
        if sync {
            enabled.push(vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION);
        }
        if gpu {
            enabled.push(vk::ValidationFeatureEnableEXT::GPU_ASSISTED);
        }
        if !core {
            disabled.push(vk::ValidationFeatureDisableEXT::CORE_CHECKS);
        }
        Self {
            values: [
                (c"validate_core", word(core)),
                (c"validate_sync", word(sync)),
                // Without it what shaders access is left out.
                (c"syncval_shader_accesses_heuristic", word(sync)),
                (c"gpuav_enable", word(gpu)),
            ],
            enabled,
            disabled,
        }
    }

    fn settings(&self) -> [vk::LayerSettingEXT<'_>; 4] {
        self.values.each_ref().map(|(name, value)| {
            let mut setting = vk::LayerSettingEXT::default()
                .layer_name(LAYER)
                .setting_name(name)
                .ty(vk::LayerSettingTypeEXT::BOOL32)
                .values(value);
            // The builder counts bytes, the layer counts values.
            setting.value_count = 1;
            setting
        })
    }
}

fn has(extensions: &[vk::ExtensionProperties], name: &CStr) -> bool {
    extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name))
}

fn text<E>(name: Result<&CStr, E>) -> Cow<'_, str> {
    name.map_or("?".into(), |name| name.to_string_lossy())
}

fn messenger_info(canary: &Arc<Canary>) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::GENERAL
                | vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION,
        )
        .pfn_user_callback(Some(hear))
        .user_data(Arc::as_ptr(canary).cast_mut().cast())
}

/// The messenger's callback.
unsafe extern "system" fn hear(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _types: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user_data: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: `user_data` is the canary that the instance keeps alive, and `data` is the layer's for this call.
    let (canary, data) = unsafe { (&*user_data.cast::<Canary>(), &*data) };
    // SAFETY: both are null or strings that live for this call.
    let (id, message) = unsafe { (data.message_id_name_as_c_str(), data.message_as_c_str()) };
    let [id, message] = [id, message].map(|text| text.unwrap_or(c"?").to_string_lossy());
    canary.report(&id, &message).into()
}

//! Validation layers, and the canary that turns their messages into errors.

use std::str::FromStr;
use std::sync::Mutex;

use super::lock;
use crate::error::{Error, Result};

/// Which checks of the Khronos validation layer run. Any message is an error; a missing layer, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Validation {
    /// The checks of every call against the specification.
    pub core: bool,
    /// Hazards between accesses that no barrier separates.
    pub sync: bool,
    /// Checks that run within the shaders.
    pub gpu: bool,
}

impl Validation {
    /// No validation.
    pub const NONE: Self = Self { core: false, sync: false, gpu: false };
    /// The checks that every driver bears: `core,sync`.
    pub const STANDARD: Self = Self { core: true, sync: true, gpu: false };

    /// Whether any check is on.
    pub fn any(self) -> bool {
        self.core || self.sync || self.gpu
    }
}

impl FromStr for Validation {
    type Err = Error;

    /// A comma list of `core`, `sync` and `gpu`; empty text means none.
    fn from_str(text: &str) -> Result<Self> {
        let mut validation = Self::NONE;
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word {
                "core" => validation.core = true,
                "sync" => validation.sync = true,
                "gpu" => validation.gpu = true,
                _ => {
                    return Err(Error::Parameter {
                        name: "validate",
                        expected: "a comma list of core, sync and gpu".into(),
                        found: format!("`{word}`"),
                    });
                }
            }
        }
        Ok(validation)
    }
}

/// A message that says nothing about this crate's use of Vulkan.
struct Allowed {
    /// The message's id.
    id: &'static str,
    /// What its text must contain.
    text: &'static str,
}

/// The id of what the loader itself says.
const LOADER: &str = "Loader Message";

/// Messages of the layer and the loader about their own set-up and of what they cannot see, each with its reason.
const ALLOWED: &[Allowed] = &[
    // The loader reports drivers and layers on the machine that it could not open. That says something of the
    // installation; the device list shows what is left.
    Allowed { id: LOADER, text: "" },
    // Advice to run core and GPU-assisted checks apart. Together they are slow, and meant.
    Allowed { id: "VALIDATION-SETTINGS", text: "not recommended as it will be very slow" },
    // GPU-assisted validation tells which features and limits it takes for itself, and which of its checks the device
    // cannot bear: see `IDLE`.
    Allowed { id: "WARNING-Setting-Limit-Adjusted", text: "validation is adjusting settings" },
    // While a device is created, some loaders and NVIDIA's driver look up a function of the instance through the
    // device. This crate has no use for video.
    Allowed {
        id: "WARNING-vkGetDeviceProcAddr-device",
        text: "vkGetPhysicalDeviceVideoEncodeQualityLevelPropertiesKHR",
    },
    // GPU-assisted validation knows barriers of the workgroup alone. By their names, the subgroups have parts of their
    // own of these variables, and `subgroup_barrier` between what their lanes write and read there.
    Allowed { id: "SharedMemoryDataRace-RaceOnLoad", text: r#"shared memory variable "subgroup_"# },
    Allowed {
        id: "SharedMemoryDataRace-RaceOnStore",
        text: r#"shared memory variable "subgroup_"#,
    },
];

/// Checks of GPU-assisted validation that a device may go without, for they are not about compute.
const IDLE: &[&str] = &[
    "gpuav_acceleration_structures_builds",
    "gpuav_buffer_address_oob",
    "gpuav_index_buffers",
    "gpuav_indirect_draws_buffers",
    "gpuav_indirect_trace_rays_buffers",
    "gpuav_mesh_shading",
    "gpuav_ray_tracing_buffers_consistency",
    "gpuav_validate_trace_ray",
];

fn is_allowed(id: &str, text: &str) -> bool {
    let mut disabled = text.split("[Disabling ").skip(1);
    ALLOWED.iter().any(|a| a.id == id && text.contains(a.text))
        && disabled.all(|rest| rest.split(']').next().is_some_and(|check| IDLE.contains(&check)))
}

/// Collects messages of the layer until somebody looks.
#[derive(Debug, Default)]
pub(super) struct Canary {
    messages: Mutex<Vec<String>>,
    /// What the loader says, each line once.
    loader: Mutex<Vec<String>>,
    provoked: Mutex<Option<Provoked>>,
}

/// A message that is waited for.
#[derive(Debug)]
struct Provoked {
    id: &'static str,
    heard: bool,
}

impl Canary {
    /// Whether the message `id` comes while `act` makes the calls that it is about. They do not reach the driver.
    pub(super) fn hears(&self, id: &'static str, act: impl FnOnce()) -> bool {
        *lock(&self.provoked) = Some(Provoked { id, heard: false });
        act();
        lock(&self.provoked).take().is_some_and(|provoked| provoked.heard)
    }

    /// Takes a message in, unless it is on the allow list; says whether it was waited for, so that the call is to be
    /// left out.
    pub(super) fn report(&self, id: &str, text: &str) -> bool {
        if let Some(provoked) = &mut *lock(&self.provoked)
            && provoked.id == id
        {
            provoked.heard = true;
            return true;
        }
        self.take(id, text);
        false
    }

    fn take(&self, id: &str, text: &str) {
        if id == LOADER {
            let mut loader = lock(&self.loader);
            let new: Vec<_> =
                text.lines().filter(|line| !loader.iter().any(|said| said == line)).collect();
            loader.extend(new.into_iter().map(str::to_owned));
        }
        if is_allowed(id, text) {
            tracing::debug!(id, text, "allowed message");
            return;
        }
        tracing::error!(id, text, "validation message");
        lock(&self.messages).push(format!("{id}: {text}"));
    }

    /// What the loader has said.
    pub(super) fn loader(&self) -> Vec<String> {
        lock(&self.loader).clone()
    }

    /// Fails with the messages since the last look.
    pub(super) fn check(&self) -> Result<()> {
        let messages = std::mem::take(&mut *lock(&self.messages));
        if messages.is_empty() { Ok(()) } else { Err(Error::Validation(messages)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_parses() {
        assert_eq!("".parse::<Validation>().unwrap(), Validation::NONE);
        assert_eq!("core, sync".parse::<Validation>().unwrap(), Validation::STANDARD);
        assert!("gpu".parse::<Validation>().unwrap().any());
        assert!("core,speed".parse::<Validation>().unwrap_err().is_input());
    }

    #[test]
    fn a_message_fails_once() {
        let canary = Canary::default();
        canary.report("Loader Message", "could not open a driver");
        let adjusted = "WARNING-Setting-Limit-Adjusted";
        let setting = "GPU-AV validation is adjusting settings: not supported.";
        canary.report(adjusted, &format!("{setting} [Disabling gpuav_validate_trace_ray]"));
        assert!(canary.check().is_ok());
        canary.report(adjusted, &format!("{setting} [Disabling gpuav_shader_instrumentation]"));
        assert!(canary.check().is_err());
        canary.report("VALIDATION-SETTINGS", "something else");
        assert!(canary.check().is_err());
        let race = "SharedMemoryDataRace-RaceOnLoad";
        canary.report(race, r#"on the shared memory variable "subgroup_weights" in"#);
        assert!(canary.check().is_ok());
        canary.report(race, r#"on the shared memory variable "staged" in"#);
        assert!(canary.check().is_err());
        canary.report("VUID-1", "wrong");
        assert!(matches!(canary.check(), Err(Error::Validation(m)) if m == ["VUID-1: wrong"]));
        assert!(canary.check().is_ok());
    }
}

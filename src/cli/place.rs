//! `--device` and `--validate`, and the environment variables that say the same.

use backslang::runtime::{Runtime, RuntimeOptions, Validation};

use super::args::GlobalArgs;
use super::failure::{Failure, Result};

/// Where to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In float64 on the CPU, rounded once.
    Reference,
    /// On a Vulkan device.
    Device(RuntimeOptions),
}

impl Place {
    /// What flags and environment ask for.
    pub(crate) fn resolve(args: &GlobalArgs) -> Result<Self> {
        let device = args.device.clone().or_else(|| environment("BACKSLANG_DEVICE"));
        if !device.as_deref().is_some_and(|device| device.eq_ignore_ascii_case("reference")) {
            let mut options =
                RuntimeOptions { validation: validation(args)?, ..RuntimeOptions::default() };
            if let Some(device) = device {
                options.device = device.parse()?;
            }
            return Ok(Self::Device(options));
        }
        // The environment may ask for validation of all that can be validated; a flag means this call.
        if args.validate.is_some() {
            let message = "--validate: expected a Vulkan device, found `--device reference`, which has no layers";
            return Err(Failure::usage(message));
        }
        Ok(Self::Reference)
    }

    /// The device that is asked for, or an error where that is the reference.
    pub(crate) fn open(&self) -> Result<Runtime> {
        match self {
            Self::Device(options) => Ok(Runtime::new(options)?),
            Self::Reference => {
                let message = "--device: expected a Vulkan device, found `reference`";
                Err(Failure::usage(message))
            }
        }
    }
}

/// Which validation flags and environment ask for.
pub(crate) fn validation(args: &GlobalArgs) -> Result<Validation> {
    match (args.validate, environment("BACKSLANG_VALIDATE")) {
        (Some(flag), _) => Ok(flag),
        (None, Some(text)) => Ok(text.parse()?),
        (None, None) => Ok(Validation::NONE),
    }
}

/// The environment variable, if it says anything.
fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.trim().is_empty())
}

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
        let device = given(args.device.as_deref(), "BACKSLANG_DEVICE");
        if !device.as_deref().is_some_and(|device| device.eq_ignore_ascii_case("reference")) {
            let mut options =
                RuntimeOptions { validation: validation(args)?, ..RuntimeOptions::default() };
            if let Some(device) = device {
                options.device = device.parse()?;
            }
            return Ok(Self::Device(options));
        }
        // The environment may ask for validation of all that can be validated; a flag means this call.
        match args.validate.as_deref().map(str::parse::<Validation>).transpose()? {
            Some(asked) if asked.any() => {
                let message = "--validate: expected a Vulkan device, found `--device reference`, which has no layers";
                Err(Failure::usage(message))
            }
            _ => Ok(Self::Reference),
        }
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
    let text = given(args.validate.as_deref(), "BACKSLANG_VALIDATE").unwrap_or_default();
    Ok(text.parse()?)
}

/// The flag, else the environment variable if it says anything.
fn given(flag: Option<&str>, variable: &str) -> Option<String> {
    let environment = || std::env::var(variable).ok().filter(|value| !value.trim().is_empty());
    flag.map(str::to_owned).or_else(environment)
}

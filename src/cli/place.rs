//! `--device` and `--validate`, and the environment variables that say the same.

use std::time::Duration;

use backslang::Error;
use backslang::runtime::{Runtime, RuntimeOptions, Validation};

use super::alike;
use super::args::GlobalArgs;
use super::failure::{Failure, Result};

const DEVICE: &str = "BACKSLANG_DEVICE";
const VALIDATE: &str = "BACKSLANG_VALIDATE";

/// Where to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In float64 on the CPU, rounded once.
    Reference,
    /// On a Vulkan device.
    Device {
        /// Which one, and how.
        options: RuntimeOptions,
        /// The environment said which.
        from_environment: bool,
    },
}

impl Place {
    /// What flags and environment ask for.
    pub(crate) fn resolve(args: &GlobalArgs) -> Result<Self> {
        let from_environment = args.device.is_none();
        let device = args.device.clone().or_else(|| environment(DEVICE));
        if !device.as_deref().is_some_and(|device| device.eq_ignore_ascii_case("reference")) {
            let mut options =
                RuntimeOptions { validation: validation(args)?, ..RuntimeOptions::default() };
            if let Some(device) = device {
                options.device = device.parse()?;
            }
            return Ok(Self::Device { options, from_environment });
        }
        // The environment may ask for validation of all that can be validated; a flag means this call.
        if args.validate.is_some() {
            let message = "--validate: expected a Vulkan device, found `--device reference`, which has no layers";
            return Err(Failure::usage(message));
        }
        Ok(Self::Reference)
    }

    /// With no bound on waits where all the work may be one submission, however long it takes.
    pub(crate) fn unhurried(mut self, whole: bool) -> Self {
        if let (Self::Device { options, .. }, true) = (&mut self, whole) {
            options.timeout = Duration::MAX;
        }
        self
    }

    /// The device that is asked for, or an error where that is the reference.
    pub(crate) fn open(&self) -> Result<Runtime> {
        match self {
            Self::Device { options, from_environment } => {
                Runtime::new(options).map_err(|error| unopened(error, *from_environment))
            }
            Self::Reference => {
                let message = "--device: expected a Vulkan device, found `reference`";
                Err(Failure::usage(message))
            }
        }
    }
}

/// With where the name of the device came from, and what it may be a slip of.
fn unopened(error: Error, from_environment: bool) -> Failure {
    let asked = match &error {
        Error::NoDevice { asked, .. } => asked.clone(),
        _ => None,
    };
    let mut failure = Failure::from(error);
    if let Some(asked) = asked {
        if from_environment {
            failure.message += &format!(" ({DEVICE} asks for it)");
        }
        if alike::is_close("reference", &asked) {
            failure.message += "; did you mean `reference`?";
        }
    }
    failure
}

/// A command that uses no device cannot be validated; a clean run would claim it.
pub(crate) fn without_device(args: &GlobalArgs, command: &str) -> Result<()> {
    if args.validate.is_none() {
        return Ok(());
    }
    let message = "--validate: expected a command that uses a device, found";
    Err(Failure::usage(format!("{message} `{command}`")))
}

/// Which validation flags and environment ask for.
pub(crate) fn validation(args: &GlobalArgs) -> Result<Validation> {
    match (args.validate, environment(VALIDATE)) {
        (Some(flag), _) => Ok(flag),
        (None, Some(text)) => match text.parse() {
            Err(Error::Parameter { expected, found, .. }) => {
                Err(Failure::usage(format!("{VALIDATE}: expected {expected}, found {found}")))
            }
            parsed => Ok(parsed?),
        },
        (None, None) => Ok(Validation::NONE),
    }
}

/// The environment variable, if it says anything.
fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.trim().is_empty())
}

//! `--device`, `--validate` and `--pipeline-cache`, and the environment variables that say the same.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use std::time::Duration;

use backslang::Error;
use backslang::runtime::{DeviceSelector, Runtime, RuntimeOptions, Validation};

use super::alike;
use super::args::GlobalArgs;
use super::failure::{Failure, Result};
use super::plan::Machine;

const DEVICE: &str = "BACKSLANG_DEVICE";
const ALL: &str = "all";
const VALIDATE: &str = "BACKSLANG_VALIDATE";
const PIPELINE_CACHE: &str = "BACKSLANG_PIPELINE_CACHE";

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
    /// On all suitable Vulkan devices.
    All(RuntimeOptions),
}

impl Place {
    /// What flags and environment ask for.
    pub(crate) fn resolve(args: &GlobalArgs) -> Result<Self> {
        let from_environment = args.device.is_none();
        let device = args.device.clone().or_else(|| environment(DEVICE));
        if !device.as_deref().is_some_and(|device| device.eq_ignore_ascii_case("reference")) {
            let kept = pipeline_cache(args.pipeline_cache.clone(), |name| std::env::var_os(name));
            check_pipeline_cache(args, kept.as_deref())?;
            let mut options = RuntimeOptions {
                validation: validation(args)?,
                pipeline_cache: kept,
                ..RuntimeOptions::default()
            };
            if let Some(device) = device {
                if device.trim().eq_ignore_ascii_case(ALL) {
                    return Ok(Self::All(options));
                }
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
        if let (Self::Device { options, .. } | Self::All(options), true) = (&mut self, whole) {
            options.timeout = Duration::MAX;
        }
        self
    }

    /// With what the driver tells of the kernels that it compiles.
    pub(crate) fn with_pipeline_statistics(mut self) -> Self {
        if let Self::Device { options, .. } | Self::All(options) = &mut self {
            options.pipeline_statistics = true;
        }
        self
    }

    /// Whether the layer is asked to look into kernels.
    #[cfg(feature = "slang")]
    pub(crate) fn looks_into_kernels(&self) -> bool {
        matches!(self, Self::Device { options, .. } | Self::All(options) if options.validation.gpu)
    }

    /// The devices that are asked for, opened one after the other; none where that is the reference.
    pub(crate) fn open_each(&self) -> Result<Vec<Runtime>> {
        match self {
            Self::Reference => Ok(Vec::new()),
            Self::Device { .. } => Ok(vec![self.open()?]),
            Self::All(options) => Ok(Runtime::all(options)?),
        }
    }

    /// What of a device a plan is for: of the one that is asked for, if one is.
    pub(crate) fn machine(&self) -> Result<Machine> {
        match self {
            Self::Device { options, .. } if options.device != DeviceSelector::Auto => {
                let runtime = self.open()?;
                let machine = Machine::of(&runtime);
                runtime.finish()?;
                Ok(machine)
            }
            _ => Ok(Machine::TYPICAL),
        }
    }

    /// The one device that is asked for, or an error where that is the reference, or several.
    pub(crate) fn open(&self) -> Result<Runtime> {
        match self {
            Self::Device { options, from_environment } => {
                Runtime::new(options).map_err(|error| unopened(error, *from_environment))
            }
            Self::All(_) => {
                let message = "--device: expected one Vulkan device, found `all`";
                Err(Failure::usage(message))
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

/// What was asked for and can be no folder would be passed over in silence: only a lack of space or of rights is.
fn check_pipeline_cache(args: &GlobalArgs, folder: Option<&Path>) -> Result<()> {
    let name = match (&args.pipeline_cache, environment(PIPELINE_CACHE)) {
        (Some(_), _) => "--pipeline-cache",
        (None, Some(_)) => PIPELINE_CACHE,
        (None, None) => return Ok(()),
    };
    // What is not there yet is made, within what is.
    let there = folder.and_then(|folder| folder.ancestors().find(|path| path.exists()));
    match there.filter(|path| !path.is_dir()) {
        Some(file) => Err(Failure::usage(format!(
            "{name}: expected a folder, found the file `{}`",
            file.display()
        ))),
        None => Ok(()),
    }
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

/// The folder for pipelines: the one asked for, else one of the user's; `None` where none is wanted, or there is no user.
fn pipeline_cache(
    flag: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match flag.or_else(|| path(PIPELINE_CACHE)) {
        Some(asked) if asked.as_os_str() == "none" => return None,
        Some(asked) => return Some(asked),
        None => {}
    }
    let user = match cfg!(windows) {
        true => path("LOCALAPPDATA"),
        // Its specification has a relative path ignored.
        false => path("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| Some(path("HOME")?.join(".cache"))),
    };
    Some(user?.join("backslang").join("pipelines"))
}

/// The environment variable, if it says anything.
fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(flag: Option<&str>, variables: &[(&str, &str)]) -> Option<PathBuf> {
        pipeline_cache(flag.map(PathBuf::from), |name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn pipelines_are_kept_where_flag_variable_and_user_say() {
        let asked = (PIPELINE_CACHE, "there");
        assert_eq!(folder(Some("here"), &[asked]), Some("here".into()));
        assert_eq!(folder(None, &[asked]), Some("there".into()));
        assert_eq!(folder(Some("none"), &[asked]), None);
        assert_eq!(folder(None, &[(PIPELINE_CACHE, "none")]), None);
        assert_eq!(folder(None, &[(PIPELINE_CACHE, "")]), None);
    }

    #[cfg(not(windows))]
    #[test]
    fn the_users_cache_folder_is_where_it_is_customary() {
        let home = ("HOME", "/home/a");
        let place = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(None, &[home]), place("/home/a/.cache/backslang/pipelines"));
        let xdg = |path| folder(None, &[home, ("XDG_CACHE_HOME", path)]);
        assert_eq!(xdg("/tmp/cache"), place("/tmp/cache/backslang/pipelines"));
        assert_eq!(xdg("relative"), place("/home/a/.cache/backslang/pipelines"));
        assert_eq!(xdg(""), place("/home/a/.cache/backslang/pipelines"));
    }

    #[cfg(windows)]
    #[test]
    fn the_users_cache_folder_is_where_it_is_customary() {
        let local = folder(None, &[("LOCALAPPDATA", r"C:\a")]);
        assert_eq!(local, Some(PathBuf::from(r"C:\a\backslang\pipelines")));
    }
}

//! The one error type of the library.

use std::fmt;
use std::time::Duration;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, each with what was expected and what was found.
///
/// The kinds fall into two groups, told apart by [`Error::is_input`]: what the caller passed in
/// (found before any device work) and what went wrong on the device or in the environment.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A required array is missing.
    #[error("{operator}: array `{array}` is missing ({why})")]
    MissingArray {
        /// The operator that needs it.
        operator: &'static str,
        /// The array's name.
        array: &'static str,
        /// Why it is needed here.
        why: &'static str,
    },
    /// An array has another shape than the other arrays and the parameters ask for.
    #[error("array `{array}`: expected {expected}, found shape {found:?}")]
    Shape {
        /// The array's name.
        array: &'static str,
        /// The expected shape, in words or numbers.
        expected: String,
        /// The shape found.
        found: Vec<usize>,
    },
    /// An array has an element type that the operator does not take.
    #[error("array `{array}`: expected element type {expected}, found {found}")]
    Dtype {
        /// The array's name.
        array: String,
        /// The accepted types.
        expected: &'static str,
        /// The type found.
        found: String,
    },
    /// An array does not lie in memory as the operator takes it.
    #[error("array `{array}`: expected {expected}, found {found}")]
    Layout {
        /// The array's name.
        array: &'static str,
        /// The accepted layout.
        expected: String,
        /// Shape, strides and offset, in elements.
        found: String,
    },
    /// A parameter or option is out of its range.
    #[error("`{name}`: expected {expected}, found {found}")]
    Parameter {
        /// The parameter's name, or several joined by " and ".
        name: &'static str,
        /// The accepted range.
        expected: String,
        /// The value found.
        found: String,
    },
    /// An element of an index array cannot be used.
    #[error("array `{array}`[{index}] = {value}: {expected}")]
    Index {
        /// The array's name.
        array: &'static str,
        /// Where in it, such as `2, 5`.
        index: String,
        /// The value found there.
        value: i128,
        /// What was expected, naming the limit.
        expected: String,
    },
    /// A Slang file does not compile, or its parameters are of kinds that cannot be bound.
    #[error("{file}: {message}")]
    Slang {
        /// The file, as it was given.
        file: String,
        /// What the compiler says, with files and lines, or what was expected and found.
        message: String,
    },
    /// A call of a user's kernel does not fit what the kernel declares.
    #[error("kernel `{kernel}`: {message}")]
    UserKernel {
        /// The kernel's name.
        kernel: String,
        /// What was expected, what was found, and what there is.
        message: String,
    },
    /// A size does not fit the 32-bit indices of the kernels.
    #[error("{what}: {found} does not fit the kernels' 32-bit indices (at most {limit})")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The count.
        found: u128,
        /// The largest that fits.
        limit: u128,
    },
    /// A tensor is larger than one storage-buffer binding of this device may be.
    #[error(
        "tensor `{tensor}`: {bytes} bytes, but one storage buffer on {device} holds at most {limit} bytes"
    )]
    TensorTooLarge {
        /// The tensor's name.
        tensor: String,
        /// Its size in bytes.
        bytes: u64,
        /// `maxStorageBufferRange` of the device.
        limit: u64,
        /// The device's name.
        device: String,
    },
    /// The Vulkan loader could not be opened.
    #[error("no Vulkan loader: {0} (install libvulkan1, vulkan-loader or a GPU driver)")]
    NoLoader(String),
    /// The loader found no driver that it could open; the text says where it looked and what it says.
    #[error("no Vulkan driver: {0} (install a GPU's driver; for software: Mesa's lavapipe)")]
    NoDriver(String),
    /// No device fits; each rejected one with its reason.
    #[error("no usable Vulkan device{}: {}", .asked.as_ref().map(|a| format!(" for `{a}`")).unwrap_or_default(), RejectedList(.rejected))]
    NoDevice {
        /// The device asked for, if one was.
        asked: Option<String>,
        /// Every device found with the reason why it was not taken.
        rejected: Vec<Rejected>,
    },
    /// A caller's device was created without what the runtime needs.
    #[error("{device} was created without {} (backslang::raw::Needs switches on all that is needed)", .missing.join(", "))]
    MissingFeatures {
        /// The device's name.
        device: String,
        /// The names of all that is missing.
        missing: Vec<String>,
    },
    /// Validation was asked for, but there is no validation layer, or it is silent.
    #[error("validation was asked for, but the layer VK_LAYER_KHRONOS_validation {0}")]
    NoValidationLayer(String),
    /// The validation layer reported something.
    #[error("{} validation message(s); first: {}", .0.len(), .0.first().map_or("", |m| m.as_str()))]
    Validation(Vec<String>),
    /// Memory of the host or the device ran out.
    #[error("out of {place} memory for {what}{}", Sizes(*asked, *available))]
    OutOfMemory {
        /// `device` or `host`.
        place: &'static str,
        /// What the memory was for.
        what: String,
        /// Bytes asked for, where it was for an array.
        asked: Option<u64>,
        /// Bytes that the device's heap still had, as far as the driver says.
        available: Option<u64>,
    },
    /// Every slot of the bindless heap is taken.
    #[error("the bindless heap is full: all {slots} slots are in use (raise `heap_slots`)")]
    HeapFull {
        /// Slots of the heap.
        slots: u32,
    },
    /// The device was lost.
    #[error("the device was lost{}", .during.as_ref().map(|k| format!(" while running `{k}`")).unwrap_or_else(|| " earlier".into()))]
    DeviceLost {
        /// The kernel or step in flight; `None` when it was lost by an earlier call.
        during: Option<String>,
    },
    /// The device was not done with some work within the time that waits are given.
    #[error("the device did not finish `{during}` within {} s", .limit.as_secs_f64())]
    TimedOut {
        /// The kernels or the step in flight.
        during: String,
        /// How long a wait may take; see [`RuntimeOptions::timeout`](crate::runtime::RuntimeOptions::timeout).
        limit: Duration,
    },
    /// Somebody who watched the work stopped it; see [`Execution::watch`](crate::runtime::Execution::watch).
    #[error("cancelled")]
    Cancelled,
    /// The device does not run a kernel as required.
    #[error("{device} cannot run this: {reason}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What is lacking.
        reason: String,
    },
    /// A Vulkan call failed in a way that no other kind names.
    #[error("Vulkan: {call} failed: {code}")]
    Vulkan {
        /// The call.
        call: &'static str,
        /// Its result code.
        code: String,
    },
}

impl Error {
    /// Whether the fault lies in what the caller passed in rather than in device or environment.
    pub fn is_input(&self) -> bool {
        matches!(
            self,
            Self::MissingArray { .. }
                | Self::Shape { .. }
                | Self::Dtype { .. }
                | Self::Layout { .. }
                | Self::Parameter { .. }
                | Self::Index { .. }
                | Self::Slang { .. }
                | Self::UserKernel { .. }
                | Self::TooLarge { .. }
        )
    }

    /// A short, stable word for the kind, as the command line's JSON reports it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MissingArray { .. } => "missing-array",
            Self::Shape { .. } => "shape",
            Self::Dtype { .. } => "dtype",
            Self::Layout { .. } => "layout",
            Self::Parameter { .. } => "parameter",
            Self::Index { .. } => "index",
            Self::Slang { .. } => "slang",
            Self::UserKernel { .. } => "user-kernel",
            Self::TooLarge { .. } => "too-large",
            Self::TensorTooLarge { .. } => "tensor-too-large",
            Self::NoLoader(_) => "no-loader",
            Self::NoDriver(_) => "no-driver",
            Self::NoDevice { .. } => "no-device",
            Self::MissingFeatures { .. } => "missing-features",
            Self::NoValidationLayer(_) => "no-validation-layer",
            Self::Validation(_) => "validation",
            Self::OutOfMemory { .. } => "out-of-memory",
            Self::HeapFull { .. } => "heap-full",
            Self::DeviceLost { .. } => "device-lost",
            Self::TimedOut { .. } => "timed-out",
            Self::Cancelled => "cancelled",
            Self::Unsupported { .. } => "unsupported",
            Self::Vulkan { .. } => "vulkan",
        }
    }
}

/// A device that was not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The device's name.
    pub device: String,
    /// What it lacks, or why another was preferred.
    pub reason: String,
}

struct RejectedList<'a>(&'a [Rejected]);

impl fmt::Display for RejectedList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(
                "the drivers found none (install a GPU's driver; for software: Mesa's lavapipe)",
            );
        }
        for (i, Rejected { device, reason }) in self.0.iter().enumerate() {
            write!(f, "{}{device}: {reason}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

struct Sizes(Option<u64>, Option<u64>);

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(asked, available) = self;
        if let Some(asked) = asked {
            write!(f, ": asked for {asked} bytes")?;
        }
        match available {
            Some(available) => write!(f, ", {available} available"),
            None => Ok(()),
        }
    }
}

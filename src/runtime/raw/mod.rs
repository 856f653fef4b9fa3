//! Every Vulkan handle and every call of Vulkan.
//!
//! Each type owns its handles or, where the runtime is embedded, leaves a caller's as they are; it keeps alive what they
//! depend on, and gives out nothing of `ash` beyond this module. The rules that Vulkan leaves to its callers are kept by the types where they can be, and named in each `SAFETY` comment
//! where they rest on the runtime above.

mod buffer;
mod command;
mod descriptor;
mod device;
pub(crate) mod embed;
mod executable;
mod faults;
mod instance;
mod matrices;
mod physical;
mod pipeline;
mod query;
mod requirements;
mod timeline;

use ash::vk;

pub(super) use buffer::{Buffer, Memory};
pub(super) use command::Commands;
pub(super) use descriptor::{Descriptors, PUSH_BYTES};
pub(super) use device::Device;
pub use faults::{Fault, Faults};
pub(super) use instance::Instance;
pub(super) use matrices::LANES as MATRIX_LANES;
pub(super) use physical::Physical;
pub(super) use pipeline::{Pipeline, PipelineCache, PipelineDesc};
pub(super) use query::Queries;
pub(super) use requirements::{capabilities, matrix_capabilities};
pub(super) use timeline::Timeline;

use crate::error::{Error, Result};

/// The error for a failed call.
fn failed(call: &'static str, code: vk::Result) -> Error {
    let out_of =
        |place| Error::OutOfMemory { place, what: call.into(), asked: None, available: None };
    match code {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost { during: None },
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => out_of("host"),
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => out_of("device"),
        _ => Error::Vulkan { call, code: format!("{code:?}") },
    }
}

/// Names the call in the error of a result.
trait Named<T> {
    fn named(self, call: &'static str) -> Result<T>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|code| failed(call, code))
    }
}

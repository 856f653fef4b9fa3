//! What drivers tell of the pipelines that they made.

use std::ffi::CStr;

use ash::{khr, vk};

use super::Named;
use crate::error::Result;
use crate::runtime::info::Statistic;

/// The way to ask.
pub(super) struct Executables(khr::pipeline_executable_properties::Device);

/// The extension by which a device can be asked.
pub(super) const EXTENSION: &CStr = khr::pipeline_executable_properties::NAME;

/// Its feature.
pub(super) type Features = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR<'static>;

/// Whether a device that has the extension has its feature.
///
/// # Safety
/// The device has the extension and is of Vulkan 1.1 at least; the handle comes from this instance.
pub(super) unsafe fn offered(instance: &ash::Instance, handle: vk::PhysicalDevice) -> bool {
    let mut offered = Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut offered);
    // SAFETY: the caller's promise.
    unsafe { instance.get_physical_device_features2(handle, &mut features) };
    offered.pipeline_executable_info == vk::TRUE
}

impl Executables {
    /// For a device that was made with the extension and its feature.
    pub(super) fn new(instance: &ash::Instance, device: &ash::Device) -> Self {
        Self(khr::pipeline_executable_properties::Device::new(instance, device))
    }

    /// The statistics of a pipeline.
    ///
    /// # Safety
    /// The pipeline is the device's, and was made with `CAPTURE_STATISTICS`.
    pub(super) unsafe fn statistics(&self, pipeline: vk::Pipeline) -> Result<Vec<Statistic>> {
        let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
        // SAFETY: the caller's promise, as below.
        let parts = unsafe { self.0.get_pipeline_executable_properties(&info) }
            .named("vkGetPipelineExecutablePropertiesKHR")?;
        let mut all = Vec::new();
        for part in 0..parts.len() as u32 {
            let info =
                vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(part);
            // SAFETY: as above, and there are as many parts.
            let found = unsafe { self.0.get_pipeline_executable_statistics(&info) }
                .named("vkGetPipelineExecutableStatisticsKHR")?;
            all.extend(found.iter().map(statistic));
        }
        Ok(all)
    }
}

fn statistic(found: &vk::PipelineExecutableStatisticKHR<'_>) -> Statistic {
    use vk::PipelineExecutableStatisticFormatKHR as Format;
    let name = found.name_as_c_str().map(CStr::to_string_lossy).unwrap_or_default().into_owned();
    // SAFETY: the format says which of the union's fields the driver wrote; all bits of the others are numbers too.
    let value = unsafe {
        match found.format {
            Format::BOOL32 => f64::from(found.value.b32),
            Format::INT64 => found.value.i64 as f64,
            Format::FLOAT64 => found.value.f64,
            _ => found.value.u64 as f64,
        }
    };
    Statistic { name, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        use vk::PipelineExecutableStatisticFormatKHR as Format;
        use vk::PipelineExecutableStatisticValueKHR as Value;
        for (format, value, expected) in [
            (Format::BOOL32, Value { b32: vk::TRUE }, 1.0),
            (Format::INT64, Value { i64: -3 }, -3.0),
            (Format::UINT64, Value { u64: 255 }, 255.0),
            (Format::FLOAT64, Value { f64: 0.5 }, 0.5),
        ] {
            let found = vk::PipelineExecutableStatisticKHR::default().format(format).value(value);
            let found = found.name(c"Register Count").unwrap();
            assert_eq!(
                statistic(&found),
                Statistic { name: "Register Count".into(), value: expected }
            );
        }
    }
}

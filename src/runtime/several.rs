//! Several devices at once.

use super::{DeviceSelector, Runtime, RuntimeOptions, devices, select};
use crate::error::Result;

impl Runtime {
    /// Opens every suitable device, in the loader's order: all GPUs, or all software drivers where there is no GPU. A device
    /// that two drivers offer is taken once. Of the options, `device` is ignored.
    ///
    /// They are opened one after the other, as drivers have been seen to hang where several threads open devices.
    ///
    /// # Errors
    /// As [`Runtime::new`], also when a single one cannot be opened.
    pub fn all(options: &RuntimeOptions) -> Result<Vec<Self>> {
        let devices = devices(options.validation)?;
        let indices = select::all(&devices)?;
        let open = |index| {
            Self::new(&RuntimeOptions { device: DeviceSelector::Index(index), ..options.clone() })
        };
        let runtimes = indices.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        if let [first, ..] = &runtimes[..]
            && first.device().software()
        {
            tracing::warn!(
                "{} computes on the CPU, in software: there is no GPU",
                first.device().name
            );
        }
        Ok(runtimes)
    }

    /// Whether the same work gives the same bits on another device, as far as can be told: device and driver have the same
    /// names and versions, and subgroups the same size.
    pub fn is_like(&self, other: &Self) -> bool {
        let kind = |runtime: &Self| {
            let info = runtime.device();
            let driver = (info.driver.clone(), info.driver_version.clone());
            (info.name.clone(), driver, runtime.lanes(), info.float_controls)
        };
        kind(self) == kind(other)
    }
}

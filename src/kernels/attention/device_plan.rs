//! A plan on the device.

use super::Plan;
use crate::error::Result;
use crate::host::HostTensor;
use crate::runtime::{Runtime, Tensor};

/// A [`Plan`] with its words on the device: uploaded once, used by any number of calls.
#[derive(Debug, Clone)]
pub struct DevicePlan {
    pub(super) plan: Plan,
    pub(super) metadata: Tensor,
    pub(super) inverse: Tensor,
    pub(super) units: Tensor,
    pub(super) inactive_pages: Tensor,
    pub(super) row_units: Tensor,
}

impl DevicePlan {
    /// Uploads the plan's words.
    ///
    /// # Errors
    /// What allocation and transfer report.
    pub fn upload(runtime: &Runtime, plan: Plan) -> Result<Self> {
        let words =
            |name, words: &[u32]| runtime.upload(name, &HostTensor::from_words(words.to_vec()));
        let [metadata, inverse, units, inactive_pages, row_units] = plan.parts();
        Ok(Self {
            metadata: words(metadata.0, metadata.1)?,
            inverse: words(inverse.0, inverse.1)?,
            units: words(units.0, units.1)?,
            inactive_pages: words(inactive_pages.0, inactive_pages.1)?,
            row_units: words(row_units.0, row_units.1)?,
            plan,
        })
    }

    /// The plan that was uploaded.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

//! What a call launches, known before there is a device to launch it on.

use bytemuck::Pod;

use crate::error::Result;
use crate::manifest::Kernel;
use crate::runtime::{Access, Load, Recorder, Runtime};

/// One launch of a kernel.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// The bits of its specialization constants, in the manifest's order.
    pub constants: Vec<u32>,
    /// Workgroups along x and y. A device that bounds an axis gets several dispatches; 0 launches nothing.
    pub groups: [usize; 2],
}

impl Launch {
    pub(super) fn record<P: Pod>(
        &self,
        recorder: &mut Recorder<'_>,
        push: impl FnOnce(&mut Access<'_>) -> P,
    ) -> Result<()> {
        // A few elements an invocation.
        self.record_loaded(recorder, || Load::Even(256), push)
    }

    /// As [`Launch::record`], with what the workgroups cost.
    pub(super) fn record_loaded<P: Pod>(
        &self,
        recorder: &mut Recorder<'_>,
        load: impl FnOnce() -> Load,
        push: impl FnOnce(&mut Access<'_>) -> P,
    ) -> Result<()> {
        // SAFETY: the kernel is one of this crate's, and the families' calls, which alone can get here, have held
        // every tensor's shape, type and layout against the geometry and the plan that the block is made of.
        unsafe {
            recorder.dispatch_loaded(self.kernel, &self.constants, self.groups, load, |access| {
                let block = push(access);
                access.refuse_overlaps();
                block
            })
        }
    }
}

/// What of a device shapes a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Invocations of a subgroup.
    pub lanes: u32,
    /// Most invocations of a workgroup.
    pub max_workgroup: u32,
}

impl Target {
    /// A common GPU, for when there is no device at hand.
    pub const TYPICAL: Self = Self { lanes: 32, max_workgroup: 1024 };

    /// That of a runtime's device.
    pub fn of(runtime: &Runtime) -> Self {
        let (lanes, limits) = (runtime.lanes(), &runtime.device().limits);
        let subgroups = limits.max_compute_workgroup_subgroups.saturating_mul(lanes);
        Self { lanes, max_workgroup: limits.max_compute_work_group_invocations.min(subgroups) }
    }
}

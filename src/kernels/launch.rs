//! What a call launches, known before there is a device to launch it on.

use bytemuck::Pod;

use crate::error::Result;
use crate::manifest::Kernel;
use crate::runtime::{Access, Load, Matrices, Recorder, Runtime};

/// One launch of a kernel.
#[derive(Debug, Clone)]
pub struct Launch {
    pub(crate) kernel: &'static Kernel,
    pub(crate) constants: Vec<u32>,
    pub(crate) groups: [usize; 2],
}

/// Makes the pipelines that these launches need and the runtime does not have yet, on several threads.
///
/// Recording a call does so for the launches of the call. Done ahead for several calls, it makes all at once, and leaves
/// the first of each with nothing to wait for:
///
/// ```no_run
/// use backslang::kernels::mamba3::preprocess::Geometry;
/// use backslang::kernels::mamba3::preprocess_backward::{self, Accumulate};
/// use backslang::kernels::{self, Target};
/// use backslang::runtime::Runtime;
/// use backslang::{Dtype, Result};
///
/// fn warm_up(runtime: &Runtime, layers: &[Geometry]) -> Result<()> {
///     let target = Target::of(runtime);
///     let mut launches = Vec::new();
///     for geometry in layers {
///         let none = Accumulate::default();
///         launches.extend(preprocess_backward::launches(geometry, Dtype::F32, none, target)?);
///     }
///     kernels::prepare(runtime, &launches)
/// }
/// ```
///
/// # Errors
/// As [`Runtime::prepare`].
pub fn prepare<'a>(
    runtime: &Runtime,
    launches: impl IntoIterator<Item = &'a Launch>,
) -> Result<()> {
    let launches = launches.into_iter().filter(|launch| !launch.groups.contains(&0));
    let kernels: Vec<_> = launches.map(|l| (l.kernel, &l.constants[..])).collect();
    // SAFETY: only this crate makes launches, of its own kernels with constants that they are valid with.
    unsafe { runtime.prepare(&kernels) }
}

impl Launch {
    /// The kernel.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// The bits of its specialization constants, in the manifest's order.
    pub fn constants(&self) -> &[u32] {
        &self.constants
    }

    /// Workgroups along x and y. A device that bounds an axis gets several dispatches; 0 launches nothing.
    pub fn groups(&self) -> [usize; 2] {
        self.groups
    }

    /// Dispatches that its grid comes to.
    pub fn dispatches(&self, target: Target) -> u64 {
        let [x, y] = [0, 1]
            .map(|axis| (self.groups[axis] as u64).div_ceil(target.max_groups[axis].max(1).into()));
        x.saturating_mul(y)
    }

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
    /// Bytes of groupshared memory that a workgroup may have.
    pub shared_bytes: u32,
    /// Most bytes that a kernel sees of a tensor at a time.
    pub max_binding: u64,
    /// Most workgroups of one dispatch along x and y.
    pub max_groups: [u32; 2],
    /// The matrices that its kernels multiply.
    pub matrices: Matrices,
}

impl Target {
    /// A common GPU, for when there is no device at hand.
    pub const TYPICAL: Self = Self {
        lanes: 32,
        max_workgroup: 1024,
        shared_bytes: 48 << 10,
        max_binding: (1 << 32) - 4,
        max_groups: [i32::MAX as u32, 65_535],
        matrices: Matrices::NONE,
    };

    /// That of a runtime's device.
    pub fn of(runtime: &Runtime) -> Self {
        let (lanes, limits) = (runtime.lanes(), &runtime.device().limits);
        let subgroups = limits.max_compute_workgroup_subgroups.saturating_mul(lanes);
        Self {
            lanes,
            max_workgroup: limits.max_compute_work_group_invocations.min(subgroups),
            shared_bytes: limits.max_compute_shared_memory_size,
            max_binding: runtime.largest_binding(),
            max_groups: [0, 1].map(|axis| limits.max_compute_work_group_count[axis]),
            matrices: runtime.device().matrices,
        }
    }
}

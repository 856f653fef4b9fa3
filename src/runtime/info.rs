//! What the crate knows of a Vulkan device.

use std::borrow::Cow;
use std::fmt;

use super::raw::MATRIX_LANES;
use crate::host::Dtype;

/// A Vulkan device as its driver describes it, usable or not.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its place in the loader's list.
    pub index: usize,
    /// The device's name.
    pub name: String,
    /// Its UUID, the same in every process until the driver changes.
    pub uuid: [u8; 16],
    /// The UUID of the driver: another build of it has another one.
    pub driver_uuid: [u8; 16],
    /// The UUID of the pipelines that the driver keeps: with another one it cannot read them.
    pub pipeline_cache_uuid: [u8; 16],
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// The driver's name.
    pub driver: String,
    /// The driver's version, as it words it.
    pub driver_version: String,
    /// The Vulkan version: major, minor, patch.
    pub api_version: [u32; 3],
    /// The subgroup size that the driver prefers.
    pub subgroup_size: u32,
    /// The smallest and the largest subgroup size that a kernel may ask for.
    pub subgroup_sizes: [u32; 2],
    /// Limits that bear on kernels and tensors.
    pub limits: Limits,
    /// How exactly f32 arithmetic can be pinned down.
    pub float_controls: FloatControls,
    /// The matrices that kernels may have it multiply.
    pub matrices: Matrices,
    /// Bytes of the largest device-local memory heap.
    pub memory: u64,
    /// Whether its compute queue can time kernels.
    pub timestamps: bool,
    /// What the runtime needs and the device lacks; empty when the device is usable.
    pub lacks: Vec<String>,
}

impl DeviceInfo {
    /// Whether the runtime can use the device.
    pub fn usable(&self) -> bool {
        self.lacks.is_empty()
    }

    /// Whether the "device" is a driver that computes on the CPU.
    pub fn software(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }

    /// The UUID as text: `01020304-0506-0708-090a-0b0c0d0e0f10`.
    pub fn uuid_text(&self) -> String {
        let mut text = String::with_capacity(36);
        for (i, byte) in self.uuid.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

/// What sort of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU handed through to a virtual machine.
    Virtual,
    /// Something else.
    Other,
    /// Software on the CPU.
    Cpu,
}

impl DeviceKind {
    /// The kind in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Other => "other",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Limits of a device, under their Vulkan names.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes that one storage-buffer binding, hence one tensor, may span.
    pub max_storage_buffer_range: u64,
    /// Bytes of the largest buffer.
    pub max_buffer_size: u64,
    /// Bytes of the largest memory allocation.
    pub max_memory_allocation_size: u64,
    /// Alignment of a storage buffer's offset in bytes.
    pub min_storage_buffer_offset_alignment: u64,
    /// Workgroups of one dispatch along x, y and z.
    pub max_compute_work_group_count: [u32; 3],
    /// Invocations of one workgroup.
    pub max_compute_work_group_invocations: u32,
    /// Invocations of one workgroup along x, y and z.
    pub max_compute_work_group_size: [u32; 3],
    /// Subgroups of one workgroup.
    pub max_compute_workgroup_subgroups: u32,
    /// Bytes of memory that a workgroup shares.
    pub max_compute_shared_memory_size: u32,
    /// Bytes of push constants.
    pub max_push_constants_size: u32,
    /// Storage buffers that one update-after-bind heap holds.
    pub max_heap_slots: u32,
}

/// Which promises about f32 arithmetic the device makes on request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FloatControls {
    /// Signed zeros, infinities and NaN are kept.
    pub signed_zero_inf_nan_preserve: bool,
    /// Subnormals are kept.
    pub denorm_preserve: bool,
    /// Results are rounded to nearest even.
    pub rounding_mode_rte: bool,
    /// The denorm mode of 32-bit floats may differ from that of other widths.
    pub denorm_independent: bool,
    /// The rounding mode of 32-bit floats may differ from that of other widths.
    pub rounding_independent: bool,
}

/// Of which element types a device multiplies matrices of 16 × 16, a subgroup of 32 invocations at a time, and sums in
/// f32: `VK_KHR_cooperative_matrix`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matrices {
    /// Of f16.
    pub f16: bool,
    /// Of bf16.
    pub bf16: bool,
}

impl Matrices {
    /// None.
    pub const NONE: Self = Self { f16: false, bf16: false };

    /// Those of the kernels' forms for tests.
    #[cfg(feature = "forms")]
    pub(super) const EMULATED: Self = Self { f16: true, bf16: true };

    /// Whether there are any.
    pub fn any(self) -> bool {
        self.f16 || self.bf16
    }

    /// Whether there are those of this element type.
    pub fn of(self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::F16 => self.f16,
            Dtype::Bf16 => self.bf16,
            _ => false,
        }
    }

    /// Those that subgroups of so many invocations multiply.
    pub(super) fn in_subgroups_of(self, lanes: u32) -> Self {
        if lanes == MATRIX_LANES { self } else { Self::default() }
    }

    /// Those that are here and there.
    pub(super) fn and(self, other: Self) -> Self {
        Self { f16: self.f16 && other.f16, bf16: self.bf16 && other.bf16 }
    }

    /// The element types' names.
    pub fn names(self) -> Vec<&'static str> {
        let types = [Dtype::F16, Dtype::Bf16].into_iter();
        types.filter(|dtype| self.of(*dtype)).map(Dtype::name).collect()
    }
}

/// What a driver tells of a pipeline that it made; see [`RuntimeOptions::pipeline_statistics`](super::RuntimeOptions).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PipelineStatistics {
    /// The kernel's name.
    pub kernel: Cow<'static, str>,
    /// In the driver's order.
    pub statistics: Vec<Statistic>,
}

/// A number that a driver tells of a pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistic {
    /// What the driver calls it, such as `Register Count`.
    pub name: String,
    /// Its value; of a yes or no 1 or 0.
    pub value: f64,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A usable device for tests of pure logic.
    pub(in crate::runtime) fn device(index: usize, name: &str, kind: DeviceKind) -> DeviceInfo {
        DeviceInfo {
            index,
            name: name.into(),
            uuid: [index as u8; 16],
            driver_uuid: [index as u8; 16],
            pipeline_cache_uuid: [index as u8; 16],
            kind,
            driver: "driver".into(),
            driver_version: "1".into(),
            api_version: [1, 3, 0],
            subgroup_size: 32,
            subgroup_sizes: [32, 32],
            limits: Limits::default(),
            float_controls: FloatControls::default(),
            matrices: Matrices::default(),
            memory: 1 << 30,
            timestamps: true,
            lacks: Vec::new(),
        }
    }

    #[test]
    fn uuid_reads_as_usual() {
        let mut info = device(0, "a", DeviceKind::Discrete);
        info.uuid = std::array::from_fn(|i| i as u8 + 1);
        assert_eq!(info.uuid_text(), "01020304-0506-0708-090a-0b0c0d0e0f10");
    }
}

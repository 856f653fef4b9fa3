//! Checks on the device what its driver claims, with a tiny kernel.

use bytemuck::{Pod, Zeroable};

use super::Runtime;
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::manifest::{Axis, Constant, Kernel, PushField, Scalar};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    first_group_x: u32,
    first_group_y: u32,
    target_index: u32,
}

static PROBE: Kernel = Kernel {
    name: "subgroup_probe",
    dtype: "u32",
    domain: "runtime",
    variant: "probe",
    status: "stable",
    source: "runtime/subgroup_probe.slang",
    entry_point: "main",
    spirv: include_bytes!("subgroup_probe.spv"),
    workgroup_size: [Axis::Constant(0), Axis::Fixed(1), Axis::Fixed(1)],
    push_size: 12,
    push_fields: &[
        PushField { name: "first_group_x", offset: 0, kind: Scalar::U32 },
        PushField { name: "first_group_y", offset: 4, kind: Scalar::U32 },
        PushField { name: "target_index", offset: 8, kind: Scalar::U32 },
    ],
    constants: &[Constant { name: "lanes", id: 0, kind: Scalar::U32, default: 32 }],
};

/// Runs one subgroup and compares its real size with the one that pipelines are made for.
pub(super) fn subgroup(runtime: &Runtime) -> Result<()> {
    let lanes = runtime.lanes();
    let sizes = runtime.tensor("subgroup sizes", Dtype::U32, &[lanes as usize])?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&sizes, 0)?;
    recorder.dispatch(&PROBE, &[lanes], [1, 1], |access| Push {
        first_group_x: 0,
        first_group_y: 0,
        target_index: access.write(&sizes),
    })?;
    recorder.submit()?.wait()?;
    let mut found = vec![0u32; lanes as usize];
    runtime.read(&sizes, bytemuck::cast_slice_mut(&mut found))?;
    match found.into_iter().find(|&size| size != lanes) {
        None => Ok(()),
        Some(size) => Err(Error::Unsupported {
            device: runtime.device().name.clone(),
            reason: format!("its subgroups have {size} invocations where {lanes} were required"),
        }),
    }
}

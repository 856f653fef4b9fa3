//! Checks on the device what its driver claims, with a tiny kernel.

use super::{Access, Recorder, Runtime, Tensor};
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::manifest::subgroup_probe::{Constants, Push, U32};

/// Runs one subgroup and compares its real size with the one that pipelines are made for.
pub(super) fn subgroup(runtime: &Runtime) -> Result<()> {
    let lanes = runtime.lanes();
    let sizes = runtime.tensor("subgroup sizes", Dtype::U32, &[lanes as usize])?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&sizes, 0)?;
    record(&mut recorder, &sizes)?;
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

/// Records one subgroup that writes its size for each invocation: the smallest dispatch there is.
pub(super) fn record(recorder: &mut Recorder<'_>, sizes: &Tensor) -> Result<()> {
    let lanes = recorder.runtime().lanes();
    if sizes.bytes() != 4 * u64::from(lanes) || !sizes.is_dense() {
        let (expected, found) = (format!("{lanes} words"), format!("{sizes:?}"));
        return Err(Error::Parameter { name: "tensor", expected, found });
    }
    let constants = Constants { lanes }.words();
    let push =
        |access: &mut Access<'_>| Push { target_index: access.write(sizes), ..<_>::default() };
    // SAFETY: the kernel writes one word an invocation, of which there are `lanes`.
    unsafe { recorder.dispatch(&U32, &constants, [1, 1], push) }
}

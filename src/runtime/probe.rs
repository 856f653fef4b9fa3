//! Checks on the device what its driver claims, with a tiny kernel.

use super::{Access, Recorder, Runtime, Tensor};
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::manifest::subgroup_probe::{Constants, Push, U32};
use crate::manifest::{Kernel, matrix_probe};

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

/// Words of a matrix of halves.
const MATRIX_WORDS: usize = 128;

/// Whether an accumulator's elements lie where those of a left operand of this type do.
pub(super) fn copies_elements(runtime: &Runtime, dtype: Dtype) -> Result<bool> {
    let half: fn(f32) -> u16 = match dtype {
        Dtype::Bf16 => |value| half::bf16::from_f32(value).to_bits(),
        _ => |value| half::f16::from_f32(value).to_bits(),
    };
    let kernel: &'static Kernel = match dtype {
        Dtype::Bf16 => &matrix_probe::BF16,
        _ => &matrix_probe::F16,
    };
    let words = runtime.tensor("matrix elements", Dtype::U32, &[MATRIX_WORDS])?;
    let constants = matrix_probe::Constants { lanes: runtime.lanes(), copies_elements: true };
    let mut recorder = runtime.recorder()?;
    let push = |access: &mut Access<'_>| matrix_probe::Push {
        target_index: access.write(&words),
        ..<_>::default()
    };
    // SAFETY: the kernel writes as many words.
    unsafe { recorder.dispatch(kernel, &constants.words(), [1, 1], push) }?;
    recorder.submit()?.wait()?;
    let mut found = [0u32; MATRIX_WORDS];
    runtime.read(&words, bytemuck::cast_slice_mut(&mut found))?;
    let numbers = (0..2 * MATRIX_WORDS as u16).map(f32::from).map(half);
    let found = found.into_iter().flat_map(|word| [word as u16, (word >> 16) as u16]);
    let copies = numbers.eq(found);
    tracing::debug!(dtype = dtype.name(), copies, "elements of matrices");
    Ok(copies)
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

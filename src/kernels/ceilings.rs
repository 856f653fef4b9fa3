//! What a device can do at most, for kernels to be held against: `backslang bench` measures it beside them.

use super::{Launch, Target, expect_tensor};
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::manifest::{bench_copy, bench_multiply};
use crate::runtime::{Recorder, Runtime, Tensor};

/// Invocations of a workgroup that multiplies, and of one that copies where the device has as many.
const WORKGROUP: u32 = 256;
/// Rows and columns of a product that a workgroup owns: what a matrix has is a multiple of it.
pub const TILE: usize = 128;

/// Records a copy of words, 16 bytes an invocation.
///
/// # Errors
/// Tensors that are not equally many words, a multiple of 4, that one binding shows; what pipeline creation reports.
pub fn copy(recorder: &mut Recorder<'_>, source: &Tensor, target: &Tensor) -> Result<()> {
    expect_tensor("source", source, Dtype::U32, source.shape())?;
    expect_tensor("target", target, Dtype::U32, source.shape())?;
    let words = (source.bytes() / 4) as usize;
    if !(words.is_multiple_of(4) && source.is_root() && target.is_root()) {
        let expected = "whole tensors of a multiple of 4 words".into();
        return Err(Error::Parameter { name: "source", expected, found: format!("{source:?}") });
    }
    let quads = narrow("quads", words / 4)?;
    let Target { lanes, max_workgroup, .. } = Target::of(recorder.runtime());
    let threads = WORKGROUP.min(max_workgroup);
    let groups = [(words / 4).div_ceil(threads as usize), 1];
    let constants = vec![lanes, threads];
    let launch = Launch { kernel: &bench_copy::U32, constants, groups };
    launch.record(recorder, |access| bench_copy::Push {
        source_index: access.read(source),
        target_index: access.write(target),
        quads,
        ..<_>::default()
    })
}

/// Whether [`multiply`] runs: not where workgroups are small.
pub fn multiplies(runtime: &Runtime) -> bool {
    Target::of(runtime).max_workgroup >= WORKGROUP
}

/// Records `c = a · b` in f32, of square matrices of a multiple of [`TILE`] rows.
///
/// # Errors
/// Matrices of other sizes or types; what pipeline creation reports.
pub fn multiply(recorder: &mut Recorder<'_>, a: &Tensor, b: &Tensor, c: &Tensor) -> Result<()> {
    let size = a.shape().first().copied().unwrap_or(0);
    for (name, tensor) in [("a", a), ("b", b), ("c", c)] {
        expect_tensor(name, tensor, Dtype::F32, &[size, size])?;
        if !size.is_multiple_of(TILE) || !tensor.is_root() {
            let expected = format!("a whole tensor of a multiple of {TILE} rows");
            return Err(Error::Parameter { name, expected, found: format!("{tensor:?}") });
        }
    }
    let launch = Launch {
        kernel: &bench_multiply::F32,
        constants: vec![recorder.runtime().lanes()],
        groups: [size / TILE; 2],
    };
    let size = narrow("rows", size)?;
    launch.record(recorder, |access| bench_multiply::Push {
        a_index: access.read(a),
        b_index: access.read(b),
        c_index: access.write(c),
        size,
        ..<_>::default()
    })
}

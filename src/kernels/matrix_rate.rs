//! The rate at which a device multiplies matrices of halves, for kernels to be held against.

use super::{Launch, expect_tensor, for_dtype};
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::manifest::matrix_rate;
use crate::runtime::{Recorder, Tensor};

/// Rows and columns of a product that a workgroup owns: what a matrix has is a multiple of it.
pub const TILE: usize = 128;
/// Rows and columns that are summed over: a multiple of it.
pub const STEP: usize = 32;

/// Subgroups of a workgroup.
const SUBGROUPS: u32 = 4;

/// Records `c = a · b`: `a` [rows, depth] and `b` [depth, columns] of f16 or bf16, `c` [rows, columns] of f32.
///
/// # Errors
/// Matrices of other sizes or types; what pipeline creation reports, such as [`Error::Unsupported`] of a device that does
/// not multiply matrices.
pub fn multiply(recorder: &mut Recorder<'_>, a: &Tensor, b: &Tensor, c: &Tensor) -> Result<()> {
    let size = |tensor: &Tensor, axis| tensor.shape().get(axis).copied().unwrap_or(0);
    let (rows, depth, columns) = (size(a, 0), size(a, 1), size(b, 1));
    expect_tensor("a", a, a.dtype(), &[rows, depth])?;
    expect_tensor("b", b, a.dtype(), &[depth, columns])?;
    expect_tensor("c", c, Dtype::F32, &[rows, columns])?;
    for (name, tensor) in [("a", a), ("b", b), ("c", c)] {
        let whole = [(rows, TILE), (columns, TILE), (depth, STEP)];
        if !tensor.is_root() || whole.iter().any(|(size, of)| !size.is_multiple_of(*of)) {
            let expected = format!(
                "a whole tensor, its rows and columns multiples of {TILE}, or of {STEP} where summed over"
            );
            return Err(Error::Parameter { name, expected, found: format!("{tensor:?}") });
        }
    }
    let launch = Launch {
        kernel: for_dtype(&matrix_rate::F16, "a", a.dtype())?,
        constants: constants(recorder).words(),
        groups: [columns / TILE, rows / TILE],
    };
    let (columns, depth) = (narrow("columns", columns)?, narrow("depth", depth)?);
    launch.record(recorder, |access| matrix_rate::Push {
        a_index: access.read(a),
        b_index: access.read(b),
        c_index: access.write(c),
        columns,
        depth,
        ..<_>::default()
    })
}

/// Steps as deep as the shared memory lets them be.
fn constants(recorder: &Recorder<'_>) -> matrix_rate::Constants {
    let runtime = recorder.runtime();
    let lanes = runtime.lanes();
    let bytes = |depth: u32| {
        let rows_of_a = TILE as u32 * (depth / 8 + 1);
        let rows_of_b = depth * (TILE as u32 / 8 + 1);
        16 * (rows_of_a + rows_of_b) + SUBGROUPS * 16 * 16 * 4
    };
    let fits = bytes(32) <= runtime.device().limits.max_compute_shared_memory_size;
    matrix_rate::Constants {
        lanes,
        workgroup_size: SUBGROUPS * lanes,
        step_depth: if fits { 32 } else { 16 },
        copies_elements: false,
    }
}

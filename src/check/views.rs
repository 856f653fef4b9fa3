//! Tensors whose rows lie apart, as slices of a packed array do.

use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::runtime::{Recorder, Runtime, Tensor};

/// A copy of the host's `[rows, n, …]` that is `[.., 1..]` of a `[rows, 1 + n, …]`, with NaN before each row.
pub(super) fn upload(runtime: &Runtime, name: &str, host: &HostTensor) -> Result<Tensor> {
    let shape = with_gap(host.shape());
    let mut wide = HostTensor::zeros(host.dtype(), &shape);
    let row = |tensor: &HostTensor| tensor.bytes().len() / shape[0].max(1);
    let (narrow_row, wide_row) = (row(host), row(&wide));
    // NaN in every type.
    wide.bytes_mut().fill(0xff);
    let rows = wide.bytes_mut().chunks_exact_mut(wide_row.max(1));
    for (wide, row) in rows.zip(host.bytes().chunks_exact(narrow_row.max(1))) {
        wide[wide_row - narrow_row..].copy_from_slice(row);
    }
    runtime.upload(name, &wide)?.narrow(1, 1..shape[1])
}

/// Memory for a result that lies like that, filled with `poison`, the gaps too.
pub(super) fn filled(
    recorder: &mut Recorder<'_>,
    name: &str,
    dtype: Dtype,
    shape: &[usize],
    poison: u32,
) -> Result<Tensor> {
    let shape = with_gap(shape);
    let wide = recorder.runtime().tensor(name, dtype, &shape)?;
    recorder.fill(&wide, poison)?;
    wide.narrow(1, 1..shape[1])
}

fn with_gap(shape: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().map(|(axis, &length)| length + usize::from(axis == 1)).collect()
}

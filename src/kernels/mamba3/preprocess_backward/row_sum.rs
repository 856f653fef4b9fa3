//! The sum over rows of the dt_bias terms.

use crate::error::Result;
use crate::kernels::index_range::narrow;
use crate::kernels::{Launch, Layout};
use crate::manifest::mamba3_dt_bias_gradient;
use crate::runtime::{Recorder, Tensor};

/// `target[c, h] = Σ source[r, h]` over the rows `r` of chunk `c`, in increasing order.
pub(super) struct RowSum {
    pub(super) rows: usize,
    pub(super) heads: usize,
    pub(super) chunk_rows: usize,
}

impl RowSum {
    pub(super) fn record(
        &self,
        recorder: &mut Recorder<'_>,
        launch: &Launch,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<()> {
        use mamba3_dt_bias_gradient::Push;
        let (from, part_rows) = Layout::from(source).parts("dt_bias_partial", 1)?;
        let to = Layout::from(target).rows("dt_bias_gradient", 1)?;
        let push = Push {
            rows: narrow("rows", self.rows)?,
            heads: narrow("heads", self.heads)?,
            chunk_rows: narrow("rows of a chunk", self.chunk_rows)?,
            source_first: from.first,
            source_stride: from.stride,
            source_part_rows: part_rows,
            target_first: to.first,
            ..Push::default()
        };
        launch.record(recorder, |access| Push {
            source_index: access.read_parts(source),
            target_index: access.write(target),
            ..push
        })
    }
}

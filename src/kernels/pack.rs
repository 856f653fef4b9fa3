//! Rounding of f32 scratch into a tensor of halves, where rows are no whole number of words.

use super::{Launch, Layout, Target, for_dtype};
use crate::error::Result;
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::manifest::pack;
use crate::runtime::{Recorder, Tensor};

/// The kernel.
pub(super) const NAME: &str = pack::F16.name;

/// Elements of an invocation.
const ELEMENTS: usize = 8;

/// Packs `elements` elements into a tensor of `dtype`, called `array`, or adds them to what it holds.
pub(super) fn launch(
    array: &str,
    dtype: Dtype,
    elements: usize,
    accumulate: bool,
    target: Target,
) -> Result<Launch> {
    Ok(Launch {
        kernel: for_dtype(&pack::F16, array, dtype)?,
        constants: pack::Constants { lanes: target.lanes, accumulate }.words(),
        groups: [elements.div_ceil(ELEMENTS * target.lanes as usize), 1],
    })
}

/// Records a launch of [`launch`] onto a tensor called `array`.
pub(super) fn record(
    recorder: &mut Recorder<'_>,
    launch: &Launch,
    source: &Tensor,
    (array, target): (&'static str, &Tensor),
) -> Result<()> {
    use pack::Push;
    Layout::from(target).expect_dense(array)?;
    Layout::from(source).expect_dense(array)?;
    let push = Push {
        elements: narrow("elements to pack", (source.bytes() / 4) as usize)?,
        ..Push::default()
    };
    launch.record(recorder, |access| Push {
        source_index: access.read(source),
        target_index: access.write(target),
        ..push
    })
}

//! A checked call, and the launches that it comes to.

use super::super::{ForwardInputs, Geometry, History, Options, Plan};
use super::split::Split;
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Target, expect_dtype, expect_tensor, for_dtype};
use crate::manifest::{paged_attention, paged_attention_merge};
use crate::runtime::{Runtime, Tensor};

/// One checked call.
pub(super) struct Call {
    pub(super) geometry: Geometry,
    pub(super) options: Options,
    pub(super) split: Split,
    /// Of all arrays but the statistics, which are f32.
    dtype: Dtype,
    q: Rows,
    /// Without positions those of `q`.
    q_position: Rows,
    output: Rows,
}

/// The inner axes of what may be a view: [heads, dim].
const ROW: usize = 2;

/// What a launch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The results, or what the chunks of a row come to.
    Attend,
    /// The results from the chunks.
    Merge,
}

impl Call {
    /// `output` is where the output lies; `None` for memory of its own. `split` is that of the call which this one is a
    /// part of; `None` for the call's own.
    pub(super) fn new(
        inputs: &ForwardInputs<Layout<'_>>,
        output: Option<Layout<'_>>,
        plan: &Plan,
        options: &Options,
        split: Option<Split>,
    ) -> Result<Self> {
        let dtype = inputs.q.dtype();
        for_dtype(&paged_attention::F32, "q", dtype)?;
        inputs.try_map(|name, layout| expect_dtype(name, layout.dtype(), dtype))?;
        let geometry = Geometry::of_forward(&inputs.map(|_, layout| layout.shape()))?;
        options.check()?;
        plan.check_call("paged-attention", &geometry, options.causal)?;
        let q = inputs.q.rows("q", ROW)?;
        let q_position = match inputs.history {
            History::Separate { k, v } => {
                k.expect_dense("k")?;
                v.expect_dense("v")?;
                q
            }
            History::Latent { latent, q_position, k_position } => {
                latent.expect_dense("latent")?;
                k_position.expect_dense("k_position")?;
                q_position.rows("q_position", ROW)?
            }
        };
        let shape = geometry.output_shape();
        Ok(Self {
            geometry,
            options: *options,
            split: split.unwrap_or_else(|| Split::of(&geometry, plan, options)),
            dtype,
            q,
            q_position,
            output: output_rows(&output.unwrap_or(Layout::dense(&shape, dtype)), &shape, dtype)?,
        })
    }

    /// Whether the statistics are those of this call.
    pub(super) fn check_statistics(&self, statistics: &Tensor) -> Result<()> {
        let shape = self.geometry.forward_statistics_shape();
        expect_tensor("statistics", statistics, Dtype::F32, &shape)
    }

    /// Whether results pass through f32 scratch: those of chunks do, and rows of halves that are no whole number of
    /// words, as two subgroups would share a word.
    pub(super) fn is_partial(&self) -> bool {
        self.split.chunks > 1 || (self.dtype.is_half() && self.geometry.value_dim % 2 == 1)
    }

    /// Names and shapes of the scratch, all f32: the sums of the values, and the statistics, of each chunk.
    pub(super) fn scratch(&self) -> [(&'static str, [usize; 4]); 2] {
        let Geometry { queries, heads, value_dim, .. } = self.geometry;
        let chunks = self.split.chunks;
        [
            ("chunk_sums", [queries, heads, chunks, value_dim]),
            ("chunk_statistics", [queries, heads, chunks, 2]),
        ]
    }

    /// Whether the device can hold what the call allocates beside its inputs.
    pub(super) fn check_sizes(&self, runtime: &Runtime, plan: &Plan) -> Result<()> {
        for (name, words) in plan.parts() {
            runtime.check_size(name, Dtype::U32, &[words.len()])?;
        }
        runtime.check_size("output", self.dtype, &self.geometry.output_shape())?;
        let statistics = self.geometry.forward_statistics_shape();
        runtime.check_size("statistics", Dtype::F32, &statistics)?;
        self.check_scratch(runtime)
    }

    /// Whether the device can hold the scratch.
    pub(super) fn check_scratch(&self, runtime: &Runtime) -> Result<()> {
        if !self.is_partial() {
            return Ok(());
        }
        self.scratch().iter().try_for_each(|(name, s)| runtime.check_size(name, Dtype::F32, s))
    }

    /// The launches in order.
    pub(super) fn launches(&self, target: Target) -> Result<Vec<(Step, Launch)>> {
        let mut launches = vec![(Step::Attend, self.attend(target)?)];
        if self.is_partial() {
            launches.push((Step::Merge, self.merge(target)?));
        }
        Ok(launches)
    }

    fn attend(&self, target: Target) -> Result<Launch> {
        let geometry = &self.geometry;
        let [key_dim, value_dim, position_dim] = self.dims()?;
        let constants = paged_attention::Constants {
            lanes: target.lanes,
            key_dim,
            value_dim,
            position_dim,
            mla: geometry.is_mla(),
            causal: self.options.causal,
            partial: self.is_partial(),
            q_first: self.q.first,
            q_stride: self.q.stride,
            q_position_first: self.q_position.first,
            q_position_stride: self.q_position.stride,
            output_first: self.output.first,
            output_stride: self.output.stride,
        };
        let chunks = if self.is_partial() { self.split.chunks } else { 1 };
        Ok(Launch {
            kernel: for_dtype(&paged_attention::F32, "q", self.dtype)?,
            constants: constants.words(),
            groups: [geometry.queries * chunks, geometry.heads],
        })
    }

    fn merge(&self, target: Target) -> Result<Launch> {
        let [key_dim, value_dim, position_dim] = self.dims()?;
        let constants = paged_attention_merge::Constants {
            lanes: target.lanes,
            key_dim,
            value_dim,
            position_dim,
            mla: self.geometry.is_mla(),
            causal: self.options.causal,
            output_first: self.output.first,
            output_stride: self.output.stride,
        };
        let words = self.geometry.output_shape().iter().product::<usize>();
        let words = if self.dtype.is_half() { words.div_ceil(2) } else { words };
        Ok(Launch {
            kernel: for_dtype(&paged_attention_merge::F32, "q", self.dtype)?,
            constants: constants.words(),
            groups: [words.div_ceil(target.lanes as usize), 1],
        })
    }

    /// key_dim, value_dim and position_dim; without positions the kernels still need a legal array size.
    fn dims(&self) -> Result<[u32; 3]> {
        let Geometry { key_dim, value_dim, position_dim, .. } = self.geometry;
        Ok([
            narrow("key_dim", key_dim)?,
            narrow("value_dim", value_dim)?,
            narrow("position_dim", position_dim.max(1))?,
        ])
    }
}

/// The rows of the output. Those of halves are whole words, or lie without gaps.
fn output_rows(output: &Layout<'_>, shape: &[usize], dtype: Dtype) -> Result<Rows> {
    expect_dtype("output", output.dtype(), dtype)?;
    if output.shape() != shape {
        let found = output.shape().to_vec();
        return Err(Error::Shape { array: "output", expected: format!("{shape:?}"), found });
    }
    let rows = output.rows("output", ROW)?;
    if !output.is_whole_words(rows, ROW) {
        output.expect_dense("output")?;
    }
    Ok(rows)
}

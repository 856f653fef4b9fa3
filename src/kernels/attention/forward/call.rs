//! A checked call, and the launches that it comes to.

use std::ops::Range;

use super::super::{ForwardInputs, ForwardOutputs, Geometry, History, Options, Plan};
use super::split::Split;
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::windows::{check_scratch, scratch_bytes, scratch_rows, windows};
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
    rows: RowsOf,
    /// Rows of the cache that each binding of the keys, values and key positions shows.
    parts: [u32; 3],
    /// The rows that are under way at a time.
    pub(super) windows: Vec<Range<usize>>,
    /// The first of its rows that this is about.
    pub(super) first_row: usize,
}

/// How the arrays that may be views lie.
#[derive(Clone, Copy)]
pub(super) struct RowsOf {
    q: Rows,
    /// Without positions those of `q`.
    q_position: Rows,
    output: Rows,
}

/// The inner axes of what has a row a query: [heads, dim].
pub(super) const ROW: usize = 2;

/// What a launch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The results, or what the chunks of a row come to.
    Attend,
    /// The results from the chunks.
    Merge,
}

impl Call {
    /// `outputs` are where the outputs lie; `None` for memory of their own. `split` is that of the call which this one is a
    /// part of; `None` for the call's own.
    pub(super) fn new(
        inputs: &ForwardInputs<Layout<'_>>,
        outputs: Option<ForwardOutputs<Layout<'_>>>,
        plan: &Plan,
        options: &Options,
        split: Option<Split>,
        target: Target,
    ) -> Result<Self> {
        let dtype = inputs.q.dtype();
        for_dtype(&paged_attention::F32, "q", dtype)?;
        inputs.try_map(|name, layout| expect_dtype(name, layout.dtype(), dtype))?;
        let geometry = Geometry::of_forward(&inputs.map(|_, layout| layout.shape()))?;
        options.check()?;
        plan.check_call("paged-attention", &geometry, options.causal)?;
        let inputs = &inputs.map(|_, layout| layout.on(target));
        let parts = match inputs.history {
            History::Separate { k, v } => [part_rows("k", k)?, part_rows("v", v)?, 0],
            History::Latent { latent, k_position, .. } => {
                let latent = part_rows("latent", latent)?;
                [latent, latent, part_rows("k_position", k_position)?]
            }
        };
        let (shape, statistics) = (geometry.output_shape(), geometry.forward_statistics_shape());
        let own = ForwardOutputs {
            output: Layout::dense(&shape, dtype).on(target),
            statistics: Layout::dense(&statistics, Dtype::F32).on(target),
        };
        let outputs = outputs.unwrap_or(own);
        check_output(&outputs.output, &shape, dtype)?;
        let mut call = Self {
            geometry,
            options: *options,
            split: split.unwrap_or_else(|| Split::of(&geometry, plan, options)),
            dtype,
            rows: RowsOf::new(inputs, &outputs.output)?,
            parts,
            windows: Vec::new(),
            first_row: 0,
        };
        call.windows = call.windows_of(inputs, &outputs, target)?;
        Ok(call)
    }

    fn windows_of(
        &self,
        inputs: &ForwardInputs<Layout<'_>>,
        outputs: &ForwardOutputs<Layout<'_>>,
        target: Target,
    ) -> Result<Vec<Range<usize>>> {
        let mut cuts = vec![
            inputs.q.cuts("q", ROW)?,
            outputs.output.cuts("output", ROW)?,
            outputs.statistics.cuts("statistics", ROW)?,
        ];
        if let History::Latent { q_position, .. } = inputs.history {
            cuts.push(q_position.cuts("q_position", ROW)?);
        }
        let most = match self.is_partial() {
            true => scratch_rows(self.scratch_width(), target),
            false => usize::MAX,
        };
        Ok(windows(self.geometry.queries, most, cuts))
    }

    /// The same call of one window of rows, which has these arrays; the cut into chunks stays.
    pub(super) fn window(
        &self,
        rows: &Range<usize>,
        inputs: &ForwardInputs<Layout<'_>>,
        output: &Layout<'_>,
    ) -> Result<Self> {
        Ok(Self { rows: RowsOf::new(inputs, output)?, ..self.part(rows) })
    }

    /// The same call of some of its rows.
    fn part(&self, rows: &Range<usize>) -> Self {
        let geometry = Geometry { queries: rows.len(), ..self.geometry };
        Self { geometry, windows: Vec::new(), first_row: rows.start, ..*self }
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

    /// Bytes of the scratch.
    pub(super) fn scratch_bytes(&self) -> u64 {
        let widths = self.scratch().map(|(_, shape)| shape[1..].iter().product::<usize>());
        let bytes = widths.map(|width| scratch_bytes(&self.windows, width));
        if self.is_partial() { bytes.iter().sum() } else { 0 }
    }

    /// Elements of a row of the larger scratch.
    fn scratch_width(&self) -> usize {
        let widths = self.scratch().map(|(_, shape)| shape[1..].iter().product());
        widths.into_iter().max().unwrap_or(0)
    }

    /// Whether the device can hold what the call allocates beside its inputs.
    pub(super) fn check_sizes(&self, runtime: &Runtime, plan: &Plan) -> Result<()> {
        for (name, words) in plan.parts() {
            runtime.check_binding(name, Dtype::U32, &[words.len()])?;
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
        let Geometry { queries, .. } = self.geometry;
        check_scratch(runtime, self.scratch()[0].0, queries, self.scratch_width())
    }

    /// The launches in order, of all windows.
    pub(super) fn all_launches(&self, target: Target) -> Result<Vec<Launch>> {
        let mut launches = Vec::new();
        for rows in &self.windows {
            let steps = self.part(rows).launches(target)?;
            launches.extend(steps.into_iter().map(|(_, launch)| launch));
        }
        Ok(launches)
    }

    /// The launches of a window in order.
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
            k_part_rows: self.parts[0],
            v_part_rows: self.parts[1],
            k_position_part_rows: self.parts[2],
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            q_position_first: self.rows.q_position.first,
            q_position_stride: self.rows.q_position.stride,
            output_first: self.rows.output.first,
            output_stride: self.rows.output.stride,
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
            output_first: self.rows.output.first,
            output_stride: self.rows.output.stride,
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

impl RowsOf {
    fn new(inputs: &ForwardInputs<Layout<'_>>, output: &Layout<'_>) -> Result<Self> {
        let q = inputs.q.rows("q", ROW)?;
        let q_position = match inputs.history {
            History::Separate { .. } => q,
            History::Latent { q_position, .. } => q_position.rows("q_position", ROW)?,
        };
        // Those of halves are whole words, or lie without gaps.
        let rows = output.rows("output", ROW)?;
        if !output.is_whole_words(rows, ROW) {
            output.expect_dense("output")?;
        }
        Ok(Self { q, q_position, output: rows })
    }
}

fn part_rows(array: &'static str, layout: Layout<'_>) -> Result<u32> {
    layout.expect_dense(array)?;
    Ok(layout.parts(array, 1)?.1)
}

fn check_output(output: &Layout<'_>, shape: &[usize], dtype: Dtype) -> Result<()> {
    expect_dtype("output", output.dtype(), dtype)?;
    if output.shape() == shape {
        return Ok(());
    }
    let found = output.shape().to_vec();
    Err(Error::Shape { array: "output", expected: format!("{shape:?}"), found })
}

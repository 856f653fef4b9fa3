//! A checked call, and the launches that it comes to.

use super::super::{BackwardInputs, BackwardOutputs, Geometry, Gradient, Gradients, Options, Plan};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Target, expect_dtype, expect_tensor, for_dtype, pack};
use crate::manifest::{clear_pages, history_backward, query_backward};
use crate::runtime::{Runtime, Tensor};

/// One checked call.
pub(super) struct Call {
    pub(super) geometry: Geometry,
    pub(super) options: Options,
    /// Of all arrays but the statistics, which are f32.
    dtype: Dtype,
    pub(super) gradients: Gradients,
    /// Those of them that are added to what their tensors hold.
    accumulate: Gradients,
    given_output: bool,
    rows: RowsOf,
}

/// How the arrays that may be views lie. What the call lacks is nowhere.
#[derive(Default)]
struct RowsOf {
    q: Rows,
    q_position: Rows,
    output_gradient: Rows,
    output: Rows,
    q_gradient: Rows,
    q_position_gradient: Rows,
}

/// What a launch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Row statistics and query gradients.
    Query,
    /// Zeros for the pages that a compacted launch leaves out.
    Clear(Gradient),
    /// History gradients.
    History,
    /// A gradient of halves from its f32 scratch.
    Pack(Gradient),
}

impl Call {
    pub(super) fn new(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        Self::computing(inputs, plan, options, |mla| options.resolve(|g| g.exists(mla)))
    }

    /// The call that computes the statistics alone.
    pub(super) fn of_statistics(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        Self::computing(inputs, plan, options, |_| Ok((Gradients::NONE, Gradients::NONE)))
    }

    /// `resolve` says which gradients there are to compute, and which of them are added to old ones.
    fn computing(
        inputs: &BackwardInputs<Layout<'_>>,
        plan: &Plan,
        options: &Options,
        resolve: impl FnOnce(bool) -> Result<(Gradients, Gradients)>,
    ) -> Result<Self> {
        let dtype = inputs.q.dtype();
        for_dtype(&query_backward::F32, "q", dtype)?;
        inputs.try_map(|name, layout| {
            let expected = if name == "statistics" { Dtype::F32 } else { dtype };
            expect_dtype(name, layout.dtype(), expected)
        })?;
        let geometry = Geometry::of_backward(&inputs.map(|_, layout| layout.shape()))?;
        options.check()?;
        plan.check_call("paged-attention-backward", &geometry, options.causal)?;
        let (gradients, accumulate) = resolve(geometry.is_mla())?;
        let given_output = inputs.output.is_some();
        let rows = RowsOf::new(inputs, &geometry)?;
        Ok(Self { geometry, options: *options, dtype, gradients, accumulate, given_output, rows })
    }

    /// Whether the kernels leave f32 gradients to be packed: a row of halves that is no whole number of words shares
    /// one with the next row, which another subgroup owns.
    pub(super) fn is_wide(&self) -> bool {
        let Geometry { key_dim, value_dim, position_dim, .. } = self.geometry;
        self.dtype.is_half() && [key_dim, value_dim, position_dim].iter().any(|d| d % 2 == 1)
    }

    /// Whether the outputs are those of this call; from here on the launches write to where they lie.
    pub(super) fn set_outputs(
        &mut self,
        inputs: &BackwardInputs<Tensor>,
        outputs: &BackwardOutputs<Tensor>,
    ) -> Result<()> {
        let listed = outputs.gradients.iter().map(|&(g, _)| g).collect::<Vec<_>>();
        if Gradients::only(&listed) != self.gradients
            || listed.len() != self.gradients.iter().count()
        {
            return Err(Error::Parameter {
                name: "gradients",
                expected: format!("outputs for {:?}", self.gradients.iter().collect::<Vec<_>>()),
                found: format!("{listed:?}"),
            });
        }
        for (g, tensor) in &outputs.gradients {
            let (name, layout) = (g.output_name(), Layout::from(tensor));
            self.check_gradient(*g, layout)?;
            if self.is_wide() && layout.expect_dense(name).is_err() {
                return Err(layout.refuse(name, "no gaps, as halves of odd widths are packed"));
            }
            if g.is_history() || self.is_wide() {
                layout.expect_dense(name)?;
                continue;
            }
            let rows = layout.rows(name, 2)?;
            if !layout.is_whole_words(rows, 2) {
                return Err(layout.refuse(name, "rows of halves that are whole words"));
            }
            match g {
                Gradient::QPosition => self.rows.q_position_gradient = rows,
                _ => self.rows.q_gradient = rows,
            }
        }
        let complete = inputs.statistics.as_ref().filter(|_| self.geometry.statistics_columns == 3);
        if complete.is_some_and(|given| !given.is_same(&outputs.statistics)) {
            return Err(Error::Parameter {
                name: "statistics",
                expected: "as output the given tensor, for what is complete is not computed".into(),
                found: format!("{:?}", outputs.statistics),
            });
        }
        let shape = self.geometry.statistics_shape();
        expect_tensor("statistics", &outputs.statistics, Dtype::F32, &shape)
    }

    /// Whether an array can be a gradient of this call.
    fn check_gradient(&self, gradient: Gradient, layout: Layout<'_>) -> Result<()> {
        let (array, expected) = (gradient.output_name(), self.geometry.gradient_shape(gradient));
        expect_dtype(array, layout.dtype(), self.dtype)?;
        if layout.shape() == expected {
            return Ok(());
        }
        let (expected, found) = (format!("{expected:?}"), layout.shape().to_vec());
        Err(Error::Shape { array, expected, found })
    }

    /// Whether a gradient can be added to an array.
    pub(super) fn check_old(&self, gradient: Gradient, old: &HostTensor) -> Result<()> {
        self.check_gradient(gradient, old.into())
    }

    /// The element type of the gradients as the kernels write them.
    pub(super) fn written_dtype(&self) -> Dtype {
        if self.is_wide() { Dtype::F32 } else { self.dtype }
    }

    /// Whether the device can hold what the call allocates beside its inputs.
    pub(super) fn check_sizes(&self, runtime: &Runtime, plan: &Plan) -> Result<()> {
        for (name, words) in plan.parts() {
            runtime.check_size(name, Dtype::U32, &[words.len()])?;
        }
        for g in self.gradients.iter() {
            let shape = self.geometry.gradient_shape(g);
            runtime.check_size(g.output_name(), self.written_dtype(), &shape)?;
        }
        runtime.check_size("statistics", Dtype::F32, &self.geometry.statistics_shape())
    }

    /// The launches in order. The query kernel has nothing to do when the statistics are complete and no gradient
    /// of its own is asked for.
    pub(super) fn launches(&self, plan: &Plan, target: Target) -> Result<Vec<(Step, Launch)>> {
        let mut launches = Vec::new();
        if self.geometry.statistics_columns < 3 || self.gradients.any_query() {
            launches.push((Step::Query, self.query(target)?));
        }
        if self.gradients.any_history() {
            if self.options.compact_history {
                let cleared = |g: &Gradient| g.is_history() && !self.adds(*g);
                let cleared = self.gradients.iter().filter(cleared);
                launches.extend(cleared.map(|g| (Step::Clear(g), clear(plan, target))));
            }
            launches.push((Step::History, self.history(plan, target)?));
        }
        if self.is_wide() {
            for g in self.gradients.iter() {
                let elements = self.geometry.gradient_shape(g).iter().product();
                let accumulate = self.accumulate.contains(g);
                let launch =
                    pack::launch(g.output_name(), self.dtype, elements, accumulate, target)?;
                launches.push((Step::Pack(g), launch));
            }
        }
        Ok(launches)
    }

    /// Whether the kernel that sums a gradient adds it to what is there; in f32 scratch there is nothing.
    fn adds(&self, gradient: Gradient) -> bool {
        self.accumulate.contains(gradient) && !self.is_wide()
    }

    /// Words of one page of a gradient, as the kernels write it.
    pub(super) fn page_words(&self, gradient: Gradient) -> Result<u32> {
        let page: usize = self.geometry.gradient_shape(gradient).into_iter().skip(1).product();
        let halves = self.dtype.is_half() && !self.is_wide();
        narrow("words of a page", if halves { page / 2 } else { page })
    }

    fn query(&self, target: Target) -> Result<Launch> {
        let geometry = &self.geometry;
        let constants = query_backward::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: self.position_dim()?,
            mla: geometry.is_mla(),
            causal: self.options.causal,
            wide_gradients: self.is_wide(),
            given_columns: narrow("statistics columns", geometry.statistics_columns)?,
            given_output: self.given_output,
            need_q: self.gradients.contains(Gradient::Q),
            need_q_position: self.gradients.contains(Gradient::QPosition),
            accumulate_q: self.adds(Gradient::Q),
            accumulate_q_position: self.adds(Gradient::QPosition),
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            q_position_first: self.rows.q_position.first,
            q_position_stride: self.rows.q_position.stride,
            output_gradient_first: self.rows.output_gradient.first,
            output_gradient_stride: self.rows.output_gradient.stride,
            output_first: self.rows.output.first,
            output_stride: self.rows.output.stride,
            q_gradient_first: self.rows.q_gradient.first,
            q_gradient_stride: self.rows.q_gradient.stride,
            q_position_gradient_first: self.rows.q_position_gradient.first,
            q_position_gradient_stride: self.rows.q_position_gradient.stride,
        };
        Ok(Launch {
            kernel: for_dtype(&query_backward::F32, "q", self.dtype)?,
            constants: constants.words(),
            groups: [geometry.queries, geometry.heads],
        })
    }

    fn history(&self, plan: &Plan, target: Target) -> Result<Launch> {
        let (geometry, options) = (&self.geometry, &self.options);
        let need = |g| self.gradients.contains(g);
        let constants = history_backward::Constants {
            lanes: target.lanes,
            key_dim: narrow("key_dim", geometry.key_dim)?,
            value_dim: narrow("value_dim", geometry.value_dim)?,
            position_dim: self.position_dim()?,
            mla: geometry.is_mla(),
            causal: options.causal,
            wide_gradients: self.is_wide(),
            need_key: need(Gradient::K) || need(Gradient::Latent),
            need_value: need(Gradient::V),
            need_position: need(Gradient::KPosition),
            prune_queries: options.prune_queries,
            cache_history: options.cache_history,
            compact_history: options.compact_history,
            query_block_rows: plan.query_block_rows(),
            accumulate_key: self.adds(Gradient::K) || self.adds(Gradient::Latent),
            accumulate_value: self.adds(Gradient::V),
            accumulate_position: self.adds(Gradient::KPosition),
            q_first: self.rows.q.first,
            q_stride: self.rows.q.stride,
            q_position_first: self.rows.q_position.first,
            q_position_stride: self.rows.q_position.stride,
            output_gradient_first: self.rows.output_gradient.first,
            output_gradient_stride: self.rows.output_gradient.stride,
        };
        let slots = match options.compact_history {
            true => plan.active_pages().len() * geometry.page_size,
            false => geometry.slots(),
        };
        Ok(Launch {
            kernel: for_dtype(&history_backward::F32, "q", self.dtype)?,
            constants: constants.words(),
            groups: [slots, geometry.kv_heads],
        })
    }

    /// Without positions the kernels still need a legal array size.
    fn position_dim(&self) -> Result<u32> {
        narrow("position_dim", self.geometry.position_dim.max(1))
    }
}

impl RowsOf {
    /// The inputs as they lie, and outputs of their own.
    fn new(inputs: &BackwardInputs<Layout<'_>>, geometry: &Geometry) -> Result<Self> {
        let mut rows = Self::default();
        inputs.try_map(|name, layout| {
            let place = match name {
                "q" => &mut rows.q,
                "q_position" => &mut rows.q_position,
                "output_gradient" => &mut rows.output_gradient,
                "output" => &mut rows.output,
                _ => return layout.expect_dense(name),
            };
            *place = layout.rows(name, 2)?;
            Ok(())
        })?;
        let own = |g: Gradient| {
            Layout::dense(&geometry.gradient_shape(g), Dtype::F32).rows(g.output_name(), 2)
        };
        rows.q_gradient = own(Gradient::Q)?;
        rows.q_position_gradient = own(Gradient::QPosition)?;
        Ok(rows)
    }
}

fn clear(plan: &Plan, target: Target) -> Launch {
    Launch {
        kernel: &clear_pages::F32,
        constants: clear_pages::Constants { lanes: target.lanes }.words(),
        groups: [plan.inactive_pages().len(), 1],
    }
}

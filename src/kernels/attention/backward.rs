//! The attention backward: the query kernel (row statistics, query gradients), then the history kernel.

use super::{
    BackwardInputs, BackwardOutputs, Geometry, Gradient, Gradients, History, Options, Plan,
    Schedule,
};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::kernels::index_range::narrow;
use crate::kernels::{Run, expect_dtype, expect_tensor};
use crate::manifest::{clear_pages, history_backward, query_backward};
use crate::runtime::{Access, Recorder, Runtime, Tensor};

/// A [`Plan`] with its words on the device: uploaded once, used by any number of calls.
#[derive(Debug, Clone)]
pub struct DevicePlan {
    plan: Plan,
    metadata: Tensor,
    inverse: Tensor,
    active_pages: Tensor,
    inactive_pages: Tensor,
}

impl DevicePlan {
    /// Uploads the plan's words.
    ///
    /// # Errors
    /// What allocation and transfer report.
    pub fn upload(runtime: &Runtime, plan: Plan) -> Result<Self> {
        let words =
            |name, words: &[u32]| runtime.upload(name, &HostTensor::from_words(words.to_vec()));
        Ok(Self {
            metadata: words("metadata", plan.metadata())?,
            inverse: words("inverse", plan.inverse())?,
            active_pages: words("active_pages", plan.active_pages())?,
            inactive_pages: words("inactive_pages", plan.inactive_pages())?,
            plan,
        })
    }

    /// The plan that was uploaded.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Plans, uploads, runs and downloads: all from host arrays to host arrays.
///
/// # Errors
/// A schedule, shape, element type or option that does not fit, before any device work; then
/// whatever transfers and the device report.
pub fn run(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    schedule: &Schedule,
    options: &Options,
) -> Result<Run<BackwardOutputs<HostTensor>>> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
    let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
    Call::new(&inputs.as_ref().map(|_, t| (t.shape(), t.dtype())), &plan, options)?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let outputs = allocate(runtime, &inputs, options)?;
    let mut recorder = runtime.recorder()?;
    record(&mut recorder, &inputs, &plan, options, &outputs)?;
    let submission = recorder.submit()?;
    submission.wait()?;
    let gradients = outputs.gradients.iter().map(|(g, t)| Ok((*g, runtime.download(t)?)));
    Ok(Run {
        outputs: BackwardOutputs {
            gradients: gradients.collect::<Result<_>>()?,
            statistics: runtime.download(&outputs.statistics)?,
        },
        timings: submission.timings()?,
    })
}

/// Device memory, with undefined contents, for the gradients asked for and for the statistics.
/// Complete statistics among the inputs serve as the output's.
///
/// # Errors
/// Shapes or gradients that do not fit; what allocation reports.
pub fn allocate(
    runtime: &Runtime,
    inputs: &BackwardInputs<Tensor>,
    options: &Options,
) -> Result<BackwardOutputs<Tensor>> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
    let tensor = |name, shape: &[usize]| runtime.tensor(name, Dtype::F32, shape);
    let gradients = options.gradients.resolve(|g| g.exists(geometry.is_mla()))?;
    let gradients =
        gradients.iter().map(|g| Ok((g, tensor(g.output_name(), &geometry.gradient_shape(g))?)));
    Ok(BackwardOutputs {
        gradients: gradients.collect::<Result<_>>()?,
        statistics: match &inputs.statistics {
            Some(complete) if geometry.statistics_columns == 3 => complete.clone(),
            _ => tensor("statistics", &geometry.statistics_shape())?,
        },
    })
}

/// Records the kernels that the gradients asked for need. Without a query gradient and with complete
/// statistics given, that is the history kernel alone; without a history gradient, the query kernel alone.
/// Every element of every output is written.
///
/// # Errors
/// A shape, element type or option that does not fit, before anything is recorded; then whatever
/// allocation and pipeline creation report.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &BackwardInputs<Tensor>,
    plan: &DevicePlan,
    options: &Options,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    let call = Call::new(&inputs.as_ref().map(|_, t| (t.shape(), t.dtype())), &plan.plan, options)?;
    call.check_outputs(outputs)?;
    if call.geometry.statistics_columns < 3 || call.gradients.any_query() {
        record_query(recorder, &call, inputs, plan, outputs)?;
    }
    if call.gradients.any_history() {
        record_history(recorder, &call, inputs, plan, outputs)?;
    }
    Ok(())
}

/// One checked call.
struct Call {
    geometry: Geometry,
    gradients: Gradients,
    options: Options,
}

impl Call {
    fn new(
        inputs: &BackwardInputs<(&[usize], Dtype)>,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        inputs.try_map(|name, (_, dtype)| expect_dtype(name, dtype, Dtype::F32))?;
        let geometry = Geometry::of_backward(&inputs.map(|_, (shape, _)| shape))?;
        options.check()?;
        plan.check_call("paged-attention-backward", &geometry, options.causal)?;
        let gradients = options.gradients.resolve(|g| g.exists(geometry.is_mla()))?;
        Ok(Self { geometry, gradients, options: *options })
    }

    /// Whether the outputs are those of this call.
    fn check_outputs(&self, outputs: &BackwardOutputs<Tensor>) -> Result<()> {
        let listed = outputs.gradients.iter().map(|&(g, _)| g).collect::<Vec<_>>();
        if Gradients::only(&listed) != self.gradients {
            return Err(Error::Parameter {
                name: "gradients",
                expected: format!("outputs for {:?}", self.gradients.iter().collect::<Vec<_>>()),
                found: format!("{listed:?}"),
            });
        }
        for (g, tensor) in &outputs.gradients {
            let shape = self.geometry.gradient_shape(*g);
            expect_tensor(g.output_name(), tensor, Dtype::F32, &shape)?;
        }
        let shape = self.geometry.statistics_shape();
        expect_tensor("statistics", &outputs.statistics, Dtype::F32, &shape)
    }

    fn position_dim(&self) -> usize {
        self.geometry.position_dim.max(1)
    }
}

/// The history's tensors as the kernels bind them: the latent stands for key and value.
struct Bound<'a> {
    k: &'a Tensor,
    v: &'a Tensor,
    q_position: Option<&'a Tensor>,
    k_position: Option<&'a Tensor>,
}

impl<'a> Bound<'a> {
    fn new(history: &'a History<Tensor>) -> Self {
        match history {
            History::Separate { k, v } => Self { k, v, q_position: None, k_position: None },
            History::Latent { latent, q_position, k_position } => Self {
                k: latent,
                v: latent,
                q_position: Some(q_position),
                k_position: Some(k_position),
            },
        }
    }
}

fn gradient<'a>(outputs: &'a BackwardOutputs<Tensor>, wanted: &[Gradient]) -> Option<&'a Tensor> {
    outputs.gradients.iter().find(|(g, _)| wanted.contains(g)).map(|(_, tensor)| tensor)
}

/// The heap index of a tensor that the variant reads, if it does.
fn read(access: &mut Access<'_>, tensor: Option<&Tensor>) -> u32 {
    tensor.map_or(access.unused(), |tensor| access.read(tensor))
}

/// The heap index of a tensor that the variant writes, if it does.
fn write(access: &mut Access<'_>, tensor: Option<&Tensor>) -> u32 {
    tensor.map_or(access.unused(), |tensor| access.write(tensor))
}

fn record_query(
    recorder: &mut Recorder<'_>,
    call: &Call,
    inputs: &BackwardInputs<Tensor>,
    plan: &DevicePlan,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    use query_backward::{Constants, F32, Push};
    let geometry = &call.geometry;
    let q_gradient = gradient(outputs, &[Gradient::Q]);
    let q_position_gradient = gradient(outputs, &[Gradient::QPosition]);
    let constants = Constants {
        lanes: recorder.runtime().lanes(),
        key_dim: narrow("key_dim", geometry.key_dim)?,
        value_dim: narrow("value_dim", geometry.value_dim)?,
        position_dim: narrow("position_dim", call.position_dim())?,
        mla: geometry.is_mla(),
        causal: call.options.causal,
        given_columns: narrow("statistics columns", geometry.statistics_columns)?,
        given_output: inputs.output.is_some(),
        need_q: q_gradient.is_some(),
        need_q_position: q_position_gradient.is_some(),
    };
    let push = Push {
        queries: plan.plan.queries(),
        sequences: plan.plan.sequences(),
        table_width: plan.plan.table_width(),
        page_size: narrow("page_size", geometry.page_size)?,
        heads: narrow("heads", geometry.heads)?,
        kv_heads: narrow("kv_heads", geometry.kv_heads)?,
        scale: call.options.scale,
        ..Push::default()
    };
    let bound = Bound::new(&inputs.history);
    let statistics = (geometry.statistics_columns < 3).then_some(&outputs.statistics);
    let groups = [geometry.queries, geometry.heads];
    recorder.dispatch(&F32, &constants.words(), groups, |access| Push {
        q_index: access.read(&inputs.q),
        k_index: access.read(bound.k),
        v_index: access.read(bound.v),
        q_position_index: read(access, bound.q_position),
        k_position_index: read(access, bound.k_position),
        output_gradient_index: access.read(&inputs.output_gradient),
        output_index: read(access, inputs.output.as_ref()),
        metadata_index: access.read(&plan.metadata),
        given_statistics_index: read(access, inputs.statistics.as_ref()),
        statistics_index: write(access, statistics),
        q_gradient_index: write(access, q_gradient),
        q_position_gradient_index: write(access, q_position_gradient),
        ..push
    })
}

fn record_history(
    recorder: &mut Recorder<'_>,
    call: &Call,
    inputs: &BackwardInputs<Tensor>,
    plan: &DevicePlan,
    outputs: &BackwardOutputs<Tensor>,
) -> Result<()> {
    use history_backward::{Constants, F32, Push};
    let (geometry, options) = (&call.geometry, &call.options);
    let key_gradient = gradient(outputs, &[Gradient::K, Gradient::Latent]);
    let value_gradient = gradient(outputs, &[Gradient::V]);
    let position_gradient = gradient(outputs, &[Gradient::KPosition]);
    let constants = Constants {
        lanes: recorder.runtime().lanes(),
        key_dim: narrow("key_dim", geometry.key_dim)?,
        value_dim: narrow("value_dim", geometry.value_dim)?,
        position_dim: narrow("position_dim", call.position_dim())?,
        mla: geometry.is_mla(),
        causal: options.causal,
        need_key: key_gradient.is_some(),
        need_value: value_gradient.is_some(),
        need_position: position_gradient.is_some(),
        prune_queries: options.prune_queries,
        cache_history: options.cache_history,
        compact_history: options.compact_history,
        query_block_rows: plan.plan.query_block_rows(),
    };
    let push = Push {
        queries: plan.plan.queries(),
        sequences: plan.plan.sequences(),
        table_width: plan.plan.table_width(),
        page_size: narrow("page_size", geometry.page_size)?,
        heads: narrow("heads", geometry.heads)?,
        kv_heads: narrow("kv_heads", geometry.kv_heads)?,
        scale: options.scale,
        ..Push::default()
    };
    let mut slots = geometry.slots();
    if options.compact_history {
        slots = plan.plan.active_pages().len() * geometry.page_size;
        let targets = [key_gradient, value_gradient, position_gradient];
        clear_inactive(recorder, plan, targets.into_iter().flatten())?;
    }
    let bound = Bound::new(&inputs.history);
    let pages = options.compact_history.then_some(&plan.active_pages);
    recorder.dispatch(&F32, &constants.words(), [slots, geometry.kv_heads], |access| Push {
        q_index: access.read(&inputs.q),
        k_index: access.read(bound.k),
        v_index: access.read(bound.v),
        q_position_index: read(access, bound.q_position),
        k_position_index: read(access, bound.k_position),
        output_gradient_index: access.read(&inputs.output_gradient),
        metadata_index: access.read(&plan.metadata),
        inverse_index: access.read(&plan.inverse),
        statistics_index: access.read(&outputs.statistics),
        pages_index: read(access, pages),
        k_gradient_index: write(access, key_gradient),
        v_gradient_index: write(access, value_gradient),
        k_position_gradient_index: write(access, position_gradient),
        ..push
    })
}

/// Zeros for the pages that a compacted launch leaves out.
fn clear_inactive<'a>(
    recorder: &mut Recorder<'_>,
    plan: &DevicePlan,
    targets: impl Iterator<Item = &'a Tensor>,
) -> Result<()> {
    use clear_pages::{Constants, F32, Push};
    let lanes = recorder.runtime().lanes();
    let pages = plan.plan.inactive_pages().len();
    for target in targets {
        let page_words = narrow("elements of a page", target.shape().iter().skip(1).product())?;
        recorder.dispatch(&F32, &Constants { lanes }.words(), [pages, 1], |access| Push {
            pages_index: access.read(&plan.inactive_pages),
            target_index: access.write(target),
            page_words,
            ..Push::default()
        })?;
    }
    Ok(())
}

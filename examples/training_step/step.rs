//! The step itself; see `main.rs`.

use std::ops::Range;

use backslang::kernels::attention::append::{self, AppendInputs, AppendPlan, Cache};
use backslang::kernels::attention::{
    self, BackwardOutputs, DevicePlan, ForwardInputs, ForwardOutputs, Geometry, Gradient, History,
    Options, Plan,
};
use backslang::kernels::mamba3::preprocess::{self, Parameters, Slices};
use backslang::kernels::mamba3::preprocess_backward::{self, Accumulate};
use backslang::kernels::mamba3::preprocess_forward;
use backslang::runtime::{Recorder, Runtime, Tensor};
use backslang::{Dtype, Result};

use crate::model::{Gradients, Layer, Model};

/// Records the whole step; the gradients hold their values once the submission is done.
pub(crate) fn record(
    recorder: &mut Recorder<'_>,
    model: &Model<Tensor>,
) -> Result<Gradients<Tensor>> {
    let runtime = recorder.runtime();
    let step = Step::new(runtime, model)?;
    let mut saved = Vec::new();
    for (index, layer) in model.layers.iter().enumerate() {
        let output = match model.layers.get(index + 1) {
            Some(next) => step.heads(&step.columns(&next.projected, |slices| slices.x.clone())?)?,
            None => runtime.tensor("output", Dtype::F32, model.output_gradient.shape())?,
        };
        saved.push(step.forward(recorder, layer, output)?);
    }

    let dt_bias = runtime.tensor("dt_bias_gradient", Dtype::F32, model.dt_bias.shape())?;
    let mut output_gradient = model.output_gradient.clone();
    let mut layers = Vec::new();
    for (layer, saved) in model.layers.iter().zip(&saved).rev() {
        // The gradient of dt_bias is that of the layers so far and of this one.
        let accumulate = Accumulate { dt_bias_gradient: !layers.is_empty(), ..Default::default() };
        let gradients =
            step.backward(recorder, layer, saved, output_gradient, &dt_bias, accumulate)?;
        output_gradient = step.heads(&step.columns(&gradients[0], |slices| slices.x.clone())?)?;
        layers.push(gradients);
    }
    layers.reverse();
    let output = saved.pop().map_or(output_gradient, |saved| saved.outputs.output);
    Ok(Gradients { layers, dt_bias, output })
}

/// What a layer's backward needs of its forward.
struct Saved {
    inputs: ForwardInputs<Tensor>,
    outputs: ForwardOutputs<Tensor>,
}

/// What is the same for all layers.
struct Step<'a> {
    runtime: &'a Runtime,
    model: &'a Model<Tensor>,
    rows: preprocess::Geometry,
    plan: DevicePlan,
    append: append::DevicePlan,
    options: Options,
    /// The shape of maximum, denominator and delta.
    statistics: [usize; 3],
}

impl<'a> Step<'a> {
    fn new(runtime: &'a Runtime, model: &'a Model<Tensor>) -> Result<Self> {
        let layer = &model.layers[0];
        let projected = preprocess::ForwardInputs {
            projected: layer.projected.shape(),
            dt_bias: model.dt_bias.shape(),
        };
        let rows = preprocess::Geometry::of_forward(&projected, &model.widths)?;
        let geometry = Geometry::of_forward(&ForwardInputs {
            q: model.output_gradient.shape(),
            history: History::Separate { k: layer.k.shape(), v: layer.v.shape() },
        })?;
        let options = Options::new(1.0 / (geometry.key_dim as f32).sqrt());
        let plan = Plan::new(&model.schedule, &geometry, options.query_block_rows)?;
        let append = AppendPlan::new(&model.schedule, &geometry)?;
        Ok(Self {
            runtime,
            model,
            rows,
            plan: DevicePlan::upload(runtime, plan)?,
            append: append::DevicePlan::upload(runtime, append)?,
            options,
            statistics: [geometry.queries, geometry.heads, 3],
        })
    }

    /// A slice of packed rows.
    fn columns(
        &self,
        packed: &Tensor,
        of: impl Fn(&Slices<Range<usize>>) -> Range<usize>,
    ) -> Result<Tensor> {
        packed.narrow(1, of(&self.rows.slices()))
    }

    /// `[rows, heads · dim]` as `[rows, heads, dim]`.
    fn heads(&self, rows: &Tensor) -> Result<Tensor> {
        rows.reshape(self.model.output_gradient.shape())
    }

    fn forward(
        &self,
        recorder: &mut Recorder<'_>,
        layer: &Layer<Tensor>,
        output: Tensor,
    ) -> Result<Saved> {
        let packed = preprocess::ForwardInputs {
            projected: layer.projected.clone(),
            dt_bias: self.model.dt_bias.clone(),
        };
        // z, x, trap and angle are the packed rows' own slices: nothing to write.
        let made = preprocess_forward::allocate_views(self.runtime, &self.rows, &packed.projected)?;
        let (widths, parameters) = (&self.model.widths, Parameters::default());
        preprocess_forward::record(recorder, &packed, widths, &parameters, &made)?;

        let (k, v) = (layer.k.clone(), layer.v.clone());
        let rows = AppendInputs::Separate { new_k: made.bh, new_v: made.ch, k, v };
        append::record(recorder, &rows, &self.append)?;

        let history = History::Separate { k: layer.k.clone(), v: layer.v.clone() };
        let inputs = ForwardInputs { q: self.heads(&made.x)?, history };
        let outputs = attention::forward::allocate(self.runtime, &inputs)?;
        let outputs = ForwardOutputs { output, ..outputs };
        attention::forward::record(recorder, &inputs, &self.plan, &self.options, &outputs)?;
        Ok(Saved { inputs, outputs })
    }

    /// The gradients of `projected`, `k` and `v`; adds to that of dt_bias if asked to.
    fn backward(
        &self,
        recorder: &mut Recorder<'_>,
        layer: &Layer<Tensor>,
        saved: &Saved,
        output_gradient: Tensor,
        dt_bias: &Tensor,
        accumulate: Accumulate,
    ) -> Result<[Tensor; 3]> {
        let packed = preprocess_backward::allocate(self.runtime, &self.rows, Dtype::F32)?;
        let packed = preprocess::BackwardOutputs { dt_bias_gradient: dt_bias.clone(), ..packed };
        let x_gradient = self.columns(&packed.projected_gradient, |slices| slices.x.clone())?;

        let like = |name, tensor: &Tensor| self.runtime.tensor(name, Dtype::F32, tensor.shape());
        let (k, v) = (like("k_gradient", &layer.k)?, like("v_gradient", &layer.v)?);
        // The query gradient is written to where the preprocess wants that of x, and leaves it.
        let q = (Gradient::Q, self.heads(&x_gradient)?);
        let outputs = BackwardOutputs {
            gradients: vec![q, (Gradient::K, k.clone()), (Gradient::V, v.clone())],
            statistics: self.runtime.tensor("statistics", Dtype::F32, &self.statistics)?,
        };
        let inputs = saved.inputs.clone().into_backward(output_gradient, saved.outputs.clone());
        attention::backward::record(recorder, &inputs, &self.plan, &self.options, &outputs)?;

        let cache = Cache::Separate { k: k.clone(), v: v.clone() };
        let rows = append::allocate_backward(self.runtime, cache, self.rows.rows)?;
        append::record_backward(recorder, &rows, &self.append)?;
        let Cache::Separate { k: bh, v: ch } = rows.new_rows() else { unreachable!() };

        let scan = &layer.scan;
        let gradients = preprocess::BackwardInputs {
            projected: layer.projected.clone(),
            dt_bias: self.model.dt_bias.clone(),
            z_gradient: scan.z.clone(),
            x_gradient,
            bh_gradient: bh.clone(),
            ch_gradient: ch.clone(),
            dt_gradient: scan.dt.clone(),
            adt_gradient: scan.adt.clone(),
            trap_gradient: scan.trap.clone(),
            angle_gradient: scan.angle.clone(),
        };
        let parameters = Parameters::default();
        preprocess_backward::record_onto(recorder, &gradients, &parameters, accumulate, &packed)?;
        Ok([packed.projected_gradient, k, v])
    }
}

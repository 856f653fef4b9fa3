//! Calls with their tensors on the device, ready to be recorded again and again.

use backslang::Dtype;
use backslang::kernels::attention::{
    self, BackwardInputs, BackwardOutputs, DevicePlan, ForwardInputs, Gradients, History, Options,
    Plan, Schedule, backward, forward,
};
use backslang::kernels::mamba3::preprocess::{
    self, BackwardInputs as RowsIn, BackwardOutputs as RowsOut, Parameters, Widths, dtype_of,
};
use backslang::kernels::mamba3::{preprocess_backward, preprocess_forward};
use backslang::runtime::{Recorder, Tensor};

use super::data::Data;
use super::shapes::{Attention, Counts, Mamba3, Pass, Shape};
use crate::cli::failure::Result;

/// Records a call.
pub(super) type Call<'a> = Box<dyn Fn(&mut Recorder<'_>) -> backslang::Result<()> + 'a>;

/// One call, with several sets of inputs to take turns with.
pub(super) struct Work {
    pub(super) calls: Vec<Call<'static>>,
    pub(super) counts: Counts,
}

/// Bytes that a case needs beside its inputs and outputs: what the forward leaves, index arrays, staging.
const ROOM: u64 = 256 << 20;

/// Makes the tensors of a call, or says how many bytes it needs where the device has fewer.
pub(super) fn prepare(
    data: &Data<'_>,
    shape: Shape,
    pass: Pass,
    dtype: Dtype,
) -> Result<Result<Work, u64>> {
    let counts = shape.counts(pass, dtype);
    let (set, rest) = match shape {
        // Beside the inputs, the output from which delta is made.
        Shape::Attention(_) => (counts.inputs, counts.outputs + counts.inputs / 2 + ROOM),
        // The packed rows are there as a whole, and the in-place gradients within the output.
        Shape::Mamba3(shape) => {
            let packed = shape.geometry().projected_width() * dtype.size() * shape.rows;
            (counts.inputs + packed as u64, counts.outputs + ROOM)
        }
    };
    let set = if pass == Pass::InPlace { set + counts.outputs } else { set };
    let memory = data.runtime.memory();
    let free = memory.budget.saturating_sub(memory.allocated) / 10 * 9 + memory.idle;
    let Some(free) = free.checked_sub(rest).filter(|free| *free >= set) else {
        return Ok(Err(rest + set));
    };
    let sets = data.sets(counts.inputs, free / set.max(1) * counts.inputs);
    let calls = match (shape, pass) {
        (Shape::Attention(shape), Pass::Forward) => attention_forward(data, shape, dtype, sets),
        (Shape::Attention(shape), _) => attention_backward(data, shape, dtype, sets),
        (Shape::Mamba3(shape), Pass::Forward) => mamba3_forward(data, shape, dtype, sets),
        (Shape::Mamba3(shape), pass) => {
            mamba3_backward(data, shape, dtype, sets, pass == Pass::InPlace)
        }
    };
    Ok(Ok(Work { calls: calls?, counts }))
}

/// The schedule: pages in random places, the shared ones in front of every sequence.
fn schedule(shape: &Attention) -> Schedule {
    let [shared, own] = shape.pages();
    let mut places: Vec<i128> = (0..shape.geometry().pages as i128).collect();
    fastrand::Rng::with_seed(2).shuffle(&mut places);
    let (prefix, rest) = places.split_at(shared);
    let sequences = 0..shape.sequences;
    let table = sequences.clone().flat_map(|s| [prefix, &rest[s * own..(s + 1) * own]].concat());
    let (length, first) = (shape.length(), shape.length() - shape.queries);
    Schedule {
        block_table: table.collect(),
        table_width: shared + own,
        sequence_lengths: vec![length as i128; shape.sequences],
        sequence_ids: sequences.clone().flat_map(|s| vec![s as i128; shape.queries]).collect(),
        positions: Some(sequences.flat_map(|_| first as i128..length as i128).collect()),
    }
}

fn plan(data: &Data<'_>, shape: &Attention, options: &Options) -> Result<DevicePlan> {
    let plan = Plan::new(&schedule(shape), &shape.geometry(), options.query_block_rows)?;
    Ok(DevicePlan::upload(data.runtime, plan)?)
}

fn attention_inputs(
    data: &Data<'_>,
    shape: &Attention,
    dtype: Dtype,
) -> Result<ForwardInputs<Tensor>> {
    let geometry = shape.geometry();
    let history = match geometry.is_mla() {
        true => History::Latent { latent: (), q_position: (), k_position: () },
        false => History::Separate { k: (), v: () },
    };
    ForwardInputs { q: (), history }.try_map(|name, ()| {
        let array = attention::Gradient::ALL.into_iter().find(|g| g.name() == name);
        let shape = array.map_or_else(Vec::new, |g| geometry.gradient_shape(g));
        data.tensor(name, dtype, &shape)
    })
}

fn attention_forward(
    data: &Data<'_>,
    shape: Attention,
    dtype: Dtype,
    sets: u64,
) -> Result<Vec<Call<'static>>> {
    let options = Options::new(shape.scale());
    let plan = plan(data, &shape, &options)?;
    let mut outputs = None;
    let mut calls: Vec<Call<'static>> = Vec::new();
    for _ in 0..sets {
        let inputs = attention_inputs(data, &shape, dtype)?;
        let outputs = match &outputs {
            Some(made) => made,
            None => outputs.insert(forward::allocate(data.runtime, &inputs)?),
        };
        let (plan, outputs) = (plan.clone(), outputs.clone());
        calls.push(Box::new(move |recorder| {
            forward::record(recorder, &inputs, &plan, &options, &outputs)
        }));
    }
    Ok(calls)
}

fn attention_backward(
    data: &Data<'_>,
    shape: Attention,
    dtype: Dtype,
    sets: u64,
) -> Result<Vec<Call<'static>>> {
    let options = Options { algorithm: data.algorithm, ..Options::new(shape.scale()) };
    let plan = plan(data, &shape, &options)?;
    let mut gradients = None;
    let mut calls: Vec<Call<'static>> = Vec::new();
    for _ in 0..sets {
        let (inputs, statistics) = completed(data, &shape, dtype, &plan, &options)?;
        let gradients = match &gradients {
            Some(made) => made,
            None => {
                gradients.insert(backward::allocate(data.runtime, &inputs, &options)?.gradients)
            }
        };
        let outputs = BackwardOutputs { gradients: gradients.clone(), statistics };
        let plan = plan.clone();
        calls.push(Box::new(move |recorder| {
            backward::record(recorder, &inputs, &plan, &options, &outputs)
        }));
    }
    Ok(calls)
}

/// Inputs with complete statistics, and these: what the forward saves, and delta from its output.
fn completed(
    data: &Data<'_>,
    shape: &Attention,
    dtype: Dtype,
    plan: &DevicePlan,
    options: &Options,
) -> Result<(BackwardInputs<Tensor>, Tensor)> {
    let inputs = attention_inputs(data, shape, dtype)?;
    let output_gradient =
        data.tensor("output_gradient", dtype, &shape.geometry().output_shape())?;
    let saved = forward::allocate(data.runtime, &inputs)?;
    let mut recorder = data.runtime.recorder()?;
    forward::record(&mut recorder, &inputs, plan, options, &saved)?;
    recorder.submit()?.wait()?;
    let inputs = inputs.into_backward(output_gradient, saved);
    let options = Options { gradients: Gradients::only(&[attention::Gradient::Q]), ..*options };
    let outputs = backward::allocate(data.runtime, &inputs, &options)?;
    let mut recorder = data.runtime.recorder()?;
    backward::record(&mut recorder, &inputs, plan, &options, &outputs)?;
    recorder.submit()?.wait()?;
    let statistics = outputs.statistics;
    Ok((
        BackwardInputs { statistics: Some(statistics.clone()), output: None, ..inputs },
        statistics,
    ))
}

fn mamba3_backward(
    data: &Data<'_>,
    shape: Mamba3,
    dtype: Dtype,
    sets: u64,
    in_place: bool,
) -> Result<Vec<Call<'static>>> {
    let geometry = shape.geometry();
    let outputs = preprocess_backward::allocate(data.runtime, &geometry, dtype)?;
    let call = |set: u64| -> Result<Call<'static>> {
        let mut outputs = outputs.clone();
        let mut packed = None;
        if in_place {
            if set > 0 {
                let shape = geometry.backward_outputs().projected_gradient;
                let gradient = data.runtime.tensor("projected_gradient", dtype, &shape)?;
                outputs = RowsOut { projected_gradient: gradient, ..outputs };
            }
            data.fill(&outputs.projected_gradient)?;
            packed = Some(geometry.views(&outputs.projected_gradient)?);
        }
        let inputs: RowsIn<Tensor> =
            geometry.backward_inputs().try_map(|name, shape| match (name, &packed) {
                ("z_gradient", Some(packed)) => Ok(packed.z.clone()),
                ("x_gradient", Some(packed)) => Ok(packed.x.clone()),
                _ => data.tensor(name, dtype_of(name, dtype), &shape),
            })?;
        let parameters = Parameters::default();
        Ok(Box::new(move |recorder: &mut Recorder<'_>| {
            preprocess_backward::record(recorder, &inputs, &parameters, &outputs)
        }))
    };
    (0..sets).map(call).collect()
}

fn mamba3_forward(
    data: &Data<'_>,
    shape: Mamba3,
    dtype: Dtype,
    sets: u64,
) -> Result<Vec<Call<'static>>> {
    let geometry = shape.geometry();
    let outputs = preprocess_forward::allocate(data.runtime, &geometry, dtype)?;
    let widths = Widths {
        inner_size: shape.inner,
        bc_rows: shape.bc_rows,
        state_size: shape.state,
        rope_angles: shape.rope,
    };
    let call = |_| -> Result<Call<'static>> {
        let projected = data.tensor("projected", dtype, &geometry.backward_inputs().projected)?;
        let dt_bias = data.tensor("dt_bias", Dtype::F32, &[shape.heads])?;
        let inputs = preprocess::ForwardInputs { projected, dt_bias };
        let (outputs, parameters) = (outputs.clone(), Parameters::default());
        Ok(Box::new(move |recorder: &mut Recorder<'_>| {
            preprocess_forward::record(recorder, &inputs, &widths, &parameters, &outputs)
        }))
    };
    (0..sets).map(call).collect()
}

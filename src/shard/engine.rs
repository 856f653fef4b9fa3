//! Where the calls of a part are made.

use std::ops::{ControlFlow, Range};
use std::time::Duration;

use super::Values;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::append::{self, AppendInputs, AppendPlan, Cache};
use crate::kernels::attention::backward::{self, launches_of_statistics};
use crate::kernels::attention::forward::{self, Split};
use crate::kernels::attention::{
    BackwardInputs, ForwardInputs, ForwardOutputs, Geometry, Gradient, Gradients, Options, Plan,
    Schedule,
};
use crate::kernels::mamba3::preprocess::{self, Parameters, Widths, dtype_of};
use crate::kernels::mamba3::preprocess_backward::{self, DT_BIAS_CHUNK_ROWS, Onto};
use crate::kernels::mamba3::preprocess_forward;
use crate::kernels::{Launch, Run, Target};
use crate::reference;
use crate::runtime::{Execution, Runtime, Timing};

/// What computes a part, and what it did.
pub struct Engine<'a> {
    place: Place<'a>,
    drive: Drive<'a>,
    record: Record,
}

/// How devices run the calls of a part.
#[derive(Clone, Copy)]
pub struct Drive<'a> {
    /// What no submission takes longer than: see [`Execution::bound`].
    pub bound: Duration,
    /// Asked between submissions, by the thread of each device: whether to stop, with [`Error::Cancelled`].
    ///
    /// [`Error::Cancelled`]: crate::Error::Cancelled
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl Default for Drive<'_> {
    fn default() -> Self {
        Self { bound: Execution::BOUND, stop: &|| false }
    }
}

impl<'a> Drive<'a> {
    fn execution(self, runtime: &'a Runtime) -> Execution<'a> {
        let watch = move |_| match (self.stop)() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        runtime.execution().bound(self.bound).watch(watch)
    }
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Device(&'a Runtime),
    Reference,
    Nowhere(Target),
}

/// What an engine did.
#[derive(Debug, Default)]
pub struct Record {
    /// The time of every dispatch on the GPU, in order; empty where the queue has no timestamps, and on the reference.
    pub timings: Vec<Timing>,
    /// The launches, of an engine that computes nothing.
    pub launches: Vec<Launch>,
    /// Bytes of the arrays that its calls take, one after the other; of an engine that computes nothing.
    pub input_bytes: usize,
    /// Bytes of the arrays that they give.
    pub output_bytes: usize,
}

/// Gradients by name.
pub(super) type Named = Vec<(Gradient, HostTensor)>;

impl<'a> Engine<'a> {
    /// A device.
    pub fn on(runtime: &'a Runtime) -> Self {
        Self::at(Place::Device(runtime))
    }

    /// With its device driven so.
    pub fn driven(self, drive: Drive<'a>) -> Self {
        Self { drive, ..self }
    }

    /// Float64 on the CPU, rounded once.
    pub fn reference() -> Self {
        Self::at(Place::Reference)
    }

    /// Computes nothing but what a device would launch; the results are zeros.
    pub fn nowhere(target: Target) -> Self {
        Self::at(Place::Nowhere(target))
    }

    /// What it did.
    pub fn into_record(self) -> Record {
        self.record
    }

    fn at(place: Place<'a>) -> Self {
        Self { place, drive: Drive::default(), record: Record::default() }
    }

    /// Whether it is the reference, whose statistics are float64 and so do not leave it.
    pub(super) fn is_reference(&self) -> bool {
        matches!(self.place, Place::Reference)
    }

    fn timed<T>(&mut self, run: Run<T>) -> T {
        self.record.timings.extend(run.timings);
        run.outputs
    }

    /// Records a call that is not made; its result.
    fn planned<'t>(
        &mut self,
        launches: Vec<Launch>,
        inputs: impl IntoIterator<Item = &'t HostTensor>,
        outputs: Vec<(Dtype, Vec<usize>)>,
    ) -> Vec<HostTensor> {
        let record = &mut self.record;
        record.launches.extend(launches);
        record.input_bytes += inputs.into_iter().map(|t| t.bytes().len()).sum::<usize>();
        let outputs = outputs.iter().map(|(dtype, shape)| HostTensor::zeros(*dtype, shape));
        let outputs = outputs.collect::<Vec<_>>();
        record.output_bytes += outputs.iter().map(|t| t.bytes().len()).sum::<usize>();
        outputs
    }

    pub(super) fn preprocess(
        &mut self,
        inputs: &preprocess::ForwardInputs<HostTensor>,
        widths: &Widths,
        parameters: &Parameters,
    ) -> Result<preprocess::ForwardOutputs<HostTensor>> {
        let dtype = inputs.projected.dtype();
        match self.place {
            Place::Device(runtime) => {
                let execution = self.drive.execution(runtime);
                let run = preprocess_forward::run(execution, inputs, widths, parameters)?;
                Ok(self.timed(run))
            }
            Place::Reference => {
                let inputs = inputs.as_ref().map(|_, t| t.to_f64());
                let outputs = reference::mamba3::preprocess(&inputs, widths, parameters)?;
                outputs.as_ref().try_map(|name, a| HostTensor::from_f64(dtype_of(name, dtype), a))
            }
            Place::Nowhere(target) => {
                let shapes = inputs.as_ref().map(|_, t| t.shape());
                let geometry = preprocess::Geometry::of_forward(&shapes, widths)?;
                let launches = preprocess_forward::launches(&geometry, dtype, target)?;
                let outputs = geometry.forward_outputs();
                let outputs = outputs.try_map::<_, std::convert::Infallible>(|name, shape| {
                    Ok(HostTensor::zeros(dtype_of(name, dtype), &shape))
                });
                let Ok(outputs) = outputs;
                let arrays = inputs.named().map(|(_, t)| t);
                self.planned(launches, arrays, Vec::new());
                self.record.output_bytes +=
                    outputs.named().map(|(_, t)| t.bytes().len()).sum::<usize>();
                Ok(outputs)
            }
        }
    }

    /// The outputs of each row, and the dt_bias sums of each chunk of rows.
    pub(super) fn preprocess_backward(
        &mut self,
        inputs: &preprocess::BackwardInputs<HostTensor>,
        parameters: &Parameters,
        onto: &Onto,
    ) -> Result<(preprocess::BackwardOutputs<HostTensor>, Values)> {
        let dtype = inputs.projected.dtype();
        match self.place {
            Place::Device(runtime) => {
                let execution = self.drive.execution(runtime);
                let run = preprocess_backward::run_chunks(execution, inputs, parameters, onto)?;
                let (outputs, chunks) = self.timed(run);
                Ok((outputs, Values::Tensor(chunks)))
            }
            Place::Reference => {
                let inputs = inputs.as_ref().map(|_, t| t.to_f64());
                let (mut outputs, values) =
                    reference::mamba3::preprocess_backward_chunks(&inputs, parameters)?;
                if let Some(old) = &onto.projected_gradient {
                    outputs.projected_gradient += &old.to_f64();
                }
                let width = inputs.dt_bias.len();
                let round = |name, array| HostTensor::from_f64(dtype_of(name, dtype), array);
                Ok((outputs.as_ref().try_map(round)?, Values::Doubles { width, values }))
            }
            Place::Nowhere(target) => {
                let shapes = inputs.as_ref().map(|_, t| t.shape());
                let geometry = preprocess::Geometry::of_backward(&shapes)?;
                let accumulate = onto.accumulate();
                let launches = preprocess_backward::launches(&geometry, dtype, accumulate, target)?;
                let shapes = geometry.backward_outputs();
                let chunks = [geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS), geometry.heads];
                self.planned(launches, inputs.named().map(|(_, t)| t), Vec::new());
                let outputs =
                    shapes.map(|name, shape| HostTensor::zeros(dtype_of(name, dtype), &shape));
                self.record.output_bytes +=
                    outputs.named().map(|(_, t)| t.bytes().len()).sum::<usize>();
                Ok((outputs, Values::Tensor(HostTensor::zeros(Dtype::F32, &chunks))))
            }
        }
    }

    pub(super) fn attention(
        &mut self,
        inputs: &ForwardInputs<HostTensor>,
        schedule: &Schedule,
        options: &Options,
        split: Split,
    ) -> Result<ForwardOutputs<HostTensor>> {
        match self.place {
            Place::Device(runtime) => {
                let execution = self.drive.execution(runtime);
                let run = forward::run_split(execution, inputs, schedule, options, Some(split))?;
                Ok(self.timed(run))
            }
            Place::Reference => {
                let dtype = inputs.q.dtype();
                let inputs = inputs.as_ref().map(|_, t| t.to_f64());
                let outputs = reference::attention::forward(&inputs, schedule, options)?;
                Ok(ForwardOutputs {
                    output: HostTensor::from_f64(dtype, &outputs.output)?,
                    statistics: HostTensor::from_f64(Dtype::F32, &outputs.statistics)?,
                })
            }
            Place::Nowhere(target) => {
                let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, t| t.shape()))?;
                let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
                let layouts = inputs.as_ref().map(|_, t| t.into());
                let launches =
                    forward::launches_split(&layouts, &plan, options, Some(split), target)?;
                let mut arrays = Vec::new();
                inputs.as_ref().map(|_, t| arrays.push(t));
                let output = (inputs.q.dtype(), geometry.output_shape());
                let statistics = (Dtype::F32, geometry.forward_statistics_shape());
                let mut made = self.planned(launches, arrays, vec![output, statistics]).into_iter();
                let mut next =
                    || made.next().unwrap_or_else(|| HostTensor::zeros(Dtype::F32, &[0]));
                Ok(ForwardOutputs { output: next(), statistics: next() })
            }
        }
    }

    /// Gradients of the query kernel, none perhaps, and complete statistics.
    pub(super) fn query(
        &mut self,
        inputs: &BackwardInputs<HostTensor>,
        schedule: &Schedule,
        options: &Options,
        onto: &[(Gradient, HostTensor)],
    ) -> Result<(Named, HostTensor)> {
        if options.gradients != Gradients::NONE {
            return self.backward(inputs, schedule, options, onto, None);
        }
        match self.place {
            Place::Device(runtime) => {
                let execution = self.drive.execution(runtime);
                let run = backward::run_statistics(execution, inputs, schedule, options)?;
                Ok((Vec::new(), self.timed(run)))
            }
            Place::Reference => {
                // Any gradient does; that of q there always is.
                let options = Options { gradients: Gradients::only(&[Gradient::Q]), ..*options };
                let (_, statistics) = self.backward(inputs, schedule, &options, onto, None)?;
                Ok((Vec::new(), statistics))
            }
            Place::Nowhere(target) => {
                let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
                let plan = Plan::new(schedule, &geometry, options.query_block_rows)?;
                let layouts = inputs.as_ref().map(|_, t| t.into());
                let launches = launches_of_statistics(&layouts, &plan, options, target)?;
                let mut arrays = Vec::new();
                inputs.as_ref().map(|_, t| arrays.push(t));
                let shape = geometry.statistics_shape();
                let made = self.planned(launches, arrays, vec![(Dtype::F32, shape.clone())]);
                let made = made.into_iter().next();
                Ok((Vec::new(), made.unwrap_or_else(|| HostTensor::zeros(Dtype::F32, &shape))))
            }
        }
    }

    /// Gradients of the history kernel, of these pages of so many in all: the inputs have these pages alone.
    pub(super) fn history(
        &mut self,
        inputs: &BackwardInputs<HostTensor>,
        schedule: &Schedule,
        options: &Options,
        onto: &[(Gradient, HostTensor)],
        pages: (Range<usize>, usize),
    ) -> Result<Named> {
        self.backward(inputs, schedule, options, onto, Some(pages)).map(|(gradients, _)| gradients)
    }

    /// Both kernels as far as they are asked for.
    pub(super) fn backward(
        &mut self,
        inputs: &BackwardInputs<HostTensor>,
        schedule: &Schedule,
        options: &Options,
        onto: &[(Gradient, HostTensor)],
        pages: Option<(Range<usize>, usize)>,
    ) -> Result<(Named, HostTensor)> {
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, t| t.shape()))?;
        let plan = || match pages {
            None => Plan::new(schedule, &geometry, options.query_block_rows),
            Some((here, pages)) => {
                let whole = Geometry { pages, ..geometry };
                Plan::of_pages(schedule, &whole, options.query_block_rows, here)
            }
        };
        match self.place {
            Place::Device(runtime) => {
                let execution = self.drive.execution(runtime);
                let run = backward::run_planned(execution, inputs, options, onto, plan)?;
                let outputs = self.timed(run);
                Ok((outputs.gradients, outputs.statistics))
            }
            Place::Reference => {
                let dtype = inputs.q.dtype();
                let inputs = inputs.as_ref().map(|_, t| t.to_f64());
                let onto = onto.iter().map(|(g, old)| (*g, old.to_f64())).collect::<Vec<_>>();
                let outputs =
                    reference::attention::backward_onto(&inputs, schedule, options, &onto)?;
                let gradients = outputs.gradients.iter();
                let round = |(g, a): &(Gradient, _)| Ok((*g, HostTensor::from_f64(dtype, a)?));
                let statistics = HostTensor::from_f64(Dtype::F32, &outputs.statistics)?;
                Ok((gradients.map(round).collect::<Result<_>>()?, statistics))
            }
            Place::Nowhere(target) => {
                let layouts = inputs.as_ref().map(|_, t| t.into());
                let launches = backward::launches(&layouts, &plan()?, options, target)?;
                let mut arrays = Vec::new();
                inputs.as_ref().map(|_, t| arrays.push(t));
                let dtype = inputs.q.dtype();
                let gradients = options.gradients.iter().collect::<Vec<_>>();
                let shapes = gradients.iter().map(|&g| (dtype, geometry.gradient_shape(g)));
                let made = self.planned(launches, arrays, shapes.collect());
                let statistics = HostTensor::zeros(Dtype::F32, &geometry.statistics_shape());
                Ok((gradients.into_iter().zip(made).collect(), statistics))
            }
        }
    }

    pub(super) fn append(
        &mut self,
        inputs: &AppendInputs<HostTensor>,
        schedule: &Schedule,
    ) -> Result<Cache<HostTensor>> {
        match self.place {
            Place::Device(runtime) => {
                let execution = self.drive.execution(runtime);
                let run = append::run(execution, inputs, schedule)?;
                Ok(self.timed(run))
            }
            Place::Reference => reference::attention::append(inputs, schedule),
            Place::Nowhere(target) => {
                let geometry = Geometry::of_append(&inputs.as_ref().map(|_, t| t.shape()))?;
                let plan = AppendPlan::new(schedule, &geometry)?;
                let layouts = inputs.as_ref().map(|_, t| t.into());
                let launches = append::launches(&layouts, &plan, target)?;
                let mut arrays = Vec::new();
                inputs.as_ref().map(|_, t| arrays.push(t));
                self.planned(launches, arrays, Vec::new());
                inputs.cache().try_map(|_, t| Ok(t.clone()))
            }
        }
    }
}

//! The backward on the inputs of a case.

use ndarray::ArrayD;

use super::Place;
use crate::check::trial::{Expected, Output, Trial};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters};
use crate::kernels::mamba3::preprocess_backward::{Onto, allocate, record_onto};
use crate::reference;
use crate::runtime::{Recorder, Runtime, Tensor};

pub(super) struct Backward {
    pub(super) inputs: BackwardInputs<HostTensor>,
    pub(super) parameters: Parameters,
    /// What gradients are added to; nothing is in its slice then, where it would not be added.
    pub(super) onto: Onto,
    pub(super) in_place: bool,
}

impl Trial for Backward {
    type Way = Place;

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        let plain = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::mamba3::preprocess_backward(&plain, &self.parameters)?;
        let added = |(name, array): (&'static str, &ArrayD<f64>)| {
            let sum = self.old(name).map(|old| array + &old.to_f64());
            (name, Expected::Near(sum.unwrap_or_else(|| array.clone())))
        };
        Ok(outputs.named().map(added).collect())
    }

    fn ways(&self) -> Vec<(String, Place)> {
        Place::ways(self.in_place)
    }

    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        place: &Place,
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>> {
        let runtime = recorder.runtime();
        let geometry = Geometry::of_backward(&self.inputs.as_ref().map(|_, t| t.shape()))?;
        let outputs = allocate(runtime, &geometry, self.inputs.projected.dtype())?;
        let inputs = match place {
            Place::Own => self.inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?,
            Place::Slice => {
                self.in_slices(runtime, &geometry, &outputs.projected_gradient, poison)?
            }
        };
        for (name, tensor) in outputs.named() {
            match self.old(name) {
                Some(old) => runtime.write(tensor, old.bytes())?,
                None if *place == Place::Slice && name == "projected_gradient" => {}
                None => recorder.fill(tensor, poison)?,
            }
        }
        record_onto(recorder, &inputs, &self.parameters, self.onto.accumulate(), &outputs)?;
        Ok(outputs.named().map(|(name, tensor)| (name, tensor.clone())).collect())
    }
}

impl Backward {
    /// What an output is added to.
    fn old(&self, output: &str) -> Option<&HostTensor> {
        match output {
            "projected_gradient" => self.onto.projected_gradient.as_ref(),
            "dt_bias_gradient" => self.onto.dt_bias_gradient.as_ref(),
            _ => None,
        }
    }

    /// The inputs, with those that pass through in their slices of `packed`, which holds `poison` otherwise.
    fn in_slices(
        &self,
        runtime: &Runtime,
        geometry: &Geometry,
        packed: &Tensor,
        poison: u32,
    ) -> Result<BackwardInputs<Tensor>> {
        let poison = poison.to_ne_bytes().into_iter().cycle();
        runtime.write(packed, &poison.take(packed.bytes() as usize).collect::<Vec<_>>())?;
        let slices = geometry.views(packed)?;
        self.inputs.as_ref().try_map(|name, tensor| {
            let slice = match name {
                "z_gradient" => &slices.z,
                "x_gradient" => &slices.x,
                "trap_gradient" if packed.dtype() == Dtype::F32 => &slices.trap,
                "angle_gradient" => &slices.angle,
                _ => return runtime.upload(name, tensor),
            };
            runtime.write(slice, tensor.bytes())?;
            Ok(slice.clone())
        })
    }
}

//! The preprocess on the packed rows of a case.

use super::Place;
use crate::check::trial::{Expected, Output, Trial};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::mamba3::preprocess::{
    BackwardInputs, ForwardInputs, Geometry, Parameters, Widths, dtype_of,
};
use crate::kernels::mamba3::preprocess_forward::{allocate, allocate_views, record};
use crate::reference;
use crate::runtime::{Recorder, Tensor};

pub(super) struct Forward {
    inputs: ForwardInputs<HostTensor>,
    widths: Widths,
    parameters: Parameters,
    in_place: bool,
}

impl Forward {
    /// That of which the backward has these inputs.
    pub(super) fn new(
        backward: &BackwardInputs<HostTensor>,
        parameters: Parameters,
        in_place: bool,
    ) -> Result<Self> {
        let geometry = Geometry::of_backward(&backward.as_ref().map(|_, t| t.shape()))?;
        let Geometry { inner_size, bc_rows, state_size, rope_angles, .. } = geometry;
        let widths = Widths { inner_size, bc_rows, state_size, rope_angles };
        let inputs = ForwardInputs {
            projected: backward.projected.clone(),
            dt_bias: backward.dt_bias.clone(),
        };
        Ok(Self { inputs, widths, parameters, in_place })
    }
}

impl Trial for Forward {
    type Way = Place;

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        let plain = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::mamba3::preprocess(&plain, &self.widths, &self.parameters)?;
        let dtype = self.inputs.projected.dtype();
        let expected = |(name, array): (&'static str, &ndarray::ArrayD<f64>)| {
            Ok((
                name,
                match name {
                    "z" | "x" | "trap" | "angle" => {
                        Expected::Exact(HostTensor::from_f64(dtype_of(name, dtype), array)?)
                    }
                    _ => Expected::Near(array.clone()),
                },
            ))
        };
        outputs.named().map(expected).collect()
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
        let shapes = self.inputs.as_ref().map(|_, tensor| tensor.shape());
        let geometry = Geometry::of_forward(&shapes, &self.widths)?;
        let inputs = self.inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
        let projected = &inputs.projected;
        let outputs = match place {
            Place::Own => allocate(runtime, &geometry, projected.dtype())?,
            Place::Slice => allocate_views(runtime, &geometry, projected)?,
        };
        let slices = geometry.views(projected)?;
        for (_, tensor) in outputs.named() {
            // A slice of the input keeps what it holds.
            if !slices.named().any(|(_, slice)| slice.is_same(tensor)) {
                recorder.fill(tensor, poison)?;
            }
        }
        record(recorder, &inputs, &self.widths, &self.parameters, &outputs)?;
        Ok(outputs.named().map(|(name, tensor)| (name, tensor.clone())).collect())
    }
}

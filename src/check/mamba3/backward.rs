//! The backward on the inputs of a case.

use crate::check::trial::{Expected, Output, Trial};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters};
use crate::kernels::mamba3::preprocess_backward::{allocate, record};
use crate::reference;
use crate::runtime::{Recorder, Tensor};

pub(super) struct Backward {
    pub(super) inputs: BackwardInputs<HostTensor>,
    pub(super) parameters: Parameters,
}

impl Trial for Backward {
    type Way = ();

    fn expected(&self) -> Result<Vec<Output<Expected>>> {
        let plain = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::mamba3::preprocess_backward(&plain, &self.parameters)?;
        Ok(outputs.named().map(|(name, array)| (name, Expected::Near(array.clone()))).collect())
    }

    fn ways(&self) -> Vec<(String, ())> {
        vec![("usually".into(), ())]
    }

    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        (): &(),
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>> {
        let runtime = recorder.runtime();
        let geometry = Geometry::of_backward(&self.inputs.as_ref().map(|_, t| t.shape()))?;
        let inputs = self.inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
        let outputs = allocate(runtime, &geometry, inputs.projected.dtype())?;
        for (_, tensor) in outputs.named() {
            recorder.fill(tensor, poison)?;
        }
        record(recorder, &inputs, &self.parameters, &outputs)?;
        Ok(outputs.named().map(|(name, tensor)| (name, tensor.clone())).collect())
    }
}

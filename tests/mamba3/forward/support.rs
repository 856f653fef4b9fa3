//! Running the forward on poisoned outputs, and what its results are held to.

use backslang::kernels::mamba3::preprocess::{
    ForwardInputs, ForwardOutputs, Geometry, Parameters, Widths, dtype_of,
};
use backslang::kernels::mamba3::preprocess_forward;
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor, reference};

use crate::common::compare::assert_close;
use crate::common::fence::{Fences, assert_untouched};
use crate::common::random;
use crate::support::TOLERANCE;

pub(crate) fn widths(geometry: &Geometry) -> Widths {
    let Geometry { inner_size, bc_rows, state_size, rope_angles, .. } = *geometry;
    Widths { inner_size, bc_rows, state_size, rope_angles }
}

/// Random inputs of these sizes, `projected` rounded to `dtype`.
pub(crate) fn inputs(geometry: &Geometry, dtype: Dtype, seed: u64) -> ForwardInputs<HostTensor> {
    let all = random::mamba3(geometry, seed);
    let projected = HostTensor::from_f64(dtype, &all.projected.to_f64()).unwrap();
    ForwardInputs { projected, dt_bias: all.dt_bias }
}

/// Runs on outputs full of NaN between fences; nothing but the outputs may change.
pub(crate) fn run_poisoned(
    runtime: &Runtime,
    host: &ForwardInputs<HostTensor>,
    widths: &Widths,
    parameters: &Parameters,
) -> ForwardOutputs<HostTensor> {
    let geometry = Geometry::of_forward(&host.as_ref().map(|_, t| t.shape()), widths).unwrap();
    let inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let mut fences = Fences::new(runtime);
    fences.add();
    let outputs = geometry.forward_outputs().map(|name, shape| {
        fences.output(&mut recorder, name, dtype_of(name, host.projected.dtype()), &shape)
    });
    fences.fill(&mut recorder);
    preprocess_forward::record(&mut recorder, &inputs, widths, parameters, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    fences.assert_whole();
    for ((_, tensor), (_, contents)) in inputs.named().zip(host.named()) {
        assert_untouched(runtime, tensor, Some(contents));
    }
    outputs.map(|_, tensor| {
        assert_untouched(runtime, &tensor, None);
        runtime.download(&tensor).unwrap()
    })
}

/// Runs and compares with the reference.
pub(crate) fn check(
    runtime: &Runtime,
    inputs: &ForwardInputs<HostTensor>,
    widths: &Widths,
    parameters: &Parameters,
    what: &str,
) -> ForwardOutputs<HostTensor> {
    let found = run_poisoned(runtime, inputs, widths, parameters);
    let plain = inputs.as_ref().map(|_, t| t.to_f64());
    let expected = reference::mamba3::preprocess(&plain, widths, parameters).unwrap();
    for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
        let what = format!("{what}, {}: {name}", inputs.projected.dtype());
        assert_eq!(found.dtype(), dtype_of(name, inputs.projected.dtype()), "{what}");
        let tolerance = match found.dtype() {
            _ if !matches!(name, "bh" | "ch" | "dt" | "adt") => 0.0,
            Dtype::F16 => 1e-3,
            Dtype::Bf16 => 8e-3,
            _ => TOLERANCE,
        };
        assert_close(found, expected, tolerance, &what);
    }
    found
}

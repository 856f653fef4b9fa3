//! Values: against the golden files and the float64 reference.

use backslang::kernels::mamba3::preprocess::{BackwardInputs, Parameters};
use backslang::runtime::Runtime;
use backslang::{Dtype, HostTensor};

use crate::common::compare::assert_close;
use crate::common::golden::Case;
use crate::common::random;

use crate::support::{TOLERANCE, cancellation, check_scaled, run_poisoned};

/// A golden case of f32 arrays.
fn golden(name: &str) -> (Case, BackwardInputs<HostTensor>, Parameters) {
    let case = Case::open(&format!("{name}.npz"));
    let inputs =
        BackwardInputs::try_build(|array| HostTensor::from_f64(Dtype::F32, &case.array(array)));
    let scalar = |name| case.scalar(name) as f32;
    let parameters = Parameters {
        epsilon: scalar("epsilon"),
        dt_min: scalar("dt_min"),
        dt_max: scalar("dt_max"),
        a_floor: scalar("a_floor"),
    };
    (case, inputs.unwrap(), parameters)
}

pub(crate) fn golden_files(runtime: &Runtime) {
    for name in ["mamba_backward", "mamba_backward_small_dt"] {
        let (case, inputs, parameters) = golden(name);
        for (output, found) in run_poisoned(runtime, &inputs, &parameters).named() {
            let expected = case.array(&format!("expected_{output}"));
            assert_close(found, &expected, TOLERANCE, &format!("{name}: {output}"));
        }
    }
    // Here the sigmoid must not cancel, which a norm would hide: element by element.
    let (case, inputs, parameters) = golden("mamba_backward_small_dt");
    let found = run_poisoned(runtime, &inputs, &parameters).dt_bias_partial;
    let expected = case.array("expected_dt_bias_partial");
    for (found, expected) in found.as_f32().unwrap().iter().zip(&expected) {
        assert!(
            (f64::from(*found) - expected).abs() <= 5e-5 * expected.abs(),
            "{found} for {expected}"
        );
    }
}

pub(crate) fn random_problems(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(fastrand::u64(..));
    for _ in 0..60 {
        let geometry = random::mamba3_geometry(&mut rng);
        let seed = rng.u64(..);
        let inputs = random::mamba3(&geometry, seed);
        let parameters = Parameters::default();
        let scales = cancellation(&inputs, &parameters);
        let what = format!("{geometry:?} of seed {seed}");
        check_scaled(runtime, &inputs, &parameters, &scales, &what);
    }
}

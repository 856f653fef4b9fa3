//! Cases of the Mamba-3 preprocess backward.

use super::random::Random;
use super::{CaseReport, Command, POISON, TOLERANCE, gpu_time};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::mamba3::preprocess::{BackwardInputs, BackwardOutputs, Geometry, Parameters};
use crate::kernels::mamba3::preprocess_backward::{allocate, record};
use crate::reference;
use crate::runtime::Runtime;

/// What a case is about, and its sizes and parameters.
struct Case {
    name: &'static str,
    leading: &'static [usize],
    /// inner_size, bc_rows, state_size, heads, rope_angles.
    widths: [usize; 5],
    parameters: Parameters,
    /// Where `dd_dt + dt_bias` is centred.
    centre: f32,
    /// Only the gradient of dt is not zero: its slice is then all there is to compare.
    dt_alone: bool,
}

fn cases() -> Vec<Case> {
    let usual = Case {
        name: "odd widths",
        leading: &[7],
        widths: [37, 3, 17, 5, 3],
        parameters: Parameters::default(),
        centre: -4.0,
        dt_alone: false,
    };
    let unclamped = Parameters { dt_min: 0.0, dt_max: f32::INFINITY, ..Parameters::default() };
    vec![
        Case { name: "wide rows", leading: &[2, 3], widths: [1030, 2, 128, 70, 64], ..usual },
        Case { name: "many rows", leading: &[1000], widths: [8, 1, 16, 9, 2], ..usual },
        Case {
            name: "softplus far below 0",
            centre: -20.0,
            dt_alone: true,
            parameters: unclamped,
            ..usual
        },
        Case {
            name: "softplus far above 0",
            centre: 95.0,
            dt_alone: true,
            parameters: unclamped,
            ..usual
        },
        Case { name: "no widths but one", leading: &[5], widths: [0, 0, 0, 3, 0], ..usual },
        Case { name: "no rows", leading: &[0], ..usual },
        usual,
    ]
}

/// The names of the cases.
pub(super) fn names() -> Vec<&'static str> {
    cases().iter().map(|case| case.name).collect()
}

/// Runs every case.
pub(super) fn check(runtime: &Runtime, add: &mut dyn FnMut(CaseReport)) -> Result<()> {
    for (seed, case) in cases().iter().enumerate() {
        add(check_case(runtime, case, &mut Random::new(seed as u64))?);
    }
    Ok(())
}

fn check_case(runtime: &Runtime, case: &Case, random: &mut Random) -> Result<CaseReport> {
    let mut report = CaseReport::new(Command::Mamba3PreprocessBackward, case.name, TOLERANCE);
    let inputs = inputs(case, random)?;
    let plain = inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let expected = reference::mamba3::preprocess_backward(&plain, &case.parameters)?;
    let first = run(runtime, &inputs, case, POISON[0], &mut report)?;
    for ((name, found), (_, expected)) in first.named().zip(expected.named()) {
        report.compare(name, found, expected);
    }
    let again = run(runtime, &inputs, case, POISON[1], &mut report)?;
    for ((name, found), (_, first)) in again.named().zip(first.named()) {
        report.compare_bits(name, found, first, "on the second run");
    }
    Ok(report)
}

fn inputs(case: &Case, random: &mut Random) -> Result<BackwardInputs<HostTensor>> {
    let [inner_size, bc_rows, state_size, heads, rope_angles] = case.widths;
    let geometry = Geometry {
        leading: case.leading.to_vec(),
        rows: case.leading.iter().product(),
        inner_size,
        bc_rows,
        state_size,
        heads,
        rope_angles,
    };
    geometry.backward_inputs().try_map(|name, shape| {
        let mut tensor = random.normals(&shape)?;
        for value in tensor.as_f32_mut().into_iter().flatten() {
            match name {
                "dt_bias" => *value += case.centre,
                "projected" => {}
                // Of one sign, as a sum over rows that cancels would measure rounding alone.
                "dt_gradient" if case.dt_alone => *value = value.abs(),
                _ if case.dt_alone => *value = 0.0,
                _ => {}
            }
        }
        Ok(tensor)
    })
}

fn run(
    runtime: &Runtime,
    inputs: &BackwardInputs<HostTensor>,
    case: &Case,
    poison: u32,
    report: &mut CaseReport,
) -> Result<BackwardOutputs<HostTensor>> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
    let inputs = inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
    let outputs = allocate(runtime, &geometry, inputs.projected.dtype())?;
    let mut recorder = runtime.recorder()?;
    for (_, tensor) in outputs.named() {
        recorder.fill(tensor, poison)?;
    }
    record(&mut recorder, &inputs, &case.parameters, &outputs)?;
    let submission = recorder.submit()?;
    submission.wait()?;
    report.gpu = gpu_time(&submission)?;
    outputs.as_ref().try_map(|_, tensor| runtime.download(tensor))
}

//! Cases of the Mamba-3 preprocess and of its backward.

mod backward;
mod forward;

use backward::Backward;
use forward::Forward;

use super::random::Random;
use super::report::CaseReport;
use super::trial::hold;
use super::{Command, DTYPES};
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters, dtype_of};
use crate::kernels::mamba3::preprocess_backward::Onto;
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
    /// The types that can hold the results.
    dtypes: &'static [Dtype],
    /// Also with what passes through in its slice of the packed rows.
    in_place: bool,
    /// The gradients are added to what their tensors hold.
    accumulate: bool,
}

/// Where what passes through lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In memory of its own.
    Own,
    /// In its slice of the packed rows.
    Slice,
}

impl Place {
    fn ways(in_place: bool) -> Vec<(String, Self)> {
        let ways = [("usually", Self::Own), ("in place", Self::Slice)];
        let ways = ways.map(|(words, place)| (words.into(), place));
        ways.into_iter().take(1 + usize::from(in_place)).collect()
    }
}

/// The cases of a command: a forward has nothing to add to.
fn cases(command: Command) -> Vec<Case> {
    let mut cases = all_cases();
    cases.retain(|case| !case.accumulate || command != Command::Mamba3Preprocess);
    cases
}

fn all_cases() -> Vec<Case> {
    let usual = Case {
        name: "odd widths",
        leading: &[7],
        widths: [37, 3, 17, 5, 3],
        parameters: Parameters::default(),
        centre: -4.0,
        dt_alone: false,
        dtypes: &DTYPES,
        in_place: false,
        accumulate: false,
    };
    let unclamped = Parameters { dt_min: 0.0, dt_max: f32::INFINITY, ..Parameters::default() };
    vec![
        Case {
            name: "wide rows",
            leading: &[2, 3],
            widths: [1030, 2, 128, 70, 64],
            in_place: true,
            ..usual
        },
        Case { name: "many rows", leading: &[1000], widths: [8, 1, 16, 9, 2], ..usual },
        Case {
            name: "softplus far below 0",
            centre: -20.0,
            dt_alone: true,
            parameters: unclamped,
            // Gradients of 1e-9, which are 0 in f16.
            dtypes: &[Dtype::F32, Dtype::Bf16],
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
        Case { in_place: true, ..usual },
        Case {
            name: "added to old gradients",
            leading: &[150],
            widths: [10, 2, 12, 4, 6],
            accumulate: true,
            ..usual
        },
        Case { name: "odd widths, added", accumulate: true, ..usual },
    ]
}

/// The names of a command's cases.
pub(super) fn names(command: Command) -> Vec<&'static str> {
    cases(command).iter().map(|case| case.name).collect()
}

/// Runs every case of the command that the type can hold.
pub(super) fn check(
    runtime: &Runtime,
    command: Command,
    dtype: Dtype,
    add: &mut dyn FnMut(CaseReport),
) -> Result<()> {
    let cases = cases(command);
    for (seed, case) in cases.iter().enumerate().filter(|(_, c)| c.dtypes.contains(&dtype)) {
        let mut report = CaseReport::new(command, dtype, case.name);
        let random = &mut Random::new(seed as u64);
        let inputs = inputs(case, dtype, random)?;
        let Case { parameters, in_place, .. } = *case;
        match command {
            Command::Mamba3Preprocess => {
                hold(runtime, &Forward::new(&inputs, parameters, in_place)?, &mut report)?;
            }
            _ => {
                let onto = if case.accumulate { onto(&inputs, random)? } else { Onto::default() };
                hold(runtime, &Backward { inputs, parameters, onto, in_place }, &mut report)?;
            }
        }
        add(report);
    }
    Ok(())
}

/// Random inputs, all but what is f32 in any case rounded to the type.
fn inputs(case: &Case, dtype: Dtype, random: &mut Random) -> Result<BackwardInputs<HostTensor>> {
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
        HostTensor::from_f64(dtype_of(name, dtype), &tensor.to_f64())
    })
}

/// Random old gradients for these inputs.
fn onto(inputs: &BackwardInputs<HostTensor>, random: &mut Random) -> Result<Onto> {
    let mut old = |like: &HostTensor| {
        HostTensor::from_f64(like.dtype(), &random.normals(like.shape())?.to_f64())
    };
    Ok(Onto {
        projected_gradient: Some(old(&inputs.projected)?),
        dt_bias_gradient: Some(old(&inputs.dt_bias)?),
    })
}

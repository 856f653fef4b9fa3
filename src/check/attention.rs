//! Running the cases of paged attention.

mod append;
mod backward;
mod cases;
mod forward;
mod problem;

use append::{Adjoint, Append};
use backward::Backward;
use cases::{Call, cases};
use forward::Forward;
use problem::Problem;

use super::Command;
use super::random::Random;
use super::report::CaseReport;
use super::trial::hold;
use crate::error::Result;
use crate::host::Dtype;
use crate::runtime::Runtime;

/// The names of the command's cases.
pub(super) fn names(command: Command) -> Vec<&'static str> {
    cases(command).iter().map(|case| case.name).collect()
}

/// Runs every case of the command.
pub(super) fn check(
    runtime: &Runtime,
    command: Command,
    dtype: Dtype,
    add: &mut dyn FnMut(CaseReport),
) -> Result<()> {
    for (seed, case) in cases(command).iter().enumerate() {
        let mut report = CaseReport::new(command, dtype, case.name);
        let problem = Problem::new(case, dtype, seed as u64)?;
        let append = |problem| Append::new(problem, dtype, &mut Random::new(seed as u64));
        match case.call {
            Call::Forward => hold(runtime, &Forward::new(problem, case), &mut report)?,
            Call::Append => hold(runtime, &append(problem)?, &mut report)?,
            Call::AppendAdjoint => hold(runtime, &Adjoint(append(problem)?), &mut report)?,
            Call::Backward => {
                let history_only = command == Command::HistoryBackward;
                hold(runtime, &Backward::new(problem, case, history_only)?, &mut report)?;
            }
        }
        add(report);
    }
    Ok(())
}

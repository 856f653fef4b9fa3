//! Running the cases of paged attention, and what they are held to.

mod cases;

use cases::{Case, Problem, cases};

use super::{CaseReport, Command, POISON, TOLERANCE, gpu_time};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::attention::backward::{allocate, record};
use crate::kernels::attention::{BackwardOutputs, DevicePlan, Gradient, Options, Plan};
use crate::reference;
use crate::runtime::Runtime;

/// The names of the command's cases.
pub(super) fn names(command: Command) -> Vec<&'static str> {
    cases(command).iter().map(|case| case.name).collect()
}

/// Runs every case of the command.
pub(super) fn check(
    runtime: &Runtime,
    command: Command,
    add: &mut dyn FnMut(CaseReport),
) -> Result<()> {
    for (seed, case) in cases(command).iter().enumerate() {
        add(check_case(runtime, command, case, seed as u64)?);
    }
    Ok(())
}

fn check_case(runtime: &Runtime, command: Command, case: &Case, seed: u64) -> Result<CaseReport> {
    let problem = Problem::new(case, seed, command == Command::HistoryBackward)?;
    let tolerance = TOLERANCE * (problem.largest_score / 8.0).max(1.0);
    let mut report = CaseReport::new(command, case.name, tolerance);
    let plain = problem.inputs.as_ref().map(|_, tensor| tensor.to_f64());
    let expected = reference::attention::backward(&plain, &problem.schedule, &problem.options)?;
    let first = run(runtime, &problem, &problem.options, POISON[0], &mut report)?;
    for ((gradient, found), (_, expected)) in first.gradients.iter().zip(&expected.gradients) {
        report.compare(gradient.output_name(), found, expected);
    }
    report.compare("statistics", &first.statistics, &expected.statistics);
    let again = run(runtime, &problem, &problem.options, POISON[1], &mut report)?;
    compare_bits(&mut report, &again, &first, "on the second run");
    let gpu = report.gpu;
    for (options, words) in settings(&problem.options) {
        let found = run(runtime, &problem, &options, POISON[0], &mut report)?;
        compare_bits(&mut report, &found, &first, &words);
    }
    report.gpu = gpu;
    Ok(report)
}

/// All eight settings, and other blocks of rows.
fn settings(options: &Options) -> Vec<(Options, String)> {
    let setting = |bits: u32| {
        let [prune_queries, cache_history, compact_history] = [1, 2, 4].map(|bit| bits & bit != 0);
        let query_block_rows = if bits & 8 == 0 { options.query_block_rows } else { 3 };
        let words = [
            (prune_queries, "pruned"),
            (cache_history, "cached"),
            (compact_history, "compacted"),
            (bits & 8 != 0, "in blocks of 3 rows"),
        ];
        let words = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect::<Vec<_>>();
        let words = if words.is_empty() { "plain".into() } else { words.join(", ") };
        let options =
            Options { prune_queries, cache_history, compact_history, query_block_rows, ..*options };
        (options, format!("when {words}"))
    };
    (0..8).chain([9]).map(setting).collect()
}

fn compare_bits(
    report: &mut CaseReport,
    found: &BackwardOutputs<HostTensor>,
    first: &BackwardOutputs<HostTensor>,
    run: &str,
) {
    for ((gradient, found), (_, first)) in found.gradients.iter().zip(&first.gradients) {
        report.compare_bits(gradient.output_name(), found, first, run);
    }
    report.compare_bits("statistics", &found.statistics, &first.statistics, run);
}

fn run(
    runtime: &Runtime,
    problem: &Problem,
    options: &Options,
    poison: u32,
    report: &mut CaseReport,
) -> Result<BackwardOutputs<HostTensor>> {
    let plan = Plan::new(&problem.schedule, &problem.geometry, options.query_block_rows)?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = problem.inputs.as_ref().try_map(|name, tensor| runtime.upload(name, tensor))?;
    let outputs = allocate(runtime, &inputs, options)?;
    let mut recorder = runtime.recorder()?;
    for (_, tensor) in &outputs.gradients {
        recorder.fill(tensor, poison)?;
    }
    // Complete statistics are an input, and the output at once.
    if problem.geometry.statistics_columns < 3 {
        recorder.fill(&outputs.statistics, poison)?;
    }
    record(&mut recorder, &inputs, &plan, options, &outputs)?;
    let submission = recorder.submit()?;
    submission.wait()?;
    report.gpu = gpu_time(&submission)?;
    let download = |(gradient, tensor): &(Gradient, _)| Ok((*gradient, runtime.download(tensor)?));
    Ok(BackwardOutputs {
        gradients: outputs.gradients.iter().map(download).collect::<Result<_>>()?,
        statistics: runtime.download(&outputs.statistics)?,
    })
}

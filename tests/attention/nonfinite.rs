//! NaN and infinities among what is read: they reach what depends on them, and nothing else.

use backslang::HostTensor;
use backslang::kernels::attention::{BackwardOutputs, Options};
use backslang::reference;
use backslang::runtime::Runtime;
use fastrand::Rng;
use ndarray::ArrayD;

use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase};
use crate::support::{busy_case, run_poisoned, settings};

/// A problem in which every sequence has pages of its own, so that there are rows that an element does not reach.
fn problem(position_dim: usize, given_columns: usize, given_output: bool) -> AttentionProblem {
    let case = busy_case(true, position_dim);
    let schedule = ScheduleCase { shared: false, queries: 24, ..case.schedule };
    AttentionCase { schedule, given_columns, given_output, ..case }.problem(91, 0.0)
}

/// NaN, ∞ and −∞ in a live element of each input array in turn.
pub(crate) fn nonfinite_inputs_reach_what_depends_on_them(runtime: &Runtime) {
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    for (position_dim, given_columns, given_output) in
        [(0, 0, false), (0, 2, true), (0, 3, false), (5, 0, false), (5, 2, false), (5, 3, true)]
    {
        let mut problem = problem(position_dim, given_columns, given_output);
        let choices = settings(problem.options).collect::<Vec<_>>();
        problem.options = Options { ..choices[rng.usize(0..choices.len())] };
        let clean = Pair::of(runtime, &problem);
        let mut arrays = Vec::new();
        problem
            .inputs
            .as_ref()
            .map(|name, tensor| arrays.push((name, live(&problem, name, tensor))));
        for (name, live) in arrays {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let at = live[rng.usize(0..live.len())];
                let mut spoilt = problem.clone();
                spoilt.inputs = spoilt.inputs.map(|found, mut tensor| {
                    if found == name {
                        tensor.as_f32_mut().unwrap()[at] = value;
                    }
                    tensor
                });
                let what = format!(
                    "{value} in element {at} of `{name}`, {given_columns} columns, seed {seed}"
                );
                let reached = Pair::of(runtime, &spoilt).count_spoilt(&clean, &what);
                // With delta given, nothing reads the output.
                assert_eq!(reached > 0, (name, given_columns) != ("output", 3), "{what}");
            }
        }
    }
}

/// The elements of an input that some row reads.
pub(crate) fn live(problem: &AttentionProblem, name: &str, tensor: &HostTensor) -> Vec<usize> {
    let sees = |row: usize| !problem.visible_slots(row).is_empty();
    let rows = (0..problem.geometry.queries).filter(|&row| sees(row)).collect::<Vec<_>>();
    let live = match name {
        "k" | "v" | "latent" | "k_position" => {
            rows.iter().flat_map(|&row| problem.visible_slots(row)).collect()
        }
        _ => rows,
    };
    let outer = match name {
        "k" | "v" | "latent" | "k_position" => problem.geometry.slots(),
        _ => problem.geometry.queries,
    };
    let width = tensor.bytes().len() / 4 / outer;
    live.iter().flat_map(|&index| index * width..(index + 1) * width).collect()
}

/// What the device and the reference make of a problem.
struct Pair {
    found: BackwardOutputs<HostTensor>,
    exact: BackwardOutputs<ArrayD<f64>>,
}

impl Pair {
    fn of(runtime: &Runtime, problem: &AttentionProblem) -> Self {
        let inputs = problem.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let exact = reference::attention::backward(&inputs, &problem.schedule, &problem.options);
        Self { found: run_poisoned(runtime, problem), exact: exact.unwrap() }
    }

    fn outputs(&self) -> Vec<(&'static str, &[f32], &[f64])> {
        let statistics = ("statistics", &self.found.statistics, &self.exact.statistics);
        let gradients = self.found.gradients.iter().zip(&self.exact.gradients);
        gradients
            .map(|((g, found), (_, exact))| (g.output_name(), found, exact))
            .chain([statistics])
            .map(|(name, found, exact)| (name, found.as_f32().unwrap(), exact.as_slice().unwrap()))
            .collect()
    }

    /// Non-finite exactly where the reference is, and of its kind; bits of the clean run where the reference keeps its
    /// own. Returns how many elements are not finite.
    fn count_spoilt(&self, clean: &Self, what: &str) -> usize {
        let mut reached = 0;
        for ((name, found, exact), (_, clean_found, clean_exact)) in
            self.outputs().into_iter().zip(clean.outputs())
        {
            for (i, (&found, &exact)) in found.iter().zip(exact).enumerate() {
                let what = || format!("{what}: element {i} of {name}: {found}, not {exact}");
                if exact.to_bits() == clean_exact[i].to_bits() {
                    assert_eq!(found.to_bits(), clean_found[i].to_bits(), "{}", what());
                } else if exact.is_finite() {
                    assert!(found.is_finite(), "{}", what());
                } else {
                    assert_eq!(found.is_nan(), exact.is_nan(), "{}", what());
                    assert!(exact.is_nan() || f64::from(found) == exact, "{}", what());
                    reached += 1;
                }
            }
        }
        reached
    }
}

//! Float64 twins of the paged-attention kernels.
//!
//! They walk the schedule itself, row by row and token by token; of the host plan they use the checks only.

use ndarray::ArrayD;

use super::{add_scaled, array, dot, row_major};
use crate::error::Result;
use crate::kernels::attention::{
    BackwardInputs, BackwardOutputs, ForwardInputs, ForwardOutputs, Geometry, Gradient, Options,
    Plan, Schedule,
};

mod problem;
mod sums;

use problem::Problem;
use sums::Sums;

/// Attention over the visible tokens of each row, and the two statistics that a backward can use.
///
/// `output = Σ p·v` and (maximum, denominator); a row that sees nothing has zeros everywhere.
/// Of the options, `causal` and `scale` count.
///
/// # Errors
/// What [`Geometry::of_forward`], [`Options::check`] and [`Plan::new`] reject.
pub fn forward(
    inputs: &ForwardInputs<ArrayD<f64>>,
    schedule: &Schedule,
    options: &Options,
) -> Result<ForwardOutputs<ArrayD<f64>>> {
    let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, a| a.shape()))?;
    check("paged-attention", schedule, &geometry, options)?;
    let inputs = inputs.as_ref().map(|_, a| row_major(a));
    let problem = Problem::new(&geometry, schedule, options, &inputs.q, &inputs.history);
    let value_dim = geometry.value_dim;
    let mut output = vec![0.0; geometry.queries * geometry.heads * value_dim];
    let mut statistics = vec![0.0; geometry.queries * geometry.heads * 2];
    let mut scores = Vec::new();
    problem.for_each_row_head(|query, kv_head, slots| {
        problem.scores(query, kv_head, slots, &mut scores);
        let maximum = maximum(&scores);
        let denominator = denominator(&scores, maximum);
        let sum = &mut output[query * value_dim..][..value_dim];
        for (&slot, score) in slots.iter().zip(&scores) {
            let p = (score - maximum).exp() / denominator;
            add_scaled(sum, p, problem.value(slot, kv_head));
        }
        statistics[2 * query..][..2].copy_from_slice(&[maximum, denominator]);
    });
    let rows = [geometry.queries, geometry.heads];
    Ok(ForwardOutputs {
        output: array("output", &[rows[0], rows[1], value_dim], output)?,
        statistics: array("statistics", &[rows[0], rows[1], 2], statistics)?,
    })
}

/// The gradients asked for and the row statistics of [`forward`].
///
/// Per visible (row, head, token): `p = exp(score − maximum) / denominator`,
/// `ds = p · (output_gradient·v − delta) · scale`. Then `q_gradient = Σ ds·k`,
/// `q_position_gradient = Σ ds·k_position`, `k_gradient = Σ ds·q`, `v_gradient = Σ p·output_gradient`,
/// `latent_gradient = Σ (ds·q + p·output_gradient)`, `k_position_gradient = Σ ds·q_position`.
///
/// Given statistics are used as they are: three columns come back unchanged; with two, rows that see
/// nothing get zeros and a row whose denominator is 0 gets a delta of 0. Such rows contribute nothing
/// and none of their inputs is read; their own gradients are zeros.
///
/// # Errors
/// What [`Geometry::of_backward`], [`Options::check`], [`Plan::new`] and
/// [`Gradients::resolve`](crate::kernels::attention::Gradients::resolve) reject.
pub fn backward(
    inputs: &BackwardInputs<ArrayD<f64>>,
    schedule: &Schedule,
    options: &Options,
) -> Result<BackwardOutputs<ArrayD<f64>>> {
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, a| a.shape()))?;
    check("paged-attention-backward", schedule, &geometry, options)?;
    let gradients = options.gradients.resolve(|g| g.exists(geometry.is_mla()))?;
    let inputs = inputs.as_ref().map(|_, a| row_major(a));
    let problem = Problem::new(&geometry, schedule, options, &inputs.q, &inputs.history);
    let mut pass = Pass {
        problem: &problem,
        output_gradient: &inputs.output_gradient,
        output: inputs.output.as_deref(),
        given: inputs.statistics.as_deref(),
        statistics: vec![0.0; geometry.queries * geometry.heads * 3],
        sums: Sums::new(&geometry, gradients),
        tokens: Tokens::default(),
    };
    problem.for_each_row_head(|query, kv_head, slots| pass.row_head(query, kv_head, slots));
    let statistics = match (geometry.statistics_columns, &inputs.statistics) {
        (3, Some(given)) => given.to_vec(),
        _ => pass.statistics,
    };
    Ok(BackwardOutputs {
        gradients: pass.sums.into_arrays(&geometry)?,
        statistics: array("statistics", &geometry.statistics_shape(), statistics)?,
    })
}

fn check(
    operator: &'static str,
    schedule: &Schedule,
    geometry: &Geometry,
    options: &Options,
) -> Result<()> {
    options.check()?;
    let plan = Plan::new(schedule, geometry, options.query_block_rows)?;
    plan.check_call(operator, geometry, options.causal)
}

/// The backward under way.
struct Pass<'a> {
    problem: &'a Problem<'a>,
    /// `[queries, heads, value_dim]`.
    output_gradient: &'a [f64],
    /// As `output_gradient`.
    output: Option<&'a [f64]>,
    /// `[queries, heads, statistics_columns]`.
    given: Option<&'a [f64]>,
    /// `[queries, heads, 3]`, written.
    statistics: Vec<f64>,
    sums: Sums,
    tokens: Tokens,
}

/// Per visible token of the row and head at hand.
#[derive(Default)]
struct Tokens {
    scores: Vec<f64>,
    /// `p = exp(score − maximum) / denominator`.
    p: Vec<f64>,
    /// `dp = output_gradient · v`.
    dp: Vec<f64>,
}

impl Pass<'_> {
    /// Adds what one row and query head contributes; `query` counts (row, head), `slots` is not empty.
    fn row_head(&mut self, query: usize, kv_head: usize, slots: &[usize]) {
        let Self { problem, .. } = *self;
        let columns = problem.geometry.statistics_columns;
        let given = self.given.map(|given| &given[query * columns..][..columns]);
        if let Some(&[maximum, denominator, ..]) = given
            && denominator == 0.0
        {
            self.statistics[3 * query..][..2].copy_from_slice(&[maximum, denominator]);
            return;
        }
        let value_dim = problem.geometry.value_dim;
        let output_gradient = &self.output_gradient[query * value_dim..][..value_dim];
        let Tokens { scores, p, dp } = &mut self.tokens;
        problem.scores(query, kv_head, slots, scores);
        let (maximum, denominator) = match given {
            Some(&[maximum, denominator, ..]) => (maximum, denominator),
            _ => {
                let maximum = maximum(scores);
                (maximum, denominator(scores, maximum))
            }
        };
        p.clear();
        p.extend(scores.iter().map(|score| (score - maximum).exp() / denominator));
        dp.clear();
        dp.extend(slots.iter().map(|&slot| dot(output_gradient, problem.value(slot, kv_head))));
        let delta = match (given, self.output) {
            (Some(&[_, _, delta]), _) => delta,
            (_, Some(output)) => dot(&output[query * value_dim..][..value_dim], output_gradient),
            _ => dot(p, dp),
        };
        self.statistics[3 * query..][..3].copy_from_slice(&[maximum, denominator, delta]);
        for (token, &slot) in slots.iter().enumerate() {
            let p = p[token];
            let ds = p * (dp[token] - delta) * problem.scale;
            let row = slot * problem.geometry.kv_heads + kv_head;
            let sums = &mut self.sums;
            sums.add(Gradient::Q, query, ds, problem.key(slot, kv_head));
            sums.add(problem.key_gradient(), row, ds, problem.query(query));
            sums.add(problem.value_gradient(), row, p, output_gradient);
            sums.add(Gradient::QPosition, query, ds, problem.key_position(slot));
            sums.add(Gradient::KPosition, row, ds, problem.query_position(query));
        }
    }
}

/// The largest score; NaN when one is.
fn maximum(scores: &[f64]) -> f64 {
    let larger = |m: f64, &s: &f64| if s > m || s.is_nan() { s } else { m };
    scores.iter().fold(f64::NEG_INFINITY, larger)
}

/// `Σ exp(score − maximum)`.
fn denominator(scores: &[f64], maximum: f64) -> f64 {
    scores.iter().map(|score| (score - maximum).exp()).sum()
}

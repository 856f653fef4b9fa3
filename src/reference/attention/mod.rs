//! Float64 twins of the paged-attention kernels.
//!
//! They walk the schedule itself; of the host plan they use the checks only.

use ndarray::ArrayD;

use super::{add_scaled, array, dot, row_major};
use crate::error::{Error, Result};
use crate::kernels::attention::{
    BackwardInputs, BackwardOutputs, ForwardInputs, ForwardOutputs, Geometry, Gradient, Options,
    Plan, Schedule,
};

mod append;
mod problem;
mod sums;

pub use append::{append, append_backward};

use problem::{Batch, Member, Problem};
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
    problem.for_each_batch(|batch| {
        let mut p = batch.table(|slot, query| problem.score(query, slot, batch.kv_head));
        for (index, member) in batch.members.iter().enumerate() {
            let maximum = maximum(batch.column(index).map(|at| p[at]));
            let denominator = denominator(batch.column(index).map(|at| p[at]), maximum);
            batch.column(index).for_each(|at| p[at] = (p[at] - maximum).exp() / denominator);
            statistics[2 * member.query..][..2].copy_from_slice(&[maximum, denominator]);
        }
        batch.for_each_visible(|at, slot, query| {
            let sum = &mut output[query * value_dim..][..value_dim];
            add_scaled(sum, p[at], problem.value(slot, batch.kv_head));
        });
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
/// nothing get zeros and a row whose denominator is 0 keeps its maximum and gets a delta of 0. Such rows contribute nothing
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
    };
    problem.for_each_batch(|batch| pass.add_batch(batch));
    let statistics = match (geometry.statistics_columns, &inputs.statistics) {
        (3, Some(given)) => given.to_vec(),
        _ => pass.statistics,
    };
    Ok(BackwardOutputs {
        gradients: pass.sums.into_arrays(&geometry)?,
        statistics: array("statistics", &geometry.statistics_shape(), statistics)?,
    })
}

/// As [`backward`], each gradient of `onto` added to the old values there, in float64.
///
/// # Errors
/// As [`backward`]; [`Error::Shape`] for old values of another shape than their gradient.
pub fn backward_onto(
    inputs: &BackwardInputs<ArrayD<f64>>,
    schedule: &Schedule,
    options: &Options,
    onto: &[(Gradient, ArrayD<f64>)],
) -> Result<BackwardOutputs<ArrayD<f64>>> {
    let mut outputs = backward(inputs, schedule, options)?;
    for (gradient, sum) in &mut outputs.gradients {
        for (_, old) in onto.iter().filter(|(g, _)| g == gradient) {
            if old.shape() != sum.shape() {
                return Err(Error::Shape {
                    array: gradient.output_name(),
                    expected: format!("{:?}", sum.shape()),
                    found: old.shape().to_vec(),
                });
            }
            *sum += old;
        }
    }
    Ok(outputs)
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
}

impl<'a> Pass<'a> {
    /// Adds what the members of a batch contribute, but for those whose given denominator is 0.
    fn add_batch(&mut self, batch: &Batch) {
        let skip = |member: &Member| self.given(member.query).get(1) == Some(&0.0);
        let (skipped, kept): (Vec<Member>, Vec<Member>) =
            batch.members.iter().partition(|member| skip(member));
        for query in skipped.iter().map(|member| member.query) {
            let [maximum, denominator] = [0, 1].map(|column| self.given(query)[column]);
            self.statistics[3 * query..][..2].copy_from_slice(&[maximum, denominator]);
        }
        self.add_members(&Batch { members: &kept, ..*batch });
    }

    /// Adds what the members of a batch contribute, and writes their statistics.
    fn add_members(&mut self, batch: &Batch) {
        let Self { problem, .. } = *self;
        let kv_head = batch.kv_head;
        let dp = |slot, query| dot(self.output_gradient(query), problem.value(slot, kv_head));
        // Turned into p and ds below.
        let mut p = batch.table(|slot, query| problem.score(query, slot, kv_head));
        let mut ds = batch.table(dp);
        for (index, member) in batch.members.iter().enumerate() {
            let column = batch.column(index);
            let [maximum, denominator] =
                self.maximum_and_denominator(member.query, column.clone().map(|at| p[at]));
            column.clone().for_each(|at| p[at] = (p[at] - maximum).exp() / denominator);
            let delta = self.delta(member.query, column.clone().map(|at| p[at] * ds[at]));
            column.for_each(|at| ds[at] = p[at] * (ds[at] - delta) * problem.scale);
            let statistics = [maximum, denominator, delta];
            self.statistics[3 * member.query..][..3].copy_from_slice(&statistics);
        }
        batch
            .for_each_visible(|at, slot, query| self.add_pair(slot, kv_head, query, p[at], ds[at]));
    }

    /// Adds what one visible (row, head, token) contributes to every gradient.
    fn add_pair(&mut self, slot: usize, kv_head: usize, query: usize, p: f64, ds: f64) {
        let Self { problem, .. } = *self;
        let (key, value) = (problem.key_gradient(), problem.value_gradient());
        let cache_row = slot * problem.geometry.kv_heads + kv_head;
        let output_gradient = self.output_gradient(query);
        self.sums.add(Gradient::Q, query, ds, problem.key(slot, kv_head));
        self.sums.add(key, cache_row, ds, problem.query(query));
        self.sums.add(value, cache_row, p, output_gradient);
        self.sums.add(Gradient::QPosition, query, ds, problem.key_position(slot));
        self.sums.add(Gradient::KPosition, cache_row, ds, problem.query_position(query));
    }

    /// As given, else from the scores.
    fn maximum_and_denominator(
        &self,
        query: usize,
        scores: impl Iterator<Item = f64> + Clone,
    ) -> [f64; 2] {
        if let &[maximum, denominator, ..] = self.given(query) {
            return [maximum, denominator];
        }
        let maximum = maximum(scores.clone());
        [maximum, denominator(scores, maximum)]
    }

    /// As given, else `Σ output·output_gradient` when there is an output, else `Σ p·dp`.
    fn delta(&self, query: usize, products: impl Iterator<Item = f64>) -> f64 {
        let value_dim = self.problem.geometry.value_dim;
        match (self.given(query), self.output) {
            (&[_, _, delta], _) => delta,
            (_, Some(output)) => {
                dot(&output[query * value_dim..][..value_dim], self.output_gradient(query))
            }
            _ => products.sum(),
        }
    }

    /// The given statistics of a row and head; empty without any.
    fn given(&self, query: usize) -> &[f64] {
        let columns = self.problem.geometry.statistics_columns;
        self.given.map_or(&[], |given| &given[query * columns..][..columns])
    }

    fn output_gradient(&self, query: usize) -> &'a [f64] {
        let value_dim = self.problem.geometry.value_dim;
        &self.output_gradient[query * value_dim..][..value_dim]
    }
}

/// The largest score; NaN when one is.
fn maximum(scores: impl Iterator<Item = f64>) -> f64 {
    scores.fold(f64::NEG_INFINITY, |m, s| if s > m || s.is_nan() { s } else { m })
}

/// `Σ exp(score − maximum)`.
fn denominator(scores: impl Iterator<Item = f64>, maximum: f64) -> f64 {
    scores.map(|score| (score - maximum).exp()).sum()
}

//! Paged attention over a KV cache in physical pages: grouped-query attention (MHA, GQA, MQA) and MLA.
//!
//! Token `t` of sequence `s` lies in page `block_table[s, t / page_size]`, slot `t % page_size`; pages may be shared.
//! Query row `i` belongs to sequence `s = sequence_ids[i]` and sees the tokens `t < sequence_lengths[s]` with, if causal,
//! `t ≤ positions[i]`. Its head `h` reads key/value head `h / (heads / kv_heads)`. Over the visible tokens:
//!
//! - `score = scale · (q·k)`, for MLA `scale · (q·latent + q_position·k_position)`,
//! - `p = exp(score − maximum) / denominator`, where `maximum` is the largest score and `denominator = Σ exp(score − maximum)`,
//! - `output = Σ p·v`, for MLA `Σ p·latent`, so that `value_dim = key_dim`,
//! - `delta = Σ output·output_gradient`: with the maximum and the denominator, the statistics of a row and head.
//!
//! A row that sees nothing has an output, statistics and gradients of zero. Given statistics are used as they are: a
//! log-sum-exp serves as the pair `(lse, 1)`.
//!
//! [`forward::run`] and [`backward::run`] go from host arrays to host arrays. See [`forward`] and [`backward`] for tensors
//! that stay on the device.

use std::convert::Infallible;

use crate::error::{Error, Result};

pub mod append;
pub mod backward;
mod bound;
mod device_plan;
pub mod forward;
mod geometry;
mod gradients;
mod load;
mod plan;
mod row_tile;
mod schedule;
mod slot_tile;
mod units;

pub use device_plan::DevicePlan;
pub use geometry::{Geometry, MAX_DIM, MAX_POSITION_DIM};
pub use gradients::{Gradient, Gradients};
pub use plan::Plan;
pub use schedule::Schedule;

/// The history half of the inputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum History<T> {
    /// Keys and values of their own (MHA, GQA, MQA).
    Separate {
        /// `[pages, page_size, kv_heads, key_dim]`.
        k: T,
        /// `[pages, page_size, kv_heads, value_dim]`.
        v: T,
    },
    /// MLA: one latent row is both key and value; a position part adds to the score.
    Latent {
        /// `[pages, page_size, 1, key_dim]`.
        latent: T,
        /// `[queries, heads, position_dim]`.
        q_position: T,
        /// `[pages, page_size, 1, position_dim]`.
        k_position: T,
    },
}

impl<T> History<T> {
    /// Whether it is latent (MLA).
    pub fn is_latent(&self) -> bool {
        matches!(self, Self::Latent { .. })
    }

    /// The history made of what `map` makes of each named tensor.
    ///
    /// # Errors
    /// The first error of `map`.
    pub fn try_map<U, E>(
        self,
        mut map: impl FnMut(&'static str, T) -> Result<U, E>,
    ) -> Result<History<U>, E> {
        Ok(match self {
            Self::Separate { k, v } => History::Separate { k: map("k", k)?, v: map("v", v)? },
            Self::Latent { latent, q_position, k_position } => History::Latent {
                latent: map("latent", latent)?,
                q_position: map("q_position", q_position)?,
                k_position: map("k_position", k_position)?,
            },
        })
    }

    /// The history by reference.
    pub fn as_ref(&self) -> History<&T> {
        match self {
            Self::Separate { k, v } => History::Separate { k, v },
            Self::Latent { latent, q_position, k_position } => {
                History::Latent { latent, q_position, k_position }
            }
        }
    }
}

/// What the attention forward reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForwardInputs<T> {
    /// `[queries, heads, key_dim]`.
    pub q: T,
    /// Keys and values, or the latent rows and the position parts.
    pub history: History<T>,
}

impl<T> ForwardInputs<T> {
    /// The inputs made of what `map` makes of each named tensor.
    ///
    /// # Errors
    /// The first error of `map`.
    pub fn try_map<U, E>(
        self,
        mut map: impl FnMut(&'static str, T) -> Result<U, E>,
    ) -> Result<ForwardInputs<U>, E> {
        Ok(ForwardInputs { q: map("q", self.q)?, history: self.history.try_map(map)? })
    }

    /// The inputs made of what `map` makes of each named tensor.
    pub fn map<U>(self, mut map: impl FnMut(&'static str, T) -> U) -> ForwardInputs<U> {
        match self.try_map(|name, t| Ok::<_, Infallible>(map(name, t))) {
            Ok(mapped) => mapped,
        }
    }

    /// The inputs by reference.
    pub fn as_ref(&self) -> ForwardInputs<&T> {
        ForwardInputs { q: &self.q, history: self.history.as_ref() }
    }

    /// The inputs of the backward of this call: with what the forward left, each row's statistics are complete without
    /// another walk over its tokens.
    pub fn into_backward(
        self,
        output_gradient: T,
        forward: ForwardOutputs<T>,
    ) -> BackwardInputs<T> {
        let Self { q, history } = self;
        let (statistics, output) = (Some(forward.statistics), Some(forward.output));
        BackwardInputs { q, history, output_gradient, statistics, output }
    }
}

/// What the attention forward writes.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardOutputs<T> {
    /// `[queries, heads, value_dim]`.
    pub output: T,
    /// `[queries, heads, 2]`: maximum, denominator.
    pub statistics: T,
}

impl<T> ForwardOutputs<T> {
    /// The outputs made of what `map` makes of each named tensor.
    ///
    /// # Errors
    /// The first error of `map`.
    pub fn try_map<U, E>(
        self,
        mut map: impl FnMut(&'static str, T) -> Result<U, E>,
    ) -> Result<ForwardOutputs<U>, E> {
        let output = map("output", self.output)?;
        Ok(ForwardOutputs { output, statistics: map("statistics", self.statistics)? })
    }

    /// The outputs by reference.
    pub fn as_ref(&self) -> ForwardOutputs<&T> {
        ForwardOutputs { output: &self.output, statistics: &self.statistics }
    }
}

/// What the attention backward reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackwardInputs<T> {
    /// `[queries, heads, key_dim]`.
    pub q: T,
    /// Keys and values, or the latent rows and the position parts.
    pub history: History<T>,
    /// Upstream gradient, `[queries, heads, value_dim]`.
    pub output_gradient: T,
    /// Saved row statistics, `[queries, heads, 2]` (maximum, denominator) or `[queries, heads, 3]` (and delta).
    pub statistics: Option<T>,
    /// The forward's output, `[queries, heads, value_dim]`: gives delta where the statistics lack it.
    pub output: Option<T>,
}

impl<T> BackwardInputs<T> {
    /// Whether the history is latent (MLA).
    pub fn is_mla(&self) -> bool {
        self.history.is_latent()
    }

    /// The inputs made of what `map` makes of each named tensor.
    ///
    /// # Errors
    /// The first error of `map`.
    pub fn try_map<U, E>(
        self,
        mut map: impl FnMut(&'static str, T) -> Result<U, E>,
    ) -> Result<BackwardInputs<U>, E> {
        let q = map("q", self.q)?;
        let history = self.history.try_map(&mut map)?;
        Ok(BackwardInputs {
            q,
            history,
            output_gradient: map("output_gradient", self.output_gradient)?,
            statistics: self.statistics.map(|t| map("statistics", t)).transpose()?,
            output: self.output.map(|t| map("output", t)).transpose()?,
        })
    }

    /// The inputs made of what `map` makes of each named tensor.
    pub fn map<U>(self, mut map: impl FnMut(&'static str, T) -> U) -> BackwardInputs<U> {
        match self.try_map(|name, t| Ok::<_, Infallible>(map(name, t))) {
            Ok(mapped) => mapped,
        }
    }

    /// The inputs by reference.
    pub fn as_ref(&self) -> BackwardInputs<&T> {
        BackwardInputs {
            q: &self.q,
            history: self.history.as_ref(),
            output_gradient: &self.output_gradient,
            statistics: self.statistics.as_ref(),
            output: self.output.as_ref(),
        }
    }
}

/// What the attention backward writes: the gradients asked for, and the row statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct BackwardOutputs<T> {
    /// The gradients asked for, in the order of [`Gradient::ALL`].
    pub gradients: Vec<(Gradient, T)>,
    /// `[queries, heads, 3]`: maximum, denominator, delta.
    pub statistics: T,
}

/// In which order the attention backward sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// [`Algorithm::Tiled`] where the call and the device allow it, else [`Algorithm::Ordered`].
    #[default]
    Auto,
    /// Every gradient adds its rows in the order of the schedule, one f32 product at a time.
    Ordered,
    /// f16 and bf16 on matrix units (`VK_KHR_cooperative_matrix`), where p and ds are rounded to the arrays' type, and 16
    /// products are summed at a time: another order, as fixed. For keys and values of their own, `key_dim` and `value_dim`
    /// multiples of 8 up to 128, and rows that begin at multiples of 8 elements.
    Tiled,
}

/// Options of the attention backward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// In which order to sum.
    pub algorithm: Algorithm,
    /// A row sees the tokens up to its position only.
    pub causal: bool,
    /// Factor of the scores; finite, > 0.
    pub scale: f32,
    /// Which gradients to compute.
    pub gradients: Gradients,
    /// Which of them are added to what their tensors hold, rounded once; [`Gradients::ALL`] is all that are computed. Where
    /// the gradient is 0, the old bits stay.
    pub accumulate: Gradients,
    /// Skip rows that cannot see a token.
    pub prune_queries: bool,
    /// Keep a slot's key, value and position row in registers. The kernel always does: it changes nothing.
    pub cache_history: bool,
    /// Launch only over reachable pages and zero the rest.
    pub compact_history: bool,
    /// Rows per block of the maxima by which unsorted sequences are pruned; ≥ 1.
    pub query_block_rows: u32,
}

impl Options {
    /// The defaults: causal, all gradients, none added to old ones, pruned, not cached, not compacted, blocks of 32 rows.
    pub fn new(scale: f32) -> Self {
        Self {
            algorithm: Algorithm::Auto,
            causal: true,
            scale,
            gradients: Gradients::ALL,
            accumulate: Gradients::NONE,
            prune_queries: true,
            cache_history: false,
            compact_history: false,
            query_block_rows: 32,
        }
    }

    /// The gradients to compute, where `exists` says which there are, and which of them are added to old values.
    ///
    /// # Errors
    /// What [`Gradients::resolve`] reports; [`Error::Parameter`] when a gradient is to be accumulated but not computed.
    pub(crate) fn resolve(
        &self,
        exists: impl Fn(Gradient) -> bool,
    ) -> Result<(Gradients, Gradients)> {
        let gradients = self.gradients.resolve(exists)?;
        let accumulate =
            if self.accumulate == Gradients::ALL { gradients } else { self.accumulate };
        if accumulate.is_within(gradients) {
            return Ok((gradients, accumulate));
        }
        let names = |set: Gradients| set.iter().map(Gradient::name).collect::<Vec<_>>().join(", ");
        Err(Error::Parameter {
            name: "accumulate",
            expected: format!("gradients that are computed: {}", names(gradients)),
            found: names(accumulate),
        })
    }

    /// Checks the ranges of the scale and of the block of rows; the gradients are for [`Gradients::resolve`].
    ///
    /// # Errors
    /// [`Error::Parameter`] naming what is out of its range.
    pub fn check(&self) -> Result<()> {
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Error::Parameter {
                name: "scale",
                expected: "a finite number > 0".into(),
                found: self.scale.to_string(),
            });
        }
        if self.query_block_rows == 0 {
            return Err(Error::Parameter {
                name: "query_block_rows",
                expected: "≥ 1".into(),
                found: "0".into(),
            });
        }
        Ok(())
    }
}

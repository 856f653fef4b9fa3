//! Mamba-3: the projection preprocess.
//!
//! One packed projection row holds `z | x | B | C | dd_dt | dd_A | trap | angle`, of widths
//! `inner_size, inner_size, bc_rows·state_size (twice), heads (three times), rope_angles`.
//! Of it the forward makes
//!
//! - `z`, `x`, `trap` and `angle` as they are,
//! - `bh` and `ch`: each state row `v` of B and C as `v / sqrt(mean(v²) + epsilon)`,
//! - `dt = clamp(softplus(dd_dt + dt_bias), dt_min, dt_max)`,
//! - `adt = −dt · max(h, a_floor)`, where `h = 1 + dd_A` for `dd_A ≥ 0`, else `1 / (1 − dd_A)`.
//!
//! The backward takes the gradients of these eight and gives those of the packed rows and of `dt_bias`.
//!
//! Arrays may be views whose rows lie apart, such as slices of other packed rows. What passes through need not move: where
//! the forward's `z`, `x`, `trap` or `angle` is the slice of `projected` itself, or the backward's gradient of one that of
//! `projected_gradient` ([`Geometry::views`](preprocess::Geometry::views)), it is not copied. Other than that, an array
//! that is written shares no memory with another.

mod parts;
pub mod preprocess;
pub mod preprocess_backward;
pub mod preprocess_forward;
mod rows;

//! Mamba-3: the projection preprocess.
//!
//! One packed projection row holds `z | x | B | C | dd_dt | dd_A | trap | angle`, of widths
//! `inner_size, inner_size, bc_rows·state_size (twice), heads (three times), rope_angles`.

pub mod preprocess;
pub mod preprocess_backward;

//! Which tensor of a call goes where.

use super::History;
use crate::runtime::Tensor;

/// The history's tensors as the kernels bind them: the latent stands for key and value.
pub(super) struct Bound<'a> {
    pub(super) k: &'a Tensor,
    pub(super) v: &'a Tensor,
    pub(super) q_position: Option<&'a Tensor>,
    pub(super) k_position: Option<&'a Tensor>,
}

impl<'a> Bound<'a> {
    pub(super) fn new(history: &'a History<Tensor>) -> Self {
        match history {
            History::Separate { k, v } => Self { k, v, q_position: None, k_position: None },
            History::Latent { latent, q_position, k_position } => Self {
                k: latent,
                v: latent,
                q_position: Some(q_position),
                k_position: Some(k_position),
            },
        }
    }
}

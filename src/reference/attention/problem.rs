//! One attention problem as the formulas see it: rows, heads, and the slots that a row sees.

use std::borrow::Cow;

use super::dot;
use crate::kernels::attention::{Geometry, Gradient, History, Options, Schedule};

/// Inputs as row-major slices, and the walk over (row, head) and visible tokens.
pub(super) struct Problem<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) scale: f64,
    schedule: &'a Schedule,
    causal: bool,
    q: &'a [f64],
    /// `k`, or the latent.
    k: &'a [f64],
    /// `v`, or the latent again.
    v: &'a [f64],
    /// Empty, as `k_position`, when not MLA.
    q_position: &'a [f64],
    k_position: &'a [f64],
}

impl<'a> Problem<'a> {
    /// `schedule` has passed the plan's checks.
    pub(super) fn new(
        geometry: &'a Geometry,
        schedule: &'a Schedule,
        options: &Options,
        q: &'a [f64],
        history: &'a History<Cow<'_, [f64]>>,
    ) -> Self {
        let (k, v, q_position, k_position): (&[f64], &[f64], &[f64], &[f64]) = match history {
            History::Separate { k, v } => (k, v, &[], &[]),
            History::Latent { latent, q_position, k_position } => {
                (latent, latent, q_position, k_position)
            }
        };
        let (causal, scale) = (options.causal, options.scale.into());
        Self { geometry, scale, schedule, causal, q, k, v, q_position, k_position }
    }

    /// Calls `visit(query, kv_head, slots)` for each row and query head that sees a token, in order,
    /// with query = row · heads + head and the slots of the visible tokens in order.
    pub(super) fn for_each_row_head(&self, mut visit: impl FnMut(usize, usize, &[usize])) {
        let heads = self.geometry.heads;
        let mut slots = Vec::new();
        for row in 0..self.geometry.queries {
            slots.clear();
            slots.extend(self.visible_slots(row));
            if slots.is_empty() {
                continue;
            }
            for head in 0..heads {
                visit(row * heads + head, head / self.geometry.group(), &slots);
            }
        }
    }

    /// The physical slots of the tokens that a row sees: token `t < length` and, if causal, `t ≤ position`.
    fn visible_slots(&self, row: usize) -> impl Iterator<Item = usize> {
        let Schedule { block_table, table_width, sequence_lengths, sequence_ids, positions } =
            self.schedule;
        let sequence = sequence_ids[row] as usize;
        let length = sequence_lengths[sequence] as usize;
        let visible = match positions {
            Some(positions) if self.causal => {
                length.min((positions[row] as usize).saturating_add(1))
            }
            _ => length,
        };
        let page_size = self.geometry.page_size;
        let pages = &block_table[sequence * table_width..][..*table_width];
        (0..visible).map(move |t| pages[t / page_size] as usize * page_size + t % page_size)
    }

    /// `score = (q·k [+ q_position·k_position]) · scale` of each slot.
    pub(super) fn scores(
        &self,
        query: usize,
        kv_head: usize,
        slots: &[usize],
        scores: &mut Vec<f64>,
    ) {
        let (q, q_position) = (self.query(query), self.query_position(query));
        scores.clear();
        scores.extend(slots.iter().map(|&slot| {
            let positions = dot(q_position, self.key_position(slot));
            (dot(q, self.key(slot, kv_head)) + positions) * self.scale
        }));
    }

    pub(super) fn query(&self, query: usize) -> &'a [f64] {
        nth(self.q, query, self.geometry.key_dim)
    }

    pub(super) fn key(&self, slot: usize, kv_head: usize) -> &'a [f64] {
        nth(self.k, slot * self.geometry.kv_heads + kv_head, self.geometry.key_dim)
    }

    pub(super) fn value(&self, slot: usize, kv_head: usize) -> &'a [f64] {
        nth(self.v, slot * self.geometry.kv_heads + kv_head, self.geometry.value_dim)
    }

    /// Empty when not MLA.
    pub(super) fn query_position(&self, query: usize) -> &'a [f64] {
        nth(self.q_position, query, self.geometry.position_dim)
    }

    /// Empty when not MLA.
    pub(super) fn key_position(&self, slot: usize) -> &'a [f64] {
        nth(self.k_position, slot, self.geometry.position_dim)
    }

    /// The gradient that the key side adds to.
    pub(super) fn key_gradient(&self) -> Gradient {
        if self.geometry.is_mla() { Gradient::Latent } else { Gradient::K }
    }

    /// The gradient that the value side adds to.
    pub(super) fn value_gradient(&self) -> Gradient {
        if self.geometry.is_mla() { Gradient::Latent } else { Gradient::V }
    }
}

fn nth(rows: &[f64], index: usize, width: usize) -> &[f64] {
    &rows[index * width..][..width]
}

//! One attention problem as the formulas see it: rows, heads, and the slots that they see.

use std::borrow::Cow;

use super::dot;
use crate::kernels::attention::{Geometry, Gradient, History, Options, Schedule};

/// Rows and heads that share a pass over a sequence's tokens, so that a token's rows stay in cache.
const BATCH: usize = 32;

/// Elements of a batch's table, where it has more than one row and head: a long history needs no more memory than a few
/// numbers a token.
const TABLE: usize = 1 << 20;

/// Some (row, query head) pairs of one sequence and kv head; each sees at least one token.
pub(super) struct Batch<'a> {
    pub(super) kv_head: usize,
    /// The physical slot of each token, up to the last that one of the members sees.
    pub(super) slots: &'a [usize],
    pub(super) members: &'a [Member],
}

/// One row and query head.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// row · heads + head.
    pub(super) query: usize,
    /// How many of the first tokens it sees; > 0.
    pub(super) visible: usize,
}

impl Batch<'_> {
    /// `value(slot, query)` of each visible pair, in a `[slots, members]` table; the rest is 0.
    pub(super) fn table(&self, value: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let mut table = vec![0.0; self.slots.len() * self.members.len()];
        self.for_each_visible(|at, slot, query| table[at] = value(slot, query));
        table
    }

    /// Calls `visit(place in a table, slot, query)` for each visible pair, token by token.
    pub(super) fn for_each_visible(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for (token, &slot) in self.slots.iter().enumerate() {
            for (index, member) in self.members.iter().enumerate() {
                if token < member.visible {
                    visit(token * self.members.len() + index, slot, member.query);
                }
            }
        }
    }

    /// The places of a member's visible tokens in a table.
    pub(super) fn column(&self, index: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let members = self.members.len();
        (0..self.members[index].visible).map(move |token| token * members + index)
    }
}

/// Inputs as row-major slices, and the walk over batches.
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

    /// Calls `visit` for each batch: sequences in order, then kv heads, then rows in packed order
    /// with their heads in order.
    pub(super) fn for_each_batch(&self, mut visit: impl FnMut(&Batch)) {
        let Geometry { heads, kv_heads, .. } = *self.geometry;
        let group = self.geometry.group();
        for (sequence, rows) in self.rows_of_sequences().iter().enumerate() {
            let visible = rows.iter().map(|&row| self.visible(row)).collect::<Vec<_>>();
            let slots = self.slots(sequence, visible.iter().copied().max().unwrap_or(0));
            for kv_head in 0..kv_heads {
                let of_row = |(&row, &visible): (&usize, &usize)| {
                    let heads_begin = row * heads + kv_head * group;
                    (heads_begin..heads_begin + group).map(move |query| Member { query, visible })
                };
                let seeing = rows.iter().zip(&visible).filter(|(_, visible)| **visible > 0);
                let members = seeing.flat_map(of_row).collect::<Vec<_>>();
                for members in members.chunks(batch_size(slots.len())) {
                    visit(&Batch { kv_head, slots: &slots, members });
                }
            }
        }
    }

    /// The rows of each sequence in packed order.
    fn rows_of_sequences(&self) -> Vec<Vec<usize>> {
        let mut rows = vec![Vec::new(); self.schedule.sequence_lengths.len()];
        for (row, &sequence) in self.schedule.sequence_ids.iter().enumerate() {
            rows[sequence as usize].push(row);
        }
        rows
    }

    /// How many tokens a row sees: those with `t < length` and, if causal, `t ≤ position`.
    fn visible(&self, row: usize) -> usize {
        let Schedule { sequence_lengths, sequence_ids, positions, .. } = self.schedule;
        let length = sequence_lengths[sequence_ids[row] as usize] as usize;
        match positions {
            Some(positions) if self.causal => length.min(positions[row] as usize + 1),
            _ => length,
        }
    }

    /// The physical slots of the first `tokens` tokens of a sequence.
    fn slots(&self, sequence: usize, tokens: usize) -> Vec<usize> {
        let Schedule { block_table, table_width, .. } = self.schedule;
        let page_size = self.geometry.page_size;
        let pages = &block_table[sequence * table_width..][..*table_width];
        (0..tokens).map(|t| pages[t / page_size] as usize * page_size + t % page_size).collect()
    }

    /// `score = (q·k [+ q_position·k_position]) · scale`.
    pub(super) fn score(&self, query: usize, slot: usize, kv_head: usize) -> f64 {
        let positions = dot(self.query_position(query), self.key_position(slot));
        (dot(self.query(query), self.key(slot, kv_head)) + positions) * self.scale
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

/// How many rows and heads share a pass over so many tokens.
fn batch_size(tokens: usize) -> usize {
    (TABLE / tokens.max(1)).clamp(1, BATCH)
}

fn nth(rows: &[f64], index: usize, width: usize) -> &[f64] {
    &rows[index * width..][..width]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_bounded_by_the_tokens() {
        assert_eq!([0, 1, 10_000].map(batch_size), [BATCH; 3]);
        for tokens in [40_000, 1 << 20, 4_000_000, usize::MAX] {
            assert!(batch_size(tokens) == 1 || batch_size(tokens) * tokens <= TABLE, "{tokens}");
            assert!(batch_size(tokens) > 0);
        }
    }
}

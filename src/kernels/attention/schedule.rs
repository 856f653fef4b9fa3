//! Which sequence owns which pages, and where each query row stands.

/// The index arrays of a paged-attention call, as the caller has them; the plan checks them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    /// `[sequences, table_width]` physical page ids in row-major order. Entries beyond a sequence's length are ignored.
    pub block_table: Vec<i128>,
    /// Entries a sequence.
    pub table_width: usize,
    /// Tokens of each sequence, `[sequences]`.
    pub sequence_lengths: Vec<i128>,
    /// The sequence of each query row, `[queries]`.
    pub sequence_ids: Vec<i128>,
    /// The absolute position of each query row, `[queries]`; may be left out when not causal.
    pub positions: Option<Vec<i128>>,
}

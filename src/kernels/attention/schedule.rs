//! Which sequence owns which pages, and where each query row stands.

use super::Geometry;
use crate::error::{Error, Result};

/// The index arrays of a paged-attention call, as the caller has them; [`Plan`](super::Plan) checks them.
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

/// A schedule's arrays in the type of the kernels, every used value checked.
pub(super) struct Narrowed {
    /// `[queries]`, each < sequences.
    pub(super) sequence_ids: Vec<u32>,
    /// `[queries]`; zeros where the schedule has none.
    pub(super) positions: Vec<u32>,
    /// `[sequences]`; rounded up to whole pages, each still fits u32 and the table.
    pub(super) lengths: Vec<u32>,
    /// `[sequences, table_width]`, each < pages in the used part; 0 beyond it, whatever the caller had there.
    pub(super) block_table: Vec<u32>,
}

impl Schedule {
    /// Checks every used value against `geometry` and narrows it.
    pub(super) fn narrow(&self, geometry: &Geometry) -> Result<Narrowed> {
        self.check_shapes(geometry)?;
        let lengths = self.narrow_lengths(geometry)?;
        Ok(Narrowed {
            block_table: self.narrow_table(geometry, &lengths)?,
            sequence_ids: self.narrow_sequence_ids()?,
            positions: self.narrow_positions()?,
            lengths,
        })
    }

    /// Words of the plan's metadata: sequence ids, positions, lengths and block table.
    pub(super) fn metadata_words(&self) -> u128 {
        2 * self.sequence_ids.len() as u128
            + self.sequence_lengths.len() as u128
            + self.block_table.len() as u128
    }

    fn check_shapes(&self, geometry: &Geometry) -> Result<()> {
        let check = |array, found: usize, expected: Option<usize>, words: String| {
            if expected == Some(found) {
                return Ok(());
            }
            Err(Error::Shape { array, expected: words, found: vec![found] })
        };
        let (sequences, width) = (self.sequence_lengths.len(), self.table_width);
        let queries = geometry.queries;
        let words = format!("the {sequences} · {width} entries of [sequences, table_width]");
        check("block_table", self.block_table.len(), sequences.checked_mul(width), words)?;
        let words = || format!("[{queries}], one entry a query row");
        check("sequence_ids", self.sequence_ids.len(), Some(queries), words())?;
        let positions = self.positions.as_ref().map_or(queries, Vec::len);
        check("positions", positions, Some(queries), words())
    }

    fn narrow_lengths(&self, geometry: &Geometry) -> Result<Vec<u32>> {
        let page_size = geometry.page_size as u128;
        let room = (self.table_width as u128).saturating_mul(page_size);
        // The kernels count tokens up to the end of the last page.
        let whole_pages = u128::from(u32::MAX) / page_size * page_size;
        narrow_all("sequence_lengths", &self.sequence_lengths, room.min(whole_pages), || {
            if whole_pages < room {
                return format!("a length ≥ 0 and ≤ {whole_pages}, the whole pages below 2^32");
            }
            let width = self.table_width;
            format!("a length ≥ 0 and ≤ {room}, the table_width {width} · page_size {page_size}")
        })
    }

    fn narrow_table(&self, geometry: &Geometry, lengths: &[u32]) -> Result<Vec<u32>> {
        let pages = geometry.pages;
        let mut table = vec![0; self.block_table.len()];
        for (sequence, &length) in lengths.iter().enumerate() {
            let used = (length as usize).div_ceil(geometry.page_size);
            let begin = sequence * self.table_width;
            for logical in 0..used {
                let value = self.block_table[begin + logical];
                table[begin + logical] = narrow(value, pages as u128).ok_or_else(|| {
                    let expected = format!(
                        "a page id ≥ 0 and < {pages} (pages): \
                         sequence {sequence} of length {length} uses this entry"
                    );
                    let index = format!("{sequence}, {logical}");
                    Error::Index { array: "block_table", index, value, expected }
                })?;
            }
        }
        Ok(table)
    }

    fn narrow_sequence_ids(&self) -> Result<Vec<u32>> {
        let sequences = self.sequence_lengths.len();
        let Some(last) = sequences.checked_sub(1) else {
            // With no sequences there is no legal id, so no limit to hand on.
            return match self.sequence_ids.first() {
                None => Ok(Vec::new()),
                Some(&value) => Err(Error::Index {
                    array: "sequence_ids",
                    index: "0".into(),
                    value,
                    expected: "no query rows, as there are 0 sequences".into(),
                }),
            };
        };
        narrow_all("sequence_ids", &self.sequence_ids, last as u128, || {
            format!("a sequence id ≥ 0 and < {sequences} (sequences)")
        })
    }

    fn narrow_positions(&self) -> Result<Vec<u32>> {
        let Some(positions) = &self.positions else {
            return Ok(vec![0; self.sequence_ids.len()]);
        };
        narrow_all("positions", positions, u128::from(u32::MAX), || {
            format!("a position ≥ 0 and ≤ {}, the kernels' index type", u32::MAX)
        })
    }
}

/// Narrows every value of an array, or names the first that is negative or above `limit`.
fn narrow_all(
    array: &'static str,
    values: &[i128],
    limit: u128,
    expected: impl Fn() -> String,
) -> Result<Vec<u32>> {
    let narrow_one = |(index, &value): (usize, &i128)| {
        narrow(value, limit.saturating_add(1)).ok_or_else(|| Error::Index {
            array,
            index: index.to_string(),
            value,
            expected: expected(),
        })
    };
    values.iter().enumerate().map(narrow_one).collect()
}

/// `value` as u32 when it is ≥ 0 and < `end`.
fn narrow(value: i128, end: u128) -> Option<u32> {
    u32::try_from(value).ok().filter(|&narrowed| u128::from(narrowed) < end)
}

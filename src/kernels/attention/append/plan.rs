//! The host plan of an append: which slot each row goes to.

use std::collections::HashMap;
use std::ops::Range;

use super::super::schedule::Narrowed;
use super::super::{Geometry, Schedule};
use super::PLAN;
use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::Layout;
use crate::kernels::index_range::fits;
use crate::kernels::windows::windows;
use crate::runtime::Runtime;

/// A checked append: the slot of each row. Built once a schedule; serves the keys, the values and the adjoint.
///
/// Row `i` goes to token `positions[i]` of sequence `s = sequence_ids[i]`: to page `block_table[s, positions[i] /
/// page_size]`, slot `positions[i] % page_size` of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendPlan {
    /// `[queries]`: page · page_size + slot.
    slots: Vec<u32>,
    /// Each pair of slots (2·i, 2·i + 1) that has new rows: (i, the even slot's row, the odd one's).
    pairs: Vec<[u32; 3]>,
    pages: usize,
    page_size: usize,
}

/// What a launch is on.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) rows: Range<usize>,
    pub(super) slots: Range<usize>,
}

/// The row of a slot that nothing is written to.
const NO_ROW: u32 = u32::MAX;

impl AppendPlan {
    /// Checks a schedule against the arrays' sizes and finds the slots, in O(queries + table) apart from sorting.
    ///
    /// # Errors
    /// What [`Plan::new`](super::super::Plan::new) rejects; [`Error::MissingArray`] without positions; [`Error::Index`]
    /// for a position at or beyond the sequence's length, for a slot that two rows go to, and for a written page that
    /// another sequence's table, or another place of the same one, also holds in its used part.
    pub fn new(schedule: &Schedule, geometry: &Geometry) -> Result<Self> {
        geometry.check_index_range()?;
        if schedule.positions.is_none() {
            let why = "it says to which slot a row goes";
            return Err(Error::MissingArray { operator: "paged-append", array: "positions", why });
        }
        // Rows and up to as many pairs.
        fits("words of the append's plan", 4 * geometry.queries as u128)?;
        let arrays = schedule.narrow(geometry)?;
        check_positions(&arrays)?;
        let placement = Placement { arrays: &arrays, geometry, width: schedule.table_width };
        placement.check_pages()?;
        let slots = (0..geometry.queries).map(|row| placement.slot(row)).collect::<Vec<_>>();
        let order = by_slot(&slots);
        check_slots(&arrays, &slots, &order)?;
        Ok(Self {
            pairs: pairs(&slots, &order),
            slots,
            pages: geometry.pages,
            page_size: geometry.page_size,
        })
    }

    /// The slot of each row: page · page_size + its place in the page.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Bytes of it on the device.
    pub fn bytes(&self) -> u64 {
        4 * (self.slots.len() + self.pairs.as_flattened().len()) as u64
    }

    /// Packed rows.
    pub fn queries(&self) -> usize {
        self.slots.len()
    }

    /// Pairs of slots, one of them written or both.
    pub(super) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// What the kernels read: the slots, then the pairs.
    pub(super) fn words(&self) -> Vec<u32> {
        [self.slots.as_slice(), self.pairs.as_flattened()].concat()
    }

    /// Whether a binding of the device holds the words.
    pub(super) fn check_size(&self, runtime: &Runtime) -> Result<()> {
        runtime.check_binding(PLAN, Dtype::U32, &[self.bytes() as usize / 4])
    }

    /// What each launch on an array's new rows and its cache is on: rows and slots that one binding shows of each.
    pub(super) fn windows(&self, parts: [(&'static str, Layout<'_>); 2]) -> Result<Vec<Window>> {
        let [(new_name, new), (name, cache)] = parts;
        let rows = windows(self.queries(), usize::MAX, [new.cuts(new_name, 2)?]);
        let slots = self.pages.saturating_mul(self.page_size);
        let slots = windows(slots, usize::MAX, [cache.cuts(name, 2)?]);
        let pairs = rows.iter().flat_map(|rows| slots.iter().map(move |slots| (rows, slots)));
        let used = pairs.filter(|(rows, slots)| {
            let range = slots.start as u64..slots.end as u64;
            self.slots[(*rows).clone()].iter().any(|&slot| range.contains(&slot.into()))
        });
        Ok(used.map(|(rows, slots)| Window { rows: rows.clone(), slots: slots.clone() }).collect())
    }

    /// Whether the plan serves arrays of these sizes.
    pub(super) fn check_call(&self, geometry: &Geometry) -> Result<()> {
        let expected = [geometry.queries, geometry.pages, geometry.page_size];
        let found = [self.queries(), self.pages, self.page_size];
        if found == expected {
            return Ok(());
        }
        Err(Error::Shape {
            array: "plan",
            expected: format!("[queries, pages, page_size] = {expected:?}"),
            found: found.to_vec(),
        })
    }
}

fn check_positions(arrays: &Narrowed) -> Result<()> {
    let rows = arrays.positions.iter().zip(&arrays.sequence_ids);
    for (row, (&position, &sequence)) in rows.enumerate() {
        let length = arrays.lengths[sequence as usize];
        if position >= length {
            return Err(Error::Index {
                array: "positions",
                index: row.to_string(),
                value: position.into(),
                expected: format!("a position < {length}, the length of sequence {sequence}"),
            });
        }
    }
    Ok(())
}

/// Where rows go.
struct Placement<'a> {
    arrays: &'a Narrowed,
    geometry: &'a Geometry,
    /// Of the block table.
    width: usize,
}

impl Placement<'_> {
    /// The sequence and logical page of a row.
    fn place(&self, row: usize) -> (usize, usize) {
        let position = self.arrays.positions[row] as usize;
        (self.arrays.sequence_ids[row] as usize, position / self.geometry.page_size)
    }

    fn page(&self, (sequence, logical): (usize, usize)) -> u32 {
        self.arrays.block_table[sequence * self.width + logical]
    }

    /// Within u32, as the number of slots is.
    fn slot(&self, row: usize) -> u32 {
        let page_size = self.geometry.page_size as u32;
        self.page(self.place(row)) * page_size + self.arrays.positions[row] % page_size
    }

    /// Whether each written page stands in one place of one table only.
    fn check_pages(&self) -> Result<()> {
        let written = (0..self.arrays.positions.len())
            .map(|row| (self.page(self.place(row)), (self.place(row), row)))
            .collect::<HashMap<_, _>>();
        if written.is_empty() {
            return Ok(());
        }
        for (sequence, &length) in self.arrays.lengths.iter().enumerate() {
            for logical in 0..(length as usize).div_ceil(self.geometry.page_size) {
                let page = self.page((sequence, logical));
                let Some(&(place, row)) = written.get(&page) else { continue };
                if place != (sequence, logical) {
                    let (owner, owned) = place;
                    return Err(Error::Index {
                        array: "block_table",
                        index: format!("{sequence}, {logical}"),
                        value: page.into(),
                        expected: format!(
                            "another page: row {row} writes to this one, \
                             which is also logical page {owned} of sequence {owner}"
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The rows by slot, rows of one slot in their order.
fn by_slot(slots: &[u32]) -> Vec<u32> {
    let mut order = (0..slots.len() as u32).collect::<Vec<_>>();
    order.sort_by_key(|&row| slots[row as usize]);
    order
}

/// Whether no two rows go to one slot; as pages are not shared, those are one sequence's.
fn check_slots(arrays: &Narrowed, slots: &[u32], order: &[u32]) -> Result<()> {
    let twice = order.windows(2).find(|w| slots[w[0] as usize] == slots[w[1] as usize]);
    let Some(&[first, second]) = twice else { return Ok(()) };
    let sequence = arrays.sequence_ids[second as usize];
    Err(Error::Index {
        array: "positions",
        index: second.to_string(),
        value: arrays.positions[second as usize].into(),
        expected: format!(
            "a position that no other row has: row {first} writes to this slot of sequence {sequence}"
        ),
    })
}

fn pairs(slots: &[u32], order: &[u32]) -> Vec<[u32; 3]> {
    let mut pairs = Vec::<[u32; 3]>::new();
    for &row in order {
        let slot = slots[row as usize];
        if pairs.last().is_none_or(|pair| pair[0] != slot / 2) {
            pairs.push([slot / 2, NO_ROW, NO_ROW]);
        }
        if let Some(pair) = pairs.last_mut() {
            pair[1 + (slot % 2) as usize] = row;
        }
    }
    pairs
}

//! The host plan of a paged-attention call: a schedule, checked, in the words that the kernels read.

use std::cmp::Reverse;
use std::ops::Range;

use super::schedule::Narrowed;
use super::units::{self, Linked, Readers, Units};
use super::{Geometry, Schedule};
use crate::error::{Error, Result};
use crate::kernels::index_range::fits;

/// A checked schedule and its inverse (from pages back to query rows): built once, uploaded once, reused.
///
/// All words are u32. With `links` the number of used block-table entries:
///
/// | `metadata` | words |
/// | --- | --- |
/// | sequence ids, positions | `[queries]` each |
/// | sequence lengths | `[sequences]` |
/// | block table, 0 where unused | `[sequences, table_width]` |
///
/// | `inverse` | words |
/// | --- | --- |
/// | where links, row offsets and row ids begin | 3 |
/// | page → its first link | `[pages + 1]` |
/// | links: (sequence, logical page), sorted by page, then so | `[links, 2]` |
/// | sequence → its first row | `[sequences + 1]` |
/// | row ids, by sequence in packed order | `[queries]` |
/// | whether the sequence's positions never decrease (1) | `[sequences]` |
/// | largest position of the sequence, 0 without rows | `[sequences]` |
/// | sequence → its first block of `query_block_rows` rows | `[sequences + 1]` |
/// | largest position of each block | `[blocks]` |
///
/// | `units` | words |
/// | --- | --- |
/// | units: where their group's pages begin, the group's pages, the first of its slots | `[units, 3]` |
/// | pages, by group | `[pages]` |
///
/// Pages that the same sequences read, in the same order of links, are a group; its slots are those of its pages, in the
/// order listed: by logical page of the first link, then by page. A unit is [`Plan::unit_slots`] of them in a row, or what
/// is left. Units of active pages come first, those that most rows see before others.
///
/// | `row_units` | words |
/// | --- | --- |
/// | each sequence's rows, 64 at a time: sequence, place of the first among the row ids, how many | `[units, 3]` |
///
/// Units with a row that sees more tokens come before others.
///
/// A cache without key/value heads has nothing in its pages; here it then has no pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    metadata: Vec<u32>,
    inverse: Vec<u32>,
    active_pages: Vec<u32>,
    inactive_pages: Vec<u32>,
    units: Units,
    row_units: Vec<[u32; 3]>,
    geometry: Geometry,
    sequences: u32,
    table_width: u32,
    query_block_rows: u32,
    has_positions: bool,
}

impl Plan {
    /// Checks a schedule against the arrays' sizes and lays out its words, in O(pages + table + queries).
    ///
    /// A schedule without positions gets zeros; whether the call may lack them is for
    /// [`Plan::check_call`] to say.
    ///
    /// # Errors
    /// [`Error::Index`] for a used page id, length, sequence id or position that is out of range,
    /// [`Error::Shape`] for arrays whose sizes disagree, [`Error::TooLarge`] for sizes that overflow
    /// the kernels' indices, [`Error::Parameter`] for `query_block_rows` = 0.
    pub fn new(schedule: &Schedule, geometry: &Geometry, query_block_rows: u32) -> Result<Self> {
        Self::of_pages(schedule, geometry, query_block_rows, 0..geometry.pages)
    }

    /// The plan of a history kernel that has these pages alone, as pages 0 and on, in arrays of so many; the block table
    /// keeps the ids of all pages, so it is no plan for the kernels that walk over a row's tokens.
    pub(crate) fn of_pages(
        schedule: &Schedule,
        geometry: &Geometry,
        query_block_rows: u32,
        pages: Range<usize>,
    ) -> Result<Self> {
        if query_block_rows == 0 {
            return Err(Error::Parameter {
                name: "query_block_rows",
                expected: "≥ 1".into(),
                found: "0".into(),
            });
        }
        if geometry.page_size == 0 {
            let found = "0".into();
            return Err(Error::Parameter { name: "page_size", expected: "≥ 1".into(), found });
        }
        geometry.check_index_range()?;
        fits("words of the plan's metadata", schedule.metadata_words())?;
        let arrays = schedule.narrow(geometry)?;
        let part = Geometry { pages: pages.len(), ..*geometry };
        let table_width = schedule.table_width;
        let inverse = Inverse::new(&arrays, &part, pages.start, table_width, query_block_rows)?;
        let (active_pages, inactive_pages) = inverse.split_pages();
        let causal = schedule.positions.is_some();
        let readers =
            Readers::new(&inverse.row_offsets, &inverse.row_ids, &arrays.positions, causal);
        let units = Units::new(&Linked {
            link_offsets: &inverse.link_offsets,
            links: &inverse.links,
            page_size: geometry.page_size,
            readers,
        })?;
        let row_units = row_units(&inverse, &arrays, causal)?;
        Ok(Self {
            inverse: inverse.words(),
            metadata: [arrays.sequence_ids, arrays.positions, arrays.lengths, arrays.block_table]
                .concat(),
            active_pages,
            inactive_pages,
            units,
            row_units,
            geometry: part,
            sequences: schedule.sequence_lengths.len() as u32,
            // Without sequences the width may be anything; no kernel reads it then.
            table_width: u32::try_from(schedule.table_width).unwrap_or(0),
            query_block_rows,
            has_positions: schedule.positions.is_some(),
        })
    }

    /// Sequence ids, positions, lengths and block table; see [`Plan`].
    pub fn metadata(&self) -> &[u32] {
        &self.metadata
    }

    /// Pages to links, sequences to rows, and what the pruning needs; see [`Plan`].
    pub fn inverse(&self) -> &[u32] {
        &self.inverse
    }

    /// The pages that a sequence with query rows and tokens reaches, increasing.
    pub fn active_pages(&self) -> &[u32] {
        &self.active_pages
    }

    /// All other pages, increasing.
    pub fn inactive_pages(&self) -> &[u32] {
        &self.inactive_pages
    }

    /// Which slots the history kernel takes together; see [`Plan`].
    pub fn units(&self) -> &[u32] {
        self.units.words()
    }

    /// Slots of a unit: a multiple of 64, and 64 unless pages are very large.
    pub fn unit_slots(&self) -> usize {
        units::slots(self.geometry.page_size)
    }

    /// Units of all pages.
    pub fn unit_count(&self) -> usize {
        self.units.count()
    }

    /// Units that a history kernel goes over: all, or under compaction those of active pages.
    pub(super) fn launched_units(&self, compact_history: bool) -> usize {
        if compact_history { self.active_unit_count() } else { self.unit_count() }
    }

    /// Units of active pages, which come first.
    pub fn active_unit_count(&self) -> usize {
        self.units.active()
    }

    /// The rows of each sequence, at most 64 at a time: (sequence, place of the first, how many); see [`Plan`].
    pub fn row_units(&self) -> &[[u32; 3]] {
        &self.row_units
    }

    /// The most rows of a unit.
    pub(super) fn unit_rows(&self) -> usize {
        self.row_units.iter().map(|[_, _, count]| *count as usize).max().unwrap_or(0)
    }

    /// The rows of a unit in order.
    pub(super) fn rows_of(&self, [_, first, count]: [u32; 3]) -> &[u32] {
        let begin = self.inverse[2] as usize + first as usize;
        &self.inverse[begin..begin + count as usize]
    }

    /// What goes to the device, with the names that errors call it by.
    pub(super) fn parts(&self) -> [(&'static str, &[u32]); 5] {
        [
            ("metadata", &self.metadata),
            ("inverse", &self.inverse),
            ("units", self.units.words()),
            ("inactive_pages", &self.inactive_pages),
            ("row_units", self.row_units.as_flattened()),
        ]
    }

    /// Sequences.
    pub fn sequences(&self) -> u32 {
        self.sequences
    }

    /// Packed query rows.
    pub fn queries(&self) -> u32 {
        // Within u32 since `check_index_range`.
        self.geometry.queries as u32
    }

    /// Block-table entries a sequence.
    pub fn table_width(&self) -> u32 {
        self.table_width
    }

    /// Rows a block of the block maxima.
    pub fn query_block_rows(&self) -> u32 {
        self.query_block_rows
    }

    /// The tokens that each row sees.
    pub(super) fn visible(&self, causal: bool) -> impl Iterator<Item = u32> {
        let (ids, rest) = self.metadata.split_at(self.geometry.queries);
        let (positions, rest) = rest.split_at(self.geometry.queries);
        ids.iter().zip(positions).map(move |(&sequence, &position)| {
            let length = rest[sequence as usize];
            if causal { length.min(position.saturating_add(1)) } else { length }
        })
    }

    /// The most tokens that a row sees.
    pub(super) fn longest_visible(&self, causal: bool) -> u32 {
        self.visible(causal).max().unwrap_or(0)
    }

    /// The pages of each unit, and how many rows see its first slot, counted for each sequence and logical page that it is.
    pub(super) fn unit_readers(&self, causal: bool) -> impl Iterator<Item = (&[u32], u64)> {
        let [links, rows, ids] = [0, 1, 2].map(|i| self.inverse[i] as usize);
        let queries = self.geometry.queries;
        let linked = Linked {
            link_offsets: &self.inverse[3..links],
            links: self.inverse[links..rows].as_chunks().0,
            page_size: self.geometry.page_size,
            readers: Readers::new(
                &self.inverse[rows..ids],
                &self.inverse[ids..ids + queries],
                &self.metadata[queries..2 * queries],
                causal,
            ),
        };
        let units = self.units.pages(self.geometry.page_size);
        units.map(move |(pages, offset)| (pages, linked.readers_of(pages[0], offset)))
    }

    /// Whether the schedule had positions; the words hold zeros otherwise.
    pub fn has_positions(&self) -> bool {
        self.has_positions
    }

    /// Checks that the plan serves a call on arrays of these sizes.
    ///
    /// # Errors
    /// [`Error::MissingArray`] when a causal call lacks positions; [`Error::Shape`] when the plan was
    /// made for another number of queries or other pages.
    pub fn check_call(
        &self,
        operator: &'static str,
        geometry: &Geometry,
        causal: bool,
    ) -> Result<()> {
        if causal && !self.has_positions {
            let why = "a causal mask needs the position of each row";
            return Err(Error::MissingArray { operator, array: "positions", why });
        }
        // Of the key/value heads it counts whether there are any: a plan without has no pages.
        let sizes = |g: &Geometry| [g.queries, g.pages, g.page_size, g.kv_heads.min(1)];
        if sizes(geometry) == sizes(&self.geometry) {
            return Ok(());
        }
        Err(Error::Shape {
            array: "plan",
            expected: format!(
                "[queries, pages, page_size, 1 with key/value heads] = {:?}",
                sizes(geometry)
            ),
            found: sizes(&self.geometry).to_vec(),
        })
    }
}

/// The sections of the inverse words.
struct Inverse {
    /// `[pages + 1]`.
    link_offsets: Vec<u32>,
    /// (sequence, logical page), sorted by page, then so.
    links: Vec<[u32; 2]>,
    /// `[sequences + 1]`.
    row_offsets: Vec<u32>,
    /// `[queries]`.
    row_ids: Vec<u32>,
    visibility: Visibility,
}

impl Inverse {
    fn new(
        arrays: &Narrowed,
        geometry: &Geometry,
        first_page: usize,
        table_width: usize,
        query_block_rows: u32,
    ) -> Result<Self> {
        let sequences = arrays.lengths.len();
        // A page without elements needs no owner; such pages may be many more than memory holds.
        let (pages, linked) =
            if geometry.kv_heads == 0 { (0, 0) } else { (geometry.pages, sequences) };
        let used = used_pages(arrays, geometry.page_size, table_width).take(linked);
        // Those of the pages that there are, under the ids that they have here.
        let here =
            move |&page: &u32| (page as usize).checked_sub(first_page).filter(|&page| page < pages);
        let used = used.map(move |all| {
            let ids = (0..).zip(all);
            ids.filter_map(move |(logical, page)| Some((logical, here(page)? as u32)))
        });
        let row_offsets = offsets(sequences, arrays.sequence_ids.iter().copied());
        let block_offsets = block_offsets(&row_offsets, query_block_rows);
        let blocks = block_offsets.last().copied().unwrap_or(0);
        let fixed = 3 + pages as u128 + 1 + 4 * sequences as u128 + 2;
        let linked = used.clone().map(|links| 2 * links.count() as u128).sum::<u128>();
        let words = fixed + linked + geometry.queries as u128 + u128::from(blocks);
        // Checked before anything of the size of the cache is allocated.
        fits("words of the plan's inverse", words)?;
        let link_offsets = offsets(pages, used.clone().flatten().map(|(_, page)| page));
        let row_ids = stable_by(&arrays.sequence_ids, &row_offsets);
        Ok(Self {
            links: links(used, &link_offsets),
            link_offsets,
            visibility: Visibility::new(
                &row_offsets,
                &row_ids,
                &arrays.positions,
                block_offsets,
                query_block_rows,
            ),
            row_offsets,
            row_ids,
        })
    }

    /// The active pages and the others.
    fn split_pages(&self) -> (Vec<u32>, Vec<u32>) {
        let has_rows = |&[sequence, _]: &[u32; 2]| {
            let sequence = sequence as usize;
            self.row_offsets[sequence] < self.row_offsets[sequence + 1]
        };
        let is_active = |&page: &u32| {
            let page = page as usize;
            let own = self.link_offsets[page] as usize..self.link_offsets[page + 1] as usize;
            self.links[own].iter().any(has_rows)
        };
        (0..self.link_offsets.len() as u32 - 1).partition(is_active)
    }

    /// The sections one after the other, after the bases of three of them.
    fn words(&self) -> Vec<u32> {
        let links_base = 3 + self.link_offsets.len();
        let row_offsets_base = links_base + 2 * self.links.len();
        let row_ids_base = row_offsets_base + self.row_offsets.len();
        let bases = [links_base, row_offsets_base, row_ids_base].map(|base| base as u32);
        [
            bases.as_slice(),
            &self.link_offsets,
            self.links.as_flattened(),
            &self.row_offsets,
            &self.row_ids,
            &self.visibility.nondecreasing,
            &self.visibility.maxima,
            &self.visibility.block_offsets,
            &self.visibility.block_maxima,
        ]
        .concat()
    }
}

/// What decides which rows may see a token.
struct Visibility {
    /// `[sequences]`: 1 when the positions never decrease.
    nondecreasing: Vec<u32>,
    /// `[sequences]`: the largest position.
    maxima: Vec<u32>,
    /// `[sequences + 1]`.
    block_offsets: Vec<u32>,
    /// The largest position of each block.
    block_maxima: Vec<u32>,
}

impl Visibility {
    fn new(
        row_offsets: &[u32],
        row_ids: &[u32],
        positions: &[u32],
        block_offsets: Vec<u32>,
        query_block_rows: u32,
    ) -> Self {
        let ordered = row_ids.iter().map(|&row| positions[row as usize]).collect::<Vec<_>>();
        let of_sequences =
            || row_offsets.windows(2).map(|w| &ordered[w[0] as usize..w[1] as usize]);
        let maximum = |positions: &[u32]| positions.iter().copied().max().unwrap_or(0);
        Self {
            nondecreasing: of_sequences().map(|p| u32::from(p.is_sorted())).collect(),
            maxima: of_sequences().map(maximum).collect(),
            block_maxima: of_sequences()
                .flat_map(|p| p.chunks(query_block_rows as usize))
                .map(maximum)
                .collect(),
            block_offsets,
        }
    }
}

/// The used page ids of every sequence, in order.
fn used_pages(
    arrays: &Narrowed,
    page_size: usize,
    table_width: usize,
) -> impl Iterator<Item = &[u32]> + Clone {
    arrays.lengths.iter().enumerate().map(move |(sequence, &length)| {
        let begin = sequence * table_width;
        &arrays.block_table[begin..begin + (length as usize).div_ceil(page_size)]
    })
}

/// The links, sorted by page: a counting sort, which keeps the order (sequence, logical page) of its input.
fn links(
    used: impl Iterator<Item = impl Iterator<Item = (u32, u32)>>,
    link_offsets: &[u32],
) -> Vec<[u32; 2]> {
    let mut next = link_offsets.to_vec();
    let mut links = vec![[0; 2]; link_offsets.last().map_or(0, |&n| n as usize)];
    for (sequence, pages) in (0..).zip(used) {
        for (logical, page) in pages {
            let place = &mut next[page as usize];
            links[*place as usize] = [sequence, logical];
            *place += 1;
        }
    }
    links
}

/// The first place of each of `bins` bins when `keys` are sorted, and the total: `[bins + 1]`.
fn offsets(bins: usize, keys: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut offsets = vec![0; bins + 1];
    for key in keys {
        offsets[key as usize + 1] += 1;
    }
    for bin in 0..bins {
        offsets[bin + 1] += offsets[bin];
    }
    offsets
}

/// The indices of `keys` sorted by key, equal keys in their order.
fn stable_by(keys: &[u32], offsets: &[u32]) -> Vec<u32> {
    let mut next = offsets.to_vec();
    let mut sorted = vec![0; keys.len()];
    for (index, &key) in keys.iter().enumerate() {
        let place = &mut next[key as usize];
        sorted[*place as usize] = index as u32;
        *place += 1;
    }
    sorted
}

/// The most rows of a unit.
const UNIT_ROWS: u32 = 64;

/// The units of all sequences' rows, the longest walks first, so that none begins when all others are done.
fn row_units(inverse: &Inverse, arrays: &Narrowed, causal: bool) -> Result<Vec<[u32; 3]>> {
    let Inverse { row_offsets, row_ids, .. } = inverse;
    let of_sequence = |(sequence, ends): (usize, &[u32])| {
        let [begin, end] = [ends[0], ends[1]];
        let firsts = (begin..end).step_by(UNIT_ROWS as usize);
        firsts.map(move |first| [sequence as u32, first, UNIT_ROWS.min(end - first)])
    };
    let mut units: Vec<_> = row_offsets.windows(2).enumerate().flat_map(of_sequence).collect();
    fits("words of the plan's row units", 3 * units.len() as u128)?;
    let longest = |&[sequence, first, count]: &[u32; 3]| {
        let length = arrays.lengths[sequence as usize];
        let rows = &row_ids[first as usize..(first + count) as usize];
        let positions = rows.iter().map(|&row| arrays.positions[row as usize].saturating_add(1));
        if causal { length.min(positions.max().unwrap_or(0)) } else { length }
    };
    units.sort_by_cached_key(|unit| Reverse(longest(unit)));
    Ok(units)
}

/// The first block of each sequence, and the total: `[sequences + 1]`.
fn block_offsets(row_offsets: &[u32], query_block_rows: u32) -> Vec<u32> {
    let blocks = row_offsets.windows(2).map(|w| (w[1] - w[0]).div_ceil(query_block_rows));
    let ends = blocks.scan(0, |total, blocks| {
        *total += blocks;
        Some(*total)
    });
    std::iter::once(0).chain(ends).collect()
}

//! How the slots of the cache are divided for kernels whose workgroups own several of them.
//!
//! Such a workgroup walks the links of its slots side by side. So pages that the same sequences read in the same order
//! make a group, whose slots are those of its pages, one page after the other; units are cut from it.

use std::ops::Range;

use crate::error::Result;
use crate::kernels::index_range::fits;

/// Slots of a unit are a multiple of this.
pub(super) const TILE: usize = 64;
/// Pages of more slots have larger units, so that a page has no more than this many times [`TILE`] units.
const DIVIDED_PAGE: usize = TILE * TILE;

/// The units of a plan, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Units {
    /// Of each unit where its group's pages begin, their number, and the first of the group's slots that is the unit's;
    /// then all pages, by group.
    words: Vec<u32>,
    count: usize,
    active: usize,
}

/// Page → links, and sequence → rows: what units are made of.
pub(super) struct Linked<'a> {
    /// `[pages + 1]`.
    pub(super) link_offsets: &'a [u32],
    /// (sequence, logical page), by page.
    pub(super) links: &'a [[u32; 2]],
    pub(super) page_size: usize,
    pub(super) readers: Readers<'a>,
}

/// The rows that see a token.
pub(super) struct Readers<'a> {
    /// `[sequences + 1]`.
    row_offsets: &'a [u32],
    /// The positions of each sequence's rows, increasing.
    positions: Vec<u32>,
    causal: bool,
}

impl<'a> Readers<'a> {
    pub(super) fn new(
        row_offsets: &'a [u32],
        row_ids: &[u32],
        positions: &[u32],
        causal: bool,
    ) -> Self {
        let mut sorted: Vec<_> = row_ids.iter().map(|&row| positions[row as usize]).collect();
        for ends in row_offsets.windows(2) {
            sorted[ends[0] as usize..ends[1] as usize].sort_unstable();
        }
        Self { row_offsets, positions: sorted, causal }
    }

    fn of_sequence(&self, sequence: u32) -> &[u32] {
        let sequence = sequence as usize;
        &self.positions
            [self.row_offsets[sequence] as usize..self.row_offsets[sequence + 1] as usize]
    }

    /// How many rows of a sequence see a token, unless it is too short.
    fn of(&self, sequence: u32, token: u64) -> u64 {
        let rows = self.of_sequence(sequence);
        let blind = if self.causal { rows.partition_point(|&p| u64::from(p) < token) } else { 0 };
        (rows.len() - blind) as u64
    }
}

impl Linked<'_> {
    fn links_of(&self, page: u32) -> &[[u32; 2]] {
        let page = page as usize;
        &self.links[self.link_offsets[page] as usize..self.link_offsets[page + 1] as usize]
    }

    /// How many rows see a slot, counted for each link of its page.
    pub(super) fn readers_of(&self, page: u32, offset: usize) -> u64 {
        let token = |logical: u32| u64::from(logical) * self.page_size as u64 + offset as u64;
        let links = self.links_of(page).iter();
        links.map(|&[sequence, logical]| self.readers.of(sequence, token(logical))).sum()
    }

    fn is_active(&self, page: u32) -> bool {
        self.links_of(page)
            .iter()
            .any(|&[sequence, _]| !self.readers.of_sequence(sequence).is_empty())
    }

    /// The same for pages of the same sequences in the same order, and mostly for no others.
    fn hash(&self, page: u32) -> u64 {
        self.links_of(page).iter().fold(0, |hash, &[sequence, _]| {
            (hash.rotate_left(23) ^ (u64::from(sequence) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }

    /// The pages by group, active ones first, and within a group by their first logical page; and where groups end.
    fn groups(&self) -> (Vec<u32>, Vec<usize>) {
        let pages = self.link_offsets.len() as u32 - 1;
        let first = |page: u32| self.links_of(page).first().map_or(0, |&[_, logical]| logical);
        let key = |page| (!self.is_active(page), self.hash(page), first(page), page);
        let mut order: Vec<_> = (0..pages).map(key).collect();
        order.sort_unstable();
        let order: Vec<_> = order.into_iter().map(|(.., page)| page).collect();
        let sequences = |page: u32| self.links_of(page).iter().map(|&[sequence, _]| sequence);
        // Equal hashes of unlike pages make groups more, no wrong ones.
        let differ = |i: &usize| !sequences(order[i - 1]).eq(sequences(order[*i]));
        let mut ends: Vec<_> = (1..order.len()).filter(differ).collect();
        ends.extend((!order.is_empty()).then_some(order.len()));
        (order, ends)
    }
}

/// A unit before it is words.
struct Unit {
    /// Of the list of pages by group.
    group: Range<usize>,
    first_slot: usize,
    readers: u64,
}

impl Units {
    /// Divides all pages: in O(pages + links) apart from sorting and, for what rows see of a unit, from searching.
    pub(super) fn new(linked: &Linked<'_>) -> Result<Self> {
        let (pages, ends) = linked.groups();
        let slots = slots(linked.page_size);
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let groups = || begins.clone().zip(ends.iter().copied()).map(|(begin, end)| begin..end);
        let of_group = |group: &Range<usize>| (group.len() * linked.page_size).div_ceil(slots);
        let count = groups().map(|group| of_group(&group)).sum::<usize>();
        fits("words of the plan's units", 3 * count as u128 + pages.len() as u128)?;
        let cut = |group: Range<usize>| {
            let firsts = (0..of_group(&group)).map(|i| i * slots);
            firsts.map(move |first_slot| (group.clone(), first_slot)).collect::<Vec<_>>()
        };
        let unit = |(group, first_slot): (Range<usize>, usize)| {
            let page = pages[group.start + first_slot / linked.page_size];
            let readers = linked.readers_of(page, first_slot % linked.page_size);
            Unit { group, first_slot, readers }
        };
        let mut units: Vec<_> = groups().flat_map(cut).map(unit).collect();
        let is_active = |unit: &Unit| linked.is_active(pages[unit.group.start]);
        let active = units.iter().take_while(|unit| is_active(unit)).count();
        // The longest walks first, so that none begins when all others are done.
        units[..active].sort_by_key(|unit| std::cmp::Reverse(unit.readers));
        let table = 3 * count;
        let entry = |unit: &Unit| {
            [table + unit.group.start, unit.group.len(), unit.first_slot].map(|n| n as u32)
        };
        let words = units.iter().flat_map(entry).chain(pages.iter().copied()).collect();
        Ok(Self { words, count, active })
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// All units.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Those of active pages, which come first.
    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// Of each unit its pages, in order, and the slot of the first page that it begins with.
    pub(super) fn pages(&self, page_size: usize) -> impl Iterator<Item = (&[u32], usize)> {
        let slots = slots(page_size);
        let (table, _) = self.words[..3 * self.count].as_chunks::<3>();
        table.iter().map(move |unit| {
            let [begin, pages, first_slot] = unit.map(|word| word as usize);
            let end = (first_slot + slots).div_ceil(page_size).min(pages);
            let own = begin + first_slot / page_size..begin + end;
            (&self.words[own], first_slot % page_size)
        })
    }
}

/// Slots of a unit of a cache with pages of this size; the last unit of a group may have fewer.
pub(super) fn slots(page_size: usize) -> usize {
    TILE * page_size.div_ceil(DIVIDED_PAGE)
}

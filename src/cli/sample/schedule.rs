//! A random schedule: sequences that share a prefix, each with pages of its own after it.

use backslang::kernels::attention::Schedule;

use super::integers;
use super::random::Random;
use crate::cli::args::CacheSizes;
use crate::cli::failure::{Failure, Result};
use crate::cli::files::OutputArray;

/// Pages in random places, lengths that end within a page, rows at the end of their sequences; where the rows are to be
/// written (`appends`), in the pages that no other sequence has.
pub(super) fn schedule(sizes: &CacheSizes, appends: bool, random: &mut Random) -> Result<Schedule> {
    let CacheSizes { queries, sequences, pages, page_size, .. } = *sizes;
    if sequences == 0 && queries > 0 {
        let message = format!("--sequences: expected at least 1 for {queries} queries, found 0");
        return Err(Failure::usage(message));
    }
    let split = Split::new(pages, sequences);
    if appends {
        split.check_appended(queries.div_ceil(sequences.max(1)), page_size)?;
    }
    let order = random.permutation(pages);
    let mut schedule = Schedule { table_width: split.width(), ..Schedule::default() };
    let mut positions = Vec::new();
    for sequence in 0..sequences {
        let rows = queries / sequences + usize::from(sequence < queries % sequences);
        let length = split.length(page_size, if appends { rows } else { 0 }, random);
        let used = length.div_ceil(page_size.max(1));
        let entry = |logical| match logical < used {
            true => order[split.place(sequence, logical)] as i128,
            false => -1,
        };
        schedule.block_table.extend((0..split.width()).map(entry));
        schedule.sequence_lengths.push(length as i128);
        schedule.sequence_ids.extend(std::iter::repeat_n(sequence as i128, rows));
        positions.extend((0..rows).map(|row| position(row, rows, length) as i128));
    }
    schedule.positions = Some(positions);
    Ok(schedule)
}

/// The last `rows` positions, or, where there are fewer tokens, an even spread over them.
fn position(row: usize, rows: usize, length: usize) -> usize {
    match length.checked_sub(rows) {
        Some(first) => first + row,
        None => row * length / rows,
    }
}

/// The names of a schedule's arrays.
pub(super) const NAMES: [&str; 4] =
    ["block_table", "sequence_lengths", "sequence_ids", "positions"];

/// The schedule's arrays.
pub(super) fn arrays_of(schedule: &Schedule) -> Result<Vec<OutputArray>> {
    let sequences = schedule.sequence_lengths.len();
    let table = [sequences, schedule.table_width];
    let queries = [schedule.sequence_ids.len()];
    let positions = schedule.positions.as_deref().unwrap_or_default();
    Ok(vec![
        integers("block_table", &table, narrow("block_table", &schedule.block_table)?),
        integers(
            "sequence_lengths",
            &[sequences],
            narrow("sequence_lengths", &schedule.sequence_lengths)?,
        ),
        integers("sequence_ids", &queries, narrow("sequence_ids", &schedule.sequence_ids)?),
        integers("positions", &queries, narrow("positions", positions)?),
    ])
}

fn narrow(name: &str, values: &[i128]) -> Result<Vec<i32>> {
    values.iter().map(|&value| super::narrow(name, value)).collect()
}

/// How the pages are divided; the last one stays spare when there is more than one.
#[derive(Debug, Clone, Copy)]
struct Split {
    shared: usize,
    own: usize,
}

impl Split {
    fn new(pages: usize, sequences: usize) -> Self {
        let usable = if pages > 1 { pages - 1 } else { pages };
        let shared = if sequences > 1 { usable / (sequences + 1) } else { 0 };
        match (usable - shared).checked_div(sequences).unwrap_or(0) {
            0 => Self { shared: usable, own: 0 },
            own => Self { shared, own },
        }
    }

    fn width(self) -> usize {
        self.shared + self.own
    }

    /// Where a logical page is in the order of the physical pages.
    fn place(self, sequence: usize, logical: usize) -> usize {
        if logical < self.shared { logical } else { sequence * self.own + logical }
    }

    /// At least so many tokens after the shared pages, and at least one where there are pages for it.
    fn length(self, page_size: usize, least: usize, random: &mut Random) -> usize {
        match (self.shared * page_size, self.own * page_size) {
            (0, 0) => 0,
            (shared, 0) => 1 + random.below(shared),
            (shared, own) => {
                let least = least.clamp(1, own);
                shared + least + random.below(own - least + 1)
            }
        }
    }

    /// Whether a sequence's own pages have room for its rows.
    fn check_appended(self, rows: usize, page_size: usize) -> Result<()> {
        let room = self.own * page_size;
        if rows <= room {
            return Ok(());
        }
        let message = format!(
            "--queries: expected at most {room} a sequence, which its own pages have slots for, found {rows}"
        );
        Err(Failure::usage(message))
    }
}

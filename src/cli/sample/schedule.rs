//! A random schedule: sequences that share a prefix, each with pages of its own after it.

use backslang::kernels::attention::Schedule;

use super::random::Random;
use crate::cli::args::AttentionSizes;
use crate::cli::failure::{Failure, Result};

/// Pages in random places, lengths that end within a page, rows at the end of their sequences.
pub(super) fn schedule(sizes: &AttentionSizes, random: &mut Random) -> Result<Schedule> {
    let AttentionSizes { queries, sequences, pages, page_size, .. } = *sizes;
    if sequences == 0 && queries > 0 {
        let message = format!("--sequences: expected at least 1 for {queries} queries, found 0");
        return Err(Failure::usage(message));
    }
    let split = Split::new(pages, sequences);
    let order = random.permutation(pages);
    let mut schedule = Schedule { table_width: split.width(), ..Schedule::default() };
    let mut positions = Vec::new();
    for sequence in 0..sequences {
        let length = split.length(page_size, random);
        let used = length.div_ceil(page_size.max(1));
        let entry = |logical| match logical < used {
            true => order[split.place(sequence, logical)] as i128,
            false => -1,
        };
        schedule.block_table.extend((0..split.width()).map(entry));
        schedule.sequence_lengths.push(length as i128);
        let rows = queries / sequences + usize::from(sequence < queries % sequences);
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

    /// At least one token after the shared pages.
    fn length(self, page_size: usize, random: &mut Random) -> usize {
        match (self.shared * page_size, self.own * page_size) {
            (0, 0) => 0,
            (shared, 0) => 1 + random.below(shared),
            (shared, own) => shared + 1 + random.below(own),
        }
    }
}

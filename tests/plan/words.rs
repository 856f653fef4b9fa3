//! The plan's words cut apart by the documented layout, and the walks of the history kernel over them.

use backslang::kernels::attention::Plan;

/// The sections of a plan's words, cut apart by the documented layout.
pub(crate) struct Words<'a> {
    pub(crate) sequence_ids: &'a [u32],
    pub(crate) positions: &'a [u32],
    pub(crate) lengths: &'a [u32],
    pub(crate) block_table: &'a [u32],
    pub(crate) link_offsets: &'a [u32],
    pub(crate) links: &'a [[u32; 2]],
    pub(crate) row_offsets: &'a [u32],
    pub(crate) row_ids: &'a [u32],
    pub(crate) nondecreasing: &'a [u32],
    pub(crate) maxima: &'a [u32],
    pub(crate) block_offsets: &'a [u32],
    pub(crate) block_maxima: &'a [u32],
    pub(crate) query_block_rows: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn of(plan: &'a Plan, pages: usize) -> Self {
        let (queries, sequences) = (plan.queries() as usize, plan.sequences() as usize);
        let (sequence_ids, rest) = plan.metadata().split_at(queries);
        let (positions, rest) = rest.split_at(queries);
        let (lengths, block_table) = rest.split_at(sequences);
        assert_eq!(block_table.len(), sequences * plan.table_width() as usize);
        let inverse = plan.inverse();
        let [links_base, rows_base, ids_base] = [0, 1, 2].map(|i| inverse[i] as usize);
        assert_eq!(links_base, 3 + pages + 1);
        assert_eq!(ids_base, rows_base + sequences + 1);
        let (row_ids, rest) = inverse[ids_base..].split_at(queries);
        let (nondecreasing, rest) = rest.split_at(sequences);
        let (maxima, rest) = rest.split_at(sequences);
        let (block_offsets, block_maxima) = rest.split_at(sequences + 1);
        Self {
            sequence_ids,
            positions,
            lengths,
            block_table,
            link_offsets: &inverse[3..links_base],
            links: inverse[links_base..rows_base].as_chunks().0,
            row_offsets: &inverse[rows_base..ids_base],
            row_ids,
            nondecreasing,
            maxima,
            block_offsets,
            block_maxima,
            query_block_rows: plan.query_block_rows() as usize,
        }
    }

    pub(crate) fn rows(&self, sequence: usize) -> &[u32] {
        &self.row_ids[self.row_offsets[sequence] as usize..self.row_offsets[sequence + 1] as usize]
    }

    /// The rows that add to a slot, in order, as the history kernel walks them.
    pub(crate) fn walk(
        &self,
        page: usize,
        offset: usize,
        page_size: usize,
        mode: Mode,
    ) -> Vec<u32> {
        let own = self.link_offsets[page] as usize..self.link_offsets[page + 1] as usize;
        let mut visited = Vec::new();
        for &[sequence, logical] in &self.links[own] {
            let token = logical as usize * page_size + offset;
            if token < self.lengths[sequence as usize] as usize {
                self.walk_sequence(sequence as usize, token as u32, mode, &mut visited);
            }
        }
        visited
    }

    fn walk_sequence(&self, sequence: usize, token: u32, mode: Mode, visited: &mut Vec<u32>) {
        let rows = self.rows(sequence);
        let position = |row: u32| self.positions[row as usize];
        match mode {
            Mode::NotCausal => visited.extend(rows),
            Mode::Causal => visited.extend(rows.iter().filter(|&&row| token <= position(row))),
            Mode::Pruned if token > self.maxima[sequence] => {}
            Mode::Pruned if self.nondecreasing[sequence] == 1 => {
                let first = rows.partition_point(|&row| position(row) < token);
                visited.extend(&rows[first..]);
            }
            Mode::Pruned => {
                let blocks = rows.chunks(self.query_block_rows);
                let maxima = &self.block_maxima[self.block_offsets[sequence] as usize..];
                for (block, maximum) in blocks.zip(maxima) {
                    if token <= *maximum {
                        visited.extend(block.iter().filter(|&&row| token <= position(row)));
                    }
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    NotCausal,
    Causal,
    Pruned,
}

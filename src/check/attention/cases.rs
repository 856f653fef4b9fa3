//! What the cases are: sizes, schedules, and NaN wherever nothing may be read.

use ndarray::{Axis, Slice};

use crate::check::Command;
use crate::check::random::Random;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::{
    BackwardInputs, Geometry, Gradient, Gradients, History, Options, Schedule,
};
use crate::reference;

/// What a case is about, and its sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Tokens and query rows of each sequence.
    sequences: &'static [(usize, usize)],
    /// Pages at the start that all sequences share.
    shared_pages: usize,
    page_size: usize,
    /// Query heads, key/value heads.
    heads: [usize; 2],
    /// Of keys, values and positions; a position width makes it MLA.
    dims: [usize; 3],
    causal: bool,
    /// Rows at random positions, some beyond the length, instead of at the end.
    unsorted: bool,
    /// Factor of q.
    amplitude: f32,
    /// Columns of the statistics given; 0 for none.
    statistics: usize,
}

/// One attention call.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) inputs: BackwardInputs<HostTensor>,
    pub(super) schedule: Schedule,
    pub(super) geometry: Geometry,
    pub(super) options: Options,
    /// Of the visible tokens, in magnitude.
    pub(super) largest_score: f64,
}

/// The cases of a command.
pub(super) fn cases(command: Command) -> Vec<Case> {
    let grouped = Case {
        name: "grouped heads, shared pages",
        sequences: &[(27, 9), (18, 6), (33, 11), (0, 0), (21, 0)],
        shared_pages: 3,
        page_size: 4,
        heads: [6, 2],
        dims: [24, 20, 0],
        causal: true,
        unsorted: false,
        amplitude: 1.0,
        statistics: 0,
    };
    let latent = Case { name: "latent history", heads: [4, 1], dims: [32, 32, 8], ..grouped };
    if command == Command::HistoryBackward {
        return vec![
            Case { name: "statistics given", statistics: 3, ..grouped },
            Case { name: "statistics without delta", statistics: 2, ..grouped },
            Case { name: "statistics computed", unsorted: true, ..grouped },
            Case { name: "latent history, statistics given", statistics: 3, ..latent },
        ];
    }
    vec![
        grouped,
        Case { name: "one head each, page of 1", heads: [3, 3], page_size: 1, ..grouped },
        Case { name: "one key/value head, 9 heads", heads: [9, 1], dims: [7, 9, 0], ..grouped },
        Case { name: "unsorted rows", unsorted: true, sequences: &[(30, 70), (14, 5)], ..grouped },
        Case { name: "not causal", causal: false, ..grouped },
        Case {
            name: "wide rows",
            dims: [192, 160, 0],
            sequences: &[(40, 8), (19, 5)],
            page_size: 16,
            shared_pages: 1,
            ..grouped
        },
        Case { name: "large scores", amplitude: 12.0, ..grouped },
        Case { name: "statistics without delta", statistics: 2, ..grouped },
        latent,
        Case { name: "latent history, unsorted rows", unsorted: true, ..latent },
        Case { name: "no queries", sequences: &[(9, 0)], ..grouped },
        Case { name: "no sequences", sequences: &[], shared_pages: 0, ..grouped },
    ]
}

impl Problem {
    /// The case of a seed; `history_only` leaves out what the query kernel computes.
    pub(super) fn new(case: &Case, seed: u64, history_only: bool) -> Result<Self> {
        let random = &mut Random::new(seed);
        let (schedule, pages) = schedule(case, random);
        let mut inputs = inputs(case, schedule.sequence_ids.len(), pages, random)?;
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let width = geometry.key_dim + geometry.position_dim;
        let exists =
            |g: &Gradient| g.exists(geometry.is_mla()) && (g.is_history() || !history_only);
        let gradients = Gradient::ALL.into_iter().filter(exists).collect::<Vec<_>>();
        let options = Options {
            causal: case.causal,
            gradients: Gradients::only(&gradients),
            ..Options::new((1.0 / (width as f64).sqrt()) as f32)
        };
        let visible = visible_slots(&schedule, &geometry, case.causal);
        let largest_score = largest_score(&inputs, &visible, &geometry) * f64::from(options.scale);
        poison(&mut inputs, &visible, &geometry);
        let mut problem = Self { inputs, schedule, geometry, options, largest_score };
        problem.give_statistics(case.statistics)?;
        Ok(problem)
    }

    /// Statistics as a forward would have saved them.
    fn give_statistics(&mut self, columns: usize) -> Result<()> {
        if columns == 0 {
            return Ok(());
        }
        let inputs = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::attention::backward(&inputs, &self.schedule, &self.options)?;
        let given = outputs.statistics.slice_axis(Axis(2), Slice::from(..columns)).to_owned();
        self.inputs.statistics = Some(HostTensor::from_f64(Dtype::F32, &given)?);
        self.geometry.statistics_columns = columns;
        Ok(())
    }
}

/// Pages in random places, two of them spare, table ends that hold nonsense; rows of the sequences in turn.
fn schedule(case: &Case, random: &mut Random) -> (Schedule, usize) {
    let used = |length: usize| length.div_ceil(case.page_size);
    let own = |length: usize| used(length).saturating_sub(case.shared_pages);
    let lengths = case.sequences.iter().map(|&(length, _)| length);
    let pages = case.shared_pages + lengths.clone().map(own).sum::<usize>() + 2;
    let table_width = lengths.map(used).max().unwrap_or(0) + 1;
    let order = random.permutation(pages);
    let mut next_own = case.shared_pages;
    let mut schedule = Schedule { table_width, positions: Some(Vec::new()), ..Schedule::default() };
    for &(length, _) in case.sequences {
        let first_own = next_own;
        next_own += own(length);
        for logical in 0..table_width {
            schedule.block_table.push(match logical.checked_sub(case.shared_pages) {
                _ if logical >= used(length) => i128::from(i64::MIN),
                None => order[logical] as i128,
                Some(own) => order[first_own + own] as i128,
            });
        }
        schedule.sequence_lengths.push(length as i128);
    }
    let most = case.sequences.iter().map(|&(_, rows)| rows).max().unwrap_or(0);
    for row in 0..most {
        for (sequence, &(length, rows)) in case.sequences.iter().enumerate() {
            if row < rows {
                let position = match case.unsorted {
                    true => random.below(length + 3),
                    false => (length + row).saturating_sub(rows),
                };
                schedule.sequence_ids.push(sequence as i128);
                schedule.positions.get_or_insert_default().push(position as i128);
            }
        }
    }
    (schedule, pages)
}

fn inputs(
    case: &Case,
    queries: usize,
    pages: usize,
    random: &mut Random,
) -> Result<BackwardInputs<HostTensor>> {
    let [heads, kv_heads] = case.heads;
    let [key_dim, value_dim, position_dim] = case.dims;
    let mut row = |dim| random.normals(&[queries, heads, dim]);
    let (mut q, q_position) = (row(key_dim)?, row(position_dim)?);
    let output_gradient = row(value_dim)?;
    q.as_f32_mut().into_iter().flatten().for_each(|value| *value *= case.amplitude);
    let mut cache = |dim| random.normals(&[pages, case.page_size, kv_heads, dim]);
    let k = cache(key_dim)?;
    let history = if position_dim > 0 {
        History::Latent { latent: k, q_position, k_position: cache(position_dim)? }
    } else {
        History::Separate { k, v: cache(value_dim)? }
    };
    Ok(BackwardInputs { q, history, output_gradient, statistics: None, output: None })
}

/// For each row the slots that it sees. The schedule is one of ours, hence valid.
fn visible_slots(schedule: &Schedule, geometry: &Geometry, causal: bool) -> Vec<Vec<usize>> {
    let rows = schedule.sequence_ids.iter().zip(schedule.positions.iter().flatten());
    let slots = |(&sequence, &position): (&i128, &i128)| {
        let sequence = sequence as usize;
        let length = schedule.sequence_lengths[sequence];
        let end = if causal { length.min(position + 1) } else { length } as usize;
        let table = &schedule.block_table[sequence * schedule.table_width..];
        let slot = |token: usize| {
            table[token / geometry.page_size] as usize * geometry.page_size
                + token % geometry.page_size
        };
        (0..end).map(slot).collect()
    };
    rows.map(slots).collect()
}

/// The largest |q·k + q_position·k_position| of a visible token.
fn largest_score(
    inputs: &BackwardInputs<HostTensor>,
    visible: &[Vec<usize>],
    geometry: &Geometry,
) -> f64 {
    let parts = match &inputs.history {
        History::Separate { k, .. } => vec![(&inputs.q, k, geometry.key_dim)],
        History::Latent { latent, q_position, k_position } => vec![
            (&inputs.q, latent, geometry.key_dim),
            (q_position, k_position, geometry.position_dim),
        ],
    };
    let part = |row: usize, cell: usize, (q, k, dim): &(&HostTensor, &HostTensor, usize)| -> f64 {
        let (q, k) = (q.as_f32().unwrap_or_default(), k.as_f32().unwrap_or_default());
        let pairs = q[row * dim..][..*dim].iter().zip(&k[cell * dim..][..*dim]);
        pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let mut largest = 0f64;
    for (query, slots) in visible.iter().enumerate() {
        for head in 0..geometry.heads {
            let row = query * geometry.heads + head;
            for slot in slots {
                let cell = slot * geometry.kv_heads + head / geometry.group().max(1);
                let score: f64 = parts.iter().map(|arrays| part(row, cell, arrays)).sum();
                largest = largest.max(score.abs());
            }
        }
    }
    largest
}

/// NaN in every slot that no row sees, and in every row that sees nothing.
fn poison(inputs: &mut BackwardInputs<HostTensor>, visible: &[Vec<usize>], geometry: &Geometry) {
    let mut seen = vec![false; geometry.slots()];
    visible.iter().flatten().for_each(|&slot| seen[slot] = true);
    let sees = visible.iter().map(|slots| !slots.is_empty()).collect::<Vec<_>>();
    let spoil = |tensor: &mut HostTensor, live: &[bool]| {
        let width = tensor.shape()[..].iter().product::<usize>() / live.len().max(1);
        let Some(values) = tensor.as_f32_mut() else { return };
        for (chunk, _) in values.chunks_mut(width.max(1)).zip(live).filter(|(_, live)| !**live) {
            chunk.fill(f32::NAN);
        }
    };
    spoil(&mut inputs.q, &sees);
    spoil(&mut inputs.output_gradient, &sees);
    match &mut inputs.history {
        History::Separate { k, v } => {
            spoil(k, &seen);
            spoil(v, &seen);
        }
        History::Latent { latent, q_position, k_position } => {
            spoil(latent, &seen);
            spoil(q_position, &sees);
            spoil(k_position, &seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::Plan;

    #[test]
    fn every_case_is_valid_and_its_poison_is_out_of_reach() {
        for command in [Command::PagedAttentionBackward, Command::HistoryBackward] {
            for (seed, case) in cases(command).iter().enumerate() {
                let history_only = command == Command::HistoryBackward;
                let problem = Problem::new(case, seed as u64, history_only).unwrap();
                Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
                let plain = problem.inputs.as_ref().map(|_, tensor| tensor.to_f64());
                let outputs =
                    reference::attention::backward(&plain, &problem.schedule, &problem.options);
                for (gradient, array) in outputs.unwrap().gradients {
                    assert!(array.iter().all(|x| x.is_finite()), "{}: {gradient:?}", case.name);
                }
                let poisoned = match &problem.inputs.history {
                    History::Separate { k, .. } => k,
                    History::Latent { latent, .. } => latent,
                };
                assert!(poisoned.as_f32().unwrap().iter().any(|x| x.is_nan()), "{}", case.name);
                assert!(problem.largest_score.is_finite());
            }
        }
    }
}

//! One attention call: a schedule, and inputs with NaN wherever nothing may be read.

use ndarray::{Axis, Slice};

use super::cases::{Case, Given};
use crate::check::random::Random;
use crate::error::Result;
use crate::host::{Dtype, HostTensor};
use crate::kernels::attention::{
    BackwardInputs, ForwardInputs, Geometry, History, Options, Schedule,
};
use crate::reference;

/// One attention call.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) inputs: BackwardInputs<HostTensor>,
    pub(super) schedule: Schedule,
    pub(super) geometry: Geometry,
    /// As usual, for all gradients.
    pub(super) options: Options,
    /// Of the visible tokens, in magnitude.
    largest_score: f64,
    /// Whether f32 has the scores to the bit.
    exact_scores: bool,
}

impl Problem {
    /// The case of a seed, on inputs rounded to the type.
    pub(super) fn new(case: &Case, dtype: Dtype, seed: u64) -> Result<Self> {
        let random = &mut Random::new(seed);
        let (schedule, pages) = schedule(case, random);
        let mut inputs = inputs(case, schedule.sequence_ids.len(), pages, random)?;
        let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
        let width = geometry.key_dim + geometry.position_dim;
        let scale = (1.0 / (width as f64).sqrt()) as f32;
        let options = Options { causal: case.causal, ..Options::new(scale) };
        let visible = visible_slots(&schedule, &geometry, case.causal);
        let largest_score = largest_score(&inputs, &visible, &geometry) * f64::from(scale);
        poison(&mut inputs, &visible, &geometry);
        let inputs = inputs.try_map(|_, t| HostTensor::from_f64(dtype, &t.to_f64()))?;
        let mut problem = Self {
            inputs,
            schedule,
            geometry,
            options,
            largest_score,
            exact_scores: case.exact_scores,
        };
        problem.give(case.given)?;
        Ok(problem)
    }

    /// How much more than where scores stay within 8 f32 may be off.
    pub(super) fn growth(&self) -> f64 {
        if self.exact_scores { 1.0 } else { self.largest_score / 8.0 }
    }

    /// What a forward would have saved.
    fn give(&mut self, given: Given) -> Result<()> {
        let columns = match given {
            Given::Nothing => return Ok(()),
            Given::Statistics | Given::Output => 2,
            Given::Complete | Given::CompleteForSome => 3,
        };
        let inputs = self.inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let outputs = reference::attention::backward(&inputs, &self.schedule, &self.options)?;
        let statistics = outputs.statistics.slice_axis(Axis(2), Slice::from(..columns)).to_owned();
        self.inputs.statistics = Some(HostTensor::from_f64(Dtype::F32, &statistics)?);
        self.geometry.statistics_columns = columns;
        if given == Given::Output {
            let inputs = ForwardInputs { q: inputs.q, history: inputs.history };
            let forward = reference::attention::forward(&inputs, &self.schedule, &self.options)?;
            self.inputs.output =
                Some(HostTensor::from_f64(self.inputs.q.dtype(), &forward.output)?);
        }
        if given == Given::CompleteForSome {
            self.skip_some();
        }
        Ok(())
    }

    /// A denominator of 0 for every third row and head, of which nothing else may be read then.
    fn skip_some(&mut self) {
        let skipped = |tensor: &mut HostTensor, rows: usize| {
            let bytes = (tensor.bytes().len() / rows.max(1)).max(1);
            let rows = tensor.bytes_mut().chunks_exact_mut(bytes).step_by(3);
            // NaN in every type.
            rows.for_each(|row| row.fill(0xff));
        };
        let rows = self.geometry.queries * self.geometry.heads;
        skipped(&mut self.inputs.q, rows);
        skipped(&mut self.inputs.output_gradient, rows);
        if let Some(statistics) = &mut self.inputs.statistics {
            skipped(statistics, rows);
            let denominators = statistics.as_f32_mut().into_iter().flatten().skip(1);
            denominators.step_by(9).for_each(|denominator| *denominator = 0.0);
        }
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
    let mut k = cache(key_dim)?;
    if case.exact_scores {
        k.as_f32_mut().into_iter().flatten().for_each(|value| *value *= case.amplitude);
        for values in [&mut q, &mut k] {
            values.as_f32_mut().into_iter().flatten().for_each(|value| *value = value.round());
        }
    }
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
    use crate::check::attention::cases::cases;
    use crate::check::{Command, DTYPES};
    use crate::kernels::attention::Plan;

    #[test]
    fn every_case_is_valid_and_its_poison_is_out_of_reach() {
        for command in Command::ALL.into_iter().filter(|command| !command.is_mamba3()) {
            for (seed, case) in cases(command).iter().enumerate() {
                for dtype in DTYPES {
                    let problem = Problem::new(case, dtype, seed as u64).unwrap();
                    Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
                    let plain = problem.inputs.as_ref().map(|_, tensor| tensor.to_f64());
                    let outputs =
                        reference::attention::backward(&plain, &problem.schedule, &problem.options);
                    for (gradient, array) in outputs.unwrap().gradients {
                        let finite = array.iter().all(|x| x.is_finite());
                        assert!(finite, "{}, {dtype}: {gradient:?}", case.name);
                    }
                    let poisoned = match &plain.history {
                        History::Separate { k, .. } => k,
                        History::Latent { latent, .. } => latent,
                    };
                    assert!(poisoned.iter().any(|x| x.is_nan()), "{}, {dtype}", case.name);
                    assert!(problem.largest_score.is_finite());
                    assert!(!case.exact_scores || problem.largest_score > 9e3);
                }
            }
        }
    }
}

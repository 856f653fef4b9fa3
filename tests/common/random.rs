//! Seeded random problems: the same seed gives the same problem, whatever the poison.
#![allow(dead_code, unreachable_pub, reason = "each test binary includes it and uses its share")]

use backslang::kernels::attention::{
    BackwardInputs, Geometry, Gradient, Gradients, History, Options, Schedule,
};
use backslang::kernels::mamba3::preprocess;
use backslang::reference;
use backslang::{Dtype, HostTensor};
use fastrand::Rng;

/// Runs `property` with many generators; a panic in it prints the seed, which `BACKSLANG_TEST_SEED` runs again.
pub fn for_seeds(count: usize, property: impl Fn(&mut Rng)) {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("BACKSLANG_TEST_SEED={}", self.0);
            }
        }
    }
    let fixed = std::env::var("BACKSLANG_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    for _ in 0..if fixed.is_some() { 1 } else { count } {
        let tell = Tell(fixed.unwrap_or_else(|| fastrand::u64(..)));
        property(&mut Rng::with_seed(tell.0));
    }
}

/// Random problems that a test tries: `rounds`, or fewer where `BACKSLANG_TEST_ROUNDS` says so, for tests that run again
/// on a slow driver.
pub fn rounds(rounds: usize) -> usize {
    let most = std::env::var("BACKSLANG_TEST_ROUNDS").map(|text| text.parse::<usize>());
    most.map_or(rounds, |most| rounds.min(most.expect("BACKSLANG_TEST_ROUNDS: a number")))
}

/// What a random schedule looks like.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleCase {
    pub sequences: usize,
    pub queries: usize,
    pub pages: usize,
    pub page_size: usize,
    pub max_length: usize,
    /// One physical page may be linked from several sequences, or twice from one.
    pub shared: bool,
    /// Rows of a sequence may stand at decreasing positions.
    pub unsorted: bool,
    /// Rows are packed sequence by sequence rather than interleaved.
    pub packed: bool,
    pub positions: bool,
}

impl ScheduleCase {
    /// Small sizes, zeros among them.
    pub fn random(rng: &mut Rng) -> Self {
        let page_size = rng.usize(1..=5);
        Self {
            sequences: rng.usize(0..=5),
            queries: if rng.u8(0..8) == 0 { 0 } else { rng.usize(1..=24) },
            pages: if rng.u8(0..8) == 0 { 0 } else { rng.usize(1..=12) },
            page_size,
            max_length: rng.usize(0..=4 * page_size),
            shared: rng.bool(),
            unsorted: rng.bool(),
            packed: rng.bool(),
            positions: rng.u8(0..4) != 0,
        }
    }

    pub fn schedule(&self, rng: &mut Rng) -> Schedule {
        let Self { sequences, pages, page_size, .. } = *self;
        let queries = if sequences == 0 { 0 } else { self.queries };
        let table_width = self.max_length.div_ceil(page_size) + rng.usize(0..=2);
        let mut free = (0..pages).collect::<Vec<_>>();
        rng.shuffle(&mut free);
        let mut block_table = Vec::new();
        let mut sequence_lengths = Vec::new();
        for _ in 0..sequences {
            let room = if self.shared { usize::from(pages > 0) * usize::MAX } else { free.len() };
            let wanted = rng.usize(0..=self.max_length) * usize::from(rng.u8(0..4) != 0);
            let length = wanted.min(room.saturating_mul(page_size));
            let used = length.div_ceil(page_size);
            for logical in 0..table_width {
                block_table.push(match logical < used {
                    true if self.shared => rng.usize(0..pages) as i128,
                    true => free.pop().map_or(0, |page| page as i128),
                    // Nothing reads these.
                    false => rng.choice([-1, 0, i128::from(u32::MAX), i128::MIN]).unwrap_or(-1),
                });
            }
            sequence_lengths.push(length as i128);
        }
        let mut sequence_ids =
            (0..queries).map(|_| rng.usize(0..sequences) as i128).collect::<Vec<_>>();
        if self.packed {
            sequence_ids.sort_unstable();
        }
        let positions = self.positions(&sequence_ids, sequences, rng);
        Schedule {
            block_table,
            table_width,
            sequence_lengths,
            sequence_ids,
            positions: self.positions.then_some(positions),
        }
    }

    /// Duplicates and positions beyond the length occur; sorted per sequence unless `unsorted`.
    fn positions(&self, sequence_ids: &[i128], sequences: usize, rng: &mut Rng) -> Vec<i128> {
        let mut positions = sequence_ids
            .iter()
            .map(|_| rng.usize(0..=self.max_length + 2) as i128)
            .collect::<Vec<_>>();
        if !self.unsorted {
            for sequence in 0..sequences as i128 {
                let rows = (0..sequence_ids.len()).filter(|&row| sequence_ids[row] == sequence);
                let rows = rows.collect::<Vec<_>>();
                let mut own = rows.iter().map(|&row| positions[row]).collect::<Vec<_>>();
                own.sort_unstable();
                rows.iter().zip(own).for_each(|(&row, position)| positions[row] = position);
            }
        }
        positions
    }
}

/// What a random attention problem looks like.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCase {
    pub schedule: ScheduleCase,
    pub heads: usize,
    pub kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// 0: keys and values of their own; else MLA, with one kv head and value_dim = key_dim.
    pub position_dim: usize,
    pub causal: bool,
    pub scale: f32,
    /// Columns of the given statistics: 0, 2 or 3.
    pub given_columns: usize,
    /// Some of the given denominators are 0.
    pub zero_denominators: bool,
    pub given_output: bool,
}

impl AttentionCase {
    /// Small sizes of every kind.
    pub fn random(rng: &mut Rng) -> Self {
        let mut pick = |from: &[usize]| from[rng.usize(0..from.len())];
        let dims = [1, 2, 3, 5, 8, 17];
        let kv_heads = pick(&[1, 1, 2, 3]);
        let heads = kv_heads * pick(&[1, 2, 3]);
        let (key_dim, value_dim) = (pick(&dims), pick(&dims));
        let position_dim = pick(&[0, 0, 1, 2, 5]);
        let mla = position_dim > 0;
        let schedule = ScheduleCase::random(rng);
        Self {
            causal: schedule.positions && rng.u8(0..3) != 0,
            schedule,
            heads,
            kv_heads: if mla { 1 } else { kv_heads },
            key_dim,
            value_dim: if mla { key_dim } else { value_dim },
            position_dim,
            // Scores of a few units, as trained models have them.
            scale: (0.25 + rng.f32()) / ((key_dim + position_dim) as f32).sqrt(),
            given_columns: [0, 2, 3][rng.usize(0..3)],
            zero_denominators: rng.bool(),
            given_output: rng.bool(),
        }
    }

    /// Another random problem for the same variants of the kernels, which take long to compile.
    pub fn with_other_sizes(&self, rng: &mut Rng) -> Self {
        let other = Self::random(rng);
        let positions = other.schedule.positions || self.causal;
        Self {
            schedule: ScheduleCase { positions, ..other.schedule },
            heads: other.heads,
            kv_heads: if self.position_dim > 0 { 1 } else { other.kv_heads },
            zero_denominators: other.zero_denominators,
            ..*self
        }
    }

    pub fn geometry(&self, schedule: &Schedule) -> Geometry {
        Geometry {
            queries: schedule.sequence_ids.len(),
            heads: self.heads,
            kv_heads: self.kv_heads,
            pages: self.schedule.pages,
            page_size: self.schedule.page_size,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            position_dim: self.position_dim,
            statistics_columns: self.given_columns,
        }
    }

    /// The problem of a seed, with `poison` in every element that nothing may read.
    pub fn problem(&self, seed: u64, poison: f32) -> AttentionProblem {
        let mut rng = Rng::with_seed(seed);
        let schedule = self.schedule.schedule(&mut rng);
        let geometry = self.geometry(&schedule);
        let options = Options { causal: self.causal, ..Options::new(self.scale) };
        let mut inputs = random_inputs(&geometry, &mut rng);
        if self.given_columns > 0 || self.given_output {
            self.give(&mut inputs, &schedule, &options, &mut rng);
        }
        let problem = AttentionProblem { inputs, schedule, options, geometry };
        problem.poisoned(poison)
    }

    /// Adds the forward's output and statistics.
    fn give(
        &self,
        inputs: &mut BackwardInputs<HostTensor>,
        schedule: &Schedule,
        options: &Options,
        rng: &mut Rng,
    ) {
        let plain = inputs.as_ref().map(|_, tensor| tensor.to_f64());
        let forward = backslang::kernels::attention::ForwardInputs {
            q: plain.q.clone(),
            history: plain.history.clone(),
        };
        let forward = reference::attention::forward(&forward, schedule, options).unwrap();
        if self.given_output {
            let output = HostTensor::from_f64(backslang::Dtype::F32, &forward.output);
            inputs.output = Some(output.unwrap());
        }
        if self.given_columns == 0 {
            return;
        }
        let all = reference::attention::backward(&plain, schedule, options).unwrap().statistics;
        let mut given = Vec::new();
        for row in all.rows() {
            let skip = self.zero_denominators && rng.u8(0..3) == 0;
            let columns = [row[0], if skip { 0.0 } else { row[1] }, row[2]];
            given.extend(columns[..self.given_columns].iter().map(|&x| x as f32));
        }
        let shape = [all.shape()[0], all.shape()[1], self.given_columns];
        inputs.statistics = Some(HostTensor::from_f32(&shape, given).unwrap());
    }
}

/// Inputs of a seed that are live everywhere.
pub fn inputs(geometry: &Geometry, seed: u64) -> BackwardInputs<HostTensor> {
    random_inputs(geometry, &mut Rng::with_seed(seed))
}

fn random_inputs(geometry: &Geometry, rng: &mut Rng) -> BackwardInputs<HostTensor> {
    let mut of = |gradient| tensor(rng, &geometry.gradient_shape(gradient));
    let q = of(Gradient::Q);
    let history = if geometry.is_mla() {
        History::Latent {
            latent: of(Gradient::Latent),
            q_position: of(Gradient::QPosition),
            k_position: of(Gradient::KPosition),
        }
    } else {
        History::Separate { k: of(Gradient::K), v: of(Gradient::V) }
    };
    let output_gradient = tensor(rng, &[geometry.queries, geometry.heads, geometry.value_dim]);
    BackwardInputs { q, history, output_gradient, statistics: None, output: None }
}

/// One attention call.
#[derive(Debug, Clone)]
pub struct AttentionProblem {
    pub inputs: BackwardInputs<HostTensor>,
    pub schedule: Schedule,
    pub options: Options,
    pub geometry: Geometry,
}

impl AttentionProblem {
    /// The slots of the tokens that a row sees, in token order, straight from the definition.
    pub fn visible_slots(&self, row: usize) -> Vec<usize> {
        visible_slots(&self.schedule, self.geometry.page_size, row, self.options.causal)
    }

    /// The gradients of a set, or all that the mode has.
    pub fn with_gradients(mut self, gradients: Gradients) -> Self {
        self.options.gradients = gradients;
        self
    }

    /// `poison` in each (row, head) and (slot, kv head) that nothing may read.
    fn poisoned(mut self, poison: f32) -> Self {
        let Geometry { heads, kv_heads, queries, .. } = self.geometry;
        let columns = self.geometry.statistics_columns;
        let mut live_queries = vec![false; queries * heads];
        let mut live_slots = vec![false; self.geometry.slots() * kv_heads];
        let given = self.inputs.statistics.as_ref().map(|s| s.as_f32().unwrap().to_vec());
        for row in 0..queries {
            let slots = self.visible_slots(row);
            for head in 0..heads {
                let query = row * heads + head;
                let skipped = given.as_ref().is_some_and(|s| s[query * columns + 1] == 0.0);
                live_queries[query] = !slots.is_empty() && !skipped;
                if !skipped {
                    let kv_head = head / (heads / kv_heads);
                    slots.iter().for_each(|slot| live_slots[slot * kv_heads + kv_head] = true);
                }
            }
        }
        self.inputs = self.inputs.map(|name, mut tensor| {
            let of_cache = matches!(name, "k" | "v" | "latent" | "k_position");
            let live = if of_cache { &live_slots } else { &live_queries };
            let width = tensor.shape().last().copied().unwrap_or(1);
            let elements = tensor.as_f32_mut().unwrap();
            for (row, live) in elements.chunks_exact_mut(width).zip(live) {
                match name {
                    _ if *live => {}
                    // The denominator is what says that the others are not read.
                    "statistics" if row[1] == 0.0 => {
                        (0..columns).filter(|&c| c != 1).for_each(|c| row[c] = poison);
                    }
                    _ => row.fill(poison),
                }
            }
            tensor
        });
        self
    }
}

/// The slots of the tokens that a row sees, in token order.
pub fn visible_slots(s: &Schedule, page_size: usize, row: usize, causal: bool) -> Vec<usize> {
    let sequence = s.sequence_ids[row] as usize;
    let visible =
        |token: &usize| !causal || s.positions.as_ref().is_some_and(|p| *token as i128 <= p[row]);
    let slot = |token: usize| {
        let page = s.block_table[sequence * s.table_width + token / page_size] as usize;
        page * page_size + token % page_size
    };
    (0..s.sequence_lengths[sequence] as usize).filter(visible).map(slot).collect()
}

/// A random Mamba-3 preprocess backward; `dd_dt` and `dd_A` reach both sides of every clamp.
pub fn mamba3(
    geometry: &preprocess::Geometry,
    seed: u64,
) -> preprocess::BackwardInputs<HostTensor> {
    let mut rng = Rng::with_seed(seed);
    let mut inputs = geometry.backward_inputs().map(|_, shape| tensor(&mut rng, &shape));
    let slices = geometry.slices();
    let width = geometry.projected_width().max(1);
    for row in inputs.projected.as_f32_mut().unwrap().chunks_exact_mut(width) {
        row[slices.dd_dt.clone()].iter_mut().for_each(|x| *x = 2.0 * *x - 4.0);
        row[slices.dd_a.clone()].iter_mut().for_each(|x| *x *= 4.0);
    }
    inputs
}

/// Sizes of a small random preprocess, zeros among them.
pub fn mamba3_geometry(rng: &mut Rng) -> preprocess::Geometry {
    let leading = match rng.u8(0..4) {
        0 => vec![],
        1 => vec![rng.usize(1..=7)],
        2 => vec![rng.usize(1..=3), rng.usize(1..=3)],
        _ => vec![rng.usize(0..=3)],
    };
    preprocess::Geometry {
        rows: leading.iter().product(),
        leading,
        inner_size: rng.usize(0..=9),
        bc_rows: rng.usize(0..=3),
        state_size: rng.usize(1..=19),
        heads: rng.usize(0..=4),
        rope_angles: rng.usize(0..=3),
    }
}

/// Normally distributed elements.
pub fn tensor(rng: &mut Rng, shape: &[usize]) -> HostTensor {
    let elements = (0..shape.iter().product()).map(|_| normal(rng) as f32).collect();
    HostTensor::from_f32(shape, elements).unwrap()
}

/// Signaling NaN in every element: any float operation would change its bits.
pub fn signaling_nans(rng: &mut Rng, dtype: Dtype, shape: &[usize]) -> HostTensor {
    let mut tensor = HostTensor::zeros(dtype, shape);
    rng.fill(tensor.bytes_mut());
    for element in tensor.bytes_mut().chunks_mut(dtype.size()) {
        // All exponent bits set, the quiet bit clear, some other bit of the mantissa set.
        let top = element.len() - 1;
        element[0] |= 1;
        match dtype {
            Dtype::F16 => element[top] = element[top] & 0x81 | 0x7c,
            _ => {
                element[top] |= 0x7f;
                element[top - 1] = element[top - 1] & 0x3f | 0x80;
            }
        }
    }
    tensor
}

/// A normally distributed number (Box and Muller).
pub fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

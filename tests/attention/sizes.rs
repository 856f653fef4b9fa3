//! Sizes: grids beyond one dispatch, rows beside the usual tiles, tensors as large as a binding.

use backslang::kernels::attention::{
    BackwardOutputs, Geometry, Gradient, History, Options, Schedule, backward,
};
use backslang::runtime::Runtime;
use backslang::{Error, HostTensor};
use fastrand::Rng;

use crate::common::gpu;
use crate::common::random::{AttentionProblem, inputs};

use crate::support::{assert_same, check, run_poisoned, settings, small};

/// Sizes of one head that keep large grids quick.
pub(crate) fn geometry(queries: usize, pages: usize, page_size: usize) -> Geometry {
    let [heads, kv_heads] = [1; 2];
    let [key_dim, value_dim] = [2, 3];
    let [position_dim, statistics_columns] = [0; 2];
    Geometry {
        queries,
        heads,
        kv_heads,
        pages,
        page_size,
        key_dim,
        value_dim,
        position_dim,
        statistics_columns,
    }
}

pub(crate) fn problem(geometry: Geometry, schedule: Schedule) -> AttentionProblem {
    let inputs = inputs(&geometry, 71);
    AttentionProblem { inputs, schedule, options: Options::new(0.5), geometry }
}

/// Sequences of as many tokens as rows, on pages of one slot in places of a random order.
pub(crate) fn scattered(sequences: usize, tokens: usize, pages: usize) -> Schedule {
    let mut order = (0..pages as i128).collect::<Vec<_>>();
    Rng::with_seed(72).shuffle(&mut order);
    order.truncate(sequences * tokens);
    let rows = || 0..sequences * tokens;
    Schedule {
        block_table: order,
        table_width: tokens,
        sequence_lengths: vec![tokens as i128; sequences],
        sequence_ids: rows().map(|row| (row % sequences) as i128).collect(),
        positions: Some(rows().map(|row| (row / sequences) as i128).collect()),
    }
}

/// More workgroups along x than one dispatch may have, and page ids that 16 bits do not hold.
pub(crate) fn a_hundred_thousand_rows_and_pages(runtime: &Runtime) {
    let (rows, pages) = (100_000, 100_000);
    let mut problem = problem(geometry(rows, pages, 1), scattered(rows / 4, 4, pages));
    assert!(problem.schedule.block_table.iter().filter(|&&page| page > 65_535).count() > 30_000);
    let expected = check(runtime, &problem, "100,000 rows and pages");
    for options in settings(problem.options).step_by(5) {
        problem.options = options;
        assert_same(&run_poisoned(runtime, &problem), &expected, &format!("{options:?}"));
    }
}

/// More pages to clear than one dispatch has workgroups.
pub(crate) fn a_hundred_thousand_pages_without_a_reader(runtime: &Runtime) {
    let pages = 100_000;
    let mut problem = problem(geometry(30, pages, 1), scattered(10, 3, pages));
    problem.options.compact_history = true;
    let compact = check(runtime, &problem, "100,000 pages");
    problem.options.compact_history = false;
    assert_same(&run_poisoned(runtime, &problem), &compact, "all pages launched");
}

/// More workgroups along y than one dispatch may have.
pub(crate) fn seventy_thousand_heads(runtime: &Runtime) {
    let heads = 70_000;
    let sizes = Geometry { heads, kv_heads: heads, ..geometry(1, 2, 1) };
    check(runtime, &problem(sizes, scattered(1, 1, 2)), "70,000 heads");
}

/// Rows that no power of two divides, and all that lies around the outputs.
pub(crate) fn dims_beside_the_tiles(_: &Runtime) {
    let guarded = gpu::open(|_| ()).unwrap();
    guarded.guard_tensors(256);
    let dims = [16, 48, 72, 80, 96, 104, 112, 120, 160, 192];
    for (seed, (&key_dim, &value_dim)) in dims.iter().zip(dims.iter().rev()).take(5).enumerate() {
        let problem = small(key_dim, value_dim, 0).problem(seed as u64, f32::NAN);
        check(&guarded, &problem, &format!("dims {key_dim} and {value_dim}"));
    }
    let problem = small(48, 48, 80).problem(7, f32::NAN);
    check(&guarded, &problem, "latent 48 and position 80");
    guarded.finish().unwrap();
}

/// Bytes that one tensor may have; on a device in host memory no more than fits beside other tests.
fn largest_tensor(runtime: &Runtime) -> usize {
    let limits = &runtime.device().limits;
    let largest = limits
        .max_storage_buffer_range
        .min(limits.max_buffer_size)
        .min(limits.max_memory_allocation_size);
    let largest = if runtime.device().software() { largest.min(1 << 27) } else { largest };
    largest as usize
}

/// Pages at the end of a cache that fills a binding have the bits that they have in a small cache. Where a binding
/// holds 4 GiB, their byte offsets lie beyond 2^31, the last just below 2^32.
pub(crate) fn pages_at_the_end_of_a_binding(runtime: &Runtime) {
    let (near, key_dim) = (40, 64);
    let pages = largest_tensor(runtime) / (4 * key_dim);
    let sizes = |pages| Geometry { key_dim, value_dim: 1, ..geometry(12, pages, 1) };
    let few = problem(sizes(near), scattered(4, 3, near));
    let far = |tensor: &HostTensor| {
        let source = tensor.as_f32().unwrap();
        let width = source.len() / near;
        let mut target = vec![0.0; pages * width];
        target[(pages - near) * width..].copy_from_slice(source);
        HostTensor::from_f32(&[pages, 1, 1, width], target).unwrap()
    };
    let mut many = few.clone();
    many.geometry.pages = pages;
    many.inputs = many.inputs.map(|name, t| if matches!(name, "k" | "v") { far(&t) } else { t });
    many.schedule.block_table.iter_mut().for_each(|page| *page += (pages - near) as i128);
    let BackwardOutputs { mut gradients, statistics } = check(runtime, &few, "few pages");
    for (gradient, tensor) in &mut gradients {
        if gradient.is_history() {
            *tensor = far(tensor);
        }
    }
    let expected = BackwardOutputs { gradients, statistics };
    for compact_history in [false, true] {
        many.options.compact_history = compact_history;
        assert_same(&run_poisoned(runtime, &many), &expected, &format!("{pages} pages"));
    }
}

/// Inputs, outputs and the plan's words beyond a binding: one error that names the tensor, before anything is uploaded.
pub(crate) fn tensors_beyond_a_binding_are_refused(_: &Runtime) {
    let runtime = gpu::open(|_| ()).unwrap();
    let limit = runtime.device().limits.max_storage_buffer_range as usize;
    let before = runtime.memory();
    let refused = |geometry: Geometry, name: &str| {
        // Never read, so that the system need not even find memory for it.
        let zeros = |shape: &[usize]| {
            HostTensor::from_f32(shape, vec![0.0; shape.iter().product()]).unwrap()
        };
        let of = |gradient| zeros(&geometry.gradient_shape(gradient));
        let inputs = backslang::kernels::attention::BackwardInputs {
            q: of(Gradient::Q),
            history: History::Separate { k: of(Gradient::K), v: of(Gradient::V) },
            output_gradient: zeros(&[geometry.queries, geometry.heads, geometry.value_dim]),
            statistics: None,
            output: None,
        };
        let schedule = Schedule {
            block_table: vec![0],
            table_width: 1,
            sequence_lengths: vec![1],
            sequence_ids: vec![0; geometry.queries],
            positions: Some(vec![0; geometry.queries]),
        };
        let error =
            backward::run(&runtime, &inputs, &schedule, &Options::new(1.0)).map(drop).unwrap_err();
        let Error::TensorTooLarge { tensor, bytes, limit: found, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(tensor, name);
        assert!(*bytes > *found && *found <= limit as u64, "{error}");
        assert_eq!(runtime.memory(), before, "{name}");
    };
    let narrow = Geometry { key_dim: 1, value_dim: 1, ..geometry(1, 1, 1) };
    refused(Geometry { pages: limit / 4 / 64 + 1, key_dim: 64, ..narrow }, "k");
    refused(Geometry { pages: limit / 4 / 64 + 1, value_dim: 64, ..narrow }, "v");
    refused(Geometry { heads: limit / 8, ..narrow }, "statistics");
    // The plan itself takes as much memory as the cache.
    if limit <= 1 << 27 {
        refused(Geometry { pages: limit / 4, ..narrow }, "inverse");
    }
    runtime.finish().unwrap();
}

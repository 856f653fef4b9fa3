//! Sizes: grids beyond one dispatch, rows beside the usual tiles, tensors as large as a binding.

use backslang::kernels::attention::{
    BackwardOutputs, DevicePlan, Geometry, Gradient, History, Options, Plan, Schedule, backward,
};
use backslang::runtime::{Runtime, Tensor};
use backslang::{Dtype, Error, HostTensor};
use fastrand::Rng;

use crate::common::compare::assert_same_bits;
use crate::common::gpu;
use crate::common::random::{AttentionCase, AttentionProblem, ScheduleCase, inputs};

use crate::forward::run_forward;
use crate::halves::rounded;
use crate::support::{assert_same, busy_case, check, run_poisoned, settings, small};

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

/// A runtime whose bindings hold no more than fits beside other tests on a device in host memory.
fn bounded() -> Runtime {
    let runtime = gpu::open(|_| ()).unwrap();
    if runtime.device().software() {
        runtime.limit_bindings(1 << 27);
    }
    runtime
}

/// Pages around the end of a cache's first binding have the bits that they have in a small cache. Where a binding holds
/// 4 GiB, their byte offsets lie just below 2^32 and beyond.
pub(crate) fn pages_beyond_a_binding(runtime: &Runtime) {
    let own = bounded();
    let (near, key_dim) = (40, 64);
    let beyond = if gpu::has_parts() { near / 2 } else { 0 };
    let pages = own.largest_binding() as usize / (4 * key_dim) / 128 * 128 + beyond;
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
        assert_same(&run_poisoned(&own, &many), &expected, &format!("{pages} pages"));
    }
    own.finish().unwrap();
}

/// Pages at both ends of a cache whose keys alone have more than 2^31 elements and 4 GiB have the bits that they have in a
/// small cache, and all between get zeros.
pub(crate) fn far_pages(_: &Runtime) {
    let runtime = gpu::open(|_| ()).unwrap();
    let (near, pages, page_size) = (40, 66_000, 16);
    let wide =
        |pages| Geometry { heads: 2, kv_heads: 2, key_dim: 1024, ..geometry(12, pages, page_size) };
    let mut schedule = scattered(4, 3, near);
    schedule.sequence_lengths.fill(3 * page_size as i128);
    schedule.positions = Some((0..12).map(|row| 40 + row / 4).collect());
    let few = rounded(problem(wide(near), schedule), Dtype::F16);
    let expected = run_poisoned(&runtime, &few);

    let AttentionProblem { inputs, mut schedule, mut options, .. } = few;
    let half = near / 2;
    for page in schedule.block_table.iter_mut().filter(|page| **page >= half as i128) {
        *page += (pages - near) as i128;
    }
    options.compact_history = true;
    let plan = Plan::new(&schedule, &wide(pages), options.query_block_rows).unwrap();
    let plan = DevicePlan::upload(&runtime, plan).unwrap();
    let ends = |tensor: &Tensor| {
        [0..half, pages - half..pages].map(|part| tensor.narrow(0, part).unwrap())
    };
    let far = |name: &'static str, near: &HostTensor| {
        if !matches!(name, "k" | "v") {
            return runtime.upload(name, near);
        }
        let tensor =
            runtime.tensor(name, near.dtype(), &[&[pages], &near.shape()[1..]].concat())?;
        let mut recorder = runtime.recorder()?;
        // NaN in what must not be read.
        recorder.fill(&tensor, u32::MAX)?;
        recorder.submit()?.wait()?;
        let parts = near.bytes().chunks(near.bytes().len() / 2);
        for (end, bytes) in ends(&tensor).iter().zip(parts) {
            runtime.write(end, bytes)?;
        }
        Ok(tensor)
    };
    let inputs = inputs.as_ref().try_map(far).unwrap();
    let outputs = backward::allocate(&runtime, &inputs, &options).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    backward::record(&mut recorder, &inputs, &plan, &options, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    for ((g, found), (_, expected)) in outputs.gradients.iter().zip(&expected.gradients) {
        if !g.is_history() {
            assert_same_bits(&runtime.download(found).unwrap(), expected, g.output_name());
            continue;
        }
        let parts = expected.bytes().chunks(expected.bytes().len() / 2);
        for (end, expected) in ends(found).iter().zip(parts) {
            assert!(runtime.download(end).unwrap().bytes() == expected, "{}", g.output_name());
        }
        for page in (half..pages - half).step_by(1000) {
            let page = runtime.download(&found.narrow(0, page..page + 1).unwrap()).unwrap();
            assert!(page.bytes().iter().all(|byte| *byte == 0), "{}", g.output_name());
        }
    }
    drop((inputs, outputs, plan));
    runtime.finish().unwrap();
}

/// Small bindings, so that every array with rows or pages is in several parts: the bits of whole arrays, both ways.
pub(crate) fn parts_share_bits(_: &Runtime) {
    if !gpu::has_parts() {
        return;
    }
    let strained = gpu::open(|_| ()).unwrap();
    let schedule = ScheduleCase {
        sequences: 6,
        queries: 290,
        pages: 70,
        page_size: 4,
        max_length: 40,
        ..busy_case(true, 0).schedule
    };
    let busy = |position_dim| AttentionCase { schedule, ..busy_case(true, position_dim) };
    let odd = ScheduleCase { pages: 290, ..schedule };
    // Odd widths of halves are packed from scratch, 128 rows or pages of it at a time.
    for (dtype, limit, case) in [
        (Dtype::F32, 4096, AttentionCase { value_dim: 8, ..busy(0) }),
        (Dtype::Bf16, 4096, AttentionCase { given_columns: 2, ..busy(8) }),
        (Dtype::F16, 20_000, AttentionCase { schedule: odd, key_dim: 5, value_dim: 5, ..busy(3) }),
    ] {
        let problem = rounded(case.problem(41, f32::NAN), dtype);
        let what = format!("{dtype}, bindings of {limit} bytes");
        let both = |limit, compact_history| {
            strained.limit_bindings(limit);
            strained.guard_tensors(if limit > 0 { 64 } else { 0 });
            let mut problem = problem.clone();
            problem.options.compact_history = compact_history;
            let parted = strained.upload("q", &problem.inputs.q).unwrap();
            assert_eq!(parted.binding_elements().is_some(), limit == 4096, "{what}");
            (run_poisoned(&strained, &problem), run_forward(&strained, &problem))
        };
        let (backward, forward) = both(0, false);
        for compact in [false, true] {
            let found = both(limit, compact);
            assert_same(&found.0, &backward, &what);
            assert_same_bits(&found.1.output, &forward.output, &what);
            assert_same_bits(&found.1.statistics, &forward.statistics, &what);
        }
    }
    strained.finish().unwrap();
}

/// The plan's words beyond a binding: one error that names the tensor, before anything is uploaded.
pub(crate) fn plans_beyond_a_binding_are_refused(_: &Runtime) {
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
    // The plan itself takes as much memory as the cache.
    if limit <= 1 << 27 {
        refused(Geometry { pages: limit / 4, ..narrow }, "inverse");
    }
    runtime.finish().unwrap();
}

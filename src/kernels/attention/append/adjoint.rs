//! The adjoint of the append: the gradients of the new rows, gathered from those of the cache.

use super::arrays::{check_gradients, gradient_name};
use super::{AppendInputs, AppendPlan, Cache, DevicePlan, Schedule, width};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Run, Target, for_dtype, prepare, windows};
use crate::manifest::paged_append_backward;
use crate::runtime::{Execution, Recorder, Runtime, Tensor};

/// The adjoint of [`run`](super::run): uploads the gradients of the cache, gathers and downloads those of the new rows.
///
/// # Errors
/// As [`run`](super::run).
pub fn run_backward<'a>(
    on: impl Into<Execution<'a>>,
    gradients: &Cache<HostTensor>,
    schedule: &Schedule,
) -> Result<Run<Cache<HostTensor>>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let queries = schedule.sequence_ids.len();
    let described = gradients.as_ref().try_map(|_, t| Ok((t.shape().to_vec(), t.dtype())))?;
    let described =
        with_rows(described, |_, (shape, dtype)| Ok((rows_of(shape, queries), *dtype)))?;
    let layouts = described.as_ref().map(|_, (shape, dtype)| Layout::dense(shape, *dtype));
    let plan = AppendPlan::new(schedule, &check_gradients(&layouts)?)?;
    plan.check_size(runtime)?;
    launches_backward(&layouts, &plan, Target::of(runtime))?;
    described
        .try_map(|name, (shape, dtype)| runtime.check_size(gradient_name(name), dtype, &shape))?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let upload = |name, t| runtime.upload(gradient_name(name), t);
    let gradients = allocate_backward(runtime, gradients.as_ref().try_map(upload)?, queries)?;
    let timings = execution.run(|recorder| record_backward(recorder, &gradients, &plan))?;
    Ok(Run { outputs: gradients.new_rows().try_map(|_, t| runtime.download(t))?, timings })
}

/// The gradients of a cache, and device memory, with undefined contents, for those of `queries` new rows.
///
/// # Errors
/// What allocation reports.
pub fn allocate_backward(
    runtime: &Runtime,
    cache: Cache<Tensor>,
    queries: usize,
) -> Result<AppendInputs<Tensor>> {
    with_rows(cache, |name, t| {
        runtime.tensor(gradient_name(name), t.dtype(), &rows_of(t.shape(), queries))
    })
}

/// Records the adjoint. `gradients` are those of an append's arrays: the cache's are read, the new rows' are written,
/// every element of them. These may be views: with any distance between rows, where halves lie in whole words.
///
/// # Errors
/// As [`record`](super::record).
pub fn record_backward(
    recorder: &mut Recorder<'_>,
    gradients: &AppendInputs<Tensor>,
    plan: &DevicePlan,
) -> Result<()> {
    use paged_append_backward::Push;
    let layouts = gradients.as_ref().map(|_, t| t.into());
    let device = Target::of(recorder.runtime());
    plan.plan.check_call(&check_gradients(&layouts)?)?;
    prepare(recorder.runtime(), &launches_backward(&layouts, &plan.plan, device)?)?;
    for [(array, new), (name, cache)] in gradients.parts() {
        let arrays = [(gradient_name(array), new.into()), (gradient_name(name), cache.into())];
        for window in plan.plan.windows(arrays)? {
            let new = windows::narrow(new, 2, &window.rows)?;
            let cache = windows::narrow(cache, 2, &window.slots)?;
            Layout::from(&cache).expect_dense(gradient_name(name))?;
            let push = Push {
                first_row: narrow("queries", window.rows.start)?,
                rows: narrow("queries", window.rows.len())?,
                first_slot: narrow("slots", window.slots.start)?,
                slots: narrow("slots", window.slots.len())?,
                ..Push::default()
            };
            let layout = Layout::from(&new);
            let rows = layout.rows(gradient_name(array), 2)?;
            launch_on(array, layout, rows, device)?.record(recorder, |access| Push {
                plan_index: access.read(&plan.words),
                gradient_index: access.read(&cache),
                target_index: access.write(&new),
                ..push
            })?;
        }
    }
    Ok(())
}

/// What the adjoint launches, in order, without a device: `gradients` are the layouts of the gradients of an
/// append's arrays.
///
/// # Errors
/// As [`record_backward`], but for what the device reports.
pub fn launches_backward(
    gradients: &AppendInputs<Layout<'_>>,
    plan: &AppendPlan,
    target: Target,
) -> Result<Vec<Launch>> {
    let gradients = gradients.map(|_, layout| layout.on(target));
    plan.check_call(&check_gradients(&gradients)?)?;
    let mut launches = Vec::new();
    for [(array, new), (name, cache)] in gradients.parts() {
        let arrays = [(gradient_name(array), *new), (gradient_name(name), *cache)];
        for window in plan.windows(arrays)? {
            let shape = [&[window.rows.len()], &new.shape()[1..]].concat();
            // Rows of a window begin as the first do.
            let rows = new.rows(gradient_name(array), 2)?;
            launches.push(launch_on(array, Layout::dense(&shape, new.dtype()), rows, target)?);
        }
    }
    Ok(launches)
}

/// The launch on the gradients of new rows that one binding shows.
fn launch_on(array: &'static str, new: Layout<'_>, rows: Rows, target: Target) -> Result<Launch> {
    let (array, width) = (gradient_name(array), width(&new));
    let mut words = new.shape()[0].saturating_mul(width);
    if new.dtype().is_half() {
        if !new.is_whole_words(rows, 2) && rows.stride != 0 {
            return Err(new.refuse(array, "no gaps, or rows that are whole words"));
        }
        words = (rows.first as usize % 2 + words).div_ceil(2);
    }
    let constants = paged_append_backward::Constants {
        lanes: target.lanes,
        width: narrow("elements of a slot", width)?,
        target_first: rows.first,
        target_stride: rows.stride,
    };
    Ok(Launch {
        kernel: for_dtype(&paged_append_backward::F32, array, new.dtype())?,
        constants: constants.words(),
        groups: [words.div_ceil(target.lanes as usize), 1],
    })
}

/// An append's arrays: a cache, and for its new rows what `make` makes of each array of it.
fn with_rows<T>(
    cache: Cache<T>,
    mut make: impl FnMut(&'static str, &T) -> Result<T>,
) -> Result<AppendInputs<T>> {
    Ok(match cache {
        Cache::Separate { k, v } => {
            AppendInputs::Separate { new_k: make("new_k", &k)?, new_v: make("new_v", &v)?, k, v }
        }
        Cache::Latent { latent, k_position } => AppendInputs::Latent {
            new_latent: make("new_latent", &latent)?,
            new_k_position: make("new_k_position", &k_position)?,
            latent,
            k_position,
        },
    })
}

/// The shape of `queries` rows that go to an array of this shape.
fn rows_of(cache: &[usize], queries: usize) -> Vec<usize> {
    [&[queries], cache.get(2..).unwrap_or_default()].concat()
}

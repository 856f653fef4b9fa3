//! The adjoint of the append: the gradients of the new rows, gathered from those of the cache.

use super::arrays::{check_gradients, gradient_name};
use super::{AppendInputs, AppendPlan, Cache, DevicePlan, Schedule, width};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::index_range::narrow;
use crate::kernels::{Launch, Layout, Run, Target, for_dtype, prepare};
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
    let geometry =
        check_gradients(&described.as_ref().map(|_, (shape, dtype)| Layout::dense(shape, *dtype)))?;
    described
        .try_map(|name, (shape, dtype)| runtime.check_size(gradient_name(name), dtype, &shape))?;
    let plan = DevicePlan::upload(runtime, AppendPlan::new(schedule, &geometry)?)?;
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
    let launches = launches_backward(&layouts, &plan.plan, Target::of(recorder.runtime()))?;
    let push = Push { rows: narrow("queries", plan.plan.queries())?, ..Push::default() };
    prepare(recorder.runtime(), &launches)?;
    for (launch, [(_, target), (_, gradient)]) in launches.iter().zip(gradients.parts()) {
        launch.record(recorder, |access| Push {
            plan_index: access.read(&plan.words),
            gradient_index: access.read(gradient),
            target_index: access.write(target),
            ..push
        })?;
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
    plan.check_call(&check_gradients(gradients)?)?;
    let launch = |array: &'static str, new: Layout<'_>| {
        let (array, width) = (gradient_name(array), width(&new));
        let rows = new.rows(array, 2)?;
        let mut words = plan.queries() * width;
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
    };
    gradients.parts().into_iter().map(|[(name, &new), _]| launch(name, new)).collect()
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

//! Appending to a paged cache: new rows go to their tokens' slots, in place; and the adjoint, which gathers from them.
//!
//! Row `i` is token `positions[i]` of sequence `s = sequence_ids[i]`; its `new_k` and `new_v` (MLA: `new_latent` and
//! `new_k_position`) are copied as bits to page `block_table[s, positions[i] / page_size]`, slot `positions[i] %
//! page_size`. Nothing else of the cache changes. The adjoint reads the gradient of each row's slot:
//! `new_k_gradient[i] = k_gradient[page, slot]`, and so for the others.
//!
//! [`run`] and [`run_backward`] go from host arrays to host arrays. On tensors that stay on the device:
//!
//! ```no_run
//! use backslang::Result;
//! use backslang::kernels::attention::append::{self, AppendInputs, AppendPlan, DevicePlan};
//! use backslang::kernels::attention::{Geometry, Schedule};
//! use backslang::runtime::{Runtime, Tensor};
//!
//! fn append(runtime: &Runtime, inputs: &AppendInputs<Tensor>, schedule: &Schedule) -> Result<()> {
//!     // Once a schedule; serves the adjoint too.
//!     let geometry = Geometry::of_append(&inputs.as_ref().map(|_, tensor| tensor.shape()))?;
//!     let plan = DevicePlan::upload(runtime, AppendPlan::new(schedule, &geometry)?)?;
//!
//!     let mut recorder = runtime.recorder()?;
//!     append::record(&mut recorder, inputs, &plan)?;
//!     // Attention over the cache can follow here, in the same submission.
//!     recorder.submit()?.wait()
//! }
//! ```

mod adjoint;
mod arrays;
mod plan;

pub use adjoint::{allocate_backward, launches_backward, record_backward, run_backward};
pub use arrays::{AppendInputs, Cache};
pub use plan::AppendPlan;

use super::Schedule;
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::index_range::narrow;
use crate::kernels::layout::Rows;
use crate::kernels::{Launch, Layout, Run, Target, for_dtype, prepare, windows};
use crate::manifest::paged_append;
use crate::runtime::{Execution, Recorder, Runtime, Tensor};
use arrays::check;

/// What errors call the plan's words.
const PLAN: &str = "append plan";

/// An [`AppendPlan`] with its words on the device: uploaded once, used by any number of calls.
#[derive(Debug, Clone)]
pub struct DevicePlan {
    plan: AppendPlan,
    words: Tensor,
}

impl DevicePlan {
    /// Uploads the plan's words.
    ///
    /// # Errors
    /// What allocation and transfer report.
    pub fn upload(runtime: &Runtime, plan: AppendPlan) -> Result<Self> {
        let words = runtime.upload(PLAN, &HostTensor::from_words(plan.words()))?;
        Ok(Self { plan, words })
    }

    /// The plan that was uploaded.
    pub fn plan(&self) -> &AppendPlan {
        &self.plan
    }
}

/// Plans, uploads, appends and downloads the cache. It runs on a [`Runtime`], or as an [`Execution`] says.
///
/// # Errors
/// A schedule, shape or element type that does not fit, before any device work; then whatever transfers and the device
/// report, and [`Error::Cancelled`](crate::Error::Cancelled).
pub fn run<'a>(
    on: impl Into<Execution<'a>>,
    inputs: &AppendInputs<HostTensor>,
    schedule: &Schedule,
) -> Result<Run<Cache<HostTensor>>> {
    let execution = on.into();
    let runtime = execution.runtime();
    let geometry = check(&inputs.as_ref().map(|_, t| t.into()))?;
    inputs.as_ref().try_map(|name, t| runtime.check_size(name, t.dtype(), t.shape()))?;
    let plan = AppendPlan::new(schedule, &geometry)?;
    plan.check_size(runtime)?;
    launches(&inputs.as_ref().map(|_, t| t.into()), &plan, Target::of(runtime))?;
    let plan = DevicePlan::upload(runtime, plan)?;
    let inputs = inputs.as_ref().try_map(|name, t| runtime.upload(name, t))?;
    let timings = execution.run(|recorder| record(recorder, &inputs, &plan))?;
    Ok(Run { outputs: inputs.cache().try_map(|_, t| runtime.download(t))?, timings })
}

/// Records the append: the tensors of the cache are written in place, in the slots of the rows alone. The new rows may be
/// views with any distance between rows, such as a part of packed q, k and v.
///
/// # Errors
/// A shape or element type that does not fit, before anything is recorded; then what pipeline creation reports.
pub fn record(
    recorder: &mut Recorder<'_>,
    inputs: &AppendInputs<Tensor>,
    plan: &DevicePlan,
) -> Result<()> {
    use paged_append::Push;
    let layouts = inputs.as_ref().map(|_, t| t.into());
    let target = Target::of(recorder.runtime());
    plan.plan.check_call(&check(&layouts)?)?;
    prepare(recorder.runtime(), &launches(&layouts, &plan.plan, target)?)?;
    for [(array, new), (name, cache)] in inputs.parts() {
        for window in plan.plan.windows([(array, new.into()), (name, cache.into())])? {
            let new = windows::narrow(new, 2, &window.rows)?;
            let cache = windows::narrow(cache, 2, &window.slots)?;
            Layout::from(&cache).expect_dense(name)?;
            let push = Push {
                queries: narrow("queries", plan.plan.queries())?,
                first_row: narrow("queries", window.rows.start)?,
                rows: narrow("queries", window.rows.len())?,
                first_slot: narrow("slots", window.slots.start)?,
                slots: narrow("slots", window.slots.len())?,
                pairs: narrow("pairs of slots", plan.plan.pairs())?,
                ..Push::default()
            };
            launch(array, (&new).into(), &plan.plan, target)?.record(recorder, |access| Push {
                plan_index: access.read(&plan.words),
                new_index: access.read(&new),
                cache_index: access.write(&cache),
                ..push
            })?;
        }
    }
    Ok(())
}

/// What an append launches, in order, without a device: `inputs` are the layouts of the arrays.
///
/// # Errors
/// As [`record`], but for what the device reports.
pub fn launches(
    inputs: &AppendInputs<Layout<'_>>,
    plan: &AppendPlan,
    target: Target,
) -> Result<Vec<Launch>> {
    let inputs = inputs.map(|_, layout| layout.on(target));
    plan.check_call(&check(&inputs)?)?;
    let mut launches = Vec::new();
    for [(array, new), (name, cache)] in inputs.parts() {
        for window in plan.windows([(array, *new), (name, *cache)])? {
            let shape = [&[window.rows.len()], &new.shape()[1..]].concat();
            // Rows of a window begin as the first do.
            let rows = new.rows(array, 2)?;
            launches.push(launch_on(
                array,
                Layout::dense(&shape, new.dtype()),
                rows,
                plan,
                target,
            )?);
        }
    }
    Ok(launches)
}

/// The launch on new rows that one binding shows.
fn launch(
    array: &'static str,
    new: Layout<'_>,
    plan: &AppendPlan,
    target: Target,
) -> Result<Launch> {
    launch_on(array, new, new.rows(array, 2)?, plan, target)
}

fn launch_on(
    array: &'static str,
    new: Layout<'_>,
    rows: Rows,
    plan: &AppendPlan,
    target: Target,
) -> Result<Launch> {
    let width = width(&new);
    let constants = paged_append::Constants {
        lanes: target.lanes,
        width: narrow("elements of a slot", width)?,
        new_first: rows.first,
        new_stride: rows.stride,
    };
    let elements = new.shape()[0].saturating_mul(width);
    // A pair of slots of halves is as many words as a slot has elements.
    let words = match (new.dtype().is_half(), width % 2) {
        (false, _) => elements,
        (true, 0) => elements / 2,
        (true, _) => plan.pairs().saturating_mul(width),
    };
    Ok(Launch {
        kernel: for_dtype(&paged_append::F32, array, new.dtype())?,
        constants: constants.words(),
        groups: [words.div_ceil(target.lanes as usize), 1],
    })
}

/// Elements of a row, and of a slot.
fn width(new: &Layout<'_>) -> usize {
    new.shape().iter().skip(1).product()
}

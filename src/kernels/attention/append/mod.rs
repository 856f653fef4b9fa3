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
use crate::kernels::{Launch, Layout, Run, Target, for_dtype, prepare};
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
    let plan = DevicePlan::upload(runtime, AppendPlan::new(schedule, &geometry)?)?;
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
    let launches = launches(&layouts, &plan.plan, Target::of(recorder.runtime()))?;
    let push = Push {
        rows: narrow("queries", plan.plan.queries())?,
        pairs: narrow("pairs of slots", plan.plan.pairs())?,
        ..Push::default()
    };
    prepare(recorder.runtime(), &launches)?;
    for (launch, [(_, new), (_, cache)]) in launches.iter().zip(inputs.parts()) {
        launch.record(recorder, |access| Push {
            plan_index: access.read(&plan.words),
            new_index: access.read(new),
            cache_index: access.write(cache),
            ..push
        })?;
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
    plan.check_call(&check(inputs)?)?;
    let launch = |array: &'static str, new: Layout<'_>| {
        let (width, rows) = (width(&new), new.rows(array, 2)?);
        let constants = paged_append::Constants {
            lanes: target.lanes,
            width: narrow("elements of a slot", width)?,
            new_first: rows.first,
            new_stride: rows.stride,
        };
        // A pair of slots of halves is as many words as a slot has elements.
        let words = match (new.dtype().is_half(), width % 2) {
            (false, _) => plan.queries() * width,
            (true, 0) => plan.queries() * width / 2,
            (true, _) => plan.pairs() * width,
        };
        Ok(Launch {
            kernel: for_dtype(&paged_append::F32, array, new.dtype())?,
            constants: constants.words(),
            groups: [words.div_ceil(target.lanes as usize), 1],
        })
    };
    inputs.parts().into_iter().map(|[(name, &new), _]| launch(name, new)).collect()
}

/// Elements of a row, and of a slot.
fn width(new: &Layout<'_>) -> usize {
    new.shape().iter().skip(1).product()
}

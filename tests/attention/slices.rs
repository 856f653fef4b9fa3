//! Calls in slices: the bits of calls in one submission.

use std::ops::ControlFlow;
use std::time::Duration;

use backslang::kernels::attention::backward;
use backslang::runtime::{Execution, Runtime};
use fastrand::Rng;

use crate::accumulate::{olds, problems};
use crate::accuracy::fresh_seed;
use crate::common::gpu;
use crate::support::assert_same;

/// In one submission, in slices that are sized by time, and in slices of few workgroups: one set of bits, whatever is
/// added to old gradients, cleared or packed.
pub(crate) fn slices_share_bits(_: &Runtime) {
    let runtime = gpu::open(|_| ()).unwrap();
    let mut rng = Rng::with_seed(fresh_seed());
    for (index, (_, mut problem)) in
        problems(fresh_seed()).into_iter().skip(1).step_by(2).enumerate()
    {
        problem.options.compact_history = index % 2 == 0;
        let none = Vec::new();
        let run = |execution: Execution<'_>, olds| {
            let (inputs, schedule) = (&problem.inputs, &problem.schedule);
            backward::run_onto(execution, inputs, schedule, &problem.options, olds).unwrap()
        };
        let plain = run(runtime.execution(), &none).outputs;
        let olds = olds(&mut rng, &plain, |i| i % 2 == 0);
        let whole = run(runtime.execution().bound(Duration::ZERO), &olds);
        for groups in [0, 1, 3, 40] {
            runtime.slice_grids(groups);
            let mut fractions = Vec::new();
            let execution = runtime.execution().watch(|progress| {
                fractions.push(progress.fraction());
                ControlFlow::Continue(())
            });
            let sliced = run(execution, &olds);
            assert_same(&sliced.outputs, &whole.outputs, &format!("slices of {groups}"));
            let kernels = [&sliced, &whole].map(|run| run.timings.iter().map(|t| &t.kernel));
            assert!(kernels[0].clone().eq(kernels[1].clone()), "{groups}");
            assert!(fractions.is_sorted() && fractions.len() > 3, "{fractions:?}");
            assert_eq!([fractions[0], fractions[fractions.len() - 1]], [0.0, 1.0]);
        }
        runtime.slice_grids(0);
    }
    runtime.finish().unwrap();
}

//! Calls on tensors that stay on the device.

use backslang::Dtype;
use backslang::kernels::attention::backward;
use backslang::kernels::attention::{
    BackwardOutputs, DevicePlan, Geometry, Gradient, Gradients, History, Options, Plan,
};
use backslang::runtime::Runtime;

use crate::common::compare::assert_same_bits;
use crate::common::random::AttentionCase;

use crate::accuracy::given_scores;
use crate::support::{busy_case, run_poisoned, small};

/// Several calls on one uploaded plan in one submission.
pub(crate) fn plan_is_reused_in_one_submission(runtime: &Runtime) {
    let problem = busy_case(true, 0).problem(41, 0.0);
    let expected = run_poisoned(runtime, &problem);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    // The plan's blocks of rows count, whatever the options of a later call say.
    let calls = [32, 5, 1].map(|query_block_rows| {
        let options = Options { query_block_rows, ..problem.options };
        let outputs = backward::allocate(runtime, &inputs, &options).unwrap();
        backward::record(&mut recorder, &inputs, &plan, &options, &outputs).unwrap();
        outputs
    });
    let submission = recorder.submit().unwrap();
    submission.wait().unwrap();
    for outputs in calls {
        for ((g, found), (_, expected)) in outputs.gradients.iter().zip(&expected.gradients) {
            assert_same_bits(&runtime.download(found).unwrap(), expected, g.output_name());
        }
    }
}

/// Nothing is recorded for outputs that are not those of the call.
pub(crate) fn outputs_of_another_call_are_refused(runtime: &Runtime) {
    let problem = small(3, 3, 0).problem(1, 0.0);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let good = backward::allocate(runtime, &inputs, &problem.options).unwrap();
    let odd = runtime.tensor("odd", Dtype::F32, &[1]).unwrap();
    let mut smaller = good.clone();
    smaller.gradients[1].1 = odd.clone();
    let mut fewer = good.clone();
    fewer.gradients.pop();
    let mut twice = good.clone();
    twice.gradients.push(good.gradients[0].clone());
    // One tensor for two gradients, and one that is an input.
    let mut shared = good.clone();
    shared.gradients[2].1 = good.gradients[1].1.clone();
    let mut input = good.clone();
    let History::Separate { k, .. } = &inputs.history else { panic!() };
    input.gradients[1].1 = k.clone();
    let statistics = BackwardOutputs { statistics: odd, ..good };
    for (outputs, part) in [
        (smaller, "k_gradient"),
        (fewer, "gradients"),
        (twice, "gradients"),
        (shared, "tensors"),
        (input, "tensors"),
        (statistics, "statistics"),
    ] {
        let mut recorder = runtime.recorder().unwrap();
        let refused = backward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs);
        let error = refused.unwrap_err();
        assert!(error.is_input() && error.to_string().contains(part), "{error}");
    }
}

/// Complete statistics are not computed: another tensor for them would hold anything.
pub(crate) fn complete_statistics_are_the_outputs(runtime: &Runtime) {
    let problem = AttentionCase { given_columns: 3, ..small(3, 2, 0) }.problem(1, 0.0);
    let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let good = backward::allocate(runtime, &inputs, &problem.options).unwrap();
    let shape = good.statistics.shape();
    let statistics = runtime.tensor("statistics", Dtype::F32, shape).unwrap();
    let other = BackwardOutputs { statistics, ..good.clone() };
    let mut recorder = runtime.recorder().unwrap();
    backward::record(&mut recorder, &inputs, &plan, &problem.options, &good).unwrap();
    let refused = backward::record(&mut recorder, &inputs, &plan, &problem.options, &other);
    assert!(refused.unwrap_err().to_string().contains("statistics"));
}

/// A plan for a cache without key/value heads has no pages in it.
pub(crate) fn plans_without_heads_are_for_calls_without(runtime: &Runtime) {
    let problem = small(3, 2, 0).problem(1, 0.0);
    let geometry = Geometry { heads: 0, kv_heads: 0, ..problem.geometry };
    let plan = Plan::new(&problem.schedule, &geometry, 32).unwrap();
    let plan = DevicePlan::upload(runtime, plan).unwrap();
    let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let outputs = backward::allocate(runtime, &inputs, &problem.options).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    let refused = backward::record(&mut recorder, &inputs, &plan, &problem.options, &outputs);
    assert!(refused.unwrap_err().to_string().contains("plan"));
}

/// The history kernel waits for the statistics, and for what wrote the same gradients before.
pub(crate) fn launches_wait_for_what_they_read(runtime: &Runtime) {
    let complete = AttentionCase { given_columns: 3, ..busy_case(false, 0) };
    let history = Gradients::only(&[Gradient::K]);
    for (what, problem, calls, compact, barriers) in [
        ("statistics", busy_case(false, 0).problem(3, 0.0), 1, false, 1),
        ("cleared pages", complete.problem(3, 0.0).with_gradients(history), 1, true, 1),
        ("a gradient", complete.problem(3, 0.0).with_gradients(history), 2, false, 1),
        ("nothing", complete.problem(3, 0.0), 1, false, 0),
    ] {
        let options = Options { compact_history: compact, ..problem.options };
        let plan = Plan::new(&problem.schedule, &problem.geometry, 32).unwrap();
        assert!(!plan.inactive_pages().is_empty(), "{what}");
        let plan = DevicePlan::upload(runtime, plan).unwrap();
        let inputs = problem.inputs.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
        let outputs = backward::allocate(runtime, &inputs, &options).unwrap();
        let mut recorder = runtime.recorder().unwrap();
        for _ in 0..calls {
            backward::record(&mut recorder, &inputs, &plan, &options, &outputs).unwrap();
        }
        assert_eq!(recorder.barriers(), barriers, "{what}");
        recorder.submit().unwrap().wait().unwrap();
    }
}

/// Kernels without a row, slot or page to work on are not dispatched at all.
pub(crate) fn nothing_is_dispatched_for_nothing(runtime: &Runtime) {
    let launched = |change: fn(&mut AttentionCase), compact_history: bool| {
        let mut case = busy_case(false, 0);
        change(&mut case);
        let problem = case.problem(14, 0.0);
        let options = Options { compact_history, ..problem.options };
        let run = backward::run(runtime, &problem.inputs, &problem.schedule, &options).unwrap();
        run.timings.iter().map(|timing| timing.kernel.to_string()).collect::<Vec<_>>()
    };
    let expected = |kernels: &[&'static str]| match runtime.device().timestamps {
        true => kernels.to_vec(),
        false => Vec::new(),
    };
    let (query, history, clear) = ("query_backward", "history_backward", "clear_pages");
    assert_eq!(launched(|_| (), false), expected(&[query, history]));
    assert_eq!(launched(|case| case.schedule.queries = 0, false), expected(&[history]));
    assert_eq!(launched(|case| case.schedule.queries = 0, true), expected(&[clear, clear]));
    assert_eq!(launched(|case| case.heads = 0, false), expected(&[history]));
    let no_pages: fn(&mut AttentionCase) =
        |case| (case.schedule.pages, case.schedule.max_length) = (0, 0);
    assert_eq!(launched(no_pages, false), expected(&[query]));
    assert_eq!(launched(no_pages, true), expected(&[query]));
}

/// What is not asked for has no tensor: a kernel that stored it would store it in the dummy.
pub(crate) fn nothing_is_stored_unasked(runtime: &Runtime) {
    let (inputs, schedule) = given_scores(&[-0.5, -1.0, -2.0]);
    for gradient in [Gradient::Q, Gradient::K, Gradient::V] {
        let options = Options { gradients: Gradients::only(&[gradient]), ..Options::new(1.0) };
        let run = backward::run(runtime, &inputs, &schedule, &options).unwrap();
        assert_eq!(run.outputs.gradients.len(), 1);
        assert!(runtime.dummy_holds().unwrap(), "{gradient:?}");
    }
}

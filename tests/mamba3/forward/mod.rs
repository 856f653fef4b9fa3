//! The forward: values, bits, sizes and what it refuses.

mod heads;
mod states;
pub(crate) mod support;
mod values;

use libtest_mimic::Trial;

use crate::common::gpu;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        gpu::trial("forward_golden_file", values::golden_file),
        gpu::trial("forward_random_problems", values::random_problems),
        gpu::trial("forward_sizes_at_the_edges", values::sizes_at_the_edges),
        gpu::trial("forward_passed_through_bits", values::passed_through_bits),
        gpu::trial("forward_repeats_share_bits", values::repeats_share_bits),
        gpu::trial_alone("forward_splits_and_guards", values::splits_and_guards_share_bits),
        gpu::trial("forward_refusals", values::refusals),
        gpu::trial("forward_softplus_tails", heads::softplus_tails),
        gpu::trial("forward_softplus_below_the_normal_range", heads::below_the_normal_range),
        gpu::trial("forward_dt_clamp", heads::dt_clamp),
        gpu::trial("forward_decays", heads::decays),
        gpu::trial("forward_zero_state_row", states::zero_state_row),
        gpu::trial("forward_state_rows_of_all_sizes", states::state_rows_of_all_sizes),
        gpu::trial("forward_nonfinite_inputs", states::nonfinite_inputs),
    ]
}

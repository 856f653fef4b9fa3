//! The Mamba-3 kernels on the device against the float64 reference, the golden files and their own bits.

#[path = "../common/mod.rs"]
mod common;

mod accumulate;
mod accuracy;
mod bits;
mod forward;
mod halves;
mod heads;
mod nonfinite;
mod sizes;
mod states;
mod support;
mod views;

use common::gpu;

fn main() -> std::process::ExitCode {
    let mut trials = vec![
        gpu::trial("golden_files", accuracy::golden_files),
        gpu::trial("random_problems", accuracy::random_problems),
        gpu::trial("sizes_at_the_edges", sizes::sizes_at_the_edges),
        gpu::trial("dt_bias_is_summed_in_order", bits::dt_bias_is_summed_in_order),
        gpu::trial("repeats_share_bits", bits::repeats_share_bits),
        gpu::trial("launches_wait_for_what_they_read", bits::launches_wait_for_what_they_read),
        gpu::trial_alone("splits_and_guards_share_bits", bits::splits_and_guards_share_bits),
        gpu::trial("softplus_tails", heads::softplus_tails),
        gpu::trial("softplus_below_the_normal_range", heads::softplus_below_the_normal_range),
        gpu::trial(
            "parameters_out_of_range_are_refused",
            heads::parameters_out_of_range_are_refused,
        ),
        gpu::trial("dt_clamp", heads::dt_clamp),
        gpu::trial("products_that_overflow_on_the_way", heads::products_that_overflow_on_the_way),
        gpu::trial("a_floor", heads::a_floor),
        gpu::trial("zero_state_row", states::zero_state_row),
        gpu::trial("huge_state_row", states::huge_state_row),
        gpu::trial("state_rows_are_separate", states::state_rows_are_separate),
        gpu::trial(
            "nonfinite_inputs_reach_what_depends_on_them",
            nonfinite::nonfinite_inputs_reach_what_depends_on_them,
        ),
        gpu::trial_alone("widths_beside_the_tiles", sizes::widths_beside_the_tiles),
        gpu::trial("seventy_thousand_rows", sizes::seventy_thousand_rows),
        gpu::trial("more_heads_than_an_axis_holds", sizes::more_heads_than_an_axis_holds),
        gpu::trial_alone("rows_beyond_a_binding", sizes::rows_beyond_a_binding),
        gpu::trial_alone("parts_share_bits", sizes::parts_share_bits),
        gpu::trial("passed_through_bits", bits::passed_through_bits),
        gpu::trial("random_halves", halves::random_halves),
        gpu::trial("half_bits_pass_through", halves::half_bits_pass_through),
        gpu::trial("backward_rows_apart", views::backward_rows_apart),
        gpu::trial("alignments_share_bits", views::alignments_share_bits),
        gpu::trial("odd_rows_apart", views::odd_rows_apart),
        gpu::trial("backward_in_place", views::backward_in_place),
        gpu::trial("forward_in_place", views::forward_in_place),
        gpu::trial("forward_rows_apart", views::forward_rows_apart),
        gpu::trial("sums_with_old_values", accumulate::sums_with_old_values),
        gpu::trial("zeros_are_added_to_any_bits", accumulate::zeros_are_added_to_any_bits),
        gpu::trial("sums_in_place", accumulate::sums_in_place),
        gpu::trial("wrong_old_values_are_refused", accumulate::wrong_old_values_are_refused),
    ];
    trials.extend(forward::trials());
    gpu::main(trials)
}

//! The attention kernels on the device against the float64 reference, the golden files and their own bits.

#[path = "../common/mod.rs"]
mod common;

mod accumulate;
mod accuracy;
mod append;
mod bits;
mod calls;
mod composed;
mod forward;
mod forward_chunks;
mod forward_values;
mod halves;
mod nonfinite;
mod pages;
mod sizes;
mod slices;
mod support;
mod tiled;
mod tiles;
mod views;

use common::gpu;

fn main() -> std::process::ExitCode {
    gpu::main(vec![
        gpu::trial("tiled_random_problems", tiled::tiled_random_problems),
        gpu::trial("tiled_sizes", tiled::tiled_sizes),
        gpu::trial("tiled_settings_share_bits", tiled::tiled_settings_share_bits),
        gpu::trial(
            "tiled_nonfinite_rows_reach_what_they_see",
            tiled::tiled_nonfinite_rows_reach_what_they_see,
        ),
        gpu::trial("tiled_small_gradients", tiled::tiled_small_gradients),
        gpu::trial("tiled_accumulates", tiled::tiled_accumulates),
        gpu::trial("tiled_refusals", tiled::tiled_refusals),
        gpu::trial("golden_files", accuracy::golden_files),
        gpu::trial("random_problems", accuracy::random_problems),
        gpu::trial("history_settings_share_bits", bits::history_settings_share_bits),
        gpu::trial("history_is_summed_in_order", bits::history_is_summed_in_order),
        gpu::trial("gradient_subsets_share_bits", bits::gradient_subsets_share_bits),
        gpu::trial("repeats_share_bits", bits::repeats_share_bits),
        gpu::trial("unread_values_reach_nothing", bits::unread_values_reach_nothing),
        gpu::trial("dims_at_the_edges", accuracy::dims_at_the_edges),
        gpu::trial("latent_512_and_64", accuracy::latent_512_and_64),
        gpu::trial("nothing_to_do", accuracy::nothing_to_do),
        gpu::trial("head_map", bits::head_map),
        gpu::trial("page_sizes", pages::page_sizes),
        gpu::trial("one_page_many_times", pages::one_page_many_times),
        gpu::trial("last_partial_page", pages::last_partial_page),
        gpu::trial("two_of_everything", pages::two_of_everything),
        gpu::trial("compaction_of_any_pages", pages::compaction_of_any_pages),
        gpu::trial("a_hundred_thousand_rows_and_pages", sizes::a_hundred_thousand_rows_and_pages),
        gpu::trial(
            "a_hundred_thousand_pages_without_a_reader",
            sizes::a_hundred_thousand_pages_without_a_reader,
        ),
        gpu::trial("seventy_thousand_heads", sizes::seventy_thousand_heads),
        gpu::trial_alone("dims_beside_the_tiles", sizes::dims_beside_the_tiles),
        gpu::trial_alone("pages_beyond_a_binding", sizes::pages_beyond_a_binding),
        gpu::trial_alone("parts_share_bits", sizes::parts_share_bits),
        // Takes some 9 GB of the device's memory.
        gpu::trial_alone("far_pages", sizes::far_pages).with_ignored_flag(true),
        gpu::trial_alone(
            "plans_beyond_a_binding_are_refused",
            sizes::plans_beyond_a_binding_are_refused,
        ),
        gpu::trial(
            "nonfinite_inputs_reach_what_depends_on_them",
            nonfinite::nonfinite_inputs_reach_what_depends_on_them,
        ),
        gpu::trial("tiles_of_ragged_rows", tiles::ragged_rows),
        gpu::trial("tiles_neighbours_do_not_show", tiles::neighbours_do_not_show),
        gpu::trial("tiles_nan_stays_with_rows", tiles::nan_stays_with_those_that_see_it),
        gpu::trial("shared_position_key", bits::shared_position_key),
        gpu::trial("page_placement", bits::page_placement),
        gpu::trial("long_history", accuracy::long_history),
        gpu::trial("large_scores", accuracy::large_scores),
        gpu::trial("small_probabilities", accuracy::small_probabilities),
        gpu::trial("live_nan_stays_with_its_row", accuracy::live_nan_stays_with_its_row),
        gpu::trial("plan_is_reused_in_one_submission", calls::plan_is_reused_in_one_submission),
        gpu::trial(
            "outputs_of_another_call_are_refused",
            calls::outputs_of_another_call_are_refused,
        ),
        gpu::trial(
            "complete_statistics_are_the_outputs",
            calls::complete_statistics_are_the_outputs,
        ),
        gpu::trial(
            "plans_without_heads_are_for_calls_without",
            calls::plans_without_heads_are_for_calls_without,
        ),
        gpu::trial("nothing_is_dispatched_for_nothing", calls::nothing_is_dispatched_for_nothing),
        gpu::trial("nothing_is_stored_unasked", calls::nothing_is_stored_unasked),
        gpu::trial("launches_wait_for_what_they_read", calls::launches_wait_for_what_they_read),
        gpu::trial("golden_halves", halves::golden_halves),
        gpu::trial("random_halves", halves::random_halves),
        gpu::trial("half_dims", halves::half_dims),
        gpu::trial("half_settings_share_bits", halves::half_settings_share_bits),
        gpu::trial("half_sums_are_wide", halves::half_sums_are_wide),
        gpu::trial("gradients_are_added_to_old_ones", accumulate::gradients_are_added_to_old_ones),
        gpu::trial("zeros_are_added_to_any_bits", accumulate::zeros_are_added_to_any_bits),
        gpu::trial(
            "accumulation_is_close_to_float64",
            accumulate::accumulation_is_close_to_float64,
        ),
        gpu::trial(
            "accumulating_settings_share_bits",
            accumulate::accumulating_settings_share_bits,
        ),
        gpu::trial(
            "accumulate_refuses_old_values_that_do_not_fit",
            accumulate::old_values_that_do_not_fit_are_refused,
        ),
        gpu::trial(
            "accumulated_pages_are_not_cleared",
            accumulate::accumulated_pages_are_not_cleared,
        ),
        gpu::trial(
            "views_share_bits_with_dense_tensors",
            views::views_share_bits_with_dense_tensors,
        ),
        gpu::trial("views_of_packed_projections", views::packed_projections),
        gpu::trial("views_that_do_not_fit_are_refused", views::views_that_do_not_fit_are_refused),
        gpu::trial("views_of_halves_are_read_at_odd_places", views::halves_are_read_at_odd_places),
        gpu::trial("saved_statistics_leave_one_walk", views::saved_statistics_leave_one_walk),
        gpu::trial("appends_are_copies", append::appends_are_copies),
        gpu::trial("appends_from_packed_rows", append::appends_from_packed_rows),
        gpu::trial(
            "odd_rows_of_append_gradients_leave_their_neighbours",
            append::odd_rows_of_gradients_leave_their_neighbours,
        ),
        gpu::trial(
            "odd_append_caches_leave_what_is_beside",
            append::odd_caches_leave_what_is_beside,
        ),
        gpu::trial_alone("split_appends", append::split_appends),
        gpu::trial_alone("slices_share_bits", slices::slices_share_bits),
        gpu::trial_alone("appends_in_parts", append::appends_in_parts),
        gpu::trial("gather_is_the_adjoint_of_append", append::gather_is_the_adjoint),
        gpu::trial("readers_wait_for_the_append", append::readers_wait_for_the_append),
        gpu::trial("forward_golden", forward::golden),
        gpu::trial("forward_random_problems", forward::random_problems),
        gpu::trial("forward_random_halves", forward::random_halves),
        gpu::trial("forward_dims", forward::dims),
        gpu::trial("forward_large_scores", forward::large_scores),
        gpu::trial("forward_nothing_to_do", forward::nothing_to_do),
        gpu::trial("forward_training_step", forward::training_step),
        gpu::trial("forward_both_ways_in_one_submission", forward::both_ways_in_one_submission),
        gpu::trial("forward_chunks_lengths", forward_chunks::lengths),
        gpu::trial("forward_chunks_launches", forward_chunks::launches),
        gpu::trial("forward_chunks_divided_or_not", forward_chunks::divided_or_not),
        gpu::trial(
            "forward_unread_values_reach_nothing",
            forward_values::unread_values_reach_nothing,
        ),
        gpu::trial(
            "forward_nonfinite_inputs_reach_what_depends_on_them",
            forward_values::nonfinite_inputs_reach_what_depends_on_them,
        ),
        gpu::trial("forward_nonfinite_scores", forward_values::nonfinite_scores),
        gpu::trial("forward_large_grids", forward_values::large_grids),
        gpu::trial("forward_busy", forward_values::busy),
        gpu::trial("forward_views", forward_values::views),
        gpu::trial("forward_views_that_do_not_fit", forward_values::views_that_do_not_fit),
        gpu::trial("forward_outputs", forward_values::outputs_of_another_call_are_refused),
        gpu::trial("forward_chunks_barriers", forward_chunks::launches_wait_for_what_they_read),
        gpu::trial("forward_and_backward_within_a_graph", composed::gradients_of_a_graph),
        gpu::trial_alone("forward_chunks_bits", forward_chunks::bits),
        gpu::trial_alone("forward_chunks_scratch_is_bounded", forward_chunks::scratch_is_bounded),
        gpu::trial_alone("splits_and_guards_share_bits", bits::splits_and_guards_share_bits),
    ])
}

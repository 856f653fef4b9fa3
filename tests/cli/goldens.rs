//! The golden cases through the command: its files, its parameters, its rounding.

use crate::golden::{Case, relative_error};
use crate::harness::{Folder, reference};

/// The reference computes in float64 from the f32 parameters, and rounds once.
const TOLERANCE: f64 = 1e-7;

fn check(command: &str, case: &str, outputs: &[&str], flags: &str) {
    check_within(TOLERANCE, command, case, outputs, flags);
}

fn check_within(tolerance: f64, command: &str, case: &str, outputs: &[&str], flags: &str) {
    let folder = Folder::new();
    let (input, output) = (format!("tests/data/{case}"), folder.at("out.npz"));
    reference(format!("{command} -i {input} -o {output} {flags}").trim_end()).succeeded();
    let (expected, found) = (Case::open(case), Case::open(&output));
    for name in outputs {
        let error =
            relative_error(&found.array(name), &expected.array(&format!("expected_{name}")));
        assert!(error < tolerance, "{case}: {name}: {error:e}");
    }
}

const SEPARATE: [&str; 4] = ["q_gradient", "k_gradient", "v_gradient", "statistics"];

#[test]
fn mamba3() {
    let outputs = ["projected_gradient", "dt_bias_partial", "dt_bias_gradient"];
    for case in ["mamba_backward.npz", "mamba_backward_small_dt.npz"] {
        check("mamba3-preprocess-backward", case, &outputs, "");
    }
}

#[test]
fn mamba3_forward() {
    let outputs = ["z", "x", "bh", "ch", "dt", "adt", "trap", "angle"];
    check("mamba3-preprocess", "mamba_forward.npz", &outputs, "");
}

#[test]
fn grouped_heads() {
    for case in ["backward_gqa.npz", "backward_unsorted.npz", "real_attention_f32.npz"] {
        check("paged-attention-backward", case, &SEPARATE, "--save-statistics");
    }
}

#[test]
fn attention_forward() {
    check("paged-attention", "forward_gqa.npz", &["output", "statistics"], "");
}

#[test]
fn not_causal() {
    check("paged-attention-backward", "backward_not_causal.npz", &SEPARATE, "--save-statistics");
}

#[test]
fn latent() {
    let outputs = [
        "q_gradient",
        "q_position_gradient",
        "latent_gradient",
        "k_position_gradient",
        "statistics",
    ];
    check("paged-attention-backward", "backward_mla.npz", &outputs, "--save-statistics");
}

#[test]
fn history_alone() {
    let outputs = ["k_gradient", "v_gradient"];
    check("history-backward", "history_zero_denominators.npz", &outputs, "");
    check("history-backward", "backward_gqa.npz", &outputs, "--compact-history --cache-history");
}

/// Where the one rounding, of up to half a unit in the last place, is to a half.
#[test]
fn halves() {
    let (f16, bf16) = (2f64.powi(-11), 2f64.powi(-8));
    let history = ["k_gradient", "v_gradient"];
    for flags in ["", "--dtype f16"] {
        check_within(f16, "history-backward", "history_f16.npz", &history, flags);
    }
    let flags = "--dtype bf16 --save-statistics";
    check_within(bf16, "paged-attention-backward", "backward_bf16.npz", &SEPARATE, flags);
}

#[test]
fn halves_are_not_taken_for_each_other() {
    let folder = Folder::new();
    let out = folder.at("out");
    let bf16 = format!("paged-attention-backward -i tests/data/backward_bf16.npz -o {out}");
    reference(&bf16).failed(2, &["`q`", "'<u2'", "--dtype bf16"]);
    let f16 = format!("history-backward -i tests/data/history_f16.npz -o {out} --dtype bf16");
    reference(&f16).failed(2, &["`q`", "bfloat16, as --dtype bf16 says", "'<f2' (float16)"]);
    assert!(folder.names("").is_empty());
}

//! The golden cases through the command: its files, its parameters, its rounding.

use crate::golden::{Case, relative_error};
use crate::harness::{Folder, reference};

/// The reference computes in float64 from the f32 parameters, and rounds once.
const TOLERANCE: f64 = 1e-7;

fn check(command: &str, case: &str, outputs: &[&str], flags: &str) {
    let folder = Folder::new();
    let (input, output) = (format!("tests/data/{case}"), folder.at("out.npz"));
    reference(format!("{command} -i {input} -o {output} {flags}").trim_end()).succeeded();
    let (expected, found) = (Case::open(case), Case::open(&output));
    for name in outputs {
        let error =
            relative_error(&found.array(name), &expected.array(&format!("expected_{name}")));
        assert!(error < TOLERANCE, "{case}: {name}: {error:e}");
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
fn grouped_heads() {
    for case in ["backward_gqa.npz", "backward_unsorted.npz", "real_attention_f32.npz"] {
        check("paged-attention-backward", case, &SEPARATE, "--save-statistics");
    }
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

#[test]
fn other_types_are_refused_for_now() {
    let folder = Folder::new();
    let out = folder.at("out");
    reference(&format!("history-backward -i tests/data/history_f16.npz -o {out}"))
        .failed(2, &["`q`", "float32", "'<f2' (float16)"]);
    reference(&format!("paged-attention-backward -i tests/data/backward_bf16.npz -o {out}"))
        .failed(2, &["`q`", "float32", "'<u2'"]);
    assert!(folder.names("").is_empty());
}

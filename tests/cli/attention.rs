//! `paged-attention`: its outputs, and that the backward takes them.

use crate::harness::{ATTENTION, Folder, MLA, npy, reference, swapped};

const COMMAND: &str = "paged-attention";

fn run(folder: &Folder, command: &str, input: &str, out: &str, flags: &str) {
    let words = format!("{command} -i {} -o {} {flags}", folder.at(input), folder.at(out));
    reference(words.trim_end()).succeeded();
}

#[test]
fn outputs_have_their_shapes_and_types() {
    for (dtype, spelled) in [("f32", "<f4"), ("f16", "<f2"), ("bf16", "|V2")] {
        for (sizes, output, statistics) in
            [(ATTENTION, "(6, 4, 3)", "(6, 4, 2)"), (MLA, "(6, 2, 4)", "(6, 2, 2)")]
        {
            let folder = Folder::sample(COMMAND, &format!("{sizes} --dtype {dtype}"));
            run(&folder, COMMAND, "in", "out", &format!("--dtype {dtype}"));
            assert_eq!(folder.names("out"), ["output.npy", "statistics.npy"]);
            let head = folder.head("out/output.npy");
            assert!(head.contains(&format!("'{spelled}'")) && head.contains(output), "{head}");
            let head = folder.head("out/statistics.npy");
            assert!(head.contains("'<f4'") && head.contains(statistics), "{head}");
        }
    }
}

#[test]
fn the_output_is_spelled_as_the_queries() {
    let folder = Folder::sample(COMMAND, ATTENTION);
    run(&folder, COMMAND, "in", "out", "");
    let expected = ["output", "statistics"].map(|name| folder.data(&format!("out/{name}.npy")));
    let q = swapped(&folder.data("in/q.npy"));
    folder.write("in/q.npy", &npy(">f4", false, &[6, 4, 4], &q));
    run(&folder, COMMAND, "in", "out", "");
    for (name, expected) in ["output", "statistics"].into_iter().zip(expected) {
        let path = format!("out/{name}.npy");
        assert!(folder.head(&path).contains("'>f4'"));
        assert_eq!(swapped(&folder.data(&path)), expected);
    }
}

#[test]
fn parameters_come_from_flags_and_arrays() {
    let folder = Folder::sample(COMMAND, ATTENTION);
    let result = |flags: &str| {
        run(&folder, COMMAND, "in", "out", flags);
        folder.data("out/output.npy")
    };
    let default = result("");
    assert_eq!(result("--scale 0.5"), default);
    assert_ne!(result("--scale 0.25"), default);
    let full = result("--no-causal");
    assert_ne!(full, default);
    folder.write("in/causal.npy", &npy("|b1", false, &[], &[0]));
    assert_eq!(result(""), full);
    assert_eq!(result("--causal"), default);
    folder.remove("in/positions.npy");
    assert_eq!(result(""), full);
}

/// The backward, given what the forward saved, computes what it computes alone.
#[test]
fn the_backward_takes_what_the_forward_saves() {
    for sizes in [ATTENTION, MLA] {
        let folder = Folder::sample("paged-attention-backward", sizes);
        run(&folder, COMMAND, "in", "saved", "");
        run(&folder, "paged-attention-backward", "in", "alone", "--save-statistics");
        let both = format!("--save-statistics -i {}", folder.at("saved"));
        run(&folder, "paged-attention-backward", "in", "chained", &both);
        assert_eq!(folder.names("alone"), folder.names("chained"));
        for name in folder.names("alone") {
            let floats = |out: &str| -> Vec<f32> {
                let data = folder.data(&format!("{out}/{name}"));
                data.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
            };
            let (alone, chained) = (floats("alone"), floats("chained"));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
            assert!(alone.iter().zip(&chained).all(close), "{name}");
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |sizes: &str, change: &dyn Fn(&Folder), flags: &str, parts: &[&str]| {
        let folder = Folder::sample(COMMAND, sizes);
        change(&folder);
        let words = format!("{COMMAND} -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
        reference(words.trim_end()).failed(2, parts);
        assert_eq!(folder.names(""), ["in"]);
    };
    let nothing = |_: &Folder| {};
    for name in ["q", "k", "v", "block_table", "sequence_lengths", "sequence_ids", "positions"] {
        let path = format!("in/{name}.npy");
        let missing = format!("`{name}` is missing");
        refused(ATTENTION, &|folder| folder.remove(&path), "", &[&missing]);
    }
    refused(MLA, &|folder| folder.remove("in/scale.npy"), "", &["`scale`", "--scale"]);
    refused(ATTENTION, &nothing, "--scale 0", &["`scale`", "> 0"]);
    refused(ATTENTION, &nothing, "--gradients q", &["--gradients"]);
    refused(ATTENTION, &nothing, "--dtype bf16", &["`q`", "--dtype bf16 says"]);
    let v = npy("<f2", false, &[9, 2, 2, 3], &[0; 216]);
    refused(ATTENTION, &|folder| folder.write("in/v.npy", &v), "", &["`v`", "which `q` is"]);
    let v = npy("<f4", false, &[9, 3, 2, 3], &[0; 648]);
    refused(ATTENTION, &|folder| folder.write("in/v.npy", &v), "", &["`v`", "[9, 2, 2, 3]"]);
    let ids = npy("<i4", false, &[6], &[9; 24]);
    let change = |folder: &Folder| folder.write("in/sequence_ids.npy", &ids);
    refused(ATTENTION, &change, "", &["`sequence_ids`[0]"]);
}

#[test]
fn a_plan_is_told() {
    let folder = Folder::sample(COMMAND, ATTENTION);
    let words = format!("{COMMAND} -i {} --plan --json", folder.at("in"));
    let plan = reference(&words).succeeded().json();
    assert_eq!(plan["plan"]["steps"][0]["kernel"], "paged_attention");
    assert_eq!(plan["plan"]["bytes"]["outputs"], 4 * 6 * 4 * (3 + 2));
    assert_eq!(folder.names(""), ["in"]);
}

/// The same seed and sizes give both ways the same arrays.
#[test]
fn samples_of_both_ways_agree() {
    let sizes = format!("{MLA} --dtype bf16");
    let forward = Folder::sample(COMMAND, &sizes);
    let backward = Folder::sample("paged-attention-backward", &sizes);
    for name in forward.names("in") {
        let path = format!("in/{name}");
        assert_eq!(forward.read(&path), backward.read(&path), "{name}");
    }
}

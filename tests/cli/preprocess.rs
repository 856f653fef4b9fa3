//! `mamba3-preprocess`: its widths, its outputs, and what is refused.

use crate::harness::{Folder, MAMBA3, npy, reference};

const COMMAND: &str = "mamba3-preprocess";
const OUTPUTS: [&str; 8] =
    ["adt.npy", "angle.npy", "bh.npy", "ch.npy", "dt.npy", "trap.npy", "x.npy", "z.npy"];

fn sample(dtype: &str) -> Folder {
    Folder::sample(COMMAND, &format!("{MAMBA3} --dtype {dtype}"))
}

fn words(folder: &Folder, flags: &str) -> String {
    let words = format!("{COMMAND} -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
    words.trim_end().to_owned()
}

#[test]
fn outputs_have_their_shapes_and_types() {
    for (dtype, spelled) in [("f32", "<f4"), ("f16", "<f2"), ("bf16", "|V2")] {
        let folder = sample(dtype);
        reference(&words(&folder, &format!("--dtype {dtype}"))).succeeded();
        assert_eq!(folder.names("out"), OUTPUTS);
        for (name, spelled, shape) in [
            ("z", spelled, "(6, 5)"),
            ("x", spelled, "(6, 5)"),
            ("bh", spelled, "(6, 2, 3)"),
            ("ch", spelled, "(6, 2, 3)"),
            ("dt", "<f4", "(6, 4)"),
            ("adt", "<f4", "(6, 4)"),
            ("trap", "<f4", "(6, 4)"),
            ("angle", spelled, "(6, 2)"),
        ] {
            let head = folder.head(&format!("out/{name}.npy"));
            assert!(head.contains(&format!("'{spelled}'")) && head.contains(shape), "{head}");
        }
    }
}

#[test]
fn slices_pass_through_as_bits() {
    for (dtype, size) in [("f32", 4), ("f16", 2), ("bf16", 2)] {
        let folder = sample(dtype);
        reference(&words(&folder, &format!("--dtype {dtype}"))).succeeded();
        let packed = folder.data("in/projected.npy");
        // z | x | B | C | dd_dt | dd_A | trap | angle
        for (name, first, width) in [("z", 0, 5), ("x", 5, 5), ("angle", 34, 2)] {
            let rows = packed.chunks(36 * size);
            let slice = rows.flat_map(|row| row[first * size..][..width * size].to_vec());
            let found = folder.data(&format!("out/{name}.npy"));
            assert_eq!(slice.collect::<Vec<_>>(), found, "{dtype} {name}");
        }
    }
}

#[test]
fn widths_come_from_flags_and_arrays() {
    let folder = sample("f32");
    let result = |flags: &str| {
        reference(&words(&folder, flags)).succeeded();
        OUTPUTS.map(|name| folder.read(&format!("out/{name}")))
    };
    let expected = result("");
    let flags = "--inner-size 5 --bc-rows 2 --state-size 3 --rope-angles 2";
    for name in ["inner_size", "bc_rows", "state_size", "rope_angles"] {
        folder.write(&format!("in/{name}.npy"), &npy("<f8", false, &[], &99f64.to_le_bytes()));
    }
    assert_eq!(result(flags), expected);
    for name in ["inner_size", "bc_rows", "state_size", "rope_angles"] {
        folder.remove(&format!("in/{name}.npy"));
    }
    assert_eq!(result(flags), expected);
    // The same width otherwise cut.
    assert_ne!(result("--inner-size 5 --bc-rows 3 --state-size 2 --rope-angles 2"), expected);
    for flag in ["--epsilon 1", "--dt-min 0.05", "--dt-max 0.05", "--a-floor 2.5"] {
        assert_ne!(result(&format!("{flags} {flag}")), expected, "{flag}");
    }
}

#[test]
fn widths_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&Folder), flags: &str, parts: &[&str]| {
        let folder = sample("f32");
        change(&folder);
        reference(&words(&folder, flags)).failed(2, parts);
        assert_eq!(folder.names(""), ["in"]);
    };
    let nothing = |_: &Folder| {};
    for (name, flag) in [
        ("inner_size", "--inner-size"),
        ("bc_rows", "--bc-rows"),
        ("state_size", "--state-size"),
        ("rope_angles", "--rope-angles"),
    ] {
        let path = format!("in/{name}.npy");
        refused(&|folder| folder.remove(&path), "", &[&format!("`{name}` is missing"), flag]);
        refused(&nothing, &format!("{flag} 7"), &["`projected`", "[6, 36]", &format!("{name} 7")]);
        refused(&nothing, &format!("{flag} -1"), &[flag, "-1"]);
        refused(&nothing, &format!("{flag} 99999999999"), &[flag]);
        for value in [-1.0, 2.5, f64::NAN, 1e30] {
            let array = npy("<f8", false, &[], &value.to_le_bytes());
            let change = |folder: &Folder| folder.write(&path, &array);
            refused(&change, "", &[&format!("`{name}`"), "whole number"]);
        }
        let array = npy("<i4", false, &[1], &[5, 0, 0, 0]);
        refused(&|folder| folder.write(&path, &array), "", &[&format!("`{name}`"), "0-d"]);
    }
    refused(&|folder| folder.remove("in/dt_bias.npy"), "", &["`dt_bias` is missing"]);
    let bias = npy("<f4", false, &[3], &[0; 12]);
    refused(&|folder| folder.write("in/dt_bias.npy", &bias), "", &["`projected`", "heads 3"]);
    refused(&nothing, "--epsilon 0", &["`epsilon`", "> 0"]);
    refused(&nothing, "--dt-min 1", &["dt_min and dt_max"]);
}

#[test]
fn leading_axes_are_kept_and_a_plan_is_told() {
    let folder = sample("f32");
    let data = folder.data("in/projected.npy");
    folder.write(
        "in/projected.npy",
        &npy(">f4", false, &[2, 1, 3, 36], &crate::harness::swapped(&data)),
    );
    let plan = reference(&words(&folder, "--plan --json")).succeeded().json();
    assert_eq!(plan["plan"]["steps"][0]["kernel"], "mamba3_preprocess");
    assert_eq!(plan["plan"]["sizes"]["projected_width"], 36);
    assert_eq!(folder.names(""), ["in"]);
    reference(&words(&folder, "")).succeeded();
    for (name, shape) in [("bh", "(2, 1, 3, 2, 3)"), ("dt", "(2, 1, 3, 4)")] {
        let head = folder.head(&format!("out/{name}.npy"));
        assert!(head.contains(shape) && head.contains("'>f4'"), "{head}");
    }
}

/// The same seed and sizes give both ways the same rows.
#[test]
fn samples_of_both_ways_agree() {
    let (forward, backward) = (
        sample("f16"),
        Folder::sample("mamba3-preprocess-backward", &format!("{MAMBA3} --dtype f16")),
    );
    for name in ["projected", "dt_bias", "epsilon", "dt_max"] {
        let path = format!("in/{name}.npy");
        assert_eq!(forward.read(&path), backward.read(&path), "{name}");
    }
}

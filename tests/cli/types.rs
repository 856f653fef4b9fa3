//! Element types: which are read as what, and how the results are spelled.

use half::{bf16, f16};

use crate::harness::{ATTENTION, Folder, MAMBA3, MLA, npy, reference, swapped_by};

const COMMAND: &str = "paged-attention-backward";

fn sample(command: &str, sizes: &str, dtype: &str) -> Folder {
    Folder::sample(command, &format!("{sizes} --dtype {dtype}"))
}

/// Runs the command on `in` with results in `out`.
fn run(folder: &Folder, command: &str, flags: &str) {
    let words = format!("{command} -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
    reference(words.trim_end()).succeeded();
}

/// The command refuses `in`, and nothing is written.
fn refused(folder: &Folder, command: &str, flags: &str, parts: &[&str]) {
    let words = format!("{command} -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
    reference(words.trim_end()).failed(2, parts);
    assert_eq!(folder.names(""), ["in"]);
}

/// What NumPy's head of the file says of the elements.
fn descr(folder: &Folder, name: &str) -> String {
    let head = folder.head(name);
    head.split('\'').nth(3).unwrap().to_owned()
}

/// The shape of an array that the command wrote.
fn shape(folder: &Folder, name: &str) -> Vec<usize> {
    let head = folder.head(name);
    let axes = head.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    axes.split(',').filter_map(|axis| axis.trim().parse().ok()).collect()
}

/// Writes an array of 16-bit elements, given with the least significant byte first, under another spelling of its type.
fn respell(folder: &Folder, name: &str, descr: &str, little: &[u8]) {
    let path = format!("in/{name}.npy");
    let data = if descr.starts_with('>') { swapped_by(2, little) } else { little.to_vec() };
    folder.write(&path, &npy(descr, false, &shape(folder, &path), &data));
}

#[test]
fn results_have_the_type_of_their_arrays() {
    for (dtype, spelled) in [("f32", "<f4"), ("f16", "<f2"), ("bf16", "|V2")] {
        let flags = format!("--dtype {dtype}");
        let folder = sample("mamba3-preprocess-backward", MAMBA3, dtype);
        for (name, expected) in
            [("projected", spelled), ("dt_bias", "<f4"), ("trap_gradient", "<f4")]
        {
            assert_eq!(descr(&folder, &format!("in/{name}.npy")), expected);
        }
        run(&folder, "mamba3-preprocess-backward", &flags);
        for (name, expected) in [
            ("projected_gradient", spelled),
            ("dt_bias_partial", "<f4"),
            ("dt_bias_gradient", "<f4"),
        ] {
            assert_eq!(descr(&folder, &format!("out/{name}.npy")), expected);
        }
        for sizes in [ATTENTION, MLA] {
            let folder = sample(COMMAND, sizes, dtype);
            run(&folder, COMMAND, &format!("{flags} --save-statistics"));
            for name in folder.names("out") {
                let expected = if name == "statistics.npy" { "<f4" } else { spelled };
                assert_eq!(descr(&folder, &format!("out/{name}")), expected, "{name}");
            }
        }
    }
}

/// The elements of a result, the least significant byte first.
fn result(folder: &Folder, name: &str) -> Vec<u8> {
    let path = format!("out/{name}_gradient.npy");
    let data = folder.data(&path);
    if descr(folder, &path).starts_with('>') { swapped_by(2, &data) } else { data }
}

#[test]
fn every_spelling_means_the_same_and_stays() {
    let names = ["q", "k", "v"];
    for (dtype, spellings) in [
        ("f16", vec![["<f2", ">f2", ">f2"]]),
        ("bf16", vec![["<V2", "<u2", ">u2"], [">V2", "bfloat16", "<V2"], ["<u2", "|V2", ">V2"]]),
    ] {
        let folder = sample(COMMAND, ATTENTION, dtype);
        let flags = format!("--dtype {dtype}");
        let inputs = names.map(|name| folder.data(&format!("in/{name}.npy")));
        run(&folder, COMMAND, &flags);
        let expected = names.map(|name| result(&folder, name));
        for spelled in spellings {
            for ((name, descr), data) in names.into_iter().zip(spelled).zip(&inputs) {
                respell(&folder, name, descr, data);
            }
            run(&folder, COMMAND, &flags);
            for ((name, spelled), expected) in names.into_iter().zip(spelled).zip(&expected) {
                assert_eq!(descr(&folder, &format!("out/{name}_gradient.npy")), spelled);
                assert_eq!(&result(&folder, name), expected, "{name} {spelled}");
            }
        }
    }
}

#[test]
fn fortran_order_is_read_alike() {
    let folder = sample(COMMAND, ATTENTION, "f16");
    run(&folder, COMMAND, "");
    let expected = result(&folder, "v");
    // [6, 4, 3], the first axis varying fastest.
    let data = folder.data("in/output_gradient.npy");
    let columns = (0..72).flat_map(|at| {
        let (row, head, dim) = (at % 6, at / 6 % 4, at / 24);
        data[2 * (12 * row + 3 * head + dim)..][..2].to_vec()
    });
    let columns: Vec<u8> = columns.collect();
    folder.write("in/output_gradient.npy", &npy("<f2", true, &[6, 4, 3], &columns));
    run(&folder, COMMAND, "--dtype f16");
    assert_eq!(result(&folder, "v"), expected);
}

#[test]
fn arrays_of_mixed_types_are_named() {
    let arrays = [("q", 96), ("k", 144), ("v", 108), ("output_gradient", 72), ("output", 72)];
    for (dtype, other, size, parts) in [
        ("f32", "<f2", 2, ["float32, which `q` is", "'<f2' (float16)"]),
        ("f16", "<f4", 4, ["float16, which `q` is", "'<f4' (float32)"]),
        ("f16", "|V2", 2, ["float16, which `q` is", "bfloat16 is read with --dtype bf16"]),
    ] {
        for (name, count) in arrays.into_iter().filter(|(name, _)| *name != "q") {
            let folder = sample(COMMAND, ATTENTION, dtype);
            let shape = if name == "output" {
                vec![6, 4, 3]
            } else {
                shape(&folder, &format!("in/{name}.npy"))
            };
            folder.write(
                &format!("in/{name}.npy"),
                &npy(other, false, &shape, &vec![0; size * count]),
            );
            refused(&folder, COMMAND, "", &[&format!("array `{name}`"), parts[0], parts[1]]);
        }
    }
    let folder = sample(COMMAND, MLA, "bf16");
    let zeros = npy("<f2", false, &[9, 2, 1, 2], &[0; 72]);
    folder.write("in/k_position.npy", &zeros);
    refused(&folder, COMMAND, "--dtype bf16", &["`k_position`", "bfloat16", "(float16)"]);
    let folder = sample("history-backward", ATTENTION, "f16");
    folder.write("in/statistics.npy", &npy("<f2", false, &[6, 4, 3], &[0; 144]));
    refused(&folder, "history-backward", "", &["`statistics`", "expected float32, found"]);
}

#[test]
fn what_belongs_to_a_head_alone_is_float32() {
    let command = "mamba3-preprocess-backward";
    for (dtype, spelled) in [("f16", "<f2"), ("bf16", "<u2")] {
        for name in ["dt_bias", "dt_gradient", "adt_gradient", "trap_gradient"] {
            let folder = sample(command, MAMBA3, dtype);
            let path = format!("in/{name}.npy");
            let shape = shape(&folder, &path);
            let data = vec![0; 2 * shape.iter().product::<usize>()];
            folder.write(&path, &npy(spelled, false, &shape, &data));
            let parts = [&format!("`{name}`"), "expected float32, found", spelled];
            refused(&folder, command, &format!("--dtype {dtype}"), &parts);
        }
    }
}

#[test]
fn the_flag_and_the_arrays_must_agree() {
    for (dtype, flag, found) in [
        ("f32", "f16", "'<f4' (float32)"),
        ("f32", "bf16", "'<f4' (float32)"),
        ("f16", "f32", "'<f2' (float16)"),
        ("f16", "bf16", "'<f2' (float16)"),
        ("bf16", "f32", "'|V2'"),
        ("bf16", "f16", "'|V2'"),
    ] {
        let folder = sample(COMMAND, ATTENTION, dtype);
        let expected = format!("as --dtype {flag} says");
        refused(&folder, COMMAND, &format!("--dtype {flag}"), &["array `q`", &expected, found]);
    }
    let folder = sample(COMMAND, ATTENTION, "bf16");
    refused(&folder, COMMAND, "", &["array `q`", "'|V2'", "bfloat16 is read with --dtype bf16"]);
    for word in ["float16", "BF16", "f8", "u32"] {
        refused(&folder, COMMAND, &format!("--dtype {word}"), &["--dtype", word, "f32, f16, bf16"]);
    }
}

/// The reference rounds its float64 results once, to nearest: what it gives for the widened arrays is no further away
/// than half a unit in the last place.
#[test]
fn the_reference_rounds_to_nearest() {
    for (dtype, unit) in [("f16", 2f32.powi(-11)), ("bf16", 2f32.powi(-8))] {
        let folder = sample(COMMAND, ATTENTION, dtype);
        let widen = |data: &[u8]| -> Vec<f32> {
            let bits = data.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
            match dtype {
                "f16" => bits.map(|bits| f16::from_bits(bits).to_f32()).collect(),
                _ => bits.map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            }
        };
        run(&folder, COMMAND, &format!("--dtype {dtype}"));
        let found = ["q", "k", "v"].map(|name| widen(&result(&folder, name)));
        for name in ["q", "k", "v", "output_gradient"] {
            let path = format!("in/{name}.npy");
            let wide = widen(&folder.data(&path)).into_iter().flat_map(f32::to_le_bytes);
            let wide: Vec<u8> = wide.collect();
            folder.write(&path, &npy("<f4", false, &shape(&folder, &path), &wide));
        }
        run(&folder, COMMAND, "");
        for (name, found) in ["q", "k", "v"].into_iter().zip(found) {
            let expected = folder.data(&format!("out/{name}_gradient.npy"));
            let expected = expected.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            for (found, expected) in found.into_iter().zip(expected) {
                let error = (found - expected).abs();
                // The least step is that of the subnormals.
                let bound = (expected.abs() * unit * 1.0001).max(2f32.powi(-25));
                assert!(error <= bound, "{dtype} {name}: {found:e} {expected:e}");
            }
        }
    }
}

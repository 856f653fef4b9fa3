//! `--accumulate`: gradients among the inputs are added to.

use half::f16;

use crate::harness::{ATTENTION, Folder, MAMBA3, MLA, npy, reference};

const COMMAND: &str = "paged-attention-backward";

fn run(folder: &Folder, command: &str, out: &str, flags: &str) {
    let words = format!("{command} -i {} -o {} {flags}", folder.at("in"), folder.at(out));
    reference(words.trim_end()).succeeded();
}

fn floats(folder: &Folder, path: &str) -> Vec<f32> {
    let data = folder.data(path);
    data.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// Puts one array of `out` among the inputs.
fn feed(folder: &Folder, name: &str) {
    folder.write(&format!("in/{name}.npy"), &folder.read(&format!("out/{name}.npy")));
}

#[test]
fn gradients_that_are_there_are_added_to() {
    for (sizes, command, added, other) in [
        (ATTENTION, COMMAND, "k_gradient", "v_gradient"),
        (ATTENTION, COMMAND, "q_gradient", "k_gradient"),
        (ATTENTION, "history-backward", "v_gradient", "k_gradient"),
        (MLA, COMMAND, "latent_gradient", "q_position_gradient"),
        (MLA, "history-backward", "k_position_gradient", "latent_gradient"),
    ] {
        let folder = Folder::sample(COMMAND, sizes);
        run(&folder, command, "out", "");
        feed(&folder, added);
        run(&folder, command, "sum", "--accumulate");
        assert_eq!(folder.names("sum"), folder.names("out"));
        let [once, twice] =
            ["out", "sum"].map(|out| floats(&folder, &format!("{out}/{added}.npy")));
        // The reference adds before it rounds.
        let close = |(a, b): (&f32, &f32)| (2.0 * a - b).abs() <= 3e-7 * a.abs();
        assert!(once.iter().zip(&twice).all(close), "{added}");
        let [once, again] = ["out", "sum"].map(|out| folder.read(&format!("{out}/{other}.npy")));
        assert_eq!(once, again, "{other}");
        // Not asked to, it lets them lie.
        run(&folder, command, "sum", "");
        let [once, again] = ["out", "sum"].map(|out| folder.read(&format!("{out}/{added}.npy")));
        assert_eq!(once, again, "{added}");
    }
}

#[test]
fn gradients_of_the_preprocess_are_added_to() {
    let command = "mamba3-preprocess-backward";
    for (dtype, name) in
        [("f32", "projected_gradient"), ("f32", "dt_bias_gradient"), ("bf16", "dt_bias_gradient")]
    {
        let folder = Folder::sample(command, &format!("{MAMBA3} --dtype {dtype}"));
        let flags = format!("--dtype {dtype}");
        run(&folder, command, "out", &flags);
        feed(&folder, name);
        run(&folder, command, "sum", &format!("{flags} --accumulate"));
        let [once, twice] = ["out", "sum"].map(|out| floats(&folder, &format!("{out}/{name}.npy")));
        let close = |(a, b): (&f32, &f32)| (2.0 * a - b).abs() <= 3e-7 * a.abs();
        assert!(once.iter().zip(&twice).all(close), "{name}");
        let terms = ["out", "sum"].map(|out| folder.read(&format!("{out}/dt_bias_partial.npy")));
        assert_eq!(terms[0], terms[1]);
    }
    for (name, shape, parts) in [
        ("dt_bias_partial", [6, 4], ["--accumulate", "projected_gradient, dt_bias_gradient"]),
        ("projected_gradient", [6, 35], ["`projected_gradient`", "[6, 36]"]),
    ] {
        let folder = Folder::sample(command, MAMBA3);
        let data = vec![0; 4 * shape[0] * shape[1]];
        folder.write(&format!("in/{name}.npy"), &npy("<f4", false, &shape, &data));
        let words =
            format!("{command} -i {} -o {} --accumulate", folder.at("in"), folder.at("out"));
        reference(&words).failed(2, &parts);
        assert_eq!(folder.names(""), ["in"]);
    }
}

/// Old values far above the sums: a sum that was rounded before would show.
#[test]
fn sums_of_halves_are_rounded_once() {
    let folder = Folder::sample(COMMAND, &format!("{ATTENTION} --dtype f16"));
    let old: Vec<f16> = (0..144).map(|i| f16::from_f32(i as f32 / 7.0 - 9.0)).collect();
    let bytes: Vec<u8> = old.iter().flat_map(|value| value.to_le_bytes()).collect();
    folder.write("in/k_gradient.npy", &npy("<f2", false, &[9, 2, 2, 4], &bytes));
    run(&folder, COMMAND, "sum", "--accumulate");
    assert!(folder.head("sum/k_gradient.npy").contains("'<f2'"));
    let found = folder.data("sum/k_gradient.npy");
    for name in ["q", "k", "v", "output_gradient"] {
        let path = format!("in/{name}.npy");
        let head = folder.head(&path);
        let axes = head.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0.to_owned();
        let shape: Vec<usize> =
            axes.split(',').filter_map(|axis| axis.trim().parse().ok()).collect();
        let data = folder.data(&path);
        let wide = data.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32());
        let wide: Vec<u8> = wide.flat_map(f32::to_le_bytes).collect();
        folder.write(&path, &npy("<f4", false, &shape, &wide));
    }
    run(&folder, COMMAND, "out", "");
    let sums = floats(&folder, "out/k_gradient.npy");
    let expected =
        old.iter().zip(sums).map(|(old, sum)| f16::from_f64(old.to_f64() + f64::from(sum)));
    let expected: Vec<u8> = expected.flat_map(f16::to_le_bytes).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |array: Option<(&str, &str, &[usize])>, flags: &str, parts: &[&str]| {
        let folder = Folder::sample(COMMAND, ATTENTION);
        if let Some((name, descr, shape)) = array {
            let size = if descr == "<f4" { 4 } else { 2 };
            let data = vec![0; size * shape.iter().product::<usize>()];
            folder.write(&format!("in/{name}.npy"), &npy(descr, false, shape, &data));
        }
        let words = format!("{COMMAND} -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
        reference(words.trim_end()).failed(2, parts);
        assert_eq!(folder.names(""), ["in"]);
    };
    let looked_for = ["--accumulate", "q_gradient, k_gradient, v_gradient", "the inputs hold"];
    refused(None, "--accumulate", &looked_for);
    let some = ["--accumulate", "one of k_gradient to add to"];
    let q: Option<(&str, &str, &[usize])> = Some(("q_gradient", "<f4", &[6, 4, 4]));
    refused(q, "--accumulate --gradients k", &some);
    let shape = ["array `k_gradient`", "[9, 2, 2, 4]", "[9, 2, 2, 3]"];
    refused(Some(("k_gradient", "<f4", &[9, 2, 2, 3])), "--accumulate", &shape);
    let dtype = ["array `v_gradient`", "float32, which `q` is", "(float16)"];
    refused(Some(("v_gradient", "<f2", &[9, 2, 2, 3])), "--accumulate", &dtype);
}

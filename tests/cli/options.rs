//! Parameters, subsets of the gradients, and settings that must not change a bit.

use crate::harness::{Folder, npy, reference};

fn outputs(folder: &Folder, command: &str, flags: &str) -> Vec<String> {
    let out = folder.path().join("out");
    let _ = std::fs::remove_dir_all(&out);
    let words = format!("{command} -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
    reference(words.trim_end()).succeeded();
    folder.names("out")
}

#[test]
fn any_subset_of_the_gradients_has_the_same_bits() {
    for (folder, names) in [
        (Folder::attention(), vec!["q", "k", "v"]),
        (Folder::mla(), vec!["q", "q_position", "latent", "k_position"]),
    ] {
        let command = "paged-attention-backward";
        let all = outputs(&folder, command, "");
        let file = |name: &str| format!("{name}_gradient.npy");
        let mut expected: Vec<_> = names.iter().map(|name| file(name)).collect();
        expected.sort();
        assert_eq!(all, expected);
        let data: Vec<_> =
            names.iter().map(|name| folder.data(&format!("out/{}", file(name)))).collect();
        for (name, data) in names.iter().zip(&data) {
            assert_eq!(outputs(&folder, command, &format!("--gradients {name}")), [file(name)]);
            assert_eq!(&folder.data(&format!("out/{}", file(name))), data);
        }
    }
}

#[test]
fn the_history_command_has_the_history_gradients() {
    let folder = Folder::attention();
    assert_eq!(outputs(&folder, "history-backward", ""), ["k_gradient.npy", "v_gradient.npy"]);
    assert_eq!(outputs(&folder, "history-backward", "--gradients v"), ["v_gradient.npy"]);
    let folder = Folder::mla();
    let expected = ["k_position_gradient.npy", "latent_gradient.npy"];
    assert_eq!(outputs(&folder, "history-backward", "--gradients all"), expected);
}

#[test]
fn saved_statistics_serve_the_history_command() {
    let folder = Folder::attention();
    outputs(&folder, "paged-attention-backward", "--save-statistics");
    assert!(folder.head("out/statistics.npy").contains("(6, 4, 3)"));
    let (statistics, v) = (folder.read("out/statistics.npy"), folder.data("out/v_gradient.npy"));
    folder.write("in/statistics.npy", &statistics);
    outputs(&folder, "history-backward", "");
    let close = |a: &[u8], b: &[u8]| {
        let floats = |data: &[u8]| {
            data.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect::<Vec<_>>()
        };
        floats(a).iter().zip(floats(b)).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    assert!(close(&folder.data("out/v_gradient.npy"), &v));
}

#[test]
fn flags_override_arrays_and_arrays_override_defaults() {
    let folder = Folder::attention();
    let result = |flags: &str| {
        outputs(&folder, "history-backward", flags);
        folder.data("out/k_gradient.npy")
    };
    folder.remove("in/scale.npy");
    folder.remove("in/causal.npy");
    let default = result("");
    assert_eq!(result("--scale 0.5"), default);
    folder.write("in/scale.npy", &npy("<f8", false, &[], &0.25f64.to_le_bytes()));
    let quarter = result("");
    assert_ne!(quarter, default);
    assert_eq!(result("--scale 0.5"), default);
    folder.write("in/scale.npy", &npy("|u1", false, &[], &[2]));
    assert_eq!(result(""), result("--scale 2"));
    folder.write("in/causal.npy", &npy("<i4", false, &[], &[0; 4]));
    let full = result("");
    assert_eq!(result("--no-causal"), full);
    assert_ne!(result("--causal"), full);
    folder.write("in/causal.npy", &npy("|b1", false, &[], &[1]));
    assert_eq!(result("--no-causal"), full);
    folder.remove("in/positions.npy");
    assert_eq!(result("--no-causal"), full);
}

#[test]
fn mamba_parameters_come_from_flags_and_arrays() {
    let folder = Folder::mamba3();
    let result = |flags: &str| {
        outputs(&folder, "mamba3-preprocess-backward", flags);
        folder.data("out/projected_gradient.npy")
    };
    let default = result("");
    for flag in ["--epsilon 1", "--dt-min 0.05", "--dt-max inf", "--a-floor 2.5"] {
        assert_ne!(result(flag), default, "{flag}");
    }
    folder.write("in/epsilon.npy", &npy("<i8", false, &[], &1i64.to_le_bytes()));
    assert_ne!(result(""), default);
    assert_eq!(result("--epsilon 1e-5"), default);
}

#[test]
fn settings_of_the_history_kernel_are_accepted() {
    let folder = Folder::attention();
    let flags = "--no-prune-queries --cache-history --compact-history --query-block-rows 7 --algorithm ordered";
    outputs(&folder, "history-backward", "");
    let expected = folder.read("out/k_gradient.npy");
    outputs(&folder, "history-backward", flags);
    assert_eq!(folder.read("out/k_gradient.npy"), expected);
}

#[test]
fn nothing_to_do_gives_zeros_of_the_right_shape() {
    let folder = Folder::sample(
        "paged-attention-backward",
        "--queries 0 --sequences 0 --pages 2 --page-size 3 --key-dim 5",
    );
    outputs(&folder, "paged-attention-backward", "");
    assert!(folder.head("out/q_gradient.npy").contains("(0, 4, 5)"));
    assert!(folder.head("out/k_gradient.npy").contains("(2, 3, 2, 5)"));
    assert!(folder.data("out/k_gradient.npy").iter().all(|&byte| byte == 0));
    let folder = Folder::sample("mamba3-preprocess-backward", "--rows 0");
    outputs(&folder, "mamba3-preprocess-backward", "");
    assert!(folder.data("out/projected_gradient.npy").is_empty());
    assert_eq!(folder.data("out/dt_bias_gradient.npy"), [0; 32]);
}

#[test]
fn a_plan_is_told_and_not_run() {
    let folder = Folder::attention();
    let words = format!("paged-attention-backward -i {} --compact-history --plan", folder.at("in"));
    let told = reference(&words).succeeded().stdout;
    for part in ["query_backward: 2 x 2", "clear_pages", "history_backward: 3 x 2", "pages 9"] {
        assert!(told.contains(part), "{told}");
    }
    let json = reference(&format!("{words} --json")).succeeded().json();
    assert_eq!(json["plan"]["steps"][0]["kernel"], "query_backward");
    // Of the pages to clear there are two arrays, and one pipeline.
    assert_eq!([&json["plan"]["dispatches"], &json["plan"]["pipelines"]], [4, 3]);
    assert_eq!(json["plan"]["bytes"]["scratch"], 0);
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} --plan -o {}", folder.at("in"), folder.at("out"));
    let told = reference(&words).succeeded().stdout;
    assert!(told.contains("mamba3_preprocess_backward: 3 x 1"), "{told}");
    assert_eq!(folder.names(""), ["in"]);
}

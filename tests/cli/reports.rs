//! Standard output, standard error, and the JSON object.

use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Folder, command, outcome, reference, run};

#[test]
fn json_has_every_key_on_success() {
    let folder = Folder::attention();
    let words = format!("history-backward -i {} -o {} --json", folder.at("in"), folder.at("out"));
    let json = reference(&words).succeeded().json();
    assert_eq!(json["command"], "history-backward");
    assert_eq!(json["device"], "reference");
    assert!(json["error"].is_null() && json["gpu_ms"].is_null());
    assert!(json["wall_ms"].as_f64().unwrap() > 0.0);
    let k = &json["outputs"]["k_gradient"];
    assert_eq!(k["shape"], serde_json::json!([9, 2, 2, 4]));
    assert_eq!(k["dtype"], "f32");
    assert_eq!(k["path"].as_str().unwrap(), folder.at("out/k_gradient.npy"));
    assert_eq!(json["outputs"].as_object().unwrap().len(), 2);
}

#[test]
fn json_has_every_key_on_failure() {
    let folder = Folder::attention();
    folder.remove("in/q.npy");
    let words = format!("history-backward -i {} -o {} --json", folder.at("in"), folder.at("out"));
    let failed = reference(&words).failed(2, &["`q` is missing"]);
    let json = failed.json();
    assert_eq!(json["command"], "history-backward");
    assert_eq!(json["error"]["kind"], "missing-array");
    assert!(json["error"]["message"].as_str().unwrap().contains("`q`"));
    for key in ["device", "gpu_ms"] {
        assert!(json[key].is_null(), "{json}");
    }
    assert_eq!(json["outputs"], serde_json::json!({}));
    assert!(json["wall_ms"].is_number());
}

#[test]
fn json_reports_wrong_flags_too() {
    for (words, command) in [
        ("--json history-backward --nonsense", json!("history-backward")),
        ("--json nonsense", Value::Null),
        ("devices extra --json", json!("devices")),
        ("--device check sample --json", json!("sample")),
    ] {
        let json = run(words.split(' ')).failed(2, &[]).json();
        assert_eq!(json["command"], command, "{json}");
        assert_eq!(json["error"]["kind"], "usage", "{json}");
        assert!(json["error"]["message"].as_str().unwrap().contains("--help"), "{json}");
    }
}

#[test]
fn text_names_what_was_written_and_quiet_says_nothing() {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    let said = reference(&words).succeeded();
    assert!(said.stderr.is_empty());
    for part in ["projected_gradient", "[6, 36]", "dt_bias_gradient.npy", "reference"] {
        assert!(said.stdout.contains(part), "{said:?}");
    }
    let quiet = reference(&format!("-q {words}")).succeeded();
    assert!(quiet.stdout.is_empty() && quiet.stderr.is_empty());
}

#[test]
fn help_and_version_need_nothing() {
    let help = run(["--help"]).succeeded().stdout;
    for part in ["paged-attention-backward", "devices", "Exit codes", "BACKSLANG_DEVICE"] {
        assert!(help.contains(part), "{help}");
    }
    let version = run(["--version"]).succeeded().stdout;
    assert_eq!(version.trim(), format!("backslang {}", env!("CARGO_PKG_VERSION")));
    for command in ["mamba3-preprocess-backward", "paged-attention-backward", "history-backward"] {
        assert!(run([command, "--help"]).succeeded().stdout.contains("Example"));
    }
    run([""; 0]).failed(2, &["subcommand"]);
    run(["devics"]).failed(2, &["'devics'", "'devices'"]);
    run(["sample", "mamba3-preproces"]).failed(2, &["'mamba3-preprocess'"]);
    run(["paged-apend"]).failed(2, &["'paged-append'"]);
    run(["sample"]).failed(2, &["subcommand"]);
    run(["history-backward"]).failed(2, &["were not provided: --output <PATH> (see --help)"]);
}

fn command_with(variable: &str, value: &str) -> std::process::Command {
    let mut command = command();
    command.env(variable, value);
    command
}

#[test]
fn kernels_are_listed() {
    let json = run(["kernels", "--json"]).succeeded().json();
    let kernels = json["kernels"].as_array().unwrap();
    let history = kernels.iter().filter(|kernel| kernel["name"] == "history_backward");
    let dtypes: Vec<_> = history.clone().map(|kernel| kernel["dtype"].as_str().unwrap()).collect();
    assert_eq!(dtypes, ["bf16", "f16", "f32"]);
    history.for_each(|kernel| assert!(kernel["push_bytes"].as_u64().unwrap() <= 128));
    let text = run(["kernels"]).succeeded().stdout;
    assert_eq!(text.lines().count(), kernels.len() + 1, "{text}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child =
        command().arg("--help").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success() && said.is_empty(), "{said}");
}

#[test]
fn the_environment_names_the_device_and_a_flag_overrides_it() {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {} --json", folder.at("in"), folder.at("out"));
    let mut by_name = command();
    by_name.args(words.split(' ')).env("BACKSLANG_DEVICE", "reference");
    assert_eq!(outcome(&mut by_name).succeeded().json()["device"], "reference");
    let mut unknown = command();
    unknown.args(words.split(' ')).env("BACKSLANG_DEVICE", "no such device");
    outcome(&mut unknown).failed(1, &[]);
    let mut checks = command_with("BACKSLANG_VALIDATE", "core,speed");
    outcome(checks.args(words.split(' '))).failed(2, &["BACKSLANG_VALIDATE", "core", "`speed`"]);
    let mut by_flag = command();
    by_flag
        .args(words.split(' '))
        .args(["--device", "reference"])
        .env("BACKSLANG_DEVICE", "no such");
    assert_eq!(outcome(&mut by_flag).succeeded().json()["device"], "reference");
}

#[test]
fn the_reference_validates_nothing_and_says_so() {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    reference(&format!("{words} --validate")).failed(2, &["--validate", "reference"]);
    reference(&format!("{words} --validate=all")).failed(2, &["validate", "core"]);
    assert_eq!(folder.names(""), ["in"]);
    let sample = format!("sample history-backward -o {}", folder.at("sample"));
    for words in ["kernels", "completions bash", &sample] {
        let command = words.split(' ').next().unwrap();
        run(words.split(' ').chain(["--validate"])).failed(2, &["--validate", command]);
        let mut asked = command_with("BACKSLANG_VALIDATE", "core");
        let asked = outcome(asked.args(words.split(' ')));
        assert!(!asked.stderr.contains("alidat"), "{asked:?}");
    }
}

#[test]
fn values_of_global_flags_are_looked_at() {
    for words in [["--validate=", "devices"], ["--validate=,", "devices"], ["--device=", "kernels"]]
    {
        let flag = words[0].split('=').next().unwrap();
        run(words).failed(2, &[flag, "(see --help)"]);
    }
    run(["--device", "", "devices"]).failed(2, &["--device"]);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for folder in [file, &format!("{file}/pipelines")] {
        run(["check", "--pipeline-cache", folder]).failed(2, &["--pipeline-cache: ", file]);
    }
    // A variable that is empty asks for nothing: the user's folder stands, whatever becomes of it.
    let mut empty = command_with("BACKSLANG_PIPELINE_CACHE", "");
    empty.args(["check", "--device", "no-such-device"]).env("XDG_CACHE_HOME", file);
    let empty = outcome(&mut empty);
    assert!(empty.code != Some(0) && !empty.stderr.contains("PIPELINE_CACHE"), "{empty:?}");
    run(["--device", " ", "check"]).failed(2, &["device", "index"]);
    for words in ["--validate core devices", "check --validate core"] {
        run(words.split(' ')).failed(2, &["'core'", "did you mean --validate=core?"]);
    }
    let mut unset = command();
    unset.arg("kernels").env("BACKSLANG_DEVICE", "").env("BACKSLANG_VALIDATE", "");
    outcome(&mut unset).succeeded();
}

#[test]
fn no_name_is_said_twice() {
    let message = run(["history-backward", "--gradients", "k,z", "-o", "x"]).failed(2, &[]).stderr;
    let rest = "expected `all` or a list of q, k, v, q_position, latent, k_position, found z";
    let expected = "error: invalid value 'k,z' for '--gradients <LIST>': ";
    assert_eq!(message, format!("{expected}{rest} (see --help)\n"));
    let message = run(["check", "foo"]).failed(2, &["'foo'", "history-backward"]).stderr;
    assert_eq!(message.matches("foo").count(), 1, "{message}");
}

#[test]
fn devices_are_listed_or_missed_in_one_line() {
    let listed = run(["devices", "--json"]);
    if listed.code == Some(0) {
        for device in listed.json()["devices"].as_array().unwrap() {
            assert_eq!(device["usable"], device["lacks"].as_array().unwrap().is_empty());
        }
        assert!(run(["devices"]).succeeded().stdout.contains("UUID"));
    } else {
        listed.failed(1, &["Vulkan"]);
    }
}

/// A list of drivers that names none stands in for a machine without any.
#[test]
fn without_a_driver_one_line_says_what_to_install() {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    for words in ["devices", &words] {
        let mut alone = command();
        alone.args(words.split(' '));
        alone.env("VK_DRIVER_FILES", "/nowhere.json").env("VK_ICD_FILENAMES", "/nowhere.json");
        outcome(&mut alone).failed(1, &["Vulkan", "install"]);
    }
    assert_eq!(folder.names(""), ["in"]);
}

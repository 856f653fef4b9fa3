//! The built command on a device.

#[path = "cli/harness.rs"]
#[allow(dead_code, reason = "the tests on the reference use the rest")]
mod harness;

#[path = "cli/schema.rs"]
#[allow(dead_code, reason = "the tests on the reference use the rest")]
mod schema;

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use backslang::runtime::Runtime;
use common::golden::{Case, relative_error};
use common::gpu;
use harness::{Folder, Outcome, outcome};
use schema::Schema;

fn main() -> ExitCode {
    gpu::main(vec![
        gpu::trial("golden_files", golden_files),
        gpu::trial("devices_are_chosen", devices_are_chosen),
        gpu::trial("checks_pass", checks_pass),
        gpu::trial("fresh_processes_share_bits", fresh_processes_share_bits),
    ])
}

/// With the device and the validation that the environment asks for.
fn device(words: &str) -> Outcome {
    outcome(Command::new(env!("CARGO_BIN_EXE_backslang")).args(words.split(' ')))
}

/// As [`Outcome::succeeded`], with the object that `--json` gives.
fn json(words: &str) -> serde_json::Value {
    device(&format!("{words} --json")).succeeded().json()
}

fn golden_files(runtime: &Runtime) {
    for (command, name) in [
        ("mamba3-preprocess-backward", "mamba_backward.npz"),
        ("paged-attention-backward", "backward_mla.npz"),
        ("history-backward", "history_zero_denominators.npz"),
    ] {
        let folder = Folder::new();
        let out = folder.at("out.npz");
        let report = json(&format!("{command} -i tests/data/{name} -o {out}"));
        assert_eq!(report["device"], runtime.device().name.as_str());
        assert_eq!(report["gpu_ms"].is_number(), runtime.device().timestamps);
        let (expected, found) = (Case::open(name), Case::open(&out));
        for output in report["outputs"].as_object().unwrap().keys() {
            let expected = expected.array(&format!("expected_{output}"));
            let error = relative_error(&found.array(output), &expected);
            assert!(error < 2e-6, "{name}: {output}: {error:e}");
        }
    }
}

fn devices_are_chosen(runtime: &Runtime) {
    let info = runtime.device();
    let listed = json("devices");
    Schema::read().holds_each("devices", &listed["devices"]);
    let found = &listed["devices"][info.index];
    assert_eq!(found["uuid"], info.uuid_text().as_str());
    assert_eq!(found["usable"], true);
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    for text in [info.index.to_string(), info.uuid_text()] {
        assert_eq!(json(&format!("{words} --device {text}"))["device"], info.name.as_str());
    }
    device(&format!("{words} --device no-such-device")).failed(1, &["no-such-device", &info.name]);
    device(&format!("{words} --device 999")).failed(1, &["index 999"]);
}

fn checks_pass(_: &Runtime) {
    let report = json("check mamba3-preprocess-backward");
    Schema::read().holds_each("checks", &report["checks"]);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 5 && checks.iter().all(|check| check["passed"] == true), "{report}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_backslang"))
        .args(["check", "history-backward"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let result = lines.next().unwrap().find("result").unwrap();
    assert_eq!(lines.next().unwrap().get(result..), Some("ok"));
    assert!(child.try_wait().unwrap().is_none(), "a case is told of at its end");
    assert!(lines.filter(|line| line.get(result..) == Some("ok")).count() > 2);
    assert!(child.wait().unwrap().success());
    device("check paged-attention").failed(2, &["paged-attention", "paged-attention-backward"]);
}

/// Every process gives the same bits, under every setting of the history kernel.
fn fresh_processes_share_bits(_: &Runtime) {
    for (command, sizes, settings) in [
        ("mamba3-preprocess-backward", "", ["", ""]),
        ("paged-attention-backward", "", ["", " --cache-history --compact-history"]),
        ("history-backward", "--mla", ["", " --no-prune-queries --query-block-rows 3"]),
    ] {
        let folder = Folder::sample(command, sizes);
        let archives = settings.map(|setting| {
            let out = folder.at("out.npz");
            json(&format!("{command} -i {} -o {out}{setting}", folder.at("in")));
            std::fs::read(out).unwrap()
        });
        assert!(archives[0] == archives[1], "{command}");
    }
}

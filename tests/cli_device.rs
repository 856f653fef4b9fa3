//! The built command on a device.

#[path = "cli/harness.rs"]
#[allow(dead_code, reason = "the tests on the reference use the rest")]
mod harness;

#[cfg(unix)]
#[path = "cli/terminal.rs"]
mod terminal;

#[path = "cli/schema.rs"]
#[allow(dead_code, reason = "the tests on the reference use the rest")]
mod schema;

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use backslang::runtime::{Runtime, Validation, devices};
use common::golden::{Case, relative_error};
use common::gpu;
use harness::{Folder, Outcome, outcome};
use schema::Schema;

fn main() -> ExitCode {
    gpu::main(vec![
        gpu::trial("golden_files", golden_files),
        gpu::trial("appended_rows_are_copied", appended_rows_are_copied),
        gpu::trial("a_whole_step_agrees", a_whole_step_agrees),
        gpu::trial("gradients_are_added_to", gradients_are_added_to),
        gpu::trial("devices_are_chosen", devices_are_chosen),
        gpu::trial("checks_pass", checks_pass),
        gpu::trial("the_host_is_measured", the_host_is_measured),
        gpu::trial("the_kernels_are_measured", the_kernels_are_measured),
        gpu::trial("growth_is_measured", growth_is_measured),
        gpu::trial("compiled_kernels_are_kept", compiled_kernels_are_kept),
        #[cfg(target_os = "linux")]
        gpu::trial("a_log_that_cannot_be_written_is_lost", a_log_that_cannot_be_written_is_lost),
        gpu::validated_trial("validation_in_every_form", |runtime| {
            validation_in_every_form(&runtime);
            Ok(())
        }),
        gpu::validated_trial("a_message_of_validation_is_a_failure", |runtime| {
            a_message_of_validation_is_a_failure(&runtime);
            Ok(())
        }),
        gpu::validated_trial("a_silent_layer_is_a_failure", |runtime| {
            a_silent_layer_is_a_failure(&runtime);
            Ok(())
        }),
        gpu::trial("fresh_processes_share_bits", fresh_processes_share_bits),
        gpu::trial("slices_share_bits", slices_share_bits),
        #[cfg(unix)]
        gpu::trial("a_signal_stops_between_slices", a_signal_stops_between_slices),
        #[cfg(unix)]
        gpu::trial("a_bar_shows_how_far_it_is", a_bar_shows_how_far_it_is),
        gpu::trial("merged_parts_are_the_files_of_one_run", merged_parts_are_the_files_of_one_run),
        gpu::trial("all_devices_share_the_work", all_devices_share_the_work),
    ])
}

/// With the device and the validation that the environment asks for.
fn device(words: &str) -> Outcome {
    outcome(command().args(words.split(' ')))
}

/// Each test compiles what it runs.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backslang"));
    command.env("BACKSLANG_PIPELINE_CACHE", "none");
    command
}

/// As [`Outcome::succeeded`], with the object that `--json` gives, which is as described.
fn json(words: &str) -> serde_json::Value {
    let object = device(&format!("{words} --json")).succeeded().json();
    let (schema, mut common) = (Schema::read(), object.clone());
    for key in schema.some_commands().keys() {
        common.as_object_mut().unwrap().remove(key);
    }
    schema.holds("Every command", &common);
    object
}

fn golden_files(runtime: &Runtime) {
    for (command, name, tolerance) in [
        ("mamba3-preprocess", "mamba_forward.npz", 2e-6),
        ("mamba3-preprocess-backward", "mamba_backward.npz", 2e-6),
        ("paged-attention", "forward_gqa.npz", 2e-6),
        ("paged-attention-backward", "backward_mla.npz", 2e-6),
        ("history-backward", "history_zero_denominators.npz", 2e-6),
        ("history-backward", "history_f16.npz", 1e-3),
        ("paged-attention-backward --dtype bf16", "backward_bf16.npz", 8e-3),
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
            assert!(error < tolerance, "{name}: {output}: {error:e}");
        }
    }
}

/// The device and the reference write the same bits.
fn appended_rows_are_copied(_: &Runtime) {
    for sizes in ["--dtype f32", "--mla --dtype f16 --position-dim 5", "--dtype bf16 --key-dim 7"] {
        let folder = Folder::sample("paged-append", sizes);
        let dtype = sizes.split_once("--dtype ").unwrap().1.split(' ').next().unwrap();
        let archives = ["", " --device reference"].map(|flags| {
            let out = folder.at("out.npz");
            let words = format!("paged-append -i {} -o {out} --dtype {dtype}", folder.at("in"));
            json(&(words + flags));
            std::fs::read(out).unwrap()
        });
        assert!(archives[0] == archives[1], "{sizes}");
    }
}

/// The commands of a training step, one after the other: rows are appended, attended to, and differentiated with what the
/// forward saved. The device and the reference agree at the end, as they do without what was saved.
fn a_whole_step_agrees(_: &Runtime) {
    for (dtype, sizes, tolerance) in
        [("f32", "", 2e-6), ("f16", "", 2e-3), ("bf16", "--mla --position-dim 3", 1.6e-2)]
    {
        let sizes = format!("{sizes} --dtype {dtype}");
        let folder = Folder::sample("paged-attention-backward", &sizes);
        let new = Folder::sample("paged-append", &sizes);
        let step = |place: &str, flags: &str| {
            let at = |name: &str| folder.at(&format!("{place}-{name}"));
            let (cache, saved, out) = (at("cache"), at("saved"), at("gradients.npz"));
            let flags = format!("--dtype {dtype}{flags}");
            json(&format!("paged-append -i {} -o {cache} {flags}", new.at("in")));
            // The queries of the one, the schedule of the other, and the cache with the new rows.
            let inputs = format!("-i {} -i {} -i {cache}", folder.at("in"), new.at("in"));
            json(&format!("paged-attention {inputs} -o {saved} {flags}"));
            let words = format!("paged-attention-backward {inputs} -i {saved} -o {out} {flags}");
            json(&words);
            (Case::open(&out), json(&words.replace(&format!(" -i {saved}"), "")), out)
        };
        let (found, report, alone) = step("device", "");
        let (expected, ..) = step("reference", " --device reference");
        let alone = Case::open(&alone);
        for name in report["outputs"].as_object().unwrap().keys() {
            let expected = expected.array(name);
            for (found, what) in [(&found, "chained"), (&alone, "alone")] {
                let error = relative_error(&found.array(name), &expected);
                assert!(error < tolerance, "{dtype} {what}: {name}: {error:e}");
            }
        }
    }
}

/// What is added to comes back as the reference has it, the rest with the bits that it has alone.
fn gradients_are_added_to(_: &Runtime) {
    let folder = Folder::sample("history-backward", "--dtype f16");
    let run = |out: &str, flags: &str| {
        let out = folder.at(out);
        json(&format!("history-backward -i {} -o {out}{flags}", folder.at("in")));
    };
    run("alone", "");
    folder.write("in/k_gradient.npy", &folder.read("alone/k_gradient.npy"));
    run("sum.npz", " --accumulate");
    run("sum", " --accumulate");
    run("expected.npz", " --accumulate --device reference");
    let [found, expected] = ["sum.npz", "expected.npz"].map(|name| Case::open(&folder.at(name)));
    for name in ["k_gradient", "v_gradient"] {
        let error = relative_error(&found.array(name), &expected.array(name));
        assert!(error < 1e-3, "{name}: {error:e}");
    }
    assert_eq!(folder.read("sum/v_gradient.npy"), folder.read("alone/v_gradient.npy"));
    assert_ne!(folder.read("sum/k_gradient.npy"), folder.read("alone/k_gradient.npy"));
}

fn devices_are_chosen(runtime: &Runtime) {
    let info = runtime.device();
    let listed = json("devices");
    Schema::read().holds_each("devices", &listed["devices"]);
    let found = &listed["devices"][info.index];
    assert_eq!(found["uuid"], info.uuid_text().as_str());
    assert_eq!(found["usable"], true);
    let all = devices(Validation::NONE).unwrap();
    assert_eq!(found["matrices"], serde_json::json!(all[info.index].matrices.names()));
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    for text in [info.index.to_string(), info.uuid_text()] {
        assert_eq!(json(&format!("{words} --device {text}"))["device"], info.name.as_str());
    }
    device(&format!("{words} --device no-such-device")).failed(1, &["no-such-device", &info.name]);
    device(&format!("{words} --device 999")).failed(1, &["index 999"]);
}

fn checks_pass(runtime: &Runtime) {
    let report = json("check mamba3-preprocess-backward");
    Schema::read().holds_each("checks", &report["checks"]);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 15 && checks.iter().all(|check| check["passed"] == true), "{report}");
    for dtype in ["f32", "f16", "bf16"] {
        assert!(checks.iter().filter(|check| check["dtype"] == dtype).count() > 5, "{report}");
    }
    let timed = |check: &serde_json::Value| check["gpu_ms"].is_number();
    assert!(checks.iter().all(|check| timed(check) == runtime.device().timestamps), "{report}");
    let mut child = command()
        .args(["check", "mamba3-preprocess-backward", "history-backward", "--dtype", "bf16"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let titles = lines.next().unwrap();
    let result = titles.find("result").unwrap();
    assert_eq!(lines.next().unwrap().get(result..), Some("ok"));
    assert!(child.try_wait().unwrap().is_none(), "a case is told of at its end");
    let lines = lines.collect::<Vec<_>>();
    let dtype = titles.find("type").unwrap();
    for command in ["mamba3-preprocess-backward", "history-backward"] {
        let rows = lines.iter().filter(|line| line.starts_with(command));
        let passed = rows.clone().filter(|line| line.get(result..) == Some("ok"));
        assert!(passed.count() > 3, "{lines:#?}");
        assert!(rows.clone().all(|line| line[dtype..].starts_with("bf16")), "{lines:#?}");
    }
    assert!(child.wait().unwrap().success());
    device("check attention").failed(2, &["attention", "paged-attention-backward"]);
    device("check --dtype f64").failed(2, &["f64", "bf16"]);
}

fn the_host_is_measured(runtime: &Runtime) {
    let report = json("bench host --repeats 2 --size 1");
    Schema::read().holds_each("benches", &report["benches"]);
    assert_eq!(report["device"], runtime.device().name.as_str());
    let measures = report["benches"].as_array().unwrap();
    assert_eq!(measures.len(), 11);
    for measure in measures {
        let [low, median, high] = ["lower_quartile", "median", "upper_quartile"]
            .map(|key| measure[key].as_f64().unwrap());
        assert!(0.0 < low && low <= median && median <= high, "{measure}");
        assert_eq!(measure["repeats"], 2);
    }
    device("bench --repeats 2 host").failed(2, &["host"]);
    device("bench host --repeats 0").failed(2, &["--repeats"]);
    device("bench host --device reference").failed(2, &["reference"]);
}

/// A point for each value of each sweep.
fn growth_is_measured(_: &Runtime) {
    let report = json("bench scaling mamba3-rows history --shrink 4096 --repeats 1");
    let (schema, scaling) = (Schema::read(), &report["scaling"]);
    schema.holds("scaling", scaling);
    schema.holds_each("points", &scaling["points"]);
    let points = scaling["points"].as_array().unwrap();
    let of = |sweep: &str| points.iter().filter(|point| point["sweep"] == sweep).count();
    assert_eq!([of("mamba3-rows"), of("history"), points.len()], [12, 7, 19]);
    for point in points {
        schema.holds("cases of kernel_benches", &point["measured"]);
        let pairs = point["measured"]["pairs"].as_f64().unwrap() > 0.0;
        assert_eq!(point["ps_per_pair"].is_number(), pairs, "{point}");
    }
    device("bench scaling lengths").failed(2, &["lengths", "history"]);
}

/// Every case, at lengths that take no time.
fn the_kernels_are_measured(runtime: &Runtime) {
    let report = json("bench --forward --shrink 2048 --repeats 2");
    let (schema, benches) = (Schema::read(), &report["kernel_benches"]);
    schema.holds("kernel_benches", benches);
    schema.holds_each("benches", &benches["ceilings"]);
    assert_eq!(report["device"], runtime.device().name.as_str());
    let cases = benches["cases"].as_array().unwrap();
    schema.holds_each("cases of kernel_benches", &benches["cases"]);
    let left_out = benches["left_out"].as_array().unwrap();
    left_out.iter().for_each(|case| schema.holds("left_out", case));
    assert_eq!(cases.len() + left_out.len(), 19);
    for case in cases {
        schema.holds("time", &case["time"]);
        schema.holds_each("kernels of a case", &case["kernels"]);
        assert!(case["time"]["median"].as_f64().unwrap() > 0.0, "{case}");
        let name = case["case"].as_str().unwrap();
        let products = case["operations"].as_f64().unwrap() > 0.0;
        assert_eq!(products, name.starts_with("attention"), "{case}");
        let kernels = case["kernels"].as_array().unwrap().iter();
        let of_kernels = kernels.map(|kernel| kernel["operations"].as_f64().unwrap()).sum::<f64>();
        assert_eq!(case["operations"].as_f64().unwrap(), of_kernels, "{case}");
    }
    let words = "bench mamba3-1 attention-b --dtype all --shrink 2048 --repeats 1";
    let text = device(words).succeeded().stdout;
    let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!([lines("attention-b "), lines("mamba3-1 "), lines("copy: ")], [3, 3, 1], "{text}");
    device("bench attention-f").failed(2, &["attention-f", "attention-a"]);
    device("bench --algorithm tiled").failed(2, &["tiled"]);
    device("bench --device reference").failed(2, &["reference"]);
    device("bench --device all").failed(2, &["all"]);
}

/// In the folder of the flag, or of the variable, or of the user. What is damaged is told of and replaced.
fn compiled_kernels_are_kept(_: &Runtime) {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    let run = |flags: &str, variables: &[(&str, &str)]| {
        let mut command = command();
        command.args(format!("{words}{flags}").split(' ')).envs(variables.iter().copied());
        let said = outcome(&mut command).succeeded().stderr;
        // A software driver is told of as well.
        let lines = said.lines().filter(|line| line.contains("cache"));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let [flag, asked, user] = ["flag", "asked", "user"].map(|name| folder.at(name));
    let ask = ("BACKSLANG_PIPELINE_CACHE", &asked[..]);
    assert_eq!(run(&format!(" --pipeline-cache {flag}"), &[ask]), "");
    assert_eq!((folder.names("flag").len(), folder.names("asked").len()), (1, 0));
    run("", &[ask]);
    assert_eq!(folder.names("asked").len(), 1);
    run(
        "",
        &[("BACKSLANG_PIPELINE_CACHE", ""), ("XDG_CACHE_HOME", &user), ("LOCALAPPDATA", &user)],
    );
    assert_eq!(folder.names("user/backslang/pipelines").len(), 1);
    let file = format!("flag/{}", folder.names("flag")[0]);
    folder.write(&file, b"damaged");
    let said = run(&format!(" --pipeline-cache {flag}"), &[]);
    assert!(
        said.starts_with("warning: the pipeline cache ") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(run(&format!(" --pipeline-cache {flag}"), &[]), "");
    assert_eq!(folder.names("").len(), 5, "{:?}", folder.names(""));
}

/// Runs the smallest job there is with `flags`, the layer asked for by the environment, and other variables.
fn small(folder: &Folder, flags: &str, validate: &str, more: &[(&str, &str)]) -> Outcome {
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    let mut command = command();
    command.args(format!("{words} {flags}").split_whitespace()).env("BACKSLANG_VALIDATE", validate);
    outcome(command.envs(more.iter().copied()))
}

/// Where no layer is found, only a call that asks for one fails.
fn validation_in_every_form(runtime: &Runtime) {
    let folder = Folder::mamba3();
    let layerless = &[("VK_LAYER_PATH", "/nowhere"), ("VK_ADD_LAYER_PATH", "")];
    for (flags, validate) in [
        ("--validate", ""),
        ("--validate=core", ""),
        ("--validate=core,sync", ""),
        ("--validate=sync", "gpu"),
        ("", "core"),
        ("", "sync,core"),
        ("--validate=core", "bogus"),
    ] {
        small(&folder, flags, validate, &[]).succeeded();
        fs::remove_dir_all(folder.at("out")).unwrap();
        let json = small(&folder, &format!("{flags} --json"), validate, layerless);
        let json = json.failed(1, &["VK_LAYER_KHRONOS_validation"]).json();
        assert_eq!(json["error"]["kind"], "no-validation-layer");
        assert_eq!(folder.names(""), ["in"]);
    }
    // Under checks in its shaders this driver crashes.
    if !runtime.device().name.contains("SwiftShader") {
        small(&folder, "--validate=gpu", "", &[]).succeeded();
        fs::remove_dir_all(folder.at("out")).unwrap();
    }
    for (flags, validate) in [("--validate=", "core"), ("--validate=bogus", "core"), ("", "bogus")]
    {
        small(&folder, flags, validate, &[]).failed(2, &["core, sync and gpu"]);
        assert_eq!(folder.names(""), ["in"]);
    }
    small(&folder, "", " ", layerless).succeeded();
    small(&folder, "--device reference", "core", layerless).succeeded();
    small(&folder, "--device reference --validate", "", layerless).failed(2, &["--validate"]);
}

#[cfg(target_os = "linux")]
fn a_log_that_cannot_be_written_is_lost(_: &Runtime) {
    let folder = Folder::mamba3();
    let words = format!("mamba3-preprocess-backward -i {} -o", folder.at("in"));
    assert!(device(&format!("{words} {} -vv", folder.at("heard"))).stderr.contains("pipeline"));
    for (stderr, name) in harness::unwritable() {
        let mut run = command();
        run.args(words.split(' ')).args([&folder.at(name), "-vv", "--json"]).stderr(stderr);
        assert!(outcome(&mut run).succeeded().json()["error"].is_null(), "{name}");
        assert_eq!(folder.names(name), folder.names("heard"));
    }
}

/// The layer's advice on good practice, which the environment can ask it for, is a message like any other.
fn a_message_of_validation_is_a_failure(_: &Runtime) {
    let folder = Folder::mamba3();
    let advice = [
        ("VK_LAYER_VALIDATE_BEST_PRACTICES", "1"),
        ("VK_LAYER_ENABLES", "VK_VALIDATION_FEATURE_ENABLE_BEST_PRACTICES_EXT"),
    ];
    let failed = small(&folder, "-q --json", "core", &advice).failed(1, &["validation message"]);
    assert_eq!(failed.json()["error"]["kind"], "validation");
    assert_eq!(folder.names(""), ["in"]);
    let mut check = command();
    check.args(["check", "mamba3-preprocess-backward", "--validate", "-q"]).envs(advice);
    outcome(&mut check).failed(1, &["validation message"]);
}

/// What settings beside the command keep the layer from saying would pass for a clean run.
fn a_silent_layer_is_a_failure(_: &Runtime) {
    let folder = Folder::mamba3();
    let silent = |flags: &str, more: &[(&str, &str)], part: &str| {
        let failed = small(&folder, flags, "", more).failed(1, &["reports nothing", part]);
        assert_eq!(failed.json()["error"]["kind"], "no-validation-layer");
        assert_eq!(folder.names(""), ["in"]);
    };
    silent("-q --json --validate", &[("VK_LAYER_VALIDATE_SYNC", "false")], "`sync`");
    silent("-q --json --validate=sync", &[("VK_LAYER_VALIDATE_SYNC", "false")], "`sync`");
    let off = [("VK_LAYER_MESSAGE_ID_FILTER", "VUID-vkCmdFillBuffer-dstOffset-00025")];
    silent("-q --json --validate", &off, "`core`");
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

fn slices_share_bits(runtime: &Runtime) {
    for command in ["mamba3-preprocess-backward", "paged-attention", "paged-attention-backward"] {
        let folder = Folder::sample(command, "--dtype f16");
        let archives = ["", " --slice-ms 0", " --slice-ms 1"].map(|flags| {
            let out = folder.at("out.npz");
            let report = json(&format!("{command} -i {} -o {out}{flags}", folder.at("in")));
            assert_eq!(
                report["gpu_ms"].as_f64().is_some_and(|ms| ms > 0.0),
                runtime.device().timestamps
            );
            std::fs::read(out).unwrap()
        });
        assert!(archives[1..].iter().all(|archive| *archive == archives[0]), "{command}");
    }
    device("paged-attention --slice-ms x --plan").failed(2, &["--slice-ms"]);
}

/// Inputs that take a device without hurry some seconds.
#[cfg(unix)]
const LONG: &str =
    "--queries 4000 --heads 8 --kv-heads 1 --key-dim 8 --page-size 16 --pages 300 --sequences 1";

/// The device is taken down in order, and nothing is left.
#[cfg(unix)]
fn a_signal_stops_between_slices(_: &Runtime) {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = Folder::sample("paged-attention-backward", LONG);
    let mut command = command();
    command.args(["paged-attention-backward", "-vvv", "--slice-ms", "40", "-i", &folder.at("in")]);
    command.args(["-o", &folder.at("out")]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("slice of ")));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let rest: Vec<_> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(128 + Signal::TERM.as_raw()), "{rest:#?}");
    assert!(rest.iter().any(|line| line.contains("the device came to an end")), "{rest:#?}");
    assert_eq!(folder.names(""), ["in"]);
}

#[cfg(unix)]
fn a_bar_shows_how_far_it_is(_: &Runtime) {
    let folder = Folder::sample("paged-attention-backward", "");
    for columns in [80, 20] {
        let words = format!("paged-attention-backward -i {}", folder.at("in"));
        let mut command = command();
        command.args(words.split(' ')).args(["-o", &folder.at("out")]).env("TERM", "xterm");
        let (text, code) = terminal::shown(columns, &mut command, false);
        assert_eq!(code, Some(0), "{text:?}");
        let bars = text.split(terminal::ERASE).filter(|frame| frame.contains('%'));
        let frames: Vec<_> = bars.collect();
        let widest = frames.iter().map(|frame| frame.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= usize::from(columns)), "{columns}: {text:?}");
        let percent = |frame: &&str| frame.split_once('%')?.0.rsplit(' ').next()?.parse().ok();
        let percents: Vec<u32> = frames.iter().filter_map(percent).collect();
        assert_eq!(percents.len(), frames.len(), "{text:?}");
        assert!(percents.is_sorted() && percents.iter().all(|&percent| percent <= 100), "{text:?}");
    }
}

fn merged_parts_are_the_files_of_one_run(runtime: &Runtime) {
    for (command, sizes, dtype, count) in [
        ("mamba3-preprocess", "--rows 7", "bf16", 2),
        ("mamba3-preprocess-backward", "--rows 300 --heads 3", "f16", 2),
        ("paged-attention", "", "f32", 2),
        ("paged-append", "--mla", "f16", 2),
        ("paged-attention-backward", "--heads 6 --kv-heads 3 --key-dim 5", "bf16", 2),
        ("history-backward", "--mla", "f32", 2),
    ] {
        let folder = Folder::sample(command, &format!("{sizes} --dtype {dtype}"));
        let words = format!("{command} --dtype {dtype} -i {}", folder.at("in"));
        json(&format!("{words} -o {}", folder.at("whole.npz")));
        let mut merge = vec![String::from("merge")];
        for index in 0..count {
            let out = folder.at(&format!("part.{index}"));
            let part = json(&format!("{words} -o {out} --shard {index}/{count}"));
            assert_eq!(part["device"], runtime.device().name.as_str());
            assert_eq!(part["shard"]["devices"][0]["subgroup_size"], runtime.lanes());
            merge.push(out);
        }
        json(&format!("{} -o {}", merge.join(" "), folder.at("merged.npz")));
        assert!(folder.read("merged.npz") == folder.read("whole.npz"), "{command}");
        if command == "paged-append" {
            // What the reference computed is not joined with what a device did.
            let out = folder.at("part.0");
            device(&format!("{words} -o {out} --shard 0/2 --device reference")).succeeded();
            let failed = device(&format!("{} -o {}", merge.join(" "), folder.at("mixed")));
            failed.failed(2, &["the reference", "a device"]);
        }
    }
}

/// Of one device, its bits; of two kinds, near to them, with a note.
fn all_devices_share_the_work(runtime: &Runtime) {
    let folder = Folder::sample("paged-attention-backward", "");
    let words = |out: &str| {
        format!("paged-attention-backward -i {} -o {} --json", folder.at("in"), folder.at(out))
    };
    let alone = command().args(words("one.npz").split(' ')).output().unwrap();
    assert!(alone.status.success());
    let all = |out: &str, drivers: Option<&str>| {
        let mut command = command();
        command.args(words(out).split(' ')).args(["--device", "all"]);
        if let Some(drivers) = drivers {
            command.env("VK_DRIVER_FILES", drivers).env("VK_ICD_FILENAMES", drivers);
        }
        outcome(&mut command).succeeded()
    };
    let listed = json("devices")["devices"].as_array().unwrap().len();
    let found = all("all.npz", None);
    if listed == 1 {
        assert_eq!(found.json()["device"], runtime.device().name.as_str());
        assert!(folder.read("all.npz") == folder.read("one.npz"));
    }
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let icds = [set("BACKSLANG_LAVAPIPE_ICD"), set("BACKSLANG_SWIFTSHADER_ICD")];
    let [Some(first), Some(second)] = icds else { return };
    let found = all("two.npz", Some(&format!("{first}:{second}")));
    let device = found.json()["device"].to_string();
    assert!(["llvmpipe", "SwiftShader", ", "].iter().all(|part| device.contains(part)), "{device}");
    assert!(found.stderr.contains("note: the bits may differ"), "{found:?}");
    let [one, two] = ["one.npz", "two.npz"].map(|name| Case::open(&folder.at(name)));
    for name in ["q_gradient", "k_gradient", "v_gradient"] {
        let error = relative_error(&two.array(name), &one.array(name));
        assert!(error < 2e-6, "{name}: {error:e}");
    }
}

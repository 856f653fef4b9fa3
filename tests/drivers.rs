//! What the command says of a missing loader, of drivers that are missing, broken or lack something, and of several.
//!
//! `BACKSLANG_LAVAPIPE_ICD`, `BACKSLANG_SWIFTSHADER_ICD` and `BACKSLANG_MOCK_ICD` name the manifests of drivers; where one
//! is missing, what needs it shows as ignored.

#[path = "cli/harness.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod harness;

use std::process::{Command, ExitCode};

use backslang::Error;
use backslang::runtime::Validation;
use harness::{Folder, MAMBA3, Outcome, command, command_with_libraries, outcome};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() -> ExitCode {
    let trial = |name, needs: &'static [&'static str], test: fn(&[String])| {
        Trial::ignorable_test(name, move || ignorable(needs, test))
    };
    let trials = vec![
        trial("no_loader", &[], no_loader),
        trial("no_driver", &[], no_driver),
        trial("a_broken_driver_beside_another", &[LAVAPIPE], a_broken_driver_beside_another),
        trial("a_driver_that_lacks_something", &[MOCK], a_driver_that_lacks_something),
        trial("one_driver_of_two_will_do", &[MOCK, LAVAPIPE], one_driver_of_two_will_do),
        trial("two_drivers", &[SWIFTSHADER, LAVAPIPE], two_drivers),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

const LAVAPIPE: &str = "BACKSLANG_LAVAPIPE_ICD";
const SWIFTSHADER: &str = "BACKSLANG_SWIFTSHADER_ICD";
const MOCK: &str = "BACKSLANG_MOCK_ICD";

/// Runs a test with the manifests that it needs.
fn ignorable(needs: &[&str], test: fn(&[String])) -> Result<Completion, Failed> {
    if let Err(error @ Error::NoLoader(_)) = backslang::runtime::devices(Validation::NONE) {
        return Ok(Completion::ignored_with(error));
    }
    let mut manifests = Vec::new();
    for variable in needs {
        match std::env::var(variable) {
            Ok(manifest) if !manifest.is_empty() => manifests.push(manifest),
            _ => return Ok(Completion::ignored_with(format!("{variable} is not set"))),
        }
    }
    test(&manifests);
    Ok(Completion::Completed)
}

/// The command with these drivers alone.
fn with(drivers: &[String]) -> Command {
    let mut command = command();
    // Loaders before 1.3.207 know only the second name.
    command.env("VK_DRIVER_FILES", drivers.join(":")).env("VK_ICD_FILENAMES", drivers.join(":"));
    command.env_remove("VK_ADD_DRIVER_FILES");
    command
}

fn run(mut command: Command, words: &str) -> Outcome {
    outcome(command.args(words.split_whitespace()))
}

/// What needs a device fails with `parts`; what needs none does not.
fn works_without_a_device(make: impl Fn() -> Command, parts: &[&str]) {
    let folder = Folder::new();
    let [input, out] = [folder.at("in"), folder.at("out")];
    run(make(), &format!("sample mamba3-preprocess-backward -o {input} --seed 5 {MAMBA3}"))
        .succeeded();
    let call = format!("mamba3-preprocess-backward -i {input} -o {out}");
    for words in ["devices", "check", &call] {
        run(make(), words).failed(1, parts);
    }
    assert_eq!(folder.names(""), ["in"]);
    for words in [
        "--help",
        "--version",
        "mamba3-preprocess-backward --help",
        "kernels",
        "completions bash",
        &format!("{call} --plan"),
        &format!("{call} --device reference"),
    ] {
        run(make(), words).succeeded();
    }
    assert_eq!(folder.names("out").len(), 3);
}

/// A file that is no library stands where the loader is looked for first.
fn no_loader(_: &[String]) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let folder = Folder::new();
    folder.write("libvulkan.so.1", b"not a library");
    let make = || command_with_libraries(folder.path());
    works_without_a_device(make, &["no Vulkan loader", "libvulkan.so.1", "install libvulkan1"]);
}

fn no_driver(_: &[String]) {
    let folder = Folder::new();
    folder.write("empty.json", b"{}");
    let library = folder.at("nowhere.so");
    let manifest = format!(
        r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{library}", "api_version": "1.3.0"}}}}"#
    );
    folder.write("broken.json", manifest.as_bytes());
    for (name, said) in
        [("empty.json", "empty.json"), ("broken.json", &library), ("none.json", "none.json")]
    {
        let drivers = [folder.at(name)];
        let parts = ["no Vulkan driver", name, said, "install a GPU's driver", "lavapipe"];
        match name {
            "broken.json" => works_without_a_device(|| with(&drivers), &parts),
            _ => drop(run(with(&drivers), "devices").failed(1, &parts)),
        }
    }
}

fn a_broken_driver_beside_another(manifests: &[String]) {
    let folder = Folder::new();
    folder.write("empty.json", b"{}");
    let drivers = [folder.at("empty.json"), folder.at("none.json"), manifests[0].clone()];
    let found = run(with(&drivers), "devices --json").succeeded().json();
    assert_eq!(found["devices"].as_array().unwrap().len(), 1);
    assert_eq!(found["devices"][0]["usable"], true);
}

/// The loader's mock driver computes nothing and offers little.
fn a_driver_that_lacks_something(manifests: &[String]) {
    let found = run(with(manifests), "devices --json").succeeded().json();
    assert_eq!(found["devices"][0]["usable"], false);
    let lacks = found["devices"][0]["lacks"].as_array().unwrap();
    assert!(lacks.contains(&"timelineSemaphore".into()), "{lacks:?}");
    let lacks: Vec<_> = lacks.iter().map(|what| what.as_str().unwrap()).collect();
    run(with(manifests), "devices").succeeded();
    let parts = ["no usable Vulkan device: 0 (Vulkan Mock Device): lacks ", &lacks.join(", ")];
    run(with(manifests), "check").failed(1, &parts);
    let parts = ["no usable Vulkan device for `mock`", parts[1]];
    run(with(manifests), "check --device mock").failed(1, &parts);
}

fn one_driver_of_two_will_do(manifests: &[String]) {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out.npz"));
    let found = run(with(manifests), &words).succeeded();
    assert!(
        found.stderr.contains("in software: ")
            && found.stderr.contains("(Vulkan Mock Device) lacks "),
        "{found:?}"
    );
}

fn two_drivers(manifests: &[String]) {
    let found = run(with(manifests), "devices --json").succeeded().json();
    let devices = found["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    let folder = Folder::mamba3();
    let words = format!(
        "mamba3-preprocess-backward -i {} -o {} --json",
        folder.at("in"),
        folder.at("out.npz")
    );
    // Both are software: one of them is taken, with a note.
    let chosen = run(with(manifests), &words).succeeded();
    assert!(chosen.stderr.contains("in software: there is no GPU"), "{chosen:?}");
    assert!(devices.iter().any(|device| device["name"] == chosen.json()["device"]));
    for (index, device) in devices.iter().enumerate() {
        let name = device["name"].as_str().unwrap();
        let part = name.split(' ').next().unwrap().to_uppercase();
        for text in [&index.to_string(), device["uuid"].as_str().unwrap(), &part] {
            let chosen = run(with(manifests), &format!("{words} --device {text}")).succeeded();
            assert_eq!(chosen.json()["device"], name, "{text}");
            assert_eq!(chosen.stderr, "", "{text}");
        }
    }
    // Both names have an e.
    run(with(manifests), "check --device e").failed(1, &["several", "0 (", "1 ("]);
}

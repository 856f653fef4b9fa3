//! The JSON object is what `docs/json.md` says.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{ATTENTION, Folder, MAMBA3, MLA, reference, run};
use crate::schema::Schema;

/// The object that every command gives, and the key that some add to it.
fn split(schema: &Schema, mut object: Value) -> (Value, Option<(String, Value)>) {
    let extras = schema.some_commands();
    let keys = object.as_object_mut().unwrap();
    let extra = extras.keys().find_map(|key| Some((key.clone(), keys.remove(key)?)));
    schema.holds("Every command", &object);
    if let Some((key, value)) = &extra {
        assert!(schema.is_a(&extras[key], value), "{key}: {value}");
    }
    let outputs = object["outputs"].as_object().unwrap();
    outputs.values().for_each(|output| schema.holds("outputs", output));
    (object, extra)
}

/// What the command adds under the key.
fn extra(schema: &Schema, words: &str, key: &str) -> Value {
    let found = reference(words).succeeded();
    assert!(found.stderr.is_empty(), "{found:?}");
    let (object, extra) = split(schema, found.json());
    assert!(object["error"].is_null() && object["device"].is_null());
    let (found, value) = extra.unwrap();
    assert_eq!(found, key, "{words}");
    value
}

#[test]
fn of_every_computation_its_sample_and_its_plan() {
    let schema = Schema::read();
    for (command, sizes) in [
        ("mamba3-preprocess", MAMBA3),
        ("paged-attention", ATTENTION),
        ("paged-attention", MLA),
        ("paged-append", ""),
        ("paged-append", "--mla"),
        ("mamba3-preprocess-backward", MAMBA3),
        ("paged-attention-backward", ATTENTION),
        ("paged-attention-backward", MLA),
        ("history-backward", ATTENTION),
        ("history-backward", MLA),
    ] {
        let folder = Folder::new();
        let (input, out) = (folder.at("in.npz"), folder.at("out"));
        let sample = run(format!("sample {command} {sizes} -o {input} --json").split_whitespace());
        let run = reference(&format!("{command} -i {input} -o {out} --json"));
        for said in [sample, run] {
            let said = said.succeeded();
            assert!(said.stderr.is_empty(), "{said:?}");
            let (object, extra) = split(&schema, said.json());
            assert!(!object["outputs"].as_object().unwrap().is_empty() && extra.is_none());
        }
        let plan = extra(&schema, &format!("{command} -i {input} --plan --json"), "plan");
        schema.holds("plan", &plan);
        schema.holds_each("steps", &plan["steps"]);
        assert!(plan["bytes"].as_object().unwrap().values().all(Value::is_number));
        schema.holds("target", &plan["target"]);
        assert_eq!(plan["limits"].as_array().unwrap().len(), 0);
        for step in plan["steps"].as_array().unwrap() {
            assert_eq!(step["workgroups"].as_array().unwrap().len(), 2);
        }
    }
}

#[test]
fn of_listings_and_texts() {
    let schema = Schema::read();
    let kernels = extra(&schema, "kernels --json", "kernels");
    schema.holds_each("kernels", &kernels);
    for kernel in kernels.as_array().unwrap() {
        schema.holds_each("constants", &kernel["constants"]);
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        extra(&schema, &format!("completions {shell} --json"), "completions");
    }
    extra(&schema, "--json --help", "help");
    extra(&schema, "--json --version", "version");
}

#[test]
fn of_failures() {
    let schema = Schema::read();
    for (words, code) in [
        ("--json", 2),
        ("--json --nonsense", 2),
        ("devices --json --nonsense", 2),
        ("kernels --json=yes", 2),
        ("--json help", 2),
        ("sample --json", 2),
        ("check nonsense --json", 2),
        ("completions --json", 2),
        ("kernels --json --validate", 2),
        ("history-backward --json -o out", 2),
        ("sample history-backward --json -o Cargo.toml", 2),
        ("sample history-backward --json -o Cargo.toml/inner", 1),
    ] {
        let (object, extra) = split(&schema, run(words.split(' ')).failed(code, &[]).json());
        schema.holds("error", &object["error"]);
        let kind = object["error"]["kind"].as_str().unwrap();
        assert_eq!(schema.kinds()[kind], code.to_string());
        assert!(extra.is_none() && object["outputs"].as_object().unwrap().is_empty());
    }
}

/// Whatever the sources name as a kind.
#[test]
fn every_kind_of_error_is_described() {
    let mut named: BTreeSet<String> =
        ["array", "bench", "check", "output", "shards"].map(String::from).into();
    for path in ["src/error.rs", "src/cli/files/mod.rs"] {
        let text = std::fs::read_to_string(path).unwrap();
        let kinds = text.lines().filter_map(|line| line.trim().split_once("=> \""));
        named.extend(kinds.filter_map(|(_, rest)| rest.strip_suffix("\",").map(String::from)));
    }
    let schema = Schema::read();
    assert_eq!(schema.kinds().keys().cloned().collect::<BTreeSet<_>>(), named);
}

//! The JSON object is what `docs/json.md` says.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{Folder, reference, run};
use crate::schema::Schema;

/// Holds an object to the table of every command, apart from the key `extra`.
fn whole(schema: &Schema, mut object: Value, extra: Option<&str>) -> Value {
    let extra = extra.map(|key| object.as_object_mut().unwrap().remove(key).unwrap());
    schema.holds("Every command", &object);
    extra.unwrap_or(object)
}

#[test]
fn of_a_computation_and_its_plan() {
    let schema = Schema::read();
    let folder = Folder::attention();
    let words = format!("history-backward -i {} --json", folder.at("in"));
    let json = reference(&format!("{words} -o {}", folder.at("out"))).succeeded().json();
    let object = whole(&schema, json, None);
    object["outputs"].as_object().unwrap().values().for_each(|o| schema.holds("outputs", o));
    let plan = whole(&schema, reference(&format!("{words} --plan")).json(), Some("plan"));
    schema.holds("plan", &plan);
    schema.holds_each("steps", &plan["steps"]);
}

#[test]
fn of_listings() {
    let schema = Schema::read();
    let kernels = whole(&schema, run(["kernels", "--json"]).json(), Some("kernels"));
    schema.holds_each("kernels", &kernels);
    kernels
        .as_array()
        .unwrap()
        .iter()
        .for_each(|k| schema.holds_each("constants", &k["constants"]));
    let script = whole(&schema, run(["completions", "fish", "--json"]).json(), Some("completions"));
    assert!(script.is_string());
}

#[test]
fn of_failures() {
    let schema = Schema::read();
    for (words, code) in [
        ("devices --json --nonsense", 2),
        ("history-backward --json -o out", 2),
        ("sample history-backward --json -o Cargo.toml", 2),
        ("sample history-backward --json -o Cargo.toml/inner", 1),
    ] {
        let object = whole(&schema, run(words.split(' ')).failed(code, &[]).json(), None);
        schema.holds("error", &object["error"]);
        let kind = object["error"]["kind"].as_str().unwrap();
        assert_eq!(schema.kinds()[kind], code.to_string());
    }
}

/// Whatever the sources name as a kind.
#[test]
fn every_kind_of_error_is_described() {
    let mut named: BTreeSet<String> = ["array", "check", "output"].map(String::from).into();
    for path in ["src/error.rs", "src/cli/files/mod.rs"] {
        let text = std::fs::read_to_string(path).unwrap();
        let kinds = text.lines().filter_map(|line| line.trim().split_once("=> \""));
        named.extend(kinds.filter_map(|(_, rest)| rest.strip_suffix("\",").map(String::from)));
    }
    let schema = Schema::read();
    assert_eq!(schema.kinds().keys().cloned().collect::<BTreeSet<_>>(), named);
}

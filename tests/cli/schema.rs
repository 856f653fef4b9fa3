//! The tables of `docs/json.md`, and values held to them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Keys and types by the heading that their table stands under.
pub(crate) struct Schema(BTreeMap<String, BTreeMap<String, String>>);

impl Schema {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string("docs/json.md").unwrap();
        let mut tables: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut heading = String::new();
        for line in text.lines() {
            if let Some(words) = line.strip_prefix('#') {
                heading = words.trim_start_matches('#').trim().replace('`', "");
            }
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            if let ["", key, kind, ..] = cells[..]
                && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
            {
                tables.entry(heading.clone()).or_default().insert(key.into(), kind.into());
            }
        }
        Self(tables)
    }

    /// The object has the keys of the table, with values of their types.
    pub(crate) fn holds(&self, heading: &str, value: &Value) {
        let (table, object) = (&self.0[heading], value.as_object().unwrap());
        let keys = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(object.keys().collect()), keys(table.keys().collect()), "{heading}");
        for (key, value) in object {
            assert!(self.is_a(&table[key], value), "{heading}: {key}: {value}: {}", table[key]);
        }
    }

    /// As [`Schema::holds`], for each element, of which there are some.
    pub(crate) fn holds_each(&self, heading: &str, values: &Value) {
        let values = values.as_array().unwrap();
        assert!(!values.is_empty());
        values.iter().for_each(|value| self.holds(heading, value));
    }

    /// Whether the value has one of the types.
    pub(crate) fn is_a(&self, types: &str, value: &Value) -> bool {
        types.split(" or ").any(|kind| kind == type_of(value))
    }

    /// The keys of some commands only, each with its type.
    pub(crate) fn some_commands(&self) -> &BTreeMap<String, String> {
        &self.0["Some commands"]
    }

    /// The kinds of errors, each with its exit code.
    pub(crate) fn kinds(&self) -> &BTreeMap<String, String> {
        &self.0["Kinds of errors"]
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

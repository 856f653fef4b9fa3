//! Slang's reflection of one shader file, turned into the terms of the model.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::model::{Constant, Interface, PushField, Scalar};

/// What a shader file declares.
#[derive(Debug, PartialEq)]
pub(crate) struct File {
    pub(crate) interface: Interface,
    /// Fields of the push block that are tensors with a binding of their own, in the order of the bindings.
    pub(crate) bindings: Vec<String>,
    pub(crate) entries: Vec<Entry>,
}

/// One entry point of a file.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) function: String,
    pub(crate) attributes: Attributes,
}

/// The user attributes that every entry point must carry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attributes {
    pub(crate) kernel_name: String,
    pub(crate) domain: String,
    pub(crate) variant: String,
    pub(crate) dtype: String,
    pub(crate) status: String,
}

/// Reads the reflection JSON of a file. Defaults of constants are not in it: they are 0 here.
pub(crate) fn read(json: &str) -> Result<File> {
    let raw: RawFile = serde_json::from_str(json).context("the reflection JSON of slangc")?;
    ensure!(
        !raw.entry_points.is_empty(),
        "no entry point; modules without one belong in shaders/shared"
    );
    let mut faults = Vec::new();
    let mut entries = Vec::new();
    for entry in &raw.entry_points {
        match read_entry(entry) {
            Ok(entry) => entries.push(entry),
            Err(error) => faults.push(format!("entry point `{}`: {error}", entry.name)),
        }
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    let (interface, bindings) = read_interface(&raw.parameters)?;
    Ok(File { interface, bindings, entries })
}

fn read_entry(raw: &RawEntry) -> Result<Entry> {
    ensure!(raw.stage == "compute", "expected stage compute, found {}", raw.stage);
    let mut values: BTreeMap<&str, &str> = BTreeMap::new();
    for RawAttribute { name, arguments } in &raw.user_attributes {
        if let [serde_json::Value::String(value)] = arguments.as_slice() {
            values.insert(name, value);
        }
    }
    let mut missing = Vec::new();
    let mut take = |name: &'static str| match values.get(name) {
        Some(value) if !value.is_empty() => (*value).to_owned(),
        _ => {
            missing.push(name);
            String::new()
        }
    };
    let attributes = Attributes {
        kernel_name: take("kernel_name"),
        domain: take("domain"),
        variant: take("variant"),
        dtype: take("dtype"),
        status: take("status"),
    };
    ensure!(missing.is_empty(), "missing attribute(s): {}", missing.join(", "));
    Ok(Entry { function: raw.name.clone(), attributes })
}

fn read_interface(parameters: &[RawParameter]) -> Result<(Interface, Vec<String>)> {
    let mut blocks = Vec::new();
    let mut constants = Vec::new();
    for parameter in parameters {
        let RawParameter { name, ty, .. } = parameter;
        match parameter.binding().map(|b| (b.kind.as_str(), b.index)) {
            Some(("pushConstantBuffer", _)) => blocks.push(ty),
            Some(("specializationConstant", Some(id))) => {
                let Some(kind) = ty.scalar() else {
                    let found = ty.name();
                    bail!("constant `{name}`: expected uint, int, float or bool, found {found}");
                };
                constants.push(Constant { name: name.clone(), id, kind, default: 0 });
            }
            _ => {}
        }
    }
    constants.sort_by(|a, b| (a.id, &a.name).cmp(&(b.id, &b.name)));
    let [block] = blocks.as_slice() else {
        bail!("expected one block of push constants, found {}", blocks.len());
    };
    let block = block.element.as_deref().context("push constants: expected a struct")?;
    let (bound, pushed): (Vec<_>, Vec<_>) = block.fields.iter().partition(|f| f.is_bound());
    let push_fields = pushed.into_iter().map(read_field).collect::<Result<_>>()?;
    for (expected, field) in (0..).zip(&bound) {
        let place = || format!("tensor `{}`", field.name);
        let found = field.binding().and_then(|b| b.index).with_context(place)?;
        ensure!(found == expected, "{}: binding {found}, expected {expected}", place());
    }
    let bindings = bound.into_iter().map(|f| f.name.clone()).collect();
    let push_size = block.sizes.iter().find(|s| s.kind == "uniform").map_or(0, |s| s.value);
    Ok((Interface { push_size, push_fields, constants }, bindings))
}

fn read_field(raw: &RawParameter) -> Result<PushField> {
    let place = || format!("push constant `{}`", raw.name);
    let kind = match raw.ty.scalar() {
        // Its size is not that of a word everywhere.
        Some(Scalar::Bool) | None => {
            bail!("{}: expected uint, int or float, found {}", place(), raw.ty.name())
        }
        Some(kind) => kind,
    };
    let offset = raw.binding().and_then(|b| b.offset).with_context(place)?;
    Ok(PushField { name: raw.name.clone(), offset, kind })
}

#[derive(Deserialize)]
struct RawFile {
    #[serde(default)]
    parameters: Vec<RawParameter>,
    #[serde(default, rename = "entryPoints")]
    entry_points: Vec<RawEntry>,
}

#[derive(Deserialize)]
struct RawEntry {
    name: String,
    stage: String,
    #[serde(default, rename = "userAttribs")]
    user_attributes: Vec<RawAttribute>,
}

#[derive(Deserialize)]
struct RawAttribute {
    name: String,
    #[serde(default)]
    arguments: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct RawParameter {
    name: String,
    binding: Option<RawBinding>,
    /// Instead of one, where it is of several kinds.
    #[serde(default)]
    bindings: Vec<RawBinding>,
    #[serde(rename = "type")]
    ty: RawType,
}

impl RawParameter {
    fn binding(&self) -> Option<&RawBinding> {
        self.binding.as_ref().or(self.bindings.first())
    }

    fn is_bound(&self) -> bool {
        self.binding().is_some_and(|b| b.kind == "descriptorTableSlot")
    }
}

#[derive(Deserialize)]
struct RawBinding {
    kind: String,
    index: Option<u32>,
    offset: Option<u32>,
}

#[derive(Deserialize)]
struct RawType {
    kind: String,
    #[serde(rename = "scalarType")]
    scalar: Option<String>,
    #[serde(rename = "elementType")]
    element: Option<Box<RawType>>,
    #[serde(default)]
    fields: Vec<RawParameter>,
    #[serde(default)]
    sizes: Vec<RawSize>,
}

#[derive(Deserialize)]
struct RawSize {
    kind: String,
    // A string for what is unbounded or unknown; such a size is never asked for.
    #[serde(deserialize_with = "number_or_zero")]
    value: u32,
}

fn number_or_zero<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(value.as_u64().and_then(|v| u32::try_from(v).ok()).unwrap_or(0))
}

impl RawType {
    fn scalar(&self) -> Option<Scalar> {
        match (self.kind.as_str(), self.scalar.as_deref()) {
            ("scalar", Some("uint32")) => Some(Scalar::U32),
            ("scalar", Some("int32")) => Some(Scalar::I32),
            ("scalar", Some("float32")) => Some(Scalar::F32),
            ("scalar", Some("bool")) => Some(Scalar::Bool),
            _ => None,
        }
    }

    /// For messages.
    fn name(&self) -> &str {
        self.scalar.as_deref().unwrap_or(&self.kind)
    }
}

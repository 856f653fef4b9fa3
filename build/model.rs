//! What is known of the compiled kernels: the content of `manifest.json` and the source of `manifest.rs`.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Vulkan promises room for this many bytes of push constants on every device.
pub(crate) const PUSH_LIMIT: u32 = 128;

/// What every push block begins with: where in the grid a dispatch starts.
const FIRST_GROUP: [&str; 2] = ["first_group_x", "first_group_y"];

/// All kernels, and what they were compiled with and from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of the Slang compiler.
    pub(crate) compiler: String,
    /// Its flags.
    pub(crate) flags: String,
    /// Hash of all shader sources.
    pub(crate) sources: String,
    /// Sorted by name, then element type.
    pub(crate) kernels: Vec<Kernel>,
}

/// One entry point, compiled to a SPIR-V module of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) domain: String,
    pub(crate) variant: String,
    pub(crate) status: String,
    /// The file below `shaders/`.
    pub(crate) source: String,
    /// The function, also the entry point's name in the SPIR-V.
    pub(crate) entry_point: String,
    /// Hash of the SPIR-V.
    pub(crate) spirv: String,
    pub(crate) workgroup_size: [Axis; 3],
    #[serde(flatten)]
    pub(crate) interface: Interface,
}

/// What the host has to fill in; all element types of one kernel share it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) push_size: u32,
    pub(crate) push_fields: Vec<PushField>,
    /// Sorted by id.
    pub(crate) constants: Vec<Constant>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PushField {
    pub(crate) name: String,
    pub(crate) offset: u32,
    pub(crate) kind: Scalar,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) kind: Scalar,
    /// The bits; 0 for a constant that no entry point of the file uses.
    pub(crate) default: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scalar {
    U32,
    I32,
    F32,
    Bool,
}

/// The workgroup's size along one axis: a number, or the id of the specialization constant that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    Fixed(u32),
    Constant(u32),
}

impl Kernel {
    /// Its name among the compiled modules.
    pub(crate) fn file_name(&self) -> String {
        format!("{}_{}.spv", self.name, self.dtype)
    }

    fn place(&self) -> String {
        format!("shaders/{}, entry point `{}`", self.source, self.entry_point)
    }
}

impl Manifest {
    /// Sorts the kernels and checks all that the generated code relies on; every fault is reported.
    pub(crate) fn new(
        compiler: String,
        flags: String,
        sources: String,
        mut kernels: Vec<Kernel>,
    ) -> Result<Self> {
        kernels.sort_by(|a, b| (&a.name, &a.dtype).cmp(&(&b.name, &b.dtype)));
        let manifest = Self { compiler, flags, sources, kernels };
        manifest.check()?;
        Ok(manifest)
    }

    /// See [`Manifest::new`].
    pub(crate) fn check(&self) -> Result<()> {
        let mut faults = Vec::new();
        let mut files = BTreeMap::new();
        let mut first_of_name: BTreeMap<&str, &Kernel> = BTreeMap::new();
        for kernel in &self.kernels {
            if let Err(error) = check_kernel(kernel) {
                faults.push(format!("{}: {error}", kernel.place()));
            }
            if let Some(other) = files.insert(kernel.file_name(), kernel) {
                faults.push(format!(
                    "{}: kernel `{}` for `{}` is there already: {}",
                    kernel.place(),
                    kernel.name,
                    kernel.dtype,
                    other.place()
                ));
            }
            let first = first_of_name.entry(&kernel.name).or_insert(kernel);
            if let Some(difference) = first.interface.difference(&kernel.interface) {
                faults.push(format!(
                    "{}: kernel `{}` has other {difference} than {}; its element types must share them",
                    kernel.place(),
                    kernel.name,
                    first.place()
                ));
            }
        }
        if !faults.is_empty() {
            bail!("{}", faults.join("\n"));
        }
        Ok(())
    }
}

impl Interface {
    fn difference(&self, other: &Self) -> Option<&'static str> {
        if (self.push_size, &self.push_fields) != (other.push_size, &other.push_fields) {
            return Some("push constants");
        }
        // Not the defaults: a module that leaves a constant out does not tell its default.
        let key = |c: &Constant| (c.name.clone(), c.id, c.kind);
        let same = self.constants.iter().map(key).eq(other.constants.iter().map(key));
        (!same).then_some("specialization constants")
    }
}

fn check_kernel(kernel: &Kernel) -> Result<()> {
    check_identifier("kernel_name", &kernel.name)?;
    check_identifier("dtype", &kernel.dtype)?;
    let Interface { push_size, push_fields, constants } = &kernel.interface;
    ensure!(
        *push_size <= PUSH_LIMIT,
        "{push_size} bytes of push constants, at most {PUSH_LIMIT} are allowed"
    );
    let mut end = 0;
    for field in push_fields {
        check_identifier("push constant", &field.name)?;
        // The Rust struct has no padding, or it could not be copied as bytes.
        ensure!(
            field.offset == end,
            "push constant `{}`: at byte {}, expected {end}",
            field.name,
            field.offset
        );
        end += 4;
    }
    ensure!(*push_size == end, "push constants: {push_size} bytes, but the fields make {end}");
    for (place, name) in FIRST_GROUP.into_iter().enumerate() {
        let first = push_fields.get(place);
        ensure!(
            first.is_some_and(|field| field.name == name && field.kind == Scalar::U32),
            "push constants: expected `uint {name}` at byte {}, found {}",
            4 * place,
            first.map_or("nothing".to_owned(), |f| format!("`{}` ({:?})", f.name, f.kind))
        );
    }
    for constant in constants {
        check_identifier("specialization constant", &constant.name)?;
    }
    for pair in constants.windows(2) {
        ensure!(
            pair[0].id < pair[1].id,
            "specialization constants `{}` and `{}`: ids {} and {} must increase",
            pair[0].name,
            pair[1].name,
            pair[0].id,
            pair[1].id
        );
    }
    Ok(())
}

/// The name becomes a Rust name.
fn check_identifier(what: &str, name: &str) -> Result<()> {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    ensure!(plain, "{what} `{name}`: expected lower-case letters, digits and `_`");
    ensure!(!RESERVED.contains(&name), "{what} `{name}`: is a reserved word of Rust");
    Ok(())
}

const RESERVED: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

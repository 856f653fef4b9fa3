//! What a kernel asks for, as the compiler reflects it.

use shader_slang::reflection::{Shader, TypeLayout, UserAttribute, VariableLayout};
use shader_slang::{ParameterCategory, ScalarType, TypeKind};

use super::scan::Scan;
use crate::manifest::Scalar;

/// The constant that is the subgroup size.
pub(super) const LANES: &str = "lanes";
/// The push constants that say where in the grid a dispatch starts.
const FIRST_GROUP: [&str; 2] = ["first_group_x", "first_group_y"];
/// What the name of a tensor's place in the push constants ends in.
const INDEX: &str = "_index";

/// A user attribute of an entry point, such as `[kernel_name("scale")]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// What it is given, as text.
    pub arguments: Vec<String>,
}

/// A push constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Where it begins, in bytes.
    pub offset: u32,
    /// Its type.
    pub kind: Scalar,
}

/// A specialization constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// The id by which Vulkan knows it.
    pub id: u32,
    /// Its type.
    pub kind: Scalar,
    /// The bits of the value that the file gives it; `None` where the entry point does not use it.
    pub default: Option<u32>,
}

/// All that a kernel asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) push_size: u32,
    pub(super) fields: Vec<Field>,
    /// Sorted by id.
    pub(super) constants: Vec<Constant>,
}

impl Attribute {
    pub(super) fn read(attribute: &UserAttribute) -> Self {
        let argument = |index| {
            let text = attribute.argument_value_string(index).map(unquoted);
            text.or_else(|| attribute.argument_value_int(index).map(|n| n.to_string()))
                .or_else(|| attribute.argument_value_float(index).map(|n| n.to_string()))
                .unwrap_or_default()
        };
        let arguments = (0..attribute.argument_count()).map(argument).collect();
        Self { name: attribute.name().into(), arguments }
    }
}

/// The compiler gives a string as it is written.
fn unquoted(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text).into()
}

impl Field {
    /// The tensor whose place this is, if it is one's.
    pub fn tensor(&self) -> Option<&str> {
        self.name.strip_suffix(INDEX).filter(|_| self.kind == Scalar::U32)
    }

    /// Whether the runtime fills it in.
    pub fn is_filled(&self) -> bool {
        FIRST_GROUP.contains(&self.name.as_str())
    }
}

impl Constant {
    /// Whether the runtime fills it in.
    pub fn is_filled(&self) -> bool {
        self.name == LANES
    }
}

impl Interface {
    pub(super) fn first_group(&self) -> Option<[u32; 2]> {
        let offset = |name| self.fields.iter().find(|f| f.name == name).map(|f| f.offset);
        let [x, y] = FIRST_GROUP.map(offset);
        x.zip(y).map(<[u32; 2]>::from)
    }

    /// The ids of the constants that the entry point uses.
    pub(super) fn used_ids(&self) -> Vec<u32> {
        self.constants.iter().filter(|c| c.default.is_some()).map(|c| c.id).collect()
    }

    fn check(&self) -> Result<(), String> {
        for constant in &self.constants {
            if self.fields.iter().any(|field| field.name == constant.name) {
                let name = &constant.name;
                return Err(format!("`{name}` is a push constant and a specialization constant"));
            }
        }
        for field in &self.fields {
            let Field { name, kind, .. } = field;
            let filled = field.is_filled() || name.ends_with(INDEX);
            if filled && *kind != Scalar::U32 {
                let found = word(*kind);
                return Err(format!("push constant `{name}`: expected uint, found {found}"));
            }
        }
        Ok(())
    }
}

/// The type's name in Slang.
pub(super) fn word(kind: Scalar) -> &'static str {
    match kind {
        Scalar::U32 => "uint",
        Scalar::I32 => "int",
        Scalar::F32 => "float",
        Scalar::Bool => "bool",
    }
}

/// Reads the interface of a linked program, of whose module `scan` tells the rest.
pub(super) fn read(layout: &Shader, scan: &Scan) -> Result<Interface, String> {
    let mut blocks = Vec::new();
    let mut constants = Vec::new();
    for parameter in layout.parameters() {
        match parameter.category() {
            ParameterCategory::PushConstantBuffer => blocks.push(parameter),
            ParameterCategory::SpecializationConstant => constants.push(constant(parameter, scan)?),
            // Whatever is left of the others in the module, the scan has seen.
            _ => {}
        }
    }
    constants.sort_by(|a, b| (a.id, &a.name).cmp(&(b.id, &b.name)));
    let (push_size, fields) = match blocks.as_slice() {
        [] => (0, Vec::new()),
        [block] => push_constants(block.type_layout().element_type_layout())?,
        blocks => {
            let found = blocks.len();
            return Err(format!("expected one block of push constants, found {found}"));
        }
    };
    let entry = layout.entry_point_by_index(0).ok_or("the program has no entry point")?;
    let mut parameters = entry.parameters().map(VariableLayout::type_layout);
    let uniform = parameters.any(|ty| ty.size(ParameterCategory::Uniform) > 0);
    if uniform || fields.is_empty() && scan.has_push_constants {
        let place = "the fields of one [[vk::push_constant]] struct";
        return Err(format!("the entry point has uniform parameters; expected {place} instead"));
    }
    let interface = Interface { push_size, fields, constants };
    interface.check()?;
    Ok(interface)
}

fn push_constants(block: &TypeLayout) -> Result<(u32, Vec<Field>), String> {
    if block.kind() != TypeKind::Struct {
        return Err("push constants: expected a struct".into());
    }
    let fields = block.fields().map(field).collect::<Result<_, _>>()?;
    let size = block.size(ParameterCategory::Uniform);
    Ok((u32::try_from(size).map_err(|error| error.to_string())?, fields))
}

fn field(layout: &VariableLayout) -> Result<Field, String> {
    let name = layout.name().unwrap_or_default().to_owned();
    let kind = match scalar(layout.type_layout()) {
        // A bool's size is not that of a word everywhere.
        Some(Scalar::Bool) | None => {
            let found = type_name(layout.type_layout());
            return Err(format!(
                "push constant `{name}`: expected uint, int or float, found {found}"
            ));
        }
        Some(kind) => kind,
    };
    let offset = layout.offset(ParameterCategory::Uniform);
    Ok(Field { name, offset: u32::try_from(offset).map_err(|error| error.to_string())?, kind })
}

fn constant(layout: &VariableLayout, scan: &Scan) -> Result<Constant, String> {
    let name = layout.name().unwrap_or_default().to_owned();
    let Some(kind) = scalar(layout.type_layout()) else {
        let found = type_name(layout.type_layout());
        return Err(format!("constant `{name}`: expected uint, int, float or bool, found {found}"));
    };
    let id = layout.offset(ParameterCategory::SpecializationConstant);
    let id = u32::try_from(id).map_err(|error| error.to_string())?;
    Ok(Constant { name, id, kind, default: scan.defaults.get(&id).copied() })
}

fn scalar(layout: &TypeLayout) -> Option<Scalar> {
    match (layout.kind(), layout.scalar_type()?) {
        (TypeKind::Scalar, ScalarType::Uint32) => Some(Scalar::U32),
        (TypeKind::Scalar, ScalarType::Int32) => Some(Scalar::I32),
        (TypeKind::Scalar, ScalarType::Float32) => Some(Scalar::F32),
        (TypeKind::Scalar, ScalarType::Bool) => Some(Scalar::Bool),
        _ => None,
    }
}

/// For messages.
fn type_name(layout: &TypeLayout) -> String {
    let full = layout.ty().and_then(|ty| ty.full_name().ok());
    let full = full.and_then(|name| Some(name.as_str().ok()?.trim_end_matches('\0').to_owned()));
    full.unwrap_or_else(|| format!("{:?}", layout.kind()).to_lowercase())
}

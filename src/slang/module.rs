//! A compiled file.

use shader_slang::reflection::Shader;
use shader_slang::{Downcast, EntryPoint, GlobalSession, Session, Stage};

use super::alike;
use super::interface::{self, Attribute};
use super::kernel::UserKernel;
use super::scan::Scan;
use crate::error::{Error, Result};
use crate::runtime::LoadedKernel;

/// A compiled file, with any number of entry points.
pub struct Module {
    file: String,
    module: shader_slang::Module,
    session: Session,
    /// The session is one of its.
    _compiler: GlobalSession,
}

impl Module {
    pub(super) fn new(
        file: String,
        compiler: GlobalSession,
        session: Session,
        module: shader_slang::Module,
    ) -> Self {
        Self { file, module, session, _compiler: compiler }
    }

    /// The file, as it was given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The names of its entry points.
    pub fn entry_points(&self) -> Vec<String> {
        let name = |entry: EntryPoint| entry.function_reflection().name().to_owned();
        self.module.entry_points().map(name).collect()
    }

    /// The kernel of an entry point, or of the only one.
    ///
    /// # Errors
    /// [`Error::Slang`] for an entry point that is not there, for one that does not compile to SPIR-V, and for parameters
    /// of other kinds than the [module](super) says, naming them.
    pub fn kernel(&self, entry_point: Option<&str>) -> Result<UserKernel> {
        let entry = self.find(entry_point).map_err(|message| self.fault(message))?;
        self.build(&entry).map_err(|message| self.fault(message))
    }

    fn fault(&self, message: String) -> Error {
        Error::Slang { file: self.file.clone(), message }
    }

    fn find(&self, name: Option<&str>) -> Result<EntryPoint, String> {
        let names = self.entry_points();
        let place = match name {
            None if names.len() == 1 => Some(0),
            None => None,
            Some(name) => names.iter().position(|known| known == name),
        };
        if let Some(entry) = place.and_then(|place| self.module.entry_point_by_index(place as u32))
        {
            return Ok(entry);
        }
        if names.is_empty() {
            return Err("no entry point: a function with [shader(\"compute\")]".into());
        }
        let list = names.join(", ");
        let Some(name) = name else {
            return Err(format!("expected the name of an entry point; there are {list}"));
        };
        let meant = alike::meant(name, names.iter().map(String::as_str));
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        Err(format!("no entry point `{name}`; there are {list}{meant}"))
    }

    fn build(&self, entry: &EntryPoint) -> Result<UserKernel, String> {
        let components = [self.module.downcast().clone(), entry.downcast().clone()];
        let said = |error: shader_slang::Error| error.to_string();
        let program = self.session.create_composite_component_type(&components).map_err(said)?;
        let program = program.link().map_err(said)?;
        let code = program.entry_point_code(0, 0).map_err(said)?;
        let (words, _) = code.as_slice().as_chunks::<4>();
        let spirv: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let scan = Scan::read(&spirv)?;
        let layout = program.layout(0).map_err(said)?;
        let attributes = attributes(layout)?;
        let interface = interface::read(layout, &scan)?;
        let function = entry.function_reflection().name().to_owned();
        let named = attributes.iter().find(|attribute| attribute.name == "kernel_name");
        let named = named.and_then(|attribute| attribute.arguments.first());
        let program = LoadedKernel {
            name: named.unwrap_or(&function).clone(),
            entry_point: scan.entry_point,
            spirv,
            workgroup_size: scan.workgroup_size,
            push_size: interface.push_size,
            first_group: interface.first_group(),
            constants: interface.used_ids(),
        };
        Ok(UserKernel::new(function, attributes, interface, program))
    }
}

/// The attributes of a program's entry point, which is one of a compute shader.
fn attributes(layout: &Shader) -> Result<Vec<Attribute>, String> {
    let entry = layout.entry_point_by_index(0).ok_or("the program has no entry point")?;
    if entry.stage() != Stage::Compute {
        return Err(format!("entry point `{}`: expected [shader(\"compute\")]", entry.name()));
    }
    Ok(entry.function().user_attributes().map(Attribute::read).collect())
}

//! A kernel of the user's own.

use super::alike;
use super::call::Call;
use super::interface::{Attribute, Constant, Field, Interface};
use crate::error::{Error, Result};
use crate::manifest::Axis;
use crate::runtime::{LoadedKernel, Program};

/// A kernel that was compiled at run time, and what it asks for. Calls of one share its pipelines.
#[derive(Debug)]
pub struct UserKernel {
    entry_point: String,
    attributes: Vec<Attribute>,
    workgroup_size: [Axis; 3],
    pub(super) interface: Interface,
    pub(super) program: Program,
}

impl UserKernel {
    pub(super) fn new(
        entry_point: String,
        attributes: Vec<Attribute>,
        interface: Interface,
        program: LoadedKernel,
    ) -> Self {
        let workgroup_size = program.workgroup_size;
        Self { entry_point, attributes, workgroup_size, interface, program: program.into() }
    }

    /// The name that errors and timings use: that of the attribute `kernel_name`, else that of the function.
    pub fn name(&self) -> &str {
        self.program.name()
    }

    /// The function.
    pub fn entry_point(&self) -> &str {
        &self.entry_point
    }

    /// The user attributes of the function.
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// The workgroup's size along x, y and z.
    pub fn workgroup_size(&self) -> [Axis; 3] {
        self.workgroup_size
    }

    /// The push constants, in their order.
    pub fn fields(&self) -> &[Field] {
        &self.interface.fields
    }

    /// The specialization constants, in increasing id.
    pub fn constants(&self) -> &[Constant] {
        &self.interface.constants
    }

    /// The names of the tensors that a call binds.
    pub fn tensors(&self) -> Vec<&str> {
        self.interface.fields.iter().filter_map(Field::tensor).collect()
    }

    /// The names of the values that a call can set; those of push constants it has to.
    pub fn values(&self) -> Vec<&str> {
        let Interface { fields, constants, .. } = &self.interface;
        let free = |field: &&Field| !field.is_filled() && field.tensor().is_none();
        let fields = fields.iter().filter(free).map(|field| field.name.as_str());
        let constants = constants.iter().filter(|constant| !constant.is_filled());
        fields.chain(constants.map(|constant| constant.name.as_str())).collect()
    }

    /// A call, of which nothing is set yet.
    pub fn call(&self) -> Call<'_> {
        Call::new(self)
    }

    /// Fails when a call does not bind such a tensor.
    ///
    /// # Errors
    /// [`Error::UserKernel`], naming those that there are.
    pub fn check_tensor(&self, name: &str) -> Result<()> {
        let known = self.tensors();
        if known.contains(&name) { Ok(()) } else { Err(self.unknown("tensor", name, &known)) }
    }

    pub(super) fn fault(&self, message: String) -> Error {
        Error::UserKernel { kernel: self.name().into(), message }
    }

    pub(super) fn unknown(&self, what: &str, name: &str, known: &[&str]) -> Error {
        let meant = alike::meant(name, known.iter().copied());
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        let list = match known {
            [] => format!("there are no {what}s"),
            known => format!("there are {}", known.join(", ")),
        };
        self.fault(format!("no {what} `{name}`; {list}{meant}"))
    }
}

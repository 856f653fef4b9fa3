//! What a recorder dispatches: a kernel of this crate, or one that was made at run time.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use super::spirv::{self, Malformed};
use crate::manifest::{Axis, Kernel};

/// A kernel that was made at run time: a SPIR-V module, and the interface that it declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedKernel {
    /// The name that errors and timings call it by.
    pub name: String,
    /// The entry point's name in the SPIR-V.
    pub entry_point: String,
    /// The words of the SPIR-V module.
    pub spirv: Vec<u32>,
    /// The workgroup's size along x, y and z.
    pub workgroup_size: [Axis; 3],
    /// Size of the push constants in bytes; at most 128.
    pub push_size: u32,
    /// Where `first_group_x` and `first_group_y` begin in the push constants, in bytes; `None` for a kernel without
    /// them, whose grid must fit one dispatch.
    pub first_group: Option<[u32; 2]>,
    /// The ids of the specialization constants.
    pub constants: Vec<u32>,
}

/// A kernel that can be dispatched. Clones are the same kernel, share its pipelines, and are equal; a recording keeps one
/// until the device is done with it.
#[derive(Debug, Clone)]
pub struct Program(Source);

#[derive(Debug, Clone)]
enum Source {
    Own(&'static Kernel),
    Loaded(Arc<LoadedKernel>),
}

impl From<&'static Kernel> for Program {
    fn from(kernel: &'static Kernel) -> Self {
        Self(Source::Own(kernel))
    }
}

impl From<LoadedKernel> for Program {
    fn from(kernel: LoadedKernel) -> Self {
        Self(Source::Loaded(Arc::new(kernel)))
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Program {}

impl From<&Self> for Program {
    fn from(program: &Self) -> Self {
        program.clone()
    }
}

impl Program {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        match &self.0 {
            Source::Own(kernel) => kernel.name,
            Source::Loaded(kernel) => &kernel.name,
        }
    }

    /// The name for what outlives the program.
    pub(super) fn label(&self) -> Cow<'static, str> {
        match &self.0 {
            Source::Own(kernel) => kernel.name.into(),
            Source::Loaded(kernel) => kernel.name.clone().into(),
        }
    }

    /// The name with what tells it from others of that name.
    pub(super) fn title(&self) -> String {
        match &self.0 {
            Source::Own(kernel) => format!("kernel `{}` ({})", kernel.name, kernel.dtype),
            Source::Loaded(kernel) => format!("kernel `{}`", kernel.name),
        }
    }

    /// The kernel of the manifest, when it is one.
    #[cfg(feature = "forms")]
    pub(super) fn own(&self) -> Option<&'static Kernel> {
        match &self.0 {
            Source::Own(kernel) => Some(kernel),
            Source::Loaded(_) => None,
        }
    }

    pub(super) fn entry_point(&self) -> &str {
        match &self.0 {
            Source::Own(kernel) => kernel.entry_point,
            Source::Loaded(kernel) => &kernel.entry_point,
        }
    }

    /// The words of the SPIR-V module.
    pub(super) fn words(&self) -> Result<Cow<'_, [u32]>, Malformed> {
        match &self.0 {
            Source::Own(kernel) => spirv::words(kernel.spirv).map(Cow::Owned),
            Source::Loaded(kernel) => Ok(Cow::Borrowed(&kernel.spirv)),
        }
    }

    pub(super) fn workgroup_size(&self) -> [Axis; 3] {
        match &self.0 {
            Source::Own(kernel) => kernel.workgroup_size,
            Source::Loaded(kernel) => kernel.workgroup_size,
        }
    }

    pub(super) fn push_size(&self) -> u32 {
        match &self.0 {
            Source::Own(kernel) => kernel.push_size,
            Source::Loaded(kernel) => kernel.push_size,
        }
    }

    /// Where `first_group_x` and `first_group_y` are in the push constants.
    pub(super) fn first_group(&self) -> Option<[u32; 2]> {
        match &self.0 {
            Source::Own(kernel) => {
                let offset = |field| kernel.push_offset(field);
                offset("first_group_x").zip(offset("first_group_y")).map(<[u32; 2]>::from)
            }
            Source::Loaded(kernel) => kernel.first_group,
        }
    }

    /// The ids of the specialization constants, in the order in which their values are given.
    pub(super) fn constant_ids(&self) -> Vec<u32> {
        match &self.0 {
            Source::Own(kernel) => kernel.constants.iter().map(|c| c.id).collect(),
            Source::Loaded(kernel) => kernel.constants.clone(),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        match &self.0 {
            Source::Own(kernel) => Identity::Own(std::ptr::from_ref(*kernel).addr()),
            Source::Loaded(kernel) => Identity::Loaded(Arc::downgrade(kernel)),
        }
    }
}

/// Which program it is, without keeping it. No other program gets the identity while somebody holds it.
#[derive(Debug, Clone)]
pub(super) enum Identity {
    Own(usize),
    Loaded(Weak<LoadedKernel>),
}

impl Identity {
    /// Whether the program can still be dispatched.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Self::Own(_) => true,
            Self::Loaded(kernel) => kernel.strong_count() > 0,
        }
    }

    fn address(&self) -> usize {
        match self {
            Self::Own(address) => *address,
            Self::Loaded(kernel) => kernel.as_ptr().addr(),
        }
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> Program {
        LoadedKernel {
            name: "k".into(),
            entry_point: "main".into(),
            spirv: Vec::new(),
            workgroup_size: [Axis::Fixed(1); 3],
            push_size: 0,
            first_group: None,
            constants: Vec::new(),
        }
        .into()
    }

    #[test]
    fn programs_are_told_apart_after_their_end() {
        let first = loaded();
        let identity = first.identity();
        assert!(identity.is_alive() && identity == first.clone().identity());
        drop(first);
        assert!(!identity.is_alive());
        // What holds the identity keeps its address from being given again.
        let others: Vec<_> = (0..64).map(|_| loaded()).collect();
        assert!(others.iter().all(|other| other.identity() != identity));
    }
}

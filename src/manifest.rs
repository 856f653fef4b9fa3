//! What the build knows of each compiled kernel.

/// A compiled entry point and its interface, as reflection reports it.
#[derive(Debug)]
pub struct Kernel {
    /// The kernel's name, the same for all element types: `history_backward`.
    pub name: &'static str,
    /// The element type of its tensors.
    pub dtype: &'static str,
    /// The domain it belongs to, such as `attention`.
    pub domain: &'static str,
    /// Which variant of the kernel this is.
    pub variant: &'static str,
    /// How far the kernel is trusted.
    pub status: &'static str,
    /// Its source under `shaders/`.
    pub source: &'static str,
    /// The entry point's name in the SPIR-V module.
    pub entry_point: &'static str,
    /// The SPIR-V module, little endian.
    pub spirv: &'static [u8],
    /// Invocations of a workgroup along x, y and z.
    pub workgroup_size: [Axis; 3],
    /// Bytes of the push-constant block, at most 128.
    pub push_size: u32,
    /// The fields of the push-constant block.
    pub push_fields: &'static [PushField],
    /// The specialization constants, by id.
    pub constants: &'static [Constant],
}

impl Kernel {
    /// The byte offset of a push-constant field.
    pub fn push_offset(&self, field: &str) -> Option<u32> {
        self.push_fields.iter().find(|f| f.name == field).map(|f| f.offset)
    }
}

/// One axis of a workgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// A fixed number of invocations.
    Fixed(u32),
    /// As many as the specialization constant of this id says.
    Constant(u32),
}

/// A field of a push-constant block.
#[derive(Debug)]
pub struct PushField {
    /// Its name.
    pub name: &'static str,
    /// Its offset in bytes.
    pub offset: u32,
    /// Its type.
    pub kind: Scalar,
}

/// A specialization constant.
#[derive(Debug)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// Its id.
    pub id: u32,
    /// Its type.
    pub kind: Scalar,
    /// The bits of its default value.
    pub default: u32,
}

/// The types of push-constant fields and specialization constants, each four bytes wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// `uint`
    U32,
    /// `int`
    I32,
    /// `float`
    F32,
    /// `bool`
    Bool,
}

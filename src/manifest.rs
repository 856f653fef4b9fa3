//! What kernels there are: their SPIR-V and the interface that the shaders declare.
//!
//! Everything here comes from the shaders themselves, through the compiler's reflection at build
//! time: the shader is the one place where a layout is written down.

/// A compiled compute kernel for one element type.
#[derive(Debug)]
pub struct Kernel {
    /// The kernel's name; element types of one kernel share it.
    pub name: &'static str,
    /// The element type of the tensors it is for: `f32`, `f16`, `bf16` or `u32`.
    pub dtype: &'static str,
    /// The field it belongs to, such as `attention`.
    pub domain: &'static str,
    /// The algorithm, where a computation has several.
    pub variant: &'static str,
    /// How far it is developed, such as `stable`.
    pub status: &'static str,
    /// The source file below `shaders/`.
    pub source: &'static str,
    /// The entry point's name in the SPIR-V.
    pub entry_point: &'static str,
    /// The SPIR-V module, little-endian and aligned to its words; see [`Kernel::words`].
    pub spirv: &'static [u8],
    /// The workgroup's size along x, y and z.
    pub workgroup_size: [Axis; 3],
    /// Size of the push constants in bytes; at most 128.
    pub push_size: u32,
    /// The push constants in increasing offset, without gaps.
    pub push_fields: &'static [PushField],
    /// The specialization constants in increasing id. All element types of a kernel list the same
    /// ones, and a module may leave out those that it does not use.
    pub constants: &'static [Constant],
}

impl Kernel {
    /// The words of the SPIR-V module.
    pub fn words(&self) -> Vec<u32> {
        let (words, _) = self.spirv.as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Where a push constant begins, in bytes; `None` if there is none of that name.
    pub fn push_offset(&self, field: &str) -> Option<u32> {
        self.push_fields.iter().find(|f| f.name == field).map(|f| f.offset)
    }
}

/// A workgroup's size along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// This many invocations.
    Fixed(u32),
    /// As many as the specialization constant with this id says.
    Constant(u32),
}

/// A field of the push constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushField {
    /// Its name in the shader.
    pub name: &'static str,
    /// Where it begins, in bytes.
    pub offset: u32,
    /// Its type.
    pub kind: Scalar,
}

/// A specialization constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Its name in the shader.
    pub name: &'static str,
    /// The id by which Vulkan knows it.
    pub id: u32,
    /// Its type.
    pub kind: Scalar,
    /// The bits of the value that the shader gives it; 0 where no kernel of the source file uses it.
    pub default: u32,
}

/// The type of a push or specialization constant, each of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Unsigned integer.
    U32,
    /// Signed integer.
    I32,
    /// Floating point.
    F32,
    /// 0 or 1.
    Bool,
}

/// The kernel of this name for this element type.
pub fn kernel(name: &str, dtype: &str) -> Option<&'static Kernel> {
    let place = KERNELS.binary_search_by(|k| (k.name, k.dtype).cmp(&(name, dtype)));
    place.ok().map(|index| KERNELS[index])
}

/// Bytes that begin where a word may.
#[repr(C, align(4))]
pub(crate) struct Aligned<T: ?Sized>(pub(crate) T);

include!(concat!(env!("OUT_DIR"), "/manifest.rs"));

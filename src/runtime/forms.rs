//! The further forms of every kernel, for tests: the validation layer can look into them.
//!
//! In the heap, an array without a size behind an index, it sees neither an access out of bounds nor a missing barrier.

use std::ops::RangeFrom;
use std::sync::Arc;

use super::core::Core;
use super::grid::Piece;
use super::heap::DUMMY_SLOT;
use super::program::Program;
use super::raw::{Descriptors, Device};
use super::recorder::PushBlock;
use super::tensor::Tensor;
use crate::error::{Error, Result};
use crate::manifest::Kernel;

/// How kernels reach their tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// Through the heap, as in the product.
    #[default]
    Heap,
    /// Through a heap of a fixed size, for GPU-assisted validation.
    FixedHeap,
    /// Through a binding each, for synchronization validation.
    Plain,
}

impl Form {
    /// Slots of a heap that all kernels of this form can reach, of those wanted.
    pub(super) fn heap_slots(self, wanted: u32) -> u32 {
        match self {
            // One more is the dummy's.
            Self::FixedHeap => HEAP_SLOTS - 1,
            Self::Heap | Self::Plain => wanted,
        }
    }

    /// Slots that hold the dummy at first. GPU-assisted validation sees an access to the dummy's own slot when there is
    /// nothing in it.
    pub(super) fn filled_slots(self) -> RangeFrom<u32> {
        match self {
            Self::FixedHeap => DUMMY_SLOT + 1..,
            Self::Heap | Self::Plain => DUMMY_SLOT..,
        }
    }

    /// The kernel in this form; one that is not of this crate stays as it is.
    pub(super) fn of(self, kernel: &'static Kernel) -> &'static Kernel {
        let kernels = match self {
            Self::Heap => return kernel,
            Self::FixedHeap => fixed_heap::KERNELS,
            Self::Plain => plain::KERNELS,
        };
        let key = (kernel.name, kernel.dtype);
        kernels.iter().find(|k| (k.name, k.dtype) == key).copied().unwrap_or(kernel)
    }

    /// As [`Form::of`]; a kernel that was made at run time stays as it is.
    pub(super) fn of_program(self, program: &Program) -> Program {
        program.own().map_or_else(|| program.clone(), |kernel| self.of(kernel).into())
    }

    /// Whether a kernel has bindings of its own.
    pub(super) fn is_bound(self, kernel: &'static Kernel) -> bool {
        self == Self::Plain && !std::ptr::eq(self.of(kernel), kernel)
    }

    /// Empty bindings of a kernel that has its own, for their layout.
    pub(super) fn own_layout(
        self,
        device: &Arc<Device>,
        program: &Program,
    ) -> Result<Option<Descriptors>> {
        let Some(kernel) = program.own() else { return Ok(None) };
        let empty = || bindings(kernel).map(|_| None).collect::<Vec<_>>();
        self.is_bound(kernel).then(|| Descriptors::plain(device, &empty())).transpose()
    }
}

/// The push constants of the heap's form that are bindings in the plain form, in the order of the bindings.
fn bindings(kernel: &'static Kernel) -> impl Iterator<Item = &'static str> {
    let plain = Form::Plain.of(kernel);
    let fields = kernel.push_fields.iter().map(|field| field.name);
    fields.filter(|name| plain.push_offset(name).is_none())
}

/// The tensors that a block names by their heap indices, each in its binding. Where the dummy's index stands the
/// kernel uses nothing, and the binding stays empty: synchronization validation leaves it out.
pub(super) fn bind(
    core: &Core,
    kernel: &'static Kernel,
    block: &PushBlock,
    tensors: &[Tensor],
) -> Result<Descriptors> {
    let found = bindings(kernel).map(|name| {
        let slot = word(kernel, block, name)?;
        let holds = |t: &&Tensor| t.slot().is_ok_and(|found| found == slot && slot != DUMMY_SLOT);
        Ok(tensors.iter().find(holds).and_then(Tensor::bound))
    });
    Descriptors::plain(&core.device, &found.collect::<Result<Vec<_>>>()?)
}

/// The plain form's push constants, from those of the heap's form.
pub(super) fn push(kernel: &'static Kernel, block: &PushBlock, piece: Piece) -> Result<PushBlock> {
    let plain = Form::Plain.of(kernel);
    let words = plain.push_fields.iter().map(|field| word(kernel, block, field.name));
    let words: Vec<u32> = words.collect::<Result<_>>()?;
    Ok(PushBlock::of(bytemuck::cast_slice(&words)).of_program(&plain.into(), true)?.at(piece))
}

fn word(kernel: &Kernel, block: &PushBlock, name: &str) -> Result<u32> {
    let offset = kernel.push_offset(name).map(|offset| offset as usize);
    let bytes = offset.and_then(|offset| block.bytes().get(offset..offset + 4)?.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or_else(|| Error::Parameter {
        name: "push constants",
        expected: format!("the field `{name}` of `{}`", kernel.name),
        found: "no such field".into(),
    })
}

include!(concat!(env!("OUT_DIR"), "/heap_slots.rs"));

#[expect(unreachable_pub, reason = "generated as for the public manifest")]
mod fixed_heap {
    use crate::manifest::{Aligned, Axis, Constant, Kernel, PushField, Scalar};
    include!(concat!(env!("OUT_DIR"), "/fixed_heap.rs"));
}

#[expect(unreachable_pub, reason = "generated as for the public manifest")]
mod plain {
    use crate::manifest::{Aligned, Axis, Constant, Kernel, PushField, Scalar};
    include!(concat!(env!("OUT_DIR"), "/plain.rs"));
}

//! A call of a user's kernel: its tensors and values, by name.

use std::collections::BTreeMap;

use super::interface::{Constant, Field, word};
use super::kernel::UserKernel;
use crate::error::Result;
use crate::manifest::Scalar;
use crate::runtime::{Access, Load, PushBlock, Recorder, Tensor};

/// The value of a push or specialization constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Of type `uint`.
    U32(u32),
    /// Of type `int`.
    I32(i32),
    /// Of type `float`.
    F32(f32),
    /// Of type `bool`.
    Bool(bool),
}

impl Value {
    /// Reads a value of a type: a decimal integer, a decimal number, `inf` or `nan`, or `true` or `false`.
    fn parse(kind: Scalar, text: &str) -> Option<Self> {
        match kind {
            Scalar::U32 => text.parse().map(Self::U32).ok(),
            Scalar::I32 => text.parse().map(Self::I32).ok(),
            Scalar::F32 => text.parse().map(Self::F32).ok(),
            Scalar::Bool => text.parse().map(Self::Bool).ok(),
        }
    }

    fn of_bits(kind: Scalar, bits: u32) -> Self {
        match kind {
            Scalar::U32 => Self::U32(bits),
            Scalar::I32 => Self::I32(bits.cast_signed()),
            Scalar::F32 => Self::F32(f32::from_bits(bits)),
            Scalar::Bool => Self::Bool(bits != 0),
        }
    }

    fn kind(self) -> Scalar {
        match self {
            Self::U32(_) => Scalar::U32,
            Self::I32(_) => Scalar::I32,
            Self::F32(_) => Scalar::F32,
            Self::Bool(_) => Scalar::Bool,
        }
    }

    fn bits(self) -> u32 {
        match self {
            Self::U32(value) => value,
            Self::I32(value) => value.cast_unsigned(),
            Self::F32(value) => value.to_bits(),
            Self::Bool(value) => value.into(),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::F32(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

/// A call to be recorded, once all its tensors and values are there.
#[derive(Debug, Clone)]
pub struct Call<'k> {
    kernel: &'k UserKernel,
    values: BTreeMap<String, Value>,
    /// Each with whether the kernel writes it.
    tensors: BTreeMap<String, (Tensor, bool)>,
}

impl<'k> Call<'k> {
    pub(super) fn new(kernel: &'k UserKernel) -> Self {
        Self { kernel, values: BTreeMap::new(), tensors: BTreeMap::new() }
    }

    /// The kernel.
    pub fn kernel(&self) -> &'k UserKernel {
        self.kernel
    }

    /// Sets a push or specialization constant.
    ///
    /// # Errors
    /// [`Error::UserKernel`](crate::Error::UserKernel) when there is none of that name, or it has another type.
    pub fn set(&mut self, name: &str, value: Value) -> Result<&mut Self> {
        let kind = self.kind_of(name)?;
        if value.kind() != kind {
            let (expected, found) = (word(kind), word(value.kind()));
            let message = format!("`{name}`: expected {expected}, found {found} {value}");
            return Err(self.kernel.fault(message));
        }
        self.values.insert(name.into(), value);
        Ok(self)
    }

    /// Sets a push or specialization constant to what a text says: a whole number for `uint` and `int`, a number for
    /// `float`, `true` or `false` for `bool`.
    ///
    /// # Errors
    /// [`Error::UserKernel`](crate::Error::UserKernel) when there is none of that name, or the text is none of its values.
    pub fn set_text(&mut self, name: &str, text: &str) -> Result<&mut Self> {
        let kind = self.kind_of(name)?;
        let Some(value) = Value::parse(kind, text) else {
            let expected = match kind {
                Scalar::U32 => "a whole number from 0 to 4294967295 (uint)",
                Scalar::I32 => "a whole number from -2147483648 to 2147483647 (int)",
                Scalar::F32 => "a number (float)",
                Scalar::Bool => "true or false (bool)",
            };
            let message = format!("`{name}`: expected {expected}, found `{text}`");
            return Err(self.kernel.fault(message));
        };
        self.values.insert(name.into(), value);
        Ok(self)
    }

    /// Binds a tensor that the kernel reads.
    ///
    /// # Errors
    /// [`Error::UserKernel`](crate::Error::UserKernel) when there is none of that name, or the tensor is a view.
    pub fn read(&mut self, name: &str, tensor: &Tensor) -> Result<&mut Self> {
        self.bind(name, tensor, false)
    }

    /// Binds a tensor that the kernel writes, and may read.
    ///
    /// # Errors
    /// As for [`Call::read`].
    pub fn write(&mut self, name: &str, tensor: &Tensor) -> Result<&mut Self> {
        self.bind(name, tensor, true)
    }

    /// A value by name: as set, else as the file gives it.
    pub fn value(&self, name: &str) -> Option<Value> {
        let default = || {
            let constant = self.kernel.constants().iter().find(|c| c.name == name)?;
            constant.default.map(|bits| Value::of_bits(constant.kind, bits))
        };
        self.values.get(name).copied().or_else(default)
    }

    /// Fails when a push constant is not set.
    ///
    /// # Errors
    /// [`Error::UserKernel`](crate::Error::UserKernel), naming each.
    pub fn check_values(&self) -> Result<()> {
        let needed = |field: &&Field| !field.is_filled() && field.tensor().is_none();
        let fields = self.kernel.fields().iter().filter(needed);
        let missing = fields.filter(|field| !self.values.contains_key(&field.name));
        let missing: Vec<_> =
            missing.map(|field| format!("{} ({})", field.name, word(field.kind))).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(self.kernel.fault(format!("not set: {}", missing.join(", "))))
    }

    /// Records the call, over a grid of `groups` workgroups along x and y.
    ///
    /// # Safety
    /// With these values the kernel stays within the tensors that it was given: whether an access is in bounds is checked
    /// by nobody.
    ///
    /// # Errors
    /// [`Error::UserKernel`](crate::Error::UserKernel) for values and tensors that are not there;
    /// [`Error::Unsupported`](crate::Error::Unsupported) when the kernel needs what the device was not opened with, by
    /// name, or its workgroup is too large; [`Error::Parameter`](crate::Error::Parameter) when a tensor that it writes
    /// overlaps another one; those of [`Recorder::dispatch`].
    #[allow(unsafe_code)]
    pub unsafe fn record(&self, recorder: &mut Recorder<'_>, groups: [usize; 2]) -> Result<()> {
        self.check_values()?;
        self.check_tensors()?;
        let constants = self.constant_bits(recorder.runtime().lanes());
        let push = |access: &mut Access<'_>| {
            let block = self.block(access);
            access.refuse_overlaps();
            PushBlock::of(&block)
        };
        let load = || Load::Even(1);
        // SAFETY: the compiler made the module and reflected its interface; for the rest the caller vouches.
        unsafe { recorder.dispatch_block(&self.kernel.program, &constants, groups, load, push) }
    }

    fn kind_of(&self, name: &str) -> Result<Scalar> {
        let kernel = self.kernel;
        let known = kernel.values();
        if known.contains(&name) {
            let field = kernel.fields().iter().find(|f| f.name == name).map(|f| f.kind);
            let constant = || kernel.constants().iter().find(|c| c.name == name).map(|c| c.kind);
            if let Some(kind) = field.or_else(constant) {
                return Ok(kind);
            }
        }
        let field = kernel.fields().iter().find(|field| field.name == name);
        if let Some(tensor) = field.and_then(Field::tensor) {
            let message = format!("`{name}` is the place of the tensor `{tensor}`, which is bound");
            return Err(kernel.fault(message));
        }
        let filled = kernel.constants().iter().any(|c| c.name == name && c.is_filled());
        if filled || field.is_some() {
            return Err(kernel.fault(format!("`{name}` is filled in by the runtime")));
        }
        Err(kernel.unknown("value", name, &known))
    }

    fn bind(&mut self, name: &str, tensor: &Tensor, written: bool) -> Result<&mut Self> {
        self.kernel.check_tensor(name)?;
        if !tensor.is_root() {
            let message = format!("tensor `{name}`: expected a whole tensor, found {tensor:?}");
            return Err(self.kernel.fault(message));
        }
        self.tensors.insert(name.into(), (tensor.clone(), written));
        Ok(self)
    }

    fn check_tensors(&self) -> Result<()> {
        let mut missing = self.kernel.tensors();
        missing.retain(|name| !self.tensors.contains_key(*name));
        if missing.is_empty() {
            return Ok(());
        }
        Err(self.kernel.fault(format!("not bound: {}", missing.join(", "))))
    }

    /// The bits of the constants that the entry point uses, in their order.
    fn constant_bits(&self, lanes: u32) -> Vec<u32> {
        let bits = |constant: &Constant| {
            let default = constant.default?;
            let set = self.values.get(&constant.name).map(|value| value.bits());
            Some(if constant.is_filled() { lanes } else { set.unwrap_or(default) })
        };
        self.kernel.constants().iter().filter_map(bits).collect()
    }

    fn block(&self, access: &mut Access<'_>) -> Vec<u8> {
        let mut block = vec![0; self.kernel.interface.push_size as usize];
        for field in self.kernel.fields() {
            let bits = match field.tensor().and_then(|name| self.tensors.get(name)) {
                Some((tensor, true)) => access.write(tensor),
                Some((tensor, false)) => access.read(tensor),
                // Where a dispatch starts is filled in later.
                None => self.values.get(&field.name).map_or(0, |value| value.bits()),
            };
            let start = field.offset as usize;
            if let Some(bytes) = block.get_mut(start..start + 4) {
                bytes.copy_from_slice(&bits.to_ne_bytes());
            }
        }
        block
    }
}

//! Tensors in device memory.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::core::Core;
use super::heap::DUMMY_SLOT;
use super::lock;
use super::raw::{Buffer, Memory};
use super::{parts, strided};
use crate::error::{Error, Result};
use crate::host::Dtype;

/// Kernels address memory in words of this many bytes.
const WORD: u64 = 4;

/// A row-major array in device memory, or a part of one: a view.
///
/// Clones and views share the memory, which returns to its runtime when the last one is dropped and the device is done
/// with it.
///
/// ```no_run
/// # fn main() -> backslang::Result<()> {
/// # use backslang::{Dtype, runtime::{Runtime, RuntimeOptions}};
/// let runtime = Runtime::new(&RuntimeOptions::default())?;
/// // Rows of queries, keys and values of 8, 2 and 2 heads, side by side.
/// let packed = runtime.tensor("qkv", Dtype::F32, &[100, 12 * 64])?;
/// let q = packed.narrow(1, 0..8 * 64)?.reshape(&[100, 8, 64])?;
/// assert_eq!(q.strides(), [12 * 64, 64, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    name: Box<str>,
    dtype: Dtype,
    shape: Box<[usize]>,
    /// In elements.
    strides: Box<[usize]>,
    /// In elements from the start of the storage.
    offset: usize,
    /// `None` when the tensor is empty.
    window: Option<Window>,
    core: Arc<Core>,
}

/// What kernels see of a storage, through slots of its own: one for each part that it reaches.
struct Window {
    storage: Arc<Storage>,
    /// The bytes that are the tensor's, widened to words.
    bytes: Range<u64>,
    /// Where the first binding begins: at or before them, as aligned as the device asks for; where there are several
    /// bindings, with its part.
    start: u64,
    /// The first slot, taken when it is first needed.
    slot: OnceLock<u32>,
}

/// The memory of a tensor that is no view: bytes counted through all of its parts, each a buffer of its own.
pub(super) struct Storage {
    parts: Vec<Arc<Pooled>>,
    /// Bytes of each part but the last.
    part_bytes: u64,
    bytes: u64,
    /// Bytes behind each part, for tests.
    guard: u64,
}

/// Callers' buffers that are in use, by their handles: all tensors of one share its storage, so that their hazards meet.
#[derive(Default)]
pub(super) struct Imports(Mutex<HashMap<u64, Weak<Storage>>>);

impl Imports {
    /// The storage of this handle, made where there is none in use.
    pub(super) fn get(&self, handle: u64, make: impl FnOnce() -> Storage) -> Arc<Storage> {
        let mut imports = lock(&self.0);
        if let Some(storage) = imports.get(&handle).and_then(Weak::upgrade) {
            return storage;
        }
        imports.retain(|_, storage| storage.strong_count() > 0);
        let storage = Arc::new(make());
        imports.insert(handle, Arc::downgrade(&storage));
        storage
    }
}

impl Tensor {
    /// A new tensor, contents undefined.
    pub(super) fn new(core: &Arc<Core>, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Self> {
        let window = match byte_size(core, name, dtype, shape)? {
            0 => None,
            bytes => {
                let most = largest_binding(core) as usize / dtype.size();
                let part = (parts::elements(shape, most) * dtype.size()) as u64;
                let part = if bytes <= largest_binding(core) { u64::MAX } else { part };
                Some(Window::new(core, name, bytes, part)?)
            }
        };
        let strides = strided::dense(shape).into();
        let (name, shape, core) = (name.into(), shape.into(), core.clone());
        Ok(Self(Arc::new(Inner { name, dtype, shape, strides, offset: 0, window, core })))
    }

    /// A part of a caller's buffer, `place` bytes from its start on.
    pub(super) fn within(
        core: &Arc<Core>,
        storage: &Arc<Storage>,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        place: u64,
    ) -> Result<Self> {
        let (bytes, size) = (byte_size(core, name, dtype, shape)?, dtype.size() as u64);
        check_binding(core, name, bytes)?;
        let refuse = |name, expected, found| Err(Error::Parameter { name, expected, found });
        if !place.is_multiple_of(size) {
            let expected = format!("a multiple of the {size} bytes of an element of `{name}`");
            return refuse("offset", expected, place.to_string());
        }
        let end = place.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(WORD));
        if bytes > 0 && end.is_none_or(|end| end > storage.bytes) {
            let expected = format!("whole words for `{name}` within {} bytes", storage.bytes);
            return refuse("offset", expected, format!("{bytes} bytes from {place} on"));
        }
        let whole = (bytes > 0).then(|| Window::within(core, storage, 0..storage.bytes));
        let (strides, shape) = (strided::dense(shape).into(), shape.into());
        let inner = Inner {
            name: name.into(),
            dtype,
            shape,
            strides,
            offset: 0,
            window: whole,
            core: core.clone(),
        };
        let place = usize::try_from(place / size).unwrap_or(usize::MAX);
        let tensor = Self(Arc::new(inner));
        let tensor = tensor.view(tensor.shape(), tensor.strides(), place);
        tensor.slot()?;
        Ok(tensor)
    }

    /// The name that errors call it by.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// The shape; empty for a single value.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// From each axis' element to its next, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.0.strides
    }

    /// Where the first element lies, in elements from the start of the memory that it shares with others.
    pub fn offset(&self) -> usize {
        self.0.offset
    }

    /// Whether its elements follow each other without gaps.
    pub fn is_dense(&self) -> bool {
        strided::is_dense(self.shape(), self.strides())
    }

    /// The size of its elements in bytes, without the gaps between them.
    pub fn bytes(&self) -> u64 {
        strided::count(self.shape()).map_or(0, |n| n as u64) * self.dtype().size() as u64
    }

    /// The part of the tensor with the indices `range` along `axis`: a view.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the tensor has no such axis or the range is not within it.
    pub fn narrow(&self, axis: usize, range: Range<usize>) -> Result<Self> {
        let length = self.shape().get(axis).copied().unwrap_or(0);
        if axis >= self.shape().len() || range.start > range.end || range.end > length {
            return Err(Error::Parameter {
                name: "range",
                expected: format!("a part of an axis of `{}` {:?}", self.name(), self.shape()),
                found: format!("{range:?} of axis {axis}"),
            });
        }
        let mut shape = self.shape().to_vec();
        shape[axis] = range.len();
        // Where the tensor is empty, its strides may be anything.
        let offset = range.start.saturating_mul(self.strides()[axis]);
        let offset = self.offset().saturating_add(offset);
        Ok(self.view(&shape, self.strides(), offset))
    }

    /// The same elements in the same order under another shape: a view.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs, or when axes that lie apart would have to become one.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let strides = (strided::count(shape) == strided::count(self.shape()))
            .then(|| strided::reshape(self.shape(), self.strides(), shape))
            .flatten();
        let Some(strides) = strides else {
            return Err(Error::Shape {
                array: "(view)",
                expected: format!(
                    "a shape for the elements of `{}` {:?} with strides {:?}",
                    self.name(),
                    self.shape(),
                    self.strides()
                ),
                found: shape.to_vec(),
            });
        };
        Ok(self.view(shape, &strides, self.offset()))
    }

    /// Tensors one behind the other as one, such as a cache that is kept in several buffers: a view of all their memory.
    /// The first axis is as long as all of theirs.
    ///
    /// Each is in one buffer and all of it, and each but the last has as many elements, an even number of them.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Dtype`] for tensors that differ but in the first axis; [`Error::Parameter`] for those
    /// that cannot be joined.
    pub fn join(name: &str, tensors: &[Self]) -> Result<Self> {
        let refuse = |expected: &str, found: String| {
            Err(Error::Parameter { name: "tensors", expected: expected.into(), found })
        };
        let Some(first) = tensors.first().filter(|first| !first.shape().is_empty()) else {
            return refuse("some, with axes", format!("{tensors:?}"));
        };
        let mut storage = Storage { parts: Vec::new(), part_bytes: 0, bytes: 0, guard: 0 };
        for (index, tensor) in tensors.iter().enumerate() {
            if tensor.dtype() != first.dtype() || tensor.shape().get(1..) != first.shape().get(1..)
            {
                return refuse(&format!("all as {first:?}"), format!("{tensor:?}"));
            }
            let equal = tensor.bytes() == first.bytes() && tensor.bytes().is_multiple_of(WORD);
            let last = index + 1 == tensors.len() && tensor.bytes() <= first.bytes();
            let window = tensor.0.window.as_ref().filter(|window| window.storage.parts.len() == 1);
            match window.filter(|_| tensor.is_root() && (equal || last)) {
                Some(window) if tensor.belongs_to(&first.0.core) => {
                    storage.parts.push(window.storage.parts[0].clone());
                    storage.bytes += tensor.bytes();
                }
                _ => {
                    let expected = "whole tensors of one buffer and runtime each, alike but for a shorter last";
                    return refuse(expected, format!("{tensor:?}"));
                }
            }
        }
        storage.part_bytes = if tensors.len() > 1 { first.bytes() } else { u64::MAX };
        let rows = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
        let shape = [&[rows], &first.shape()[1..]].concat();
        let core = first.0.core.clone();
        let window = Some(Window::within(&core, &Arc::new(storage), 0..first.bytes()));
        let inner = Inner {
            name: name.into(),
            dtype: first.dtype(),
            strides: strided::dense(&shape).into(),
            shape: shape.clone().into(),
            offset: 0,
            window,
            core,
        };
        let tensor = Self(Arc::new(inner));
        Ok(tensor.view(&shape, tensor.strides(), 0))
    }

    /// Whether both are the same elements of the same memory in the same order.
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |tensor: &Self| {
            tensor.0.window.as_ref().map(|window| Arc::as_ptr(&window.storage).addr())
        };
        self.dtype() == other.dtype()
            && self.offset() == other.offset()
            && self.shape() == other.shape()
            && strided::runs(self.shape(), self.strides())
                == strided::runs(other.shape(), other.strides())
            && place(self) == place(other)
    }

    /// Whether it is all of its memory.
    pub(crate) fn is_root(&self) -> bool {
        let storage = self.0.window.as_ref().map(|window| window.storage.bytes);
        self.offset() == 0 && storage.is_none_or(|bytes| bytes == self.bytes())
    }

    /// Whether an element of one may be an element of the other. Of views whose rows are equally far apart it is known;
    /// of others, wherever they reach past each other's ends.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        let (Some(a), Some(b)) = (&self.0.window, &other.0.window) else { return false };
        if !Arc::ptr_eq(&a.storage, &b.storage) {
            // One may be joined of parts that the other has.
            let parts = |window: &Window| window.storage.parts[window.parts()].to_vec();
            let of_b = parts(b);
            return parts(a).iter().any(|part| of_b.iter().any(|other| Arc::ptr_eq(part, other)));
        }
        let [first, second] = [self, other].map(|t| {
            let (begin, size) = (t.offset(), t.dtype().size());
            let rows = strided::rows(t.shape(), t.strides());
            let span = strided::span(t.shape(), t.strides());
            (
                begin * size..(begin + span) * size,
                rows.map(|[width, stride]| [width * size, stride * size]),
            )
        });
        if first.0.end <= second.0.start || second.0.end <= first.0.start {
            return false;
        }
        match (first.1, second.1) {
            // In each row the columns [start, start + width) modulo the stride.
            (Some([width, stride]), Some([other, same])) if stride == same => {
                let ahead = |from: usize, to: usize| (to + stride - from % stride) % stride;
                ahead(first.0.start, second.0.start) < width
                    || ahead(second.0.start, first.0.start) < other
            }
            _ => true,
        }
    }

    fn view(&self, shape: &[usize], strides: &[usize], offset: usize) -> Self {
        let Inner { name, dtype, window, core, .. } = &*self.0;
        let size = dtype.size();
        let span = strided::span(shape, strides);
        let offset = if span == 0 { 0 } else { offset };
        let bytes = (offset * size) as u64..((offset + span) * size) as u64;
        let window = window.as_ref().filter(|_| span > 0);
        let window = window.map(|window| Window::within(core, &window.storage, bytes));
        Self(Arc::new(Inner {
            name: name.clone(),
            dtype: *dtype,
            shape: shape.into(),
            strides: strides.into(),
            offset,
            window,
            core: core.clone(),
        }))
    }

    /// Of a tensor that kernels see through several bindings: the elements from the start of one to the start of the
    /// next, counted in the memory that the tensor shares with others. `None` of one that a single binding shows.
    ///
    /// A tensor that is larger than a binding lies in several buffers. Each but the last has as many elements, a whole
    /// number of rows, whichever axes are taken for a row; of 128 rows where so many fit. Calls of this crate take such
    /// tensors as others, but where errors tell otherwise.
    pub fn binding_elements(&self) -> Option<usize> {
        let window = self.0.window.as_ref().filter(|window| window.parts().len() > 1)?;
        Some(window.storage.part_bytes as usize / self.dtype().size())
    }

    /// Where the first element lies, in elements from the start of what kernels see of the memory. It is 0 but for views
    /// that begin at a place which is not aligned as the device wants bindings to be, or in the midst of the first of
    /// several bindings.
    pub fn binding_offset(&self) -> usize {
        let start = self.0.window.as_ref().map_or(0, |window| window.start as usize);
        if start == 0 { self.offset() } else { self.offset() - start / self.dtype().size() }
    }

    /// Whether the tensor belongs to this runtime.
    pub(super) fn belongs_to(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.0.core, core)
    }

    /// The heap slot, or the first of those of several bindings; the dummy's when the tensor is empty.
    pub(super) fn slot(&self) -> Result<u32> {
        match &self.0.window {
            Some(window) => window.slot(&self.0.core),
            None => Ok(DUMMY_SLOT),
        }
    }

    /// Of each part that it reaches: its number, its buffer and the bytes of that from the tensor's first to its last,
    /// widened to words; none when it is empty.
    pub(super) fn memory(&self) -> impl Iterator<Item = (usize, &Buffer, Range<u64>)> {
        let window = self.0.window.iter();
        window.flat_map(|window| {
            let parts = window.parts().map(|part| (part, window.within_part(part)));
            parts.filter_map(|(part, bytes)| Some((part, window.storage.parts[part].get()?, bytes)))
        })
    }

    /// Fails when it lies in a caller's buffer that copies cannot read, or write.
    pub(super) fn check_copies(&self, write: bool) -> Result<()> {
        self.memory().try_for_each(|(_, buffer, _)| buffer.check_copies(self.name(), write))
    }

    /// The buffer of a part.
    pub(super) fn part(&self, part: usize) -> Option<&Buffer> {
        self.0.window.as_ref()?.storage.parts.get(part)?.get()
    }

    /// The buffer and the bytes of it that the one binding shows to kernels.
    #[cfg(feature = "forms")]
    pub(super) fn bound(&self) -> Option<(&Buffer, Range<u64>)> {
        self.0.window.as_ref()?.bindings().into_iter().next()
    }

    /// The error where several bindings are of no use.
    pub(super) fn beyond_a_binding(&self) -> Error {
        let bytes = self.0.window.as_ref().map_or(0, |w| w.bytes.end - w.bytes.start);
        too_large(&self.0.core, self.name(), bytes)
    }

    /// What lies behind each part of the memory that the tensor is of, for tests.
    pub(super) fn guards(&self) -> Vec<(usize, Range<u64>)> {
        let Some(storage) = self.0.window.as_ref().map(|window| &window.storage) else {
            return Vec::new();
        };
        let guard = |part| (part, storage.end_of(part)..storage.end_of(part) + storage.guard);
        let parts = if storage.guard > 0 { storage.parts.len() } else { 0 };
        (0..parts).map(guard).collect()
    }

    /// Ranges of bytes of the parts' buffers, with the parts' numbers, in the order of the elements, of at most `most`
    /// bytes each.
    pub(super) fn pieces(&self, most: usize) -> impl Iterator<Item = (usize, Range<u64>)> {
        let (offset, size) = (self.offset(), self.dtype().size());
        let bytes = move |i: usize| ((offset + i) * size) as u64;
        let part_bytes = self.0.window.as_ref().map_or(u64::MAX, |w| w.storage.part_bytes);
        strided::pieces(self.shape(), self.strides(), most / size)
            .map(move |piece| bytes(piece.start)..bytes(piece.end))
            .flat_map(move |piece| {
                let parts = piece.start / part_bytes..=(piece.end - 1) / part_bytes;
                parts.map(move |part| (part as usize, clip(&piece, part, part_bytes)))
            })
    }

    /// An identity that differs from that of every tensor alive.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor(`{}`: {} {:?}", self.name(), self.dtype(), self.shape())?;
        if !self.is_dense() || self.offset() > 0 {
            write!(f, " at {} with strides {:?}", self.offset(), self.strides())?;
        }
        write!(f, ")")
    }
}

/// What of a range of bytes lies in a part, from the part's start on.
fn clip(bytes: &Range<u64>, part: u64, part_bytes: u64) -> Range<u64> {
    let first = part * part_bytes;
    bytes.start.max(first) - first..(bytes.end - first).min(part_bytes)
}

impl Storage {
    /// A caller's buffer.
    pub(super) fn of_caller(core: &Arc<Core>, buffer: Buffer) -> Self {
        let bytes = buffer.bytes();
        let parts = vec![Arc::new(Pooled { buffer: Some(buffer), core: core.clone() })];
        Self { parts, part_bytes: u64::MAX, bytes, guard: 0 }
    }

    /// A caller's buffer, which is all of it.
    pub(super) fn buffer(&self) -> Option<&Buffer> {
        self.parts.first()?.get()
    }

    fn new(core: &Arc<Core>, name: &str, bytes: u64, part_bytes: u64) -> Result<Self> {
        let guard = core.strain.guard.load(Ordering::Relaxed);
        let mut storage = Self { parts: Vec::new(), part_bytes, bytes, guard };
        for part in 0..bytes.div_ceil(part_bytes) as usize {
            let size = storage.end_of(part) + guard;
            let buffer = Pooled::new(core, Memory::Device, size, name);
            storage.parts.push(Arc::new(buffer.map_err(|error| of_all(error, bytes))?));
        }
        Ok(storage)
    }

    /// The bytes of a part. A kernel that reads the last 16-bit element reads the word around it.
    fn end_of(&self, part: usize) -> u64 {
        let first = part as u64 * self.part_bytes;
        (self.bytes - first).min(self.part_bytes).next_multiple_of(WORD)
    }
}

impl Window {
    /// The window onto all of a new storage, and onto what is behind each part of it.
    fn new(core: &Arc<Core>, name: &str, bytes: u64, part_bytes: u64) -> Result<Self> {
        let storage = Arc::new(Storage::new(core, name, bytes, part_bytes)?);
        let bytes = 0..bytes.next_multiple_of(WORD);
        let window = Self { storage, bytes, start: 0, slot: OnceLock::new() };
        window.slot(core)?;
        Ok(window)
    }

    /// The window onto a part of a storage.
    fn within(core: &Core, storage: &Arc<Storage>, bytes: Range<u64>) -> Self {
        let alignment = core.info.limits.min_storage_buffer_offset_alignment.max(WORD);
        let part = bytes.start / storage.part_bytes * storage.part_bytes;
        let mut window = Self {
            storage: storage.clone(),
            start: part,
            bytes: bytes.start / WORD * WORD..bytes.end.next_multiple_of(WORD),
            slot: OnceLock::new(),
        };
        if window.parts().len() == 1 {
            window.start += (bytes.start - part) / alignment * alignment;
        }
        window
    }

    /// The parts that it reaches.
    fn parts(&self) -> Range<usize> {
        let part = |byte: u64| (byte / self.storage.part_bytes) as usize;
        part(self.bytes.start)..part(self.bytes.end - 1) + 1
    }

    /// Its bytes in one of these parts; with the guard when it is all that there is.
    fn within_part(&self, part: usize) -> Range<u64> {
        let bytes = clip(&self.bytes, part as u64, self.storage.part_bytes);
        let whole = self.bytes.end - self.bytes.start >= self.storage.bytes;
        bytes.start..bytes.end + if whole { self.storage.guard } else { 0 }
    }

    /// What each binding shows.
    fn bindings(&self) -> Vec<(&Buffer, Range<u64>)> {
        let binding = |part: usize| {
            let start = self.start.saturating_sub(part as u64 * self.storage.part_bytes);
            Some((self.storage.parts[part].get()?, start..self.within_part(part).end))
        };
        self.parts().filter_map(binding).collect()
    }

    fn slot(&self, core: &Core) -> Result<u32> {
        if let Some(slot) = self.slot.get() {
            return Ok(*slot);
        }
        let taken = core.slots(&self.bindings())?;
        let slot = *self.slot.get_or_init(|| taken);
        if slot != taken {
            // Another thread was first.
            core.heap.give(self.slots_from(taken));
        }
        Ok(slot)
    }

    fn slots_from(&self, first: u32) -> Range<u32> {
        first..first + self.parts().len() as u32
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Before the buffers go back to the pool. Recordings hold their tensors until the device is done.
        if let (Some(slot), [part, ..]) = (self.slot.take(), &self.storage.parts[..]) {
            part.core.heap.give(self.slots_from(slot));
        }
    }
}

/// A buffer that returns to the pool.
pub(super) struct Pooled {
    /// There until it is dropped.
    buffer: Option<Buffer>,
    core: Arc<Core>,
}

impl Pooled {
    pub(super) fn new(core: &Arc<Core>, memory: Memory, bytes: u64, name: &str) -> Result<Self> {
        let buffer = core.buffer(memory, bytes, name)?;
        Ok(Self { buffer: Some(buffer), core: core.clone() })
    }

    pub(super) fn get(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut Buffer> {
        self.buffer.as_mut()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take()
            && !buffer.is_callers()
        {
            self.core.pool.give(buffer);
        }
    }
}

/// Bytes of the largest binding, which is one buffer's.
pub(super) fn largest_binding(core: &Core) -> u64 {
    let limits = &core.info.limits;
    let limit = limits
        .max_storage_buffer_range
        .min(limits.max_buffer_size)
        .min(limits.max_memory_allocation_size);
    let limit = match core.strain.binding.load(Ordering::Relaxed) {
        0 => limit,
        strain => limit.min(strain),
    };
    limit / WORD * WORD
}

/// The bytes of a tensor, held against the device's memory before anything is allocated.
pub(super) fn byte_size(core: &Core, name: &str, dtype: Dtype, shape: &[usize]) -> Result<u64> {
    let limit = core.info.memory;
    let bytes = shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d as u64));
    match bytes {
        Some(bytes) if bytes <= limit => Ok(bytes),
        // An empty axis makes the tensor empty whatever the others are.
        _ if shape.contains(&0) => Ok(0),
        _ => Err(Error::OutOfMemory {
            place: "device",
            what: format!("`{name}`"),
            asked: Some(bytes.unwrap_or(u64::MAX)),
            available: Some(limit),
        }),
    }
}

/// Holds the bytes of a tensor against the limit of a binding.
pub(super) fn check_binding(core: &Core, name: &str, bytes: u64) -> Result<()> {
    if bytes <= largest_binding(core) { Ok(()) } else { Err(too_large(core, name, bytes)) }
}

fn too_large(core: &Core, name: &str, bytes: u64) -> Error {
    let device = core.info.name.clone();
    Error::TensorTooLarge { tensor: name.into(), bytes, limit: largest_binding(core), device }
}

/// The error of an allocation as that of all that it was a part of.
fn of_all(error: Error, bytes: u64) -> Error {
    match error {
        Error::OutOfMemory { place, what, asked: Some(_), available } => {
            Error::OutOfMemory { place, what, asked: Some(bytes), available }
        }
        other => other,
    }
}

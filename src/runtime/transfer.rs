//! Uploads and downloads, in pieces through staging buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Runtime;
use super::raw::Memory;
use super::recorder::Recording;
use super::submission::Submission;
use super::tensor::{Pooled, Tensor};
use crate::error::Result;

/// Bytes of one staging buffer.
const PIECE: usize = 16 << 20;

/// Pieces under way at a time: the host copies one while the device copies the others.
const PIECES: usize = 4;

/// Bytes from which on a copy within host memory is shared among threads, and how many at most.
const SHARED: usize = 4 << 20;
const THREADS: usize = 8;

/// Copies `bytes`, all that the tensor holds, to the device. Returns when the last piece is staged.
pub(super) fn upload(runtime: &Runtime, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    let mut under_way = VecDeque::<Submission>::new();
    let mut offset = 0;
    for piece in bytes.chunks(PIECE) {
        if under_way.len() == PIECES
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.wait()?;
        }
        let length = piece.len() as u64;
        let mut staging = Pooled::new(runtime.core(), Memory::Upload, length, tensor.name())?;
        if let Some(buffer) = staging.get_mut() {
            copy_bytes(&mut buffer.mapped_mut()[..piece.len()], piece);
        }
        let mut recorder = runtime.recorder()?;
        recorder.copy_in(Arc::new(staging), tensor, offset, length)?;
        under_way.push_back(recorder.submit()?);
        offset += length;
    }
    Ok(())
}

/// Copies all that the tensor holds to `bytes`, of the same length, behind all work submitted before.
pub(super) fn download(runtime: &Runtime, tensor: &Tensor, bytes: &mut [u8]) -> Result<()> {
    let mut under_way = VecDeque::new();
    let mut offset = 0;
    for piece in bytes.chunks_mut(PIECE) {
        if under_way.len() == PIECES
            && let Some(oldest) = under_way.pop_front()
        {
            finish(oldest)?;
        }
        let length = piece.len() as u64;
        let staging = Pooled::new(runtime.core(), Memory::Readback, length, tensor.name())?;
        let staging = Arc::new(staging);
        let mut recorder = runtime.recorder()?;
        recorder.copy_out(tensor, offset, staging.clone(), length)?;
        under_way.push_back((recorder.submit()?, staging, piece));
        offset += length;
    }
    under_way.into_iter().try_for_each(finish)
}

fn finish((copy, staging, piece): (Submission, Arc<Pooled>, &mut [u8])) -> Result<()> {
    copy.wait()?;
    if let Some(buffer) = staging.get() {
        copy_bytes(piece, &buffer.mapped()[..piece.len()]);
    }
    Ok(())
}

/// What lies behind a guarded tensor: NaN as elements of any type.
pub(super) const GUARD: u32 = u32::MAX;

/// Whether all words behind the tensor that kernels see are NaN.
pub(super) fn guard_holds(runtime: &Runtime, tensor: &Tensor) -> Result<bool> {
    let Some((_, range)) = tensor.memory() else { return Ok(true) };
    let start = tensor.bytes().next_multiple_of(4);
    let length = range.end - start;
    if length == 0 {
        return Ok(true);
    }
    let staging = Arc::new(Pooled::new(runtime.core(), Memory::Readback, length, "guard")?);
    let mut recorder = runtime.recorder()?;
    recorder.copy_out(tensor, start, staging.clone(), length)?;
    recorder.submit()?.wait()?;
    let words = staging.get().map_or(&[][..], |buffer| &buffer.mapped()[..length as usize]);
    Ok(words.chunks_exact(4).all(|word| word == GUARD.to_ne_bytes()))
}

/// Whether the dummy buffer holds zeros.
pub(super) fn dummy_holds(runtime: &Runtime) -> Result<bool> {
    let core = runtime.core();
    let dummy = core.heap.dummy();
    let staging = Pooled::new(core, Memory::Readback, dummy.bytes(), "dummy")?;
    let Some(target) = staging.get() else { return Ok(true) };
    let mut commands = core.commands()?;
    commands.begin(core.heap.descriptors())?;
    commands.copy((dummy, 0), (target, 0), dummy.bytes());
    let (value, _) = core.submit(Recording::new(commands))?;
    core.wait(value)?;
    Ok(target.mapped()[..dummy.bytes() as usize].iter().all(|byte| *byte == 0))
}

/// Copies between slices of equal length. One thread cannot keep up with the bus, nor with the pages that a new
/// allocation faults in.
fn copy_bytes(to: &mut [u8], from: &[u8]) {
    if to.len() < SHARED {
        return to.copy_from_slice(from);
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS));
    let part = to.len().div_ceil(threads);
    let shared = std::thread::scope(|scope| {
        to.chunks_mut(part).zip(from.chunks(part)).all(|(to, from)| {
            let copy = || to.copy_from_slice(from);
            std::thread::Builder::new().spawn_scoped(scope, copy).is_ok()
        })
    });
    if !shared {
        to.copy_from_slice(from);
    }
}

//! Uploads and downloads, in pieces through staging buffers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::Runtime;
use super::raw::Memory;
use super::raw::embed::Links;
use super::recorder::Recording;
use super::submission::Submission;
use super::tensor::{Pooled, Tensor};
use crate::error::Result;

/// Bytes of one staging buffer.
const PIECE: usize = 16 << 20;

/// Places in a list for one staging buffer, at most: a command holds them all.
const PLACES: usize = 1 << 16;

/// Pieces under way at a time: the host copies one while the device copies the others.
const PIECES: usize = 4;

/// Bytes from which on a copy within host memory is shared among threads, and how many at most.
const SHARED: usize = 4 << 20;
const THREADS: usize = 8;

/// Copies `bytes`, all that the tensor holds, to the device. Returns when the last piece is staged.
pub(super) fn upload(runtime: &Runtime, tensor: &Tensor, mut bytes: &[u8]) -> Result<()> {
    tensor.check_copies(true)?;
    let mut under_way = VecDeque::<Submission>::new();
    for places in Pieces::of(tensor) {
        if under_way.len() == PIECES
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.wait()?;
        }
        let (piece, rest) = bytes.split_at(length(&places));
        bytes = rest;
        let mut staging =
            Pooled::new(runtime.core(), Memory::Upload, piece.len() as u64, tensor.name())?;
        if let Some(buffer) = staging.get_mut() {
            copy_bytes(&mut buffer.mapped_mut()[..piece.len()], piece);
        }
        let mut recorder = runtime.recorder()?;
        recorder.copy_in(Arc::new(staging), tensor, &places);
        under_way.push_back(recorder.submit()?);
    }
    Ok(())
}

/// Copies all that the tensor holds to `bytes`, of the same length, behind all work submitted before.
pub(super) fn download(runtime: &Runtime, tensor: &Tensor, mut bytes: &mut [u8]) -> Result<()> {
    tensor.check_copies(false)?;
    let mut under_way = VecDeque::new();
    for places in Pieces::of(tensor) {
        if under_way.len() == PIECES
            && let Some(oldest) = under_way.pop_front()
        {
            finish(oldest)?;
        }
        let (piece, rest) = bytes.split_at_mut(length(&places));
        bytes = rest;
        let staging = stage_out(runtime, tensor, &places)?;
        under_way.push_back((staging.0, staging.1, piece));
    }
    under_way.into_iter().try_for_each(finish)
}

/// Starts the copy of places of a tensor's buffer to a staging buffer.
fn stage_out(
    runtime: &Runtime,
    tensor: &Tensor,
    places: &[Range<u64>],
) -> Result<(Submission, Arc<Pooled>)> {
    let bytes = length(places) as u64;
    let staging = Arc::new(Pooled::new(runtime.core(), Memory::Readback, bytes, tensor.name())?);
    let mut recorder = runtime.recorder()?;
    recorder.copy_out(tensor, places, staging.clone());
    Ok((recorder.submit()?, staging))
}

/// The places of a tensor's elements, in lists for one staging buffer each.
struct Pieces<I> {
    places: I,
    /// The first place of the next list.
    next: Option<Range<u64>>,
}

impl Pieces<()> {
    fn of(tensor: &Tensor) -> Pieces<impl Iterator<Item = Range<u64>>> {
        let mut places = tensor.pieces(PIECE);
        Pieces { next: places.next(), places }
    }
}

impl<I: Iterator<Item = Range<u64>>> Iterator for Pieces<I> {
    type Item = Vec<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut list = vec![self.next.take()?];
        let mut room = PIECE - length(&list);
        for place in self.places.by_ref() {
            let bytes = length(std::slice::from_ref(&place));
            if bytes > room || list.len() == PLACES {
                self.next = Some(place);
                break;
            }
            room -= bytes;
            list.push(place);
        }
        Some(list)
    }
}

/// The bytes of all places.
fn length(places: &[Range<u64>]) -> usize {
    places.iter().map(|place| (place.end - place.start) as usize).sum()
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

/// Whether all words behind the memory that the tensor is of are NaN.
pub(super) fn guard_holds(runtime: &Runtime, tensor: &Tensor) -> Result<bool> {
    let Some(guard) = tensor.guard().filter(|guard| !guard.is_empty()) else { return Ok(true) };
    let (copy, staging) = stage_out(runtime, tensor, std::slice::from_ref(&guard))?;
    copy.wait()?;
    let bytes = length(&[guard]);
    let words = staging.get().map_or(&[][..], |buffer| &buffer.mapped()[..bytes]);
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
    commands.copy(dummy, target, [[0, 0, dummy.bytes()]].into_iter());
    let (value, _) = core.submit(Recording::new(commands), &Links::default())?;
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

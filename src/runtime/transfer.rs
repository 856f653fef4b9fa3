//! Uploads and downloads, in pieces through staging buffers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::raw::Memory;
use super::raw::embed::Links;
use super::recorder::{Recorder, Recording};
use super::stream::Stream;
use super::submission::Submission;
use super::tensor::{Pooled, Tensor};
use super::{Runtime, lock};
use crate::error::Result;

/// Bytes of one staging buffer. Short enough that the first copy starts soon, long enough that its submission is cheap.
const PIECE: usize = 4 << 20;

/// Places in a list for one staging buffer, at most: a command holds them all.
const PLACES: usize = 1 << 16;

/// Threads that stage pieces, at most: one cannot keep up with the bus, nor with the pages that a new allocation faults in.
const THREADS: usize = 8;

/// Pieces of a thread: the host copies one while the device copies the other.
const PIECES: usize = 2;

/// Copies `bytes`, all that the tensor holds, to the device. Returns when the last piece is staged.
pub(super) fn upload(runtime: &Runtime, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    tensor.check_copies(true)?;
    let parts = Mutex::new((Pieces::of(tensor), bytes));
    let next = || {
        let (pieces, rest) = &mut *lock(&parts);
        let (part, places) = pieces.next()?;
        let (piece, after) = rest.split_at(length(&places));
        *rest = after;
        Some((part, places, piece))
    };
    on_threads(bytes.len(), &|| {
        let mut under_way = VecDeque::<Submission>::new();
        while let Some((part, places, piece)) = next() {
            if under_way.len() == PIECES
                && let Some(oldest) = under_way.pop_front()
            {
                oldest.wait()?;
            }
            let bytes = piece.len() as u64;
            let mut staging = Pooled::new(runtime.core(), Memory::Upload, bytes, tensor.name())?;
            if let Some(buffer) = staging.get_mut() {
                buffer.mapped_mut()[..piece.len()].copy_from_slice(piece);
            }
            let mut recorder = Recorder::copying(runtime)?;
            recorder.copy_in(Arc::new(staging), tensor, part, &places);
            under_way.push_back(recorder.submit()?);
        }
        Ok(())
    })
}

/// Copies all that the tensor holds to `bytes`, of the same length, behind what was submitted before and writes it.
pub(super) fn download(runtime: &Runtime, tensor: &Tensor, bytes: &mut [u8]) -> Result<()> {
    tensor.check_copies(false)?;
    let total = bytes.len();
    let parts = Mutex::new((Pieces::of(tensor), bytes));
    let next = || {
        let (pieces, rest) = &mut *lock(&parts);
        let (part, places) = pieces.next()?;
        let (piece, after) = std::mem::take(rest).split_at_mut(length(&places));
        *rest = after;
        Some((part, places, piece))
    };
    on_threads(total, &|| {
        let mut under_way = VecDeque::new();
        while let Some((part, places, piece)) = next() {
            if under_way.len() == PIECES
                && let Some(oldest) = under_way.pop_front()
            {
                finish(oldest)?;
            }
            let (copy, staging) = stage_out(runtime, tensor, part, &places)?;
            under_way.push_back((copy, staging, piece));
        }
        under_way.into_iter().try_for_each(finish)
    })
}

/// Works on this thread and, where there are several pieces, beside it on others.
fn on_threads(bytes: usize, work: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = bytes.div_ceil(PIECE).min(cores).min(THREADS);
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        // Where none can be had, this one does it all.
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        others.into_iter().fold(work(), |done, thread| {
            done.and(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

/// Starts the copy of places of a part of a tensor to a staging buffer.
fn stage_out(
    runtime: &Runtime,
    tensor: &Tensor,
    part: usize,
    places: &[Range<u64>],
) -> Result<(Submission, Arc<Pooled>)> {
    let bytes = length(places) as u64;
    let staging = Arc::new(Pooled::new(runtime.core(), Memory::Readback, bytes, tensor.name())?);
    let mut recorder = Recorder::copying(runtime)?;
    recorder.copy_out(tensor, part, places, staging.clone());
    Ok((recorder.submit()?, staging))
}

/// The places of a tensor's elements, in lists for one staging buffer and of one part of the tensor each.
struct Pieces<I> {
    places: I,
    /// The part and the first place of the next list.
    next: Option<(usize, Range<u64>)>,
}

impl Pieces<()> {
    fn of(tensor: &Tensor) -> Pieces<impl Iterator<Item = (usize, Range<u64>)>> {
        let mut places = tensor.pieces(PIECE);
        Pieces { next: places.next(), places }
    }
}

impl<I: Iterator<Item = (usize, Range<u64>)>> Iterator for Pieces<I> {
    type Item = (usize, Vec<Range<u64>>);

    fn next(&mut self) -> Option<Self::Item> {
        let (part, first) = self.next.take()?;
        let mut list = vec![first];
        let mut room = PIECE - length(&list);
        for (other, place) in self.places.by_ref() {
            let bytes = length(std::slice::from_ref(&place));
            if other != part || bytes > room || list.len() == PLACES {
                self.next = Some((other, place));
                break;
            }
            room -= bytes;
            list.push(place);
        }
        Some((part, list))
    }
}

/// The bytes of all places.
fn length(places: &[Range<u64>]) -> usize {
    places.iter().map(|place| (place.end - place.start) as usize).sum()
}

fn finish((copy, staging, piece): (Submission, Arc<Pooled>, &mut [u8])) -> Result<()> {
    copy.wait()?;
    if let Some(buffer) = staging.get() {
        piece.copy_from_slice(&buffer.mapped()[..piece.len()]);
    }
    Ok(())
}

/// What lies behind a guarded tensor: NaN as elements of any type.
pub(super) const GUARD: u32 = u32::MAX;

/// Whether all words behind the memory that the tensor is of are NaN.
pub(super) fn guard_holds(runtime: &Runtime, tensor: &Tensor) -> Result<bool> {
    for (part, guard) in tensor.guards() {
        let (copy, staging) = stage_out(runtime, tensor, part, std::slice::from_ref(&guard))?;
        copy.wait()?;
        let bytes = length(&[guard]);
        let words = staging.get().map_or(&[][..], |buffer| &buffer.mapped()[..bytes]);
        if words.chunks_exact(4).any(|word| word != GUARD.to_ne_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the dummy buffer holds zeros.
pub(super) fn dummy_holds(runtime: &Runtime) -> Result<bool> {
    let core = runtime.core();
    let dummy = core.heap.dummy();
    let staging = Arc::new(Pooled::new(core, Memory::Readback, dummy.bytes(), "dummy")?);
    let Some(target) = staging.get() else { return Ok(true) };
    let mut commands = core.commands()?;
    commands.begin(core.heap.descriptors())?;
    commands.copy(dummy, target, [[0, 0, dummy.bytes()]].into_iter());
    let mut recording = Recording::new(commands);
    recording.stage(staging.clone());
    // It touches nothing by name: in the stream of what may write the dummy.
    let (ticket, _) = core.submit(Stream::Compute, recording, &Links::default())?;
    core.wait(ticket)?;
    Ok(target.mapped()[..dummy.bytes() as usize].iter().all(|byte| *byte == 0))
}

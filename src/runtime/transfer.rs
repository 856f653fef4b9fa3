//! Uploads and downloads, in pieces through staging buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Runtime;
use super::raw::Memory;
use super::submission::Submission;
use super::tensor::{Pooled, Tensor};
use crate::error::Result;

/// Bytes of one staging buffer.
const PIECE: usize = 64 << 20;

/// Pieces under way at a time: the host copies one while the device copies the other.
const PIECES: usize = 2;

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
            buffer.mapped_mut()[..piece.len()].copy_from_slice(piece);
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
        piece.copy_from_slice(&buffer.mapped()[..piece.len()]);
    }
    Ok(())
}

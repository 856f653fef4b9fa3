//! The append and its adjoint, copied on the CPU: exact, so in the arrays' own type.

use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::attention::append::{AppendInputs, AppendPlan, Cache};
use crate::kernels::attention::{Geometry, Schedule};

/// The cache with row `i` of the new arrays at token `positions[i]` of sequence `sequence_ids[i]`.
///
/// # Errors
/// What [`Geometry::of_append`] and [`AppendPlan::new`] reject.
pub fn append(inputs: &AppendInputs<HostTensor>, schedule: &Schedule) -> Result<Cache<HostTensor>> {
    let geometry = Geometry::of_append(&inputs.as_ref().map(|_, t| t.shape()))?;
    let slots = slots(schedule, &geometry)?;
    let mut parts = inputs.parts().into_iter();
    inputs.cache().try_map(|_, cache| {
        let mut cache = cache.clone();
        if let Some([(_, new), _]) = parts.next() {
            let bytes = row_bytes(new);
            for (row, slot) in new.bytes().chunks_exact(bytes.max(1)).zip(&slots) {
                cache.bytes_mut()[slot * bytes..][..bytes].copy_from_slice(row);
            }
        }
        Ok(cache)
    })
}

/// The gradients of the new rows: those of their slots, from the gradients of a cache.
///
/// # Errors
/// As [`append`].
pub fn append_backward(
    gradients: &Cache<HostTensor>,
    schedule: &Schedule,
) -> Result<Cache<HostTensor>> {
    let queries = schedule.sequence_ids.len();
    let rows = |t: &HostTensor| {
        let shape = [&[queries], t.shape().get(2..).unwrap_or_default()].concat();
        HostTensor::zeros(t.dtype(), &shape)
    };
    let group = match gradients.clone() {
        Cache::Separate { k, v } => {
            AppendInputs::Separate { new_k: rows(&k), new_v: rows(&v), k, v }
        }
        Cache::Latent { latent, k_position } => AppendInputs::Latent {
            new_latent: rows(&latent),
            new_k_position: rows(&k_position),
            latent,
            k_position,
        },
    };
    let geometry = Geometry::of_append(&group.as_ref().map(|_, t| t.shape()))?;
    let slots = slots(schedule, &geometry)?;
    let mut caches = gradients.named().into_iter();
    group.new_rows().try_map(|_, new| {
        let mut new = new.clone();
        if let Some((_, cache)) = caches.next() {
            let bytes = row_bytes(&new);
            for (row, slot) in new.bytes_mut().chunks_exact_mut(bytes.max(1)).zip(&slots) {
                row.copy_from_slice(&cache.bytes()[slot * bytes..][..bytes]);
            }
        }
        Ok(new)
    })
}

/// The slot of each row, straight from the definition.
fn slots(schedule: &Schedule, geometry: &Geometry) -> Result<Vec<usize>> {
    AppendPlan::new(schedule, geometry)?;
    let positions = schedule.positions.iter().flatten();
    let slot = |(&position, &sequence): (&i128, &i128)| {
        let (position, sequence) = (position as usize, sequence as usize);
        let entry = sequence * schedule.table_width + position / geometry.page_size;
        let page = schedule.block_table[entry] as usize;
        page * geometry.page_size + position % geometry.page_size
    };
    Ok(positions.zip(&schedule.sequence_ids).map(slot).collect())
}

fn row_bytes(new: &HostTensor) -> usize {
    new.shape()[1..].iter().product::<usize>() * new.dtype().size()
}

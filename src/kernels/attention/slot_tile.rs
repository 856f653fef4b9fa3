//! How the history kernel divides its work among the invocations of a workgroup.

use super::Geometry;
use super::row_tile::floor_power_of_two;
use super::units::TILE;
use crate::kernels::Target;

/// Floats of keys, values and sums that an invocation should hold: as many again hold everything else.
const HELD: usize = 128;
/// Pairs of a slot and an item that a group weighs at a time.
const PAIRS: usize = 16;
/// Invocations of a workgroup that have all registers of a multiprocessor to themselves.
const MAX_THREADS: u32 = 256;
/// Bytes of groupshared memory that leave room for a second workgroup beside this one.
const SHARED: u32 = 24 << 10;

/// The shape of a workgroup, in the terms of `shaders/attention/history_backward.slang`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotTile {
    /// Lanes that share the elements of a row. With the widths it says how a dot product is summed, so that it follows
    /// from them and the device alone.
    pub(super) group_lanes: u32,
    pub(super) threads: u32,
    /// Slots of a group of lanes.
    pub(super) group_slots: u32,
    /// Items weighed at a time.
    pub(super) batch: u32,
    pub(super) staged_items: u32,
    /// 2 where items are loaded while others are worked on.
    pub(super) stages: u32,
}

impl SlotTile {
    /// For these widths on this device.
    pub(super) fn new(geometry: &Geometry, target: Target) -> Self {
        let lanes = target.lanes as usize;
        let Geometry { key_dim, value_dim, position_dim, .. } = *geometry;
        let widest = key_dim.max(value_dim).max(position_dim);
        let group_lanes = widest.div_ceil(8).next_power_of_two().clamp(4, lanes.min(32));
        let chunks = |width: usize| width.div_ceil(4 * group_lanes);
        // A latent row is its own value, and has a position.
        let second = if geometry.is_mla() { chunks(position_dim) } else { chunks(value_dim) };
        let held = 8 * (chunks(key_dim) + second);
        let groups = lanes / group_lanes;
        let group_slots = power_of_two(HELD / held, 4.min(TILE / groups));
        let most = target.max_workgroup.min(MAX_THREADS) as usize / lanes;
        let subgroups = power_of_two(most, TILE / (groups * group_slots));
        let item = 16 * group_lanes * (chunks(key_dim) + chunks(value_dim) + chunks(position_dim));
        let mut tile = Self {
            group_lanes: group_lanes as u32,
            threads: (subgroups * lanes) as u32,
            group_slots: group_slots as u32,
            batch: 1,
            staged_items: 1,
            stages: 1,
        };
        for (stages, staged_items, shared) in STAGES {
            let most = PAIRS / group_slots;
            let larger =
                Self { stages, staged_items, batch: staged_items.min(most as u32), ..tile };
            if larger.shared_bytes(item, target) <= shared.min(target.shared_bytes) {
                tile = larger;
                break;
            }
        }
        tile
    }

    /// Slots of a workgroup: a divisor of [`TILE`].
    pub(super) fn slots(&self) -> u32 {
        self.threads / self.group_lanes * self.group_slots
    }

    /// Bytes of groupshared memory, where an item takes so many.
    fn shared_bytes(&self, item: usize, target: Target) -> u32 {
        let groups = target.lanes / self.group_lanes * (self.threads / target.lanes);
        let weights = 2 * 16 * groups * (self.group_slots * self.batch).div_ceil(2);
        let staged =
            self.stages * self.staged_items * (item as u32 + 20) + 2 * 4 * self.staged_items;
        staged + weights + 3 * 4 * self.slots()
    }
}

/// Stages, items staged at a time and the bytes that they may come to, best first.
const STAGES: [(u32, u32, u32); 6] = [
    (2, 8, SHARED),
    (2, 4, SHARED),
    (2, 2, 2 * SHARED),
    (1, 4, 2 * SHARED),
    (1, 2, 2 * SHARED),
    (2, 1, 2 * SHARED),
];

/// The largest power of two that is neither above `count` nor above `most`, and 1 at least.
fn power_of_two(count: usize, most: usize) -> usize {
    floor_power_of_two(count.min(most).max(1) as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(key_dim: usize, value_dim: usize, position_dim: usize) -> Geometry {
        Geometry {
            queries: 1,
            heads: 1,
            kv_heads: 1,
            pages: 1,
            page_size: 1,
            key_dim,
            value_dim,
            position_dim,
            statistics_columns: 3,
        }
    }

    #[test]
    fn common_widths_fill_registers() {
        let tile = SlotTile::new(&geometry(128, 128, 0), Target::TYPICAL);
        let expected = SlotTile {
            group_lanes: 16,
            threads: 256,
            group_slots: 4,
            batch: 4,
            staged_items: 8,
            stages: 2,
        };
        assert_eq!(tile, expected);
        assert_eq!(tile.slots(), 64);
        let tile = SlotTile::new(&geometry(64, 64, 0), Target::TYPICAL);
        assert_eq!((tile.group_lanes, tile.threads, tile.slots()), (8, 128, 64));
        let tile = SlotTile::new(&geometry(512, 512, 64), Target::TYPICAL);
        assert_eq!((tile.group_lanes, tile.group_slots, tile.slots()), (32, 2, 16));
    }

    /// What the kernel relies on, for all widths and devices.
    #[test]
    fn tiles_divide_units_and_fit_devices() {
        let widths = [1, 2, 7, 8, 33, 64, 100, 128, 192, 256, 500, 512, 576, 1023, 1024];
        for lanes in [4, 8, 16, 32, 64, 128] {
            for (max_workgroup, shared_bytes) in
                [(128, 16 << 10), (256, 32 << 10), (1024, 48 << 10)]
            {
                let target = Target { lanes, max_workgroup, shared_bytes, ..Target::TYPICAL };
                for key_dim in widths {
                    for (value_dim, position_dim) in widths.map(|w| (w, 0)).into_iter().chain([
                        (key_dim, 1),
                        (key_dim, 64),
                        (key_dim, 256),
                    ]) {
                        let tile =
                            SlotTile::new(&geometry(key_dim, value_dim, position_dim), target);
                        let what = format!(
                            "{key_dim}, {value_dim}, {position_dim} on {target:?}: {tile:?}"
                        );
                        assert!((TILE as u32).is_multiple_of(tile.slots()), "{what}");
                        assert!(
                            tile.group_lanes.is_power_of_two() && tile.group_lanes <= lanes.min(32),
                            "{what}"
                        );
                        assert!(
                            tile.threads <= max_workgroup && tile.threads.is_multiple_of(lanes),
                            "{what}"
                        );
                        // A thread looks after a slot.
                        assert!(tile.slots() <= tile.threads, "{what}");
                        assert!(tile.staged_items <= tile.threads, "{what}");
                        assert_eq!(tile.staged_items % tile.batch, 0, "{what}");
                        let chunks = |width: usize| width.div_ceil(4 * tile.group_lanes as usize);
                        let item = chunks(key_dim) + chunks(value_dim) + chunks(position_dim);
                        let bytes =
                            tile.shared_bytes(16 * tile.group_lanes as usize * item, target);
                        assert!(bytes <= shared_bytes, "{what}: {bytes}");
                    }
                }
            }
        }
    }
}

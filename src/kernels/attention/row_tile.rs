//! How the query kernel divides its work: the sizes of its tiles.

use super::Geometry;
use crate::kernels::Target;

/// The sizes of a tile, as `shaders/attention/query_backward.slang` names them. What decides the order of sums,
/// `group_lanes` and `batch`, follows from the widths and the device alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowTile {
    pub(super) threads: u32,
    pub(super) group_lanes: u32,
    pub(super) group_items: u32,
    pub(super) batch: u32,
    pub(super) staged_tokens: u32,
}

/// Subgroups of a workgroup.
const SUBGROUPS: u32 = 4;
/// Registers for the items' own rows and sums, of which there are 255 in all.
const REGISTERS: u32 = 112;
/// The most items of a group of lanes, and tokens of a batch: beyond, there are too many sums at once.
const MOST_ITEMS: u32 = 4;
const MOST_BATCH: u32 = 4;
/// Bytes of groupshared memory for tokens that leave room for three workgroups where there are 48 KiB, and what a batch
/// of wide ones may take.
const SHARED: u32 = 12 << 10;
const WIDE_SHARED: u32 = 24 << 10;
/// The most tokens that are staged at a time.
const MOST_STAGED: u32 = 32;

impl RowTile {
    /// For units of at most so many rows.
    pub(super) fn new(geometry: &Geometry, unit_rows: u32, target: Target) -> Self {
        let widths =
            [geometry.key_dim, geometry.position_dim, geometry.value_dim].map(|width| width as u32);
        let Target { lanes, max_workgroup, shared_bytes, .. } = target;
        let kept = |[key, position, value]: [u32; 3]| 2 * (key + position) + value;
        let wanted = (kept(widths) * MOST_ITEMS).div_ceil(96).next_power_of_two();
        let group_lanes = wanted.clamp(4.min(lanes), lanes.min(32));
        let fours = widths.map(|width| width.div_ceil(4 * group_lanes));
        // Latent rows are keys and values.
        let staged = if geometry.is_mla() { fours[0] + fours[1] } else { fours[0] + fours[2] };
        let token_bytes = 16 * staged * group_lanes;
        let threads = (SUBGROUPS * lanes).min(max_workgroup / lanes * lanes).max(lanes);
        let groups = threads / group_lanes;
        let largest = REGISTERS / (4 * kept(fours));
        let largest = floor_power_of_two(largest.clamp(1, MOST_ITEMS.min(group_lanes)));
        let items = u64::from(unit_rows) * geometry.group() as u64;
        let enough = items.div_ceil(groups.into()).min(largest.into()) as u32;
        let group_items = enough.max(1).next_power_of_two();
        // Beside the rows, groupshared memory holds a word an item.
        let free = shared_bytes.saturating_sub(4 * groups * largest);
        let rows = |bytes: u32| bytes.min(free) / token_bytes;
        let batch = floor_power_of_two(rows(WIDE_SHARED).clamp(1, MOST_BATCH));
        let staged_tokens = floor_power_of_two(rows(SHARED).clamp(batch, MOST_STAGED));
        Self { threads, group_lanes, group_items, batch, staged_tokens }
    }

    /// Items of a workgroup.
    pub(super) fn items(&self) -> u32 {
        self.threads / self.group_lanes * self.group_items
    }
}

/// The largest power of two that is no larger; of 1 and on.
pub(super) fn floor_power_of_two(n: u32) -> u32 {
    1 << n.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(key_dim: usize, value_dim: usize, position_dim: usize) -> Geometry {
        Geometry {
            queries: 1000,
            heads: 32,
            kv_heads: if position_dim > 0 { 1 } else { 8 },
            pages: 10,
            page_size: 16,
            key_dim,
            value_dim,
            position_dim,
            statistics_columns: 3,
        }
    }

    /// Every promise of the shader, for all widths on devices of many kinds.
    #[test]
    fn tiles_keep_to_the_device() {
        for lanes in [4, 8, 16, 32, 64, 128] {
            for (max_workgroup, shared_bytes) in
                [(128, 16 << 10), (256, 32 << 10), (1024, 48 << 10)]
            {
                let target = Target { lanes, max_workgroup, shared_bytes, ..Target::TYPICAL };
                let widths = [1, 3, 4, 17, 64, 100, 128, 192, 256, 513, 1024];
                for (key_dim, value_dim) in widths.iter().flat_map(|k| widths.map(|v| (*k, v))) {
                    for position_dim in [0, 1, 64, 256] {
                        let value_dim = if position_dim > 0 { key_dim } else { value_dim };
                        let geometry = geometry(key_dim, value_dim, position_dim);
                        let tiles = [1, 7, 64].map(|rows| RowTile::new(&geometry, rows, target));
                        for tile in tiles {
                            check(&tile, &geometry, target);
                            assert_eq!(tile.group_lanes, tiles[0].group_lanes);
                            assert_eq!(tile.batch, tiles[0].batch);
                        }
                    }
                }
            }
        }
    }

    fn check(tile: &RowTile, geometry: &Geometry, target: Target) {
        let RowTile { threads, group_lanes, group_items, batch, staged_tokens } = *tile;
        let Geometry { key_dim, value_dim, position_dim, .. } = *geometry;
        let second = if position_dim > 0 { position_dim } else { value_dim };
        let fours = |width: usize| (width as u32).div_ceil(4 * group_lanes);
        let token_bytes = 16 * group_lanes * (fours(key_dim) + fours(second));
        for power in [group_lanes, group_items, batch, staged_tokens] {
            assert!(power.is_power_of_two(), "{tile:?}");
        }
        assert!(
            threads.is_multiple_of(target.lanes) && group_lanes <= target.lanes.min(32),
            "{tile:?}"
        );
        assert!(threads <= target.max_workgroup, "{tile:?}");
        assert!(group_items <= group_lanes && batch <= staged_tokens, "{tile:?}");
        let bytes = staged_tokens * token_bytes + 4 * tile.items();
        assert!(bytes <= target.shared_bytes, "{tile:?} takes {bytes} bytes");
    }

    #[test]
    fn tiles_of_common_calls() {
        let tile = |geometry: &Geometry, rows| {
            let tile = RowTile::new(geometry, rows, Target::TYPICAL);
            (tile.group_lanes, tile.group_items, tile.items(), tile.batch, tile.staged_tokens)
        };
        assert_eq!(tile(&geometry(128, 128, 0), 64), (16, 4, 32, 4, 8));
        assert_eq!(tile(&geometry(128, 128, 0), 1), (16, 1, 8, 4, 8));
        assert_eq!(tile(&geometry(64, 64, 0), 64), (8, 4, 64, 4, 16));
        assert_eq!(tile(&geometry(512, 512, 64), 64), (32, 2, 8, 4, 4));
    }
}

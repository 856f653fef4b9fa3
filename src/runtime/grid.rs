//! Grids of workgroups larger than one dispatch may be.

use crate::error::{Error, Result};

/// One dispatch of a split grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The grid coordinates of its first workgroup.
    pub(super) first: [u32; 2],
    /// Its workgroups along x and y.
    pub(super) count: [u32; 2],
}

/// Dispatches of one grid, more than any grid over tensors of 2^32 elements comes to.
const MAX_PIECES: u64 = 1 << 17;

/// Splits a grid into dispatches of at most `limit` workgroups an axis, in row-major order.
///
/// An empty grid has no pieces.
///
/// # Errors
/// [`Error::TooLarge`] when an axis does not fit 32 bits, or when there would be very many pieces.
pub(super) fn split(grid: [u64; 2], limit: [u32; 2]) -> Result<Vec<Piece>> {
    let [x, y] = [axis(grid[0])?, axis(grid[1])?];
    let pieces = chunks(x, limit[0]).len() as u64 * chunks(y, limit[1]).len() as u64;
    if pieces > MAX_PIECES {
        return Err(Error::TooLarge {
            what: "dispatches of a grid",
            found: pieces.into(),
            limit: MAX_PIECES.into(),
        });
    }
    let rows = chunks(y, limit[1]).flat_map(|(first_y, count_y)| {
        chunks(x, limit[0]).map(move |(first_x, count_x)| Piece {
            first: [first_x, first_y],
            count: [count_x, count_y],
        })
    });
    Ok(rows.collect())
}

fn axis(count: u64) -> Result<u32> {
    u32::try_from(count).map_err(|_| Error::TooLarge {
        what: "workgroups",
        found: count.into(),
        limit: u32::MAX.into(),
    })
}

fn chunks(total: u32, limit: u32) -> impl ExactSizeIterator<Item = (u32, u32)> {
    let limit = limit.max(1);
    (0..total.div_ceil(limit)).map(move |i| (i * limit, (total - i * limit).min(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(grid: [u64; 2], limit: [u32; 2]) -> Vec<Piece> {
        split(grid, limit).unwrap()
    }

    #[test]
    fn a_grid_within_the_limit_is_one_piece() {
        assert_eq!(pieces([7, 3], [7, 3]), [Piece { first: [0, 0], count: [7, 3] }]);
        assert_eq!(pieces([1, 1], [65535, 65535]), [Piece { first: [0, 0], count: [1, 1] }]);
    }

    #[test]
    fn every_workgroup_is_in_exactly_one_piece() {
        let mut seen = vec![0; 11 * 5];
        for Piece { first, count } in pieces([11, 5], [4, 2]) {
            assert!(count[0] <= 4 && count[1] <= 2 && count[0] > 0 && count[1] > 0);
            for y in first[1]..first[1] + count[1] {
                for x in first[0]..first[0] + count[0] {
                    seen[(y * 11 + x) as usize] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&n| n == 1));
    }

    #[test]
    fn an_empty_grid_has_no_pieces() {
        assert!(pieces([0, 3], [4, 4]).is_empty());
        assert!(pieces([3, 0], [4, 4]).is_empty());
    }

    #[test]
    fn the_largest_axis_fits_and_the_next_does_not() {
        let last = pieces([u32::MAX.into(), 1], [65535, 65535]).pop().unwrap();
        assert_eq!(last.first[0] + last.count[0], u32::MAX);
        assert!(matches!(split([1 << 32, 1], [65535; 2]).err(), Some(Error::TooLarge { .. })));
    }

    #[test]
    fn a_grid_of_very_many_pieces_is_refused() {
        let most = u64::from(u32::MAX);
        for grid in [[most, most], [most, 65535 * 3], [65535 * 500, 65535 * 500]] {
            let refused = split(grid, [65535; 2]).err();
            assert!(matches!(refused, Some(Error::TooLarge { .. })), "{grid:?}");
        }
    }
}

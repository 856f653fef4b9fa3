//! The streams of submissions, and what of one waits for the other.

use std::collections::HashMap;

use super::hazard::Touch;

/// A sequence of submissions, which run in order. Where the device has as many queues, what is in different streams runs
/// side by side; but no submission starts before those of the other stream, as far as they were there, that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Fills and kernels.
    Compute,
    /// Uploads and downloads.
    Copy,
}

impl Stream {
    pub(super) const ALL: [Self; 2] = [Self::Compute, Self::Copy];

    pub(super) fn other(self) -> Self {
        match self {
            Self::Compute => Self::Copy,
            Self::Copy => Self::Compute,
        }
    }
}

/// Which buffers a submission touches, and whether it writes there.
#[derive(Debug, Default)]
pub(super) struct Touched(HashMap<u64, bool>);

impl Touched {
    pub(super) fn add(&mut self, touches: &[Touch]) {
        for touch in touches {
            *self.0.entry(touch.buffer).or_default() |= touch.write;
        }
    }

    /// Whether one of the two writes a buffer that both touch.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let (few, many) = if self.0.len() < other.0.len() { (self, other) } else { (other, self) };
        let mut shared =
            few.0.iter().filter_map(|(buffer, write)| Some((write, many.0.get(buffer)?)));
        shared.any(|(a, b)| *a || *b)
    }
}

/// The value of a stream's timeline that a submission of the other stream waits for: that at the end of the last one that
/// it depends on, of those `in_flight`, oldest first. Those before them are done; but what they wrote is seen on another
/// queue only behind a wait. `last` is the value at the end of all that were submitted, `awaited` the one that submissions
/// have waited for already.
pub(super) fn before<'a>(
    last: u64,
    in_flight: impl DoubleEndedIterator<Item = (u64, &'a Touched)>,
    touched: &Touched,
    awaited: u64,
) -> u64 {
    let mut done = last;
    for (value, other) in in_flight.rev() {
        if value <= awaited {
            return awaited;
        }
        if other.conflicts(touched) {
            return value;
        }
        done = value - 1;
    }
    done.max(awaited)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(list: &[(u64, bool)]) -> Touched {
        let mut touched = Touched::default();
        for &(buffer, write) in list {
            touched.add(&[Touch { buffer, bytes: 0..4, write }]);
        }
        touched
    }

    #[test]
    fn the_last_conflict_is_waited_for() {
        let list = [touched(&[(1, true)]), touched(&[(2, true)]), touched(&[(1, false)])];
        let values = [10, 11, 12].into_iter();
        let before =
            |touched: &Touched, awaited| before(12, values.clone().zip(&list), touched, awaited);
        assert_eq!(before(&touched(&[(1, true)]), 0), 12);
        assert_eq!(before(&touched(&[(1, false)]), 0), 10);
        assert_eq!(before(&touched(&[(2, false), (3, true)]), 0), 11);
        // Of what is done, all.
        assert_eq!(before(&touched(&[(3, true)]), 0), 9);
        assert_eq!(super::before(12, std::iter::empty(), &list[0], 0), 12);
        assert_eq!(super::before(0, std::iter::empty(), &list[0], 0), 0);
        // What was waited for already is not looked at, nor forgotten.
        assert_eq!(before(&touched(&[(1, false)]), 10), 10);
        assert_eq!(before(&touched(&[(1, false)]), 11), 11);
        assert_eq!(before(&touched(&[(1, true)]), 11), 12);
    }

    #[test]
    fn only_writes_conflict() {
        let [reads, writes] = [false, true].map(|write| touched(&[(1, write), (2, false)]));
        assert!(!reads.conflicts(&reads));
        assert!(reads.conflicts(&writes) && writes.conflicts(&reads) && writes.conflicts(&writes));
        assert!(!writes.conflicts(&touched(&[(2, false), (3, true)])));
        // A write is not forgotten for a read that comes later.
        assert!(touched(&[(1, true), (1, false)]).conflicts(&reads));
    }
}

//! Which commands must wait for which: the data dependences within one submission.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// The kinds of commands that touch memory, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stages(u8);

impl Stages {
    pub(super) const NONE: Self = Self(0);
    /// Dispatches.
    pub(super) const COMPUTE: Self = Self(1);
    /// Copies and fills.
    pub(super) const TRANSFER: Self = Self(2);
    pub(super) const ALL: Self = Self(3);
    /// The host, which reads what was copied to it.
    pub(super) const HOST: Self = Self(4);
    /// Whatever a caller does.
    pub(super) const ANY: Self = Self(8);

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn join(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One command's touch of a range of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Touch {
    /// The buffer's identity.
    pub(super) buffer: u64,
    /// The bytes touched.
    pub(super) bytes: Range<u64>,
    /// Whether they are written, or read only.
    pub(super) write: bool,
}

/// A memory barrier: `before` commands so far complete before `after` commands to come start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Barrier {
    pub(super) before: Stages,
    pub(super) after: Stages,
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |stages: Stages| match stages {
            Stages::COMPUTE => "dispatches",
            Stages::TRANSFER => "copies",
            Stages::ALL => "all",
            Stages::HOST => "host",
            Stages::ANY => "the caller",
            _ => "none",
        };
        write!(f, "{} before {}", name(self.before), name(self.after))
    }
}

/// An access that later commands may have to wait for.
#[derive(Debug)]
struct Past {
    bytes: Range<u64>,
    write: bool,
    stage: Stages,
    /// The stages that barriers have made wait for this touch.
    ordered: Stages,
}

/// Accesses so far, to find where barriers are due: read after write, write after read and write after write.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    past: HashMap<u64, Vec<Past>>,
}

impl Hazards {
    /// Takes in the next command's accesses; returns the barrier that must stand before it, if one must.
    pub(super) fn next(&mut self, stage: Stages, touches: &[Touch]) -> Option<Barrier> {
        let before = touches
            .iter()
            .flat_map(|a| self.conflicts(stage, a))
            .fold(Stages::NONE, |all, past| all.join(past.stage));
        let barrier = (before != Stages::NONE).then_some(Barrier { before, after: stage });
        if let Some(barrier) = barrier {
            self.order(barrier);
        }
        for touch in touches {
            self.remember(stage, touch);
        }
        barrier
    }

    fn conflicts<'a>(
        &'a self,
        stage: Stages,
        touch: &'a Touch,
    ) -> impl Iterator<Item = &'a Past> + 'a {
        self.past.get(&touch.buffer).into_iter().flatten().filter(move |past| {
            (past.write || touch.write)
                && past.bytes.start < touch.bytes.end
                && touch.bytes.start < past.bytes.end
                && !past.ordered.contains(stage)
        })
    }

    /// A barrier orders every access so far of its first stages, not only those that called for it.
    fn order(&mut self, barrier: Barrier) {
        self.past.retain(|_, list| {
            list.retain_mut(|past| {
                if barrier.before.contains(past.stage) {
                    past.ordered = past.ordered.join(barrier.after);
                }
                past.ordered != Stages::ALL
            });
            !list.is_empty()
        });
    }

    fn remember(&mut self, stage: Stages, touch: &Touch) {
        if touch.bytes.is_empty() {
            return;
        }
        let list = self.past.entry(touch.buffer).or_default();
        // Whoever waits for this touch waits for an earlier one of its kind, too: one entry stands for both.
        let known = list.iter_mut().find(|past| {
            past.bytes == touch.bytes && past.stage == stage && past.write == touch.write
        });
        match known {
            Some(past) => past.ordered = Stages::NONE,
            None => list.push(Past {
                bytes: touch.bytes.clone(),
                write: touch.write,
                stage,
                ordered: Stages::NONE,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(buffer: u64) -> Touch {
        Touch { buffer, bytes: 0..16, write: false }
    }

    fn write(buffer: u64) -> Touch {
        Touch { buffer, bytes: 0..16, write: true }
    }

    const COMPUTE: Option<Barrier> =
        Some(Barrier { before: Stages::COMPUTE, after: Stages::COMPUTE });

    #[test]
    fn independent_commands_need_no_barrier() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1), write(2)]), None);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1), write(3)]), None);
        assert_eq!(hazards.next(Stages::COMPUTE, &[]), None);
    }

    #[test]
    fn each_dependence_needs_one() {
        for (first, second) in [(write(1), read(1)), (read(1), write(1)), (write(1), write(1))] {
            let mut hazards = Hazards::default();
            assert_eq!(hazards.next(Stages::COMPUTE, std::slice::from_ref(&first)), None);
            assert_eq!(hazards.next(Stages::COMPUTE, &[second]), COMPUTE);
        }
    }

    #[test]
    fn a_barrier_serves_all_that_went_before() {
        let mut hazards = Hazards::default();
        hazards.next(Stages::COMPUTE, &[write(1), write(2)]);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1), write(3)]), COMPUTE);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(2), write(4)]), None);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(3)]), COMPUTE);
    }

    #[test]
    fn readers_after_the_barrier_hold_up_the_next_writer() {
        let mut hazards = Hazards::default();
        hazards.next(Stages::COMPUTE, &[write(1)]);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1)]), COMPUTE);
        assert_eq!(hazards.next(Stages::COMPUTE, &[write(1)]), COMPUTE);
        // The same access as one that a barrier served already, but after that barrier.
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1)]), COMPUTE);
    }

    #[test]
    fn a_barrier_serves_only_the_commands_that_it_names() {
        let mut hazards = Hazards::default();
        hazards.next(Stages::COMPUTE, &[write(1)]);
        hazards.next(Stages::TRANSFER, &[write(2)]);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1)]), COMPUTE);
        let fill = Some(Barrier { before: Stages::TRANSFER, after: Stages::COMPUTE });
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(2)]), fill);
    }

    #[test]
    fn a_command_may_read_and_write_the_same_bytes() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1), write(1)]), None);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1)]), COMPUTE);
    }

    #[test]
    fn disjoint_ranges_of_a_buffer_are_independent() {
        let low = Touch { buffer: 1, bytes: 0..16, write: true };
        let high = Touch { buffer: 1, bytes: 16..32, write: true };
        let both = Touch { buffer: 1, bytes: 8..24, write: false };
        for [first, second] in [[&low, &high], [&high, &low]] {
            let mut hazards = Hazards::default();
            assert_eq!(hazards.next(Stages::COMPUTE, std::slice::from_ref(first)), None);
            assert_eq!(hazards.next(Stages::COMPUTE, std::slice::from_ref(second)), None);
            assert_eq!(hazards.next(Stages::COMPUTE, std::slice::from_ref(&both)), COMPUTE);
        }
    }

    #[test]
    fn a_barrier_for_dispatches_does_not_serve_a_copy() {
        let mut hazards = Hazards::default();
        hazards.next(Stages::COMPUTE, &[write(1)]);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(1)]), COMPUTE);
        let copy = Some(Barrier { before: Stages::COMPUTE, after: Stages::TRANSFER });
        assert_eq!(hazards.next(Stages::TRANSFER, &[read(1)]), copy);
        // All stages wait for the write now: it is forgotten.
        assert!(hazards.past.values().flatten().all(|past| !past.write));
        assert_eq!(hazards.next(Stages::TRANSFER, &[read(1)]), None);
        let fill = Some(Barrier { before: Stages::TRANSFER, after: Stages::COMPUTE });
        hazards.next(Stages::TRANSFER, &[write(2)]);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(2)]), fill);
    }

    #[test]
    fn long_recordings_keep_few_entries() {
        let mut hazards = Hazards::default();
        for i in 0..1000 {
            let barrier = hazards.next(Stages::COMPUTE, &[read(1), write(1), read(2)]);
            assert_eq!(barrier, if i == 0 { None } else { COMPUTE });
        }
        assert!(hazards.past.values().map(Vec::len).sum::<usize>() <= 3);
        assert_eq!(hazards.next(Stages::COMPUTE, &[read(2)]), None);
    }

    #[test]
    fn both_kinds_of_predecessors_are_waited_for() {
        let mut hazards = Hazards::default();
        hazards.next(Stages::COMPUTE, &[write(1)]);
        hazards.next(Stages::TRANSFER, &[write(2)]);
        assert_eq!(
            hazards.next(Stages::COMPUTE, &[read(1), read(2)]),
            Some(Barrier { before: Stages::ALL, after: Stages::COMPUTE })
        );
    }
}

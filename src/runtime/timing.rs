//! GPU times from timestamps.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::raw::{Commands, Device, Queries};
use crate::error::Result;

/// What one command of a submission took on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// The kernel's name; `fill` or `copy` for those.
    pub kernel: Cow<'static, str>,
    /// From the end of the command before to its own end. Software drivers compile a kernel when it first runs, and that
    /// counts here too.
    pub gpu: Duration,
}

/// The timestamps of a recording: one at its start, one after each command.
#[derive(Default)]
pub(super) struct Stamps {
    pools: Vec<Queries>,
    /// What each interval between two stamps is.
    labels: Vec<Cow<'static, str>>,
    count: u32,
}

impl Stamps {
    /// Writes the stamp that the first interval starts at, if it is not there.
    pub(super) fn start(
        &mut self,
        commands: &mut Commands,
        source: &dyn Fn() -> Result<Queries>,
    ) -> Result<()> {
        if self.count == 0 { self.stamp(commands, source) } else { Ok(()) }
    }

    /// Ends the interval called `label`.
    pub(super) fn end(
        &mut self,
        label: Cow<'static, str>,
        commands: &mut Commands,
        source: &dyn Fn() -> Result<Queries>,
    ) -> Result<()> {
        self.stamp(commands, source)?;
        self.labels.push(label);
        Ok(())
    }

    fn stamp(
        &mut self,
        commands: &mut Commands,
        source: &dyn Fn() -> Result<Queries>,
    ) -> Result<()> {
        let index = self.count % Queries::CAPACITY;
        if index == 0 {
            let queries = source()?;
            commands.reset(&queries);
            self.pools.push(queries);
        }
        if let Some(queries) = self.pools.last() {
            commands.timestamp(queries, index);
            self.count += 1;
        }
        Ok(())
    }

    /// Reads the timings once the device is done.
    pub(super) fn read(&self, device: &Arc<Device>) -> Result<Vec<Timing>> {
        let mut ticks = Vec::with_capacity(self.count as usize);
        for (i, queries) in (0..).zip(&self.pools) {
            ticks.extend(queries.read(self.count - i * Queries::CAPACITY)?);
        }
        let (bits, period) = device.timestamps();
        let gaps = ticks.windows(2).map(|pair| elapsed(pair[0], pair[1], bits, period));
        let named = self.labels.iter().cloned().zip(gaps);
        Ok(named.map(|(kernel, gpu)| Timing { kernel, gpu }).collect())
    }

    /// The pools, for reuse.
    pub(super) fn into_pools(self) -> Vec<Queries> {
        self.pools
    }
}

/// The time between two timestamps of `bits` valid bits, which may wrap around once.
fn elapsed(start: u64, end: u64, bits: u32, period: f32) -> Duration {
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let ticks = (end & mask).wrapping_sub(start & mask) & mask;
    Duration::from_nanos((ticks as f64 * f64::from(period)).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_time() {
        assert_eq!(elapsed(100, 350, 64, 1.0), Duration::from_nanos(250));
        assert_eq!(elapsed(0, 1000, 64, 40.5), Duration::from_nanos(40_500));
        assert_eq!(elapsed(u64::MAX, 4, 64, 1.0), Duration::from_nanos(5));
    }

    #[test]
    fn invalid_bits_are_ignored_and_counters_wrap() {
        assert_eq!(elapsed(0xab << 36 | 10, 0xcd << 36 | 30, 36, 1.0), Duration::from_nanos(20));
        assert_eq!(elapsed((1 << 36) - 5, 5, 36, 1.0), Duration::from_nanos(10));
    }
}

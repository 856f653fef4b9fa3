//! What the handle, its tensors and its submissions share.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::RuntimeOptions;
#[cfg(feature = "forms")]
use super::forms::Form;
use super::heap::Heap;
use super::info::DeviceInfo;
use super::lock;
use super::memory::Pool;
use super::pipeline::Pipelines;
use super::pipeline_cache::PipelineFile;
use super::raw::embed::Links;
use super::raw::{Buffer, Commands, Device, Memory, Queries, Timeline};
use super::recorder::Recording;
use super::stream::{self, Stream};
use super::tensor::Imports;
use super::timing::Timing;
use super::validation::Validation;
use crate::error::{Error, Result};

/// The shared state of a runtime. It lives until the handle, the last tensor and the last submission are dropped.
pub(super) struct Core {
    pub(super) heap: Heap,
    pub(super) pool: Pool,
    pub(super) pipelines: Pipelines,
    pub(super) info: DeviceInfo,
    pub(super) lanes: u32,
    /// What the probe of matrices found, of f16 and of bf16.
    pub(super) copies_elements: [OnceLock<bool>; 2],
    pub(super) strain: Strain,
    pub(super) imports: Imports,
    #[cfg(feature = "forms")]
    pub(super) form: Form,
    /// Of each stream.
    in_flight: Mutex<[InFlight; Stream::ALL.len()]>,
    spare: Mutex<Spare>,
    health: Health,
    /// How long a wait may take.
    timeout: Duration,
    /// Of each stream.
    timelines: [Timeline; Stream::ALL.len()],
    pub(super) device: Arc<Device>,
}

/// What tests turn on to see what shows only at sizes that they cannot reach, or never.
#[derive(Default)]
pub(super) struct Strain {
    /// Most workgroups an axis of a dispatch, where not 0.
    pub(super) groups: AtomicU32,
    /// Workgroups of a slice, where not 0: then all that is recorded runs in slices.
    pub(super) slice: AtomicU32,
    /// Bytes of NaN that kernels see behind each tensor.
    pub(super) guard: AtomicU64,
    /// Nanoseconds that a wait may take, where not 0.
    pub(super) wait: AtomicU64,
    /// Most bytes of a binding, where not 0.
    pub(super) binding: AtomicU64,
}

/// Submissions of a stream that the device may still be working on, oldest first.
#[derive(Default)]
struct InFlight {
    /// The timeline's value at the end of the last submission.
    last: u64,
    list: VecDeque<Entry>,
    /// The value of the other stream's timeline that submissions have waited for.
    awaited: u64,
}

/// A submission: its stream, and the value that the stream's timeline has at its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    stream: Stream,
    value: u64,
}

/// A submission and all that it keeps alive.
struct Entry {
    value: u64,
    /// The value of the other stream's timeline before which it does not start.
    before: u64,
    recording: Recording,
    outcome: Arc<Outcome>,
}

/// What becomes of a submission, set when the device is done with it.
pub(super) type Outcome = OnceLock<Result<Vec<Timing>>>;

/// Objects for reuse.
#[derive(Default)]
struct Spare {
    commands: Vec<Commands>,
    queries: Vec<Queries>,
}

/// How long a device that was waited for in vain is waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Spare objects of a kind that are kept.
const SPARES: usize = 16;

impl Core {
    pub(super) fn new(
        device: Arc<Device>,
        info: DeviceInfo,
        lanes: u32,
        options: &RuntimeOptions,
    ) -> Result<Self> {
        let heap_slots = options.heap_slots;
        #[cfg(feature = "forms")]
        let heap_slots = options.form.heap_slots(heap_slots);
        #[cfg(not(feature = "forms"))]
        let filled = super::heap::DUMMY_SLOT..;
        #[cfg(feature = "forms")]
        let filled = options.form.filled_slots();
        Ok(Self {
            heap: Heap::new(&device, heap_slots, info.limits.max_heap_slots, filled)?,
            pool: Pool::new(&device, &info),
            pipelines: Pipelines::new(
                &device,
                lanes,
                options.pipeline_cache.as_deref().map(|folder| PipelineFile::new(folder, &info)),
                #[cfg(feature = "forms")]
                options.form,
            )?,
            #[cfg(feature = "forms")]
            form: options.form,
            info,
            lanes,
            copies_elements: <_>::default(),
            strain: Strain::default(),
            imports: Imports::default(),
            in_flight: Mutex::default(),
            spare: Mutex::default(),
            health: Health::default(),
            timeout: options.timeout,
            timelines: [Timeline::new(&device)?, Timeline::new(&device)?],
            device,
        })
    }

    /// Fails with what the validation layer said since the last check.
    pub(super) fn check(&self) -> Result<()> {
        self.device.instance().canary().check()
    }

    /// Sets every word of the dummy buffer.
    pub(super) fn fill_dummy(&self, word: u32) -> Result<()> {
        let mut commands = self.commands()?;
        commands.begin(self.heap.descriptors())?;
        let dummy = self.heap.dummy();
        commands.fill(dummy, 0, dummy.bytes(), word);
        let recording = Recording::new(commands);
        self.submit(Stream::Compute, recording, &Links::default()).map(drop)
    }

    /// Fails when the layer does not report what it is asked to check: a settings file or an environment variable can
    /// silence it. The wrong commands are never submitted.
    pub(super) fn prove(&self, validation: Validation) -> Result<()> {
        let canary = self.device.instance().canary();
        let dummy = self.heap.dummy();
        let mut commands = Commands::new(&self.device)?;
        commands.begin(self.heap.descriptors())?;
        let mut fill = |offset| commands.fill(dummy, offset, 4, 0);
        let core =
            !validation.core || canary.hears("VUID-vkCmdFillBuffer-dstOffset-00025", || fill(2));
        let sync = !validation.sync
            || canary.hears("SYNC-HAZARD-WRITE-AFTER-WRITE", || [0, 0].into_iter().for_each(fill));
        let silent = |check: &str| {
            Err(Error::NoValidationLayer(format!(
                "reports nothing under `{check}` (does a vk_layer_settings.txt or a VK_LAYER_ variable say so?)"
            )))
        };
        match (core, sync) {
            (false, _) => silent("core"),
            (_, false) => silent("sync"),
            _ => Ok(()),
        }
    }

    /// Most workgroups along x and y of a dispatch.
    pub(super) fn grid_limit(&self) -> [u32; 2] {
        let [x, y, _] = self.info.limits.max_compute_work_group_count;
        match self.strain.groups.load(Ordering::Relaxed) {
            0 => [x, y],
            limit => [limit; 2],
        }
    }

    /// A command buffer that nobody uses.
    pub(super) fn commands(&self) -> Result<Commands> {
        match lock(&self.spare).commands.pop() {
            Some(commands) => Ok(commands),
            None => Commands::new(&self.device),
        }
    }

    /// A query pool that nobody uses.
    pub(super) fn queries(&self) -> Result<Queries> {
        match lock(&self.spare).queries.pop() {
            Some(queries) => Ok(queries),
            None => Queries::new(&self.device),
        }
    }

    /// Sends a recording off; it stays alive until the device is done.
    pub(super) fn submit(
        &self,
        stream: Stream,
        mut recording: Recording,
        links: &Links<'_>,
    ) -> Result<(Ticket, Arc<Outcome>)> {
        self.end(&mut recording)?;
        let outcome = Arc::<Outcome>::default();
        let ticket = self.enqueue(stream, recording, outcome.clone(), links)?;
        self.reap();
        self.check()?;
        Ok((ticket, outcome))
    }

    /// Ends a recording that is to be submitted here.
    fn end(&self, recording: &mut Recording) -> Result<()> {
        self.health.check()?;
        if recording.commands.is_callers() {
            return Err(Error::Parameter {
                name: "recorder",
                expected: "a recording of the runtime's own".into(),
                found: "one in a command buffer that its caller submits".into(),
            });
        }
        recording.commands.end()
    }

    /// What the driver takes to run a recording, with as little of the runtime as can be.
    pub(super) fn time_bare(&self, mut recording: Recording) -> Result<Duration> {
        self.end(&mut recording)?;
        let (start, stream) = (Instant::now(), Stream::Compute);
        let ticket = self.enqueue(stream, recording, <_>::default(), &Links::default())?;
        let waited = self.timeline(stream).wait(ticket.value, self.timeout());
        let took = start.elapsed();
        waited.map_err(|error| self.explain(error, None))?;
        self.wait(ticket).map(|()| took)
    }

    fn timeline(&self, stream: Stream) -> &Timeline {
        &self.timelines[stream as usize]
    }

    fn enqueue(
        &self,
        stream: Stream,
        recording: Recording,
        outcome: Arc<Outcome>,
        links: &Links<'_>,
    ) -> Result<Ticket> {
        let mut in_flight = lock(&self.in_flight);
        let (own, other) = (&in_flight[stream as usize], &in_flight[stream.other() as usize]);
        let (value, awaited) = (own.last + 1, own.awaited);
        // A queue that both streams share has an order of its own.
        let (before, waits) = match self.device.copies_beside() {
            true => {
                let list = other.list.iter().map(|entry| (entry.value, &entry.recording.touched));
                let before = stream::before(other.last, list, &recording.touched, awaited);
                (before, before > awaited)
            }
            false => (other.last, false),
        };
        let submitted = self.device.submit(
            stream,
            &recording.commands,
            (self.timeline(stream), value),
            waits.then_some((self.timeline(stream.other()), before)),
            links,
        );
        if let Err(error) = submitted {
            drop(in_flight);
            return Err(self.explain(error, Some(&recording)));
        }
        let own = &mut in_flight[stream as usize];
        own.awaited = before;
        own.last = value;
        own.list.push_back(Entry { value, before, recording, outcome });
        Ok(Ticket { stream, value })
    }

    /// Waits for a submission.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        self.wait_for(ticket, self.timeout())
    }

    /// How long a wait may take.
    fn timeout(&self) -> Duration {
        match self.strain.wait.load(Ordering::Relaxed) {
            0 => self.timeout,
            limit => Duration::from_nanos(limit),
        }
    }

    fn wait_for(&self, ticket: Ticket, limit: Duration) -> Result<()> {
        let waited = self.timeline(ticket.stream).wait(ticket.value, limit);
        let reached = waited.map_err(|error| self.explain(error, None))?;
        self.reap();
        self.health.check()?;
        let running = if reached { None } else { self.running(ticket) };
        self.health.overdue[ticket.stream as usize].store(running.is_some(), Ordering::Release);
        match running {
            Some(during) => Err(Error::TimedOut { during, limit: self.timeout() }),
            None => self.check(),
        }
    }

    /// What the device is busy with of the stream's submissions up to this one, and of those that they wait for.
    fn running(&self, ticket: Ticket) -> Option<String> {
        let in_flight = lock(&self.in_flight);
        let first = |stream, value| {
            let first: Option<&Entry> = in_flight[stream as usize].list.front();
            first.filter(|entry| entry.value <= value)
        };
        let own = first(ticket.stream, ticket.value)?;
        let running = first(ticket.stream.other(), own.before).unwrap_or(own);
        Some(running.recording.summary())
    }

    /// Waits for all submissions; says whether there were any.
    pub(super) fn wait_all(&self) -> Result<bool> {
        self.wait_all_for(self.timeout())
    }

    fn wait_all_for(&self, limit: Duration) -> Result<bool> {
        let last = Stream::ALL.map(|stream| {
            let in_flight = &lock(&self.in_flight)[stream as usize];
            let ticket = Ticket { stream, value: in_flight.last };
            (!in_flight.list.is_empty()).then_some(ticket)
        });
        let start = Instant::now();
        let mut waited = Ok(());
        for ticket in last.into_iter().flatten() {
            let outcome = self.wait_for(ticket, limit.saturating_sub(start.elapsed()));
            let over = matches!(outcome, Err(Error::TimedOut { .. } | Error::DeviceLost { .. }));
            // What the layer says does not mean that the other stream is done.
            waited = waited.and(outcome);
            if over {
                break;
            }
        }
        waited.map(|()| last.iter().any(Option::is_some))
    }

    /// Lets go of what finished submissions kept alive.
    pub(super) fn reap(&self) {
        Stream::ALL.into_iter().for_each(|stream| self.reap_stream(stream));
    }

    fn reap_stream(&self, stream: Stream) {
        let done = {
            let in_flight = &mut lock(&self.in_flight)[stream as usize];
            if in_flight.list.is_empty() {
                return;
            }
            let reached = match self.timeline(stream).reached() {
                Ok(reached) => reached,
                Err(error) => {
                    let running = in_flight.list.front().map(|entry| &entry.recording);
                    return self.health.note(&error, running);
                }
            };
            let count = in_flight.list.iter().take_while(|e| e.value <= reached).count();
            let done: Vec<_> = in_flight.list.drain(..count).collect();
            for entry in &done {
                // Set under the lock: who finds its submission gone from the list finds the outcome.
                let timings = entry.recording.stamps.read(&self.device);
                if let Err(error) = &timings {
                    self.health.note(error, Some(&entry.recording));
                }
                let _ = entry.outcome.set(timings);
            }
            done
        };
        // Tensors are dropped here, outside the lock.
        for entry in done {
            self.recycle(entry.recording);
        }
    }

    fn recycle(&self, recording: Recording) {
        let Recording { commands, stamps, .. } = recording;
        let mut spare = lock(&self.spare);
        if spare.commands.len() < SPARES {
            spare.commands.push(commands);
        }
        let room = SPARES.saturating_sub(spare.queries.len());
        spare.queries.extend(stamps.into_pools().into_iter().take(room));
    }

    /// Waits for the device as well as it can be, then lets go of everything in flight. What the device does not finish
    /// in time is left to it for good, with all that it may use.
    ///
    /// # Errors
    /// [`Error::TimedOut`], then and whenever it is called again.
    pub(super) fn shut_down(self: &Arc<Self>) -> Result<()> {
        // Who waited in vain does not wait as long again.
        let overdue = self.health.overdue.iter().any(|stream| stream.load(Ordering::Acquire));
        let limit = if overdue { self.timeout().min(LAST_WAIT) } else { self.timeout() };
        match self.wait_all_for(limit) {
            Err(error @ Error::TimedOut { .. }) => {
                if !self.health.abandoned.swap(true, Ordering::AcqRel) {
                    tracing::error!(%error, "the device and all that it uses are left behind");
                    std::mem::forget(self.clone());
                }
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(%error, "waiting for the last submission");
                self.device.wait_idle();
            }
            Ok(_) => {}
        }
        let left = Stream::ALL
            .map(|stream| std::mem::take(&mut lock(&self.in_flight)[stream as usize].list));
        drop(left);
        self.pool.trim();
        if !self.health.is_lost() {
            self.pipelines.save();
        }
        Ok(())
    }

    /// A buffer; when memory is short, first whatever finished submissions held is let go.
    pub(super) fn buffer(&self, memory: Memory, bytes: u64, name: &str) -> Result<Buffer> {
        self.health.check()?;
        let first = self.pool.take(memory, bytes, name);
        if matches!(first, Err(Error::OutOfMemory { .. })) && self.wait_all()? {
            return self.pool.take(memory, bytes, name);
        }
        first
    }

    /// The first of consecutive slots of the heap, one a binding; when so many are not free, first whatever finished
    /// submissions held is let go.
    pub(super) fn slots(&self, bindings: &[(&Buffer, Range<u64>)]) -> Result<u32> {
        if let Some(first) = self.heap.take(bindings) {
            return Ok(first);
        }
        self.wait_all()?;
        self.heap.take(bindings).ok_or_else(|| self.heap.full())
    }

    /// Names what was running when the device was lost: what is in flight, else what was to be.
    fn explain(&self, error: Error, next: Option<&Recording>) -> Error {
        let in_flight = lock(&self.in_flight);
        let [compute, copy] = in_flight.each_ref().map(|stream| stream.list.front());
        let running = match (compute, copy) {
            (Some(compute), Some(copy)) if copy.value <= compute.before => Some(copy),
            (compute, copy) => compute.or(copy),
        };
        self.health.note(&error, running.map(|entry| &entry.recording).or(next));
        drop(in_flight);
        self.health.check().err().unwrap_or(error)
    }
}

/// Whether the device is still there.
#[derive(Debug, Default)]
struct Health {
    lost: AtomicBool,
    /// What was running when it was lost, until somebody is told.
    during: Mutex<Option<String>>,
    /// Of each stream, whether somebody has waited in vain.
    overdue: [AtomicBool; Stream::ALL.len()],
    /// Whether it still runs what nobody waits for any more.
    abandoned: AtomicBool,
}

impl Health {
    /// Only the first error says during what the device was lost.
    fn check(&self) -> Result<()> {
        match self.is_lost() {
            true => Err(Error::DeviceLost { during: lock(&self.during).take() }),
            false => Ok(()),
        }
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the device lost when an error says so.
    fn note(&self, error: &Error, running: Option<&Recording>) {
        if matches!(error, Error::DeviceLost { .. }) {
            self.lose(running.map_or_else(|| "a submission".into(), Recording::summary));
        }
    }

    fn lose(&self, running: String) {
        let mut during = lock(&self.during);
        if !self.lost.swap(true, Ordering::AcqRel) {
            *during = Some(running);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_loss_names_a_kernel() {
        let health = Health::default();
        assert!(health.check().is_ok());
        health.lose("k".into());
        health.lose("l".into());
        let Err(Error::DeviceLost { during }) = health.check() else { panic!() };
        assert_eq!(during.as_deref(), Some("k"));
        health.lose("m".into());
        assert!(matches!(health.check(), Err(Error::DeviceLost { during: None })));
    }
}

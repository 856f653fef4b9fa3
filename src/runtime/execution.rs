//! Work run to its end, in submissions of a bounded time.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Runtime;
use super::recorder::{Command, Recorder};
use super::slices::{Cut, Pace, Size, Slice};
use super::submission::Submission;
use super::timing::Timing;
use crate::error::{Error, Result};

/// How recorded work is run to its end: in how large submissions, and who is told.
///
/// A GPU that also drives a display is reset by its driver when one submission takes a few seconds, and cannot be used by
/// others meanwhile. So kernels are cut into slices of workgroups, a submission each, that get larger until one takes a
/// quarter of [`Execution::bound`]. Two are with the device at a time, so that it does not idle. What a kernel stores does
/// not depend on where it is cut: all bounds give the same bits.
///
/// A workgroup is not cut. One of the attention's is some rows' heads with all their tokens, or some slots of a key/value
/// head with all the rows that see them; where it alone takes longer than the bound, so does its submission, and a warning says so. Nor
/// is a kernel cut whose push constants lack `first_group_x` and `first_group_y`. A kernel's first slice, a single
/// workgroup, may take as long as a software driver compiles.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use backslang::kernels::attention::{BackwardInputs, Options, Schedule, backward};
/// use backslang::runtime::Runtime;
/// use backslang::{Error, HostTensor, Result};
///
/// fn gradients(
///     runtime: &Runtime,
///     inputs: &BackwardInputs<HostTensor>,
///     schedule: &Schedule,
///     stop: &AtomicBool,
/// ) -> Result<()> {
///     let execution = runtime.execution().watch(|progress| {
///         eprintln!("{:.0} %", 100.0 * progress.fraction());
///         if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
///     });
///     match backward::run(execution, inputs, schedule, &Options::new(0.125)) {
///         Err(Error::Cancelled) => println!("stopped; the runtime can be used again"),
///         run => println!("{:?}", run?.timings),
///     }
///     Ok(())
/// }
/// ```
pub struct Execution<'a> {
    runtime: &'a Runtime,
    bound: Duration,
    watch: Watch<'a>,
}

type Watch<'a> = Box<dyn FnMut(Progress) -> ControlFlow<()> + 'a>;

/// How much of the work is done, in array elements read or written, roughly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// So much.
    pub done: u64,
    /// Of so much; 0 where there is nothing to do.
    pub total: u64,
}

impl Progress {
    /// From 0 to 1.
    pub fn fraction(self) -> f64 {
        if self.total == 0 { 1.0 } else { self.done as f64 / self.total as f64 }
    }
}

impl<'a> From<&'a Runtime> for Execution<'a> {
    fn from(runtime: &'a Runtime) -> Self {
        Self { runtime, bound: Self::BOUND, watch: Box::new(|_| ControlFlow::Continue(())) }
    }
}

impl fmt::Debug for Execution<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("bound", &self.bound).finish_non_exhaustive()
    }
}

/// Submissions that are with the device at a time.
const IN_FLIGHT: usize = 2;

impl<'a> Execution<'a> {
    /// What [`Execution::bound`] is by default: 1 second. The shortest that a system's watchdog allows is 2 seconds.
    pub const BOUND: Duration = Duration::from_secs(1);

    /// The runtime that it is for.
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// Lets no submission take longer than this, as far as that can be foreseen. [`Duration::ZERO`] puts all that is
    /// recorded into one submission.
    pub fn bound(self, bound: Duration) -> Self {
        Self { bound, ..self }
    }

    /// Calls `watch` before the first submission and after each, with a [`Progress`] that only grows, at the end to 1. When
    /// it says [`ControlFlow::Break`], nothing more is submitted and [`Execution::run`] fails with [`Error::Cancelled`].
    /// What was submitted already, at most two slices, runs to its end behind the caller's back.
    pub fn watch(self, watch: impl FnMut(Progress) -> ControlFlow<()> + 'a) -> Self {
        Self { watch: Box::new(watch), ..self }
    }

    /// Records work with `record` and runs it; gives the time on the device of each fill and dispatch, summed over its
    /// slices, in order of recording. There are no times on a device without timestamps.
    ///
    /// # Errors
    /// Those of `record`; [`Error::Cancelled`], after which the contents of what the work writes are undefined and the
    /// runtime can be used as before; those of [`Recorder::submit`] and [`Submission::wait`].
    pub fn run(
        mut self,
        record: impl FnOnce(&mut Recorder<'a>) -> Result<()>,
    ) -> Result<Vec<Timing>> {
        let mut recorder = Recorder::keeping(self.runtime)?;
        record(&mut recorder)?;
        let commands = recorder.take_kept();
        if self.bound.is_zero() {
            return self.run_whole(recorder, &commands);
        }
        let mut run = Sliced::new(self.runtime, self.bound, &mut self.watch, recorder, &commands)?;
        run.all(&commands)?;
        run.finish()
    }

    fn run_whole(
        mut self,
        mut recorder: Recorder<'a>,
        commands: &[Command],
    ) -> Result<Vec<Timing>> {
        recorder.encode_all(commands)?;
        let total = total(commands);
        go_on(&mut self.watch, Progress { done: 0, total })?;
        let timings = recorder.submit()?.timings()?;
        go_on(&mut self.watch, Progress { done: total, total })?;
        Ok(timings)
    }
}

/// Runs commands in slices of the size that tests ask for, and gives the last submission.
pub(super) fn strain<'a>(recorder: Recorder<'a>, commands: &[Command]) -> Result<Submission> {
    let runtime = recorder.runtime();
    let mut watch: Watch<'a> = Box::new(|_| ControlFlow::Continue(()));
    let mut run = Sliced::new(runtime, Execution::BOUND, &mut watch, recorder, commands)?;
    run.all(commands)?;
    let open = run.open.take();
    run.finish()?;
    open.map_or_else(|| Recorder::plain(runtime), Ok)?.submit()
}

fn go_on(watch: &mut Watch<'_>, progress: Progress) -> Result<()> {
    match watch(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}

/// What all commands cost; fills are done in no time.
fn total(commands: &[Command]) -> u64 {
    let cost = |command: &Command| match command {
        Command::Fill { .. } => 0,
        Command::Dispatch(dispatch) => Cut::new(dispatch.grid, &dispatch.load).cost(),
    };
    commands.iter().map(cost).fold(0, u64::saturating_add)
}

/// A run under way.
struct Sliced<'a, 'w> {
    runtime: &'a Runtime,
    bound: Duration,
    watch: &'w mut Watch<'a>,
    /// What goes into the next submission so far: whatever was recorded elsewhere, and fills.
    open: Option<Recorder<'a>>,
    /// The first command in it.
    first: usize,
    in_flight: VecDeque<Sent>,
    /// By pipeline.
    paces: HashMap<usize, Pace>,
    timings: Vec<Timing>,
    total: u64,
    /// When the last submission was seen to be done.
    settled: Instant,
}

/// A submission of a slice, and the fills before it.
struct Sent {
    submission: Submission,
    at: Instant,
    first: usize,
    /// Of all work, what is done with it.
    done: u64,
    /// The slice, and its kernel.
    slice: Option<(Slice, usize, Cow<'static, str>)>,
}

impl<'a, 'w> Sliced<'a, 'w> {
    fn new(
        runtime: &'a Runtime,
        bound: Duration,
        watch: &'w mut Watch<'a>,
        open: Recorder<'a>,
        commands: &[Command],
    ) -> Result<Self> {
        let total = total(commands);
        go_on(watch, Progress { done: 0, total })?;
        let zero = |command: &Command| Timing { kernel: command.label(), gpu: Duration::ZERO };
        Ok(Self {
            runtime,
            bound,
            watch,
            open: Some(open),
            first: 0,
            in_flight: VecDeque::with_capacity(IN_FLIGHT),
            paces: HashMap::new(),
            timings: commands.iter().map(zero).collect(),
            total,
            settled: Instant::now(),
        })
    }

    fn all(&mut self, commands: &[Command]) -> Result<()> {
        let mut before = 0u64;
        for (index, command) in commands.iter().enumerate() {
            let dispatch = match command {
                Command::Fill { tensor, word } => {
                    self.recorder()?.fill(tensor, *word)?;
                    continue;
                }
                Command::Dispatch(dispatch) => dispatch,
            };
            let mut cut = Cut::new(dispatch.grid, &dispatch.load);
            let all = cut.cost();
            let strained = self.runtime.core().strain.slice.load(Ordering::Relaxed);
            let pipeline = dispatch.identity();
            loop {
                self.settle(IN_FLIGHT - 1)?;
                let pace = self.paces.entry(pipeline).or_insert_with(Pace::new);
                let size = match strained {
                    _ if !dispatch.can_be_cut() => Size::Whole,
                    0 => pace.size(),
                    groups => Size::Workgroups(groups.into()),
                };
                let Some(slice) = cut.next(size) else { break };
                let pieces = cut.pieces(&slice, self.runtime.core().grid_limit())?;
                let mut recorder = self.take()?;
                recorder.encode(dispatch, &pieces)?;
                let done = before.saturating_add(slice.reached);
                let slice = Some((slice, pipeline, dispatch.label()));
                self.send(recorder, done, slice)?;
                self.first = index;
            }
            self.first = index + 1;
            before = before.saturating_add(all);
        }
        Ok(())
    }

    /// What is still open, and waits for all.
    fn finish(mut self) -> Result<Vec<Timing>> {
        if let Some(recorder) = self.open.take()
            && recorder.has_commands()
        {
            self.send(recorder, self.total, None)?;
        }
        self.settle(0)?;
        let timed = self.runtime.device().timestamps;
        Ok(if timed { self.timings } else { Vec::new() })
    }

    fn recorder(&mut self) -> Result<&mut Recorder<'a>> {
        let recorder = self.take()?;
        Ok(self.open.insert(recorder))
    }

    fn take(&mut self) -> Result<Recorder<'a>> {
        self.open.take().map_or_else(|| Recorder::plain(self.runtime), Ok)
    }

    fn send(
        &mut self,
        recorder: Recorder<'a>,
        done: u64,
        slice: Option<(Slice, usize, Cow<'static, str>)>,
    ) -> Result<()> {
        let submission = recorder.submit()?;
        let (at, first) = (Instant::now(), self.first);
        self.in_flight.push_back(Sent { submission, at, first, done, slice });
        Ok(())
    }

    /// Waits until no more than `most` submissions are with the device.
    fn settle(&mut self, most: usize) -> Result<()> {
        while self.in_flight.len() > most
            && let Some(sent) = self.in_flight.pop_front()
        {
            let timings = sent.submission.timings()?;
            let begun = self.settled.max(sent.at);
            self.settled = Instant::now();
            let mut took = self.settled - begun;
            for (timing, sum) in timings.iter().zip(self.timings.iter_mut().skip(sent.first)) {
                sum.gpu += timing.gpu;
                took = timing.gpu;
            }
            if let Some((slice, pipeline, kernel)) = &sent.slice
                && let Some(pace) = self.paces.get_mut(pipeline)
            {
                tracing::trace!("slice of {} workgroups of {kernel}: {took:?}", slice.count());
                pace.learn(kernel, slice, took, self.bound);
            }
            go_on(self.watch, Progress { done: sent.done, total: self.total })?;
        }
        Ok(())
    }
}

//! Recording of commands into one submission.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytemuck::Pod;

use super::Runtime;
use super::core::Core;
use super::execution;
use super::grid::{self, Piece};
#[cfg(feature = "forms")]
use super::hazard::Barrier;
use super::hazard::{Hazards, Stages, Touch};
use super::heap::DUMMY_SLOT;
use super::info::PipelineStatistics;
use super::program::Program;
#[cfg(feature = "forms")]
use super::raw::Descriptors;
use super::raw::embed::Links;
use super::raw::{Buffer, Commands, PUSH_BYTES, Pipeline};
use super::slices::Load;
use super::stream::{Stream, Touched};
use super::submission::Submission;
use super::tensor::{Pooled, Tensor};
use super::timing::Stamps;
use crate::error::{Error, Result};
#[cfg(feature = "forms")]
use crate::manifest::Kernel;

/// Records fills and dispatches, which then run in order as one submission.
///
/// A command waits for an earlier one only when it reads what that wrote, or writes what that read or wrote.
///
/// Threads record side by side, each with a recorder of its own. One recorder may go from thread to thread, but two threads
/// cannot record into it at once, nor can it outlive its runtime: neither compiles.
///
/// ```compile_fail,E0499
/// # use backslang::runtime::{Recorder, Tensor};
/// fn both(recorder: &mut Recorder<'_>, a: &Tensor, b: &Tensor) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| recorder.fill(a, 0));
///         scope.spawn(|| recorder.fill(b, 0));
///     });
/// }
/// ```
///
/// ```compile_fail,E0505
/// # use backslang::runtime::Runtime;
/// fn late(runtime: Runtime) -> backslang::Result<()> {
///     let recorder = runtime.recorder()?;
///     drop(runtime);
///     recorder.submit()?.wait()
/// }
/// ```
pub struct Recorder<'a> {
    runtime: &'a Runtime,
    stream: Stream,
    recording: Recording,
    hazards: Hazards,
    /// The tensors that the recording keeps already.
    known: HashSet<usize>,
    /// The pipeline bound last.
    bound: Option<Arc<Pipeline>>,
    timed: bool,
    /// Commands that wait to be recorded, in slices, where an [`Execution`](super::Execution) is to run them.
    kept: Option<Vec<Command>>,
}

/// A command that is not recorded yet.
pub(super) enum Command {
    Fill { tensor: Tensor, word: u32 },
    Dispatch(Box<Dispatch>),
}

/// A checked dispatch.
pub(super) struct Dispatch {
    program: Program,
    pipeline: Arc<Pipeline>,
    block: PushBlock,
    tensors: Vec<Tensor>,
    touches: Vec<Touch>,
    pub(super) grid: [u32; 2],
    pub(super) load: Load,
}

impl Command {
    /// What timings call it.
    pub(super) fn label(&self) -> Cow<'static, str> {
        match self {
            Self::Fill { .. } => "fill".into(),
            Self::Dispatch(dispatch) => dispatch.label(),
        }
    }
}

impl Dispatch {
    pub(super) fn label(&self) -> Cow<'static, str> {
        self.program.label()
    }

    /// The same for all dispatches of a kernel with the same constants.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.pipeline).addr()
    }

    /// Whether its workgroups can be told where in the grid they are.
    pub(super) fn can_be_cut(&self) -> bool {
        self.block.first.is_some()
    }
}

/// Commands, and all that must live until the device is done with them.
pub(super) struct Recording {
    pub(super) commands: Commands,
    pub(super) stamps: Stamps,
    /// Where copies have a queue of their own.
    pub(super) touched: Touched,
    kernels: Vec<Program>,
    /// Those of the kernels, each once, with the number of its kernel.
    pipelines: Vec<(usize, Arc<Pipeline>)>,
    tensors: Vec<Tensor>,
    staging: Vec<Arc<Pooled>>,
    #[cfg(feature = "forms")]
    bound: Vec<Descriptors>,
}

impl Recording {
    pub(super) fn new(commands: Commands) -> Self {
        Self {
            commands,
            stamps: Stamps::default(),
            touched: Touched::default(),
            kernels: Vec::new(),
            pipelines: Vec::new(),
            tensors: Vec::new(),
            staging: Vec::new(),
            #[cfg(feature = "forms")]
            bound: Vec::new(),
        }
    }

    /// Keeps staging memory.
    pub(super) fn stage(&mut self, memory: Arc<Pooled>) {
        self.staging.push(memory);
    }

    /// Takes down a pipeline that is bound.
    fn note(&mut self, program: &Program, pipeline: &Arc<Pipeline>) {
        let known = self.kernels.iter().position(|known| known == program);
        let kernel = known.unwrap_or_else(|| {
            self.kernels.push(program.clone());
            self.kernels.len() - 1
        });
        if !self.pipelines.iter().any(|(_, known)| Arc::ptr_eq(known, pipeline)) {
            self.pipelines.push((kernel, pipeline.clone()));
        }
    }

    /// The names of its kernels, each once.
    pub(super) fn summary(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for name in self.kernels.iter().map(Program::name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { "copies".into() } else { names.join(", ") }
    }
}

/// Names the tensors that a dispatch reads and writes. This is the only way to their heap indices, so no access can
/// escape the recorder; nor can this, which lives as long as the push block is being made:
///
/// ```compile_fail,E0521
/// # use backslang::manifest::Kernel;
/// # use backslang::runtime::{Access, Recorder};
/// fn keep<'a>(recorder: &mut Recorder<'_>, kernel: &'static Kernel, kept: &mut Option<&'a mut Access<'a>>) {
///     let _ = unsafe {
///         recorder.dispatch(kernel, &[], [1, 1], |access| {
///             *kept = Some(access);
///             0u32
///         })
///     };
/// }
/// ```
pub struct Access<'a> {
    core: &'a Arc<Core>,
    tensors: Vec<Tensor>,
    /// Which of the tensors are written.
    written: Vec<usize>,
    touches: Vec<Touch>,
    /// The first of what went wrong.
    failure: Option<Error>,
}

impl Access<'_> {
    /// The heap index of a tensor that the kernel reads.
    pub fn read(&mut self, tensor: &Tensor) -> u32 {
        self.touch(tensor, false)
    }

    /// The heap index of a tensor that the kernel writes, and may read.
    pub fn write(&mut self, tensor: &Tensor) -> u32 {
        self.touch(tensor, true)
    }

    /// The heap index of a tensor that the kernel reads and that may need several bindings
    /// ([`Tensor::binding_elements`]): those have consecutive indices, of which this is the first.
    pub fn read_parts(&mut self, tensor: &Tensor) -> u32 {
        let slot = self.slots(tensor, false);
        self.or_dummy(slot)
    }

    /// As [`Access::read_parts`] where there is a tensor, else as [`Access::unused`].
    pub fn read_parts_if(&mut self, tensor: Option<&Tensor>) -> u32 {
        tensor.map_or(self.unused(), |tensor| self.read_parts(tensor))
    }

    /// As [`Access::read`] where there is a tensor, else as [`Access::unused`].
    pub fn read_if(&mut self, tensor: Option<&Tensor>) -> u32 {
        tensor.map_or(self.unused(), |tensor| self.read(tensor))
    }

    /// As [`Access::write`] where there is a tensor, else as [`Access::unused`].
    pub fn write_if(&mut self, tensor: Option<&Tensor>) -> u32 {
        tensor.map_or(self.unused(), |tensor| self.write(tensor))
    }

    /// The heap index for a tensor that the kernel does not use: a dummy buffer is there.
    pub fn unused(&self) -> u32 {
        DUMMY_SLOT
    }

    fn touch(&mut self, tensor: &Tensor, write: bool) -> u32 {
        let slot = self.slots(tensor, write).and_then(|slot| match tensor.binding_elements() {
            None => Ok(slot),
            Some(_) => Err(tensor.beyond_a_binding()),
        });
        self.or_dummy(slot)
    }

    fn slots(&mut self, tensor: &Tensor, write: bool) -> Result<u32> {
        self.touches.extend(touches(tensor, write));
        if write {
            self.written.push(self.tensors.len());
        }
        self.tensors.push(tensor.clone());
        if !tensor.belongs_to(self.core) {
            return Err(foreign(tensor.name()));
        }
        #[cfg(feature = "forms")]
        if tensor.binding_elements().is_some() && self.core.form == super::Form::Plain {
            return Err(tensor.beyond_a_binding());
        }
        tensor.slot()
    }

    fn or_dummy(&mut self, slot: Result<u32>) -> u32 {
        slot.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            DUMMY_SLOT
        })
    }
}

impl Access<'_> {
    /// Refuses the dispatch when a tensor that it writes may share an element with another of its tensors.
    pub(crate) fn refuse_overlaps(&mut self) {
        let clash = self.written.iter().find_map(|&at| {
            let written = &self.tensors[at];
            let others = self.tensors.iter().enumerate().filter(|(other, _)| *other != at);
            let clash = |(_, other): &(usize, &Tensor)| written.may_overlap(other);
            others.into_iter().find(clash).map(|(_, other)| (written, other))
        });
        if let Some((written, other)) = clash {
            let error = Error::Parameter {
                name: "tensors",
                expected: "what a kernel writes apart from all else that it uses".into(),
                found: format!("{written:?} beside {other:?} of the same memory"),
            };
            self.failure.get_or_insert(error);
        }
    }
}

fn touches(tensor: &Tensor, write: bool) -> impl Iterator<Item = Touch> {
    tensor.memory().map(move |(_, buffer, bytes)| Touch { buffer: buffer.id(), bytes, write })
}

impl<'a> Recorder<'a> {
    /// One that records what it is given at once, or keeps it to be run in slices where tests ask for those.
    pub(super) fn new(runtime: &'a Runtime) -> Result<Self> {
        match runtime.core().strain.slice.load(Ordering::Relaxed) {
            0 => Self::plain(runtime),
            _ => Self::keeping(runtime),
        }
    }

    /// One that keeps what it is given.
    pub(super) fn keeping(runtime: &'a Runtime) -> Result<Self> {
        Ok(Self { kept: Some(Vec::new()), ..Self::plain(runtime)? })
    }

    /// One that records what it is given at once.
    pub(super) fn plain(runtime: &'a Runtime) -> Result<Self> {
        Self::on(runtime, runtime.core().commands()?)
    }

    /// One for the copies of an upload or a download.
    pub(super) fn copying(runtime: &'a Runtime) -> Result<Self> {
        Ok(Self { stream: Stream::Copy, ..Self::plain(runtime)? })
    }

    /// Starts a recording in this command buffer.
    pub(super) fn on(runtime: &'a Runtime, mut commands: Commands) -> Result<Self> {
        let core = runtime.core();
        commands.begin(core.heap.descriptors())?;
        Ok(Self {
            runtime,
            stream: Stream::Compute,
            recording: Recording::new(commands),
            hazards: Hazards::default(),
            known: HashSet::new(),
            bound: None,
            timed: core.info.timestamps,
            kept: None,
        })
    }

    /// What was kept; from now on it records what it is given at once.
    pub(super) fn take_kept(&mut self) -> Vec<Command> {
        self.kept.take().unwrap_or_default()
    }

    /// Whether anything is recorded.
    pub(super) fn has_commands(&self) -> bool {
        !self.recording.tensors.is_empty() || !self.recording.kernels.is_empty()
    }

    fn core(&self) -> &'a Arc<Core> {
        self.runtime.core()
    }

    /// The runtime that it records for.
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// Takes no times from here on. A timestamp costs a few microseconds and keeps independent commands from running
    /// side by side.
    pub fn untimed(mut self) -> Self {
        self.timed = false;
        self
    }

    /// What the driver tells of the pipelines recorded so far, each once; nothing of them where
    /// [`RuntimeOptions::pipeline_statistics`](super::RuntimeOptions) is off or the device does not tell. Commands that an
    /// [`Execution`](super::Execution) is to run are not recorded before it does.
    pub fn pipelines(&self) -> Vec<PipelineStatistics> {
        let Recording { kernels, pipelines, .. } = &self.recording;
        let of = |(kernel, pipeline): &(usize, Arc<Pipeline>)| PipelineStatistics {
            kernel: kernels[*kernel].label(),
            statistics: pipeline.statistics.clone(),
        };
        pipelines.iter().map(of).collect()
    }

    /// Sets every word of a tensor.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the tensor belongs to another runtime or is a view with gaps or of parts of words;
    /// failures of the device.
    pub fn fill(&mut self, tensor: &Tensor, word: u32) -> Result<()> {
        self.check_owner(tensor)?;
        let touches: Vec<_> = touches(tensor, true).collect();
        if touches.is_empty() {
            return Ok(());
        }
        check_whole(tensor)?;
        tensor.check_copies(true)?;
        if let Some(kept) = &mut self.kept {
            kept.push(Command::Fill { tensor: tensor.clone(), word });
            return Ok(());
        }
        self.start()?;
        self.order(Stages::TRANSFER, &touches);
        for (_, buffer, bytes) in tensor.memory() {
            self.recording.commands.fill(buffer, bytes.start, bytes.end - bytes.start, word);
        }
        self.keep(tensor);
        self.end("fill")
    }

    /// Runs a kernel over a grid of `groups` workgroups along x and y: one of this crate's, or a [`Program`] that was made
    /// at run time.
    ///
    /// `constants` are the bits of the kernel's specialization constants, in the order of its interface. `push` makes the
    /// push-constant block, with heap indices from [`Access`]. A grid beyond the device's limit is split into several
    /// dispatches; `first_group_x` and `first_group_y` of the block then say where each one starts. An empty grid
    /// records nothing.
    ///
    /// # Safety
    /// The kernel is valid SPIR-V that its declared interface describes, and with this block and these constants it
    /// stays within the tensors that [`Access`] was told of. The device, the driver included, may do anything otherwise.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device cannot run the kernel so, [`Error::TooLarge`] when an axis of the grid
    /// exceeds 32 bits or the grid is split too often, [`Error::Parameter`] for a tensor of another runtime or a block
    /// of the wrong size.
    #[allow(unsafe_code)]
    pub unsafe fn dispatch<P: Pod>(
        &mut self,
        kernel: impl Into<Program>,
        constants: &[u32],
        groups: [usize; 2],
        push: impl FnOnce(&mut Access<'_>) -> P,
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.dispatch_loaded(kernel, constants, groups, || Load::Even(1), push) }
    }

    /// As [`Recorder::dispatch`], with what the workgroups cost, which is asked for where that matters.
    ///
    /// # Safety
    /// As for [`Recorder::dispatch`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn dispatch_loaded<P: Pod>(
        &mut self,
        kernel: impl Into<Program>,
        constants: &[u32],
        groups: [usize; 2],
        load: impl FnOnce() -> Load,
        push: impl FnOnce(&mut Access<'_>) -> P,
    ) -> Result<()> {
        let push = |access: &mut Access<'_>| PushBlock::of(bytemuck::bytes_of(&push(access)));
        // SAFETY: the caller's.
        unsafe { self.dispatch_block(&kernel.into(), constants, groups, load, push) }
    }

    /// As [`Recorder::dispatch_loaded`], with a block whose layout is known at run time only.
    ///
    /// # Safety
    /// As for [`Recorder::dispatch`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn dispatch_block(
        &mut self,
        program: &Program,
        constants: &[u32],
        groups: [usize; 2],
        load: impl FnOnce() -> Load,
        push: impl FnOnce(&mut Access<'_>) -> PushBlock,
    ) -> Result<()> {
        let core = self.core();
        if groups.contains(&0) {
            return Ok(());
        }
        let pieces = grid::split(groups.map(|n| n as u64), core.grid_limit())?;
        let mut access = Access {
            core,
            tensors: Vec::new(),
            written: Vec::new(),
            touches: Vec::new(),
            failure: None,
        };
        let block = push(&mut access);
        let Access { tensors, touches, failure, .. } = access;
        if let Some(error) = failure {
            return Err(error);
        }
        let block = block.of_program(program, pieces.len() > 1)?;
        let pipeline = core.pipelines.get(&core.heap, &core.info, program, constants)?;
        // A pipeline that the layer objects to may bring the driver down when it runs.
        core.check()?;

        // Within 32 bits, or there were no pieces.
        let grid = groups.map(|n| n as u32);
        let load = if self.kept.is_some() { load() } else { Load::Even(1) };
        let program = program.clone();
        let dispatch = Dispatch { program, pipeline, block, tensors, touches, grid, load };
        match &mut self.kept {
            Some(kept) => {
                kept.push(Command::Dispatch(Box::new(dispatch)));
                Ok(())
            }
            None => self.encode(&dispatch, &pieces),
        }
    }

    /// Records pieces of a dispatch.
    pub(super) fn encode(&mut self, dispatch: &Dispatch, pieces: &[Piece]) -> Result<()> {
        let Dispatch { program, pipeline, block, tensors, touches, .. } = dispatch;
        self.start()?;
        self.order(Stages::COMPUTE, touches);
        if !self.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, pipeline)) {
            self.recording.commands.bind(pipeline);
            self.recording.note(program, pipeline);
            self.bound = Some(pipeline.clone());
        }
        self.run(program, block, tensors, pieces)?;
        tensors.iter().for_each(|tensor| self.keep(tensor));
        self.end(program.label())
    }

    /// Records commands that were kept, uncut.
    pub(super) fn encode_all(&mut self, commands: &[Command]) -> Result<()> {
        let limit = self.core().grid_limit();
        for command in commands {
            match command {
                Command::Fill { tensor, word } => self.fill(tensor, *word)?,
                Command::Dispatch(dispatch) => {
                    let pieces = grid::split(dispatch.grid.map(u64::from), limit)?;
                    self.encode(dispatch, &pieces)?;
                }
            }
        }
        Ok(())
    }

    #[cfg_attr(not(feature = "forms"), allow(unused_variables, clippy::unnecessary_wraps))]
    fn run(
        &mut self,
        program: &Program,
        block: &PushBlock,
        tensors: &[Tensor],
        pieces: &[Piece],
    ) -> Result<()> {
        let core = self.core();
        #[cfg(feature = "forms")]
        if let Some(kernel) = program.own().filter(|kernel| core.form.is_bound(kernel)) {
            return self.run_bound(kernel, block, tensors, pieces);
        }
        for piece in pieces {
            let block = block.at(*piece);
            self.recording.commands.dispatch(core.heap.descriptors(), block.bytes(), piece.count);
        }
        Ok(())
    }

    /// Runs a kernel that has bindings of its own.
    #[cfg(feature = "forms")]
    fn run_bound(
        &mut self,
        kernel: &'static Kernel,
        block: &PushBlock,
        tensors: &[Tensor],
        pieces: &[Piece],
    ) -> Result<()> {
        let bound = super::forms::bind(self.core(), kernel, block, tensors)?;
        let commands = &mut self.recording.commands;
        for (index, piece) in pieces.iter().enumerate() {
            if index > 0 {
                // The pieces write parts of the same tensors that do not meet, which the layer cannot know.
                commands.barrier(Barrier { before: Stages::COMPUTE, after: Stages::COMPUTE });
            }
            let block = super::forms::push(kernel, block, *piece)?;
            commands.bind_descriptors(&bound);
            commands.dispatch(&bound, block.bytes(), piece.count);
        }
        self.recording.bound.push(bound);
        Ok(())
    }

    /// Copies staged bytes to places of a part of a tensor, one after the other.
    pub(super) fn copy_in(
        &mut self,
        from: Arc<Pooled>,
        to: &Tensor,
        part: usize,
        places: &[Range<u64>],
    ) {
        if let (Some(source), Some(target)) = (from.get(), to.part(part)) {
            self.order_copy(target, places, true);
            self.recording.commands.copy(source, target, regions(places));
            self.keep(to);
            self.recording.stage(from);
        }
    }

    /// Copies places of a part of a tensor to where the host can read them, one after the other.
    pub(super) fn copy_out(
        &mut self,
        from: &Tensor,
        part: usize,
        places: &[Range<u64>],
        to: Arc<Pooled>,
    ) {
        if let (Some(source), Some(target)) = (from.part(part), to.get()) {
            self.order_copy(source, places, false);
            let back = regions(places).map(|[staged, place, bytes]| [place, staged, bytes]);
            self.recording.commands.copy(source, target, back);
            self.keep(from);
            self.recording.stage(to);
        }
    }

    fn order_copy(&mut self, tensor: &Buffer, places: &[Range<u64>], write: bool) {
        let bounds = places.first().zip(places.last());
        let touch = bounds.map(|(first, last)| Touch {
            buffer: tensor.id(),
            bytes: first.start..last.end,
            write,
        });
        self.order(Stages::TRANSFER, touch.as_slice());
    }

    /// Records the smallest dispatch there is, which writes a word a lane, for measurements.
    #[doc(hidden)]
    pub fn probe(&mut self, words: &Tensor) -> Result<()> {
        super::probe::record(self, words)
    }

    /// Submits and waits; says how long the driver took for that, for measurements.
    #[doc(hidden)]
    pub fn submit_bare(self) -> Result<Duration> {
        self.core().time_bare(self.recording)
    }

    /// Forgets all accesses so far, so that a barrier is missing: shows tests that validation notices.
    #[doc(hidden)]
    pub fn forget_accesses(&mut self) {
        self.hazards = Hazards::default();
    }

    /// Barriers between commands so far, for tests.
    #[doc(hidden)]
    pub fn barriers(&self) -> usize {
        // The first stands before them all.
        self.recording.commands.barriers().len().saturating_sub(1)
    }

    /// The barriers of the recording once it is ended, which is then dropped. No layer sees a hazard between accesses
    /// through the heap, nor one with the host: tests look for themselves.
    #[doc(hidden)]
    pub fn into_barriers(mut self) -> Result<Vec<String>> {
        self.recording.commands.end()?;
        Ok(self.recording.commands.barriers().iter().map(ToString::to_string).collect())
    }

    /// Sends everything recorded to the device, without waiting for it.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Validation`] and other failures of the device.
    pub fn submit(self) -> Result<Submission> {
        self.submit_linked(&Links::default())
    }

    /// As [`Recorder::submit`], with a caller's semaphores.
    pub(super) fn submit_linked(mut self, links: &Links<'_>) -> Result<Submission> {
        let core = self.core();
        if self.kept.is_some() {
            let kept = self.take_kept();
            if core.strain.slice.load(Ordering::Relaxed) > 0 {
                return execution::strain(self, &kept);
            }
            self.encode_all(&kept)?;
        }
        let (ticket, outcome) = core.submit(self.stream, self.recording, links)?;
        Ok(Submission::new(core.clone(), ticket, outcome))
    }

    /// What was recorded.
    pub(super) fn into_recording(self) -> Recording {
        self.recording
    }

    fn check_owner(&self, tensor: &Tensor) -> Result<()> {
        if tensor.belongs_to(self.core()) { Ok(()) } else { Err(foreign(tensor.name())) }
    }

    fn order(&mut self, stage: Stages, touches: &[Touch]) {
        // The order of one queue needs no account of it.
        if self.core().device.copies_beside() {
            self.recording.touched.add(touches);
        }
        if let Some(barrier) = self.hazards.next(stage, touches) {
            self.recording.commands.barrier(barrier);
        }
    }

    fn keep(&mut self, tensor: &Tensor) {
        if self.known.insert(tensor.identity()) {
            self.recording.tensors.push(tensor.clone());
        }
    }

    fn start(&mut self) -> Result<()> {
        let core = self.core();
        if !self.timed {
            return Ok(());
        }
        let Recording { stamps, commands, .. } = &mut self.recording;
        stamps.start(commands, &|| core.queries())
    }

    fn end(&mut self, label: impl Into<Cow<'static, str>>) -> Result<()> {
        let core = self.core();
        if !self.timed {
            return Ok(());
        }
        let Recording { stamps, commands, .. } = &mut self.recording;
        stamps.end(label.into(), commands, &|| core.queries())
    }
}

/// From where each place comes to lie when they follow each other, to the place, and its bytes.
fn regions(places: &[Range<u64>]) -> impl Iterator<Item = [u64; 3]> + '_ {
    places.iter().scan(0, |end, place| {
        let (start, bytes) = (*end, place.end - place.start);
        *end += bytes;
        Some([start, place.start, bytes])
    })
}

/// Whether a tensor is whole words of its memory.
fn check_whole(tensor: &Tensor) -> Result<()> {
    let size = tensor.dtype().size();
    let ends = [tensor.offset() * size, tensor.bytes() as usize];
    let whole = tensor.is_root() || ends.iter().all(|end| end.is_multiple_of(4));
    if tensor.is_dense() && whole {
        return Ok(());
    }
    Err(Error::Parameter {
        name: "tensor",
        expected: "whole words without gaps to fill".into(),
        found: format!("{tensor:?}"),
    })
}

fn foreign(tensor: &str) -> Error {
    Error::Parameter {
        name: "tensor",
        expected: "a tensor of this runtime".into(),
        found: format!("`{tensor}` of another one"),
    }
}

/// The bytes of a push-constant block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PushBlock {
    bytes: [u8; PUSH_BYTES as usize],
    /// Of the block, which is too large when this is more than there are.
    length: usize,
    /// Where `first_group_x` and `first_group_y` are.
    first: Option<[usize; 2]>,
}

impl PushBlock {
    /// The block of these bytes.
    pub(crate) fn of(block: &[u8]) -> Self {
        let mut bytes = [0; PUSH_BYTES as usize];
        let kept = block.len().min(bytes.len());
        bytes[..kept].copy_from_slice(&block[..kept]);
        Self { bytes, length: block.len(), first: None }
    }

    /// The block, held against what the program declares.
    pub(super) fn of_program(self, program: &Program, split: bool) -> Result<Self> {
        let Self { bytes, length, .. } = self;
        let (size, name) = (program.push_size(), program.name());
        if length != size as usize || length > bytes.len() || !length.is_multiple_of(4) {
            return Err(Error::Parameter {
                name: "push constants",
                expected: format!("{size} bytes for `{name}`, at most {PUSH_BYTES}"),
                found: format!("{length} bytes"),
            });
        }
        let first = program.first_group().map(|offsets| offsets.map(|offset| offset as usize));
        let first = first.filter(|offsets| offsets.iter().all(|offset| offset + 4 <= length));
        if split && first.is_none() {
            return Err(Error::Parameter {
                name: "push constants",
                expected: "first_group_x and first_group_y, for the grid exceeds one dispatch"
                    .into(),
                found: format!("neither in `{name}`"),
            });
        }
        Ok(Self { first, ..self })
    }

    /// The block for one piece of the grid.
    pub(super) fn at(mut self, piece: Piece) -> Self {
        for (offset, group) in self.first.into_iter().flatten().zip(piece.first) {
            self.bytes[offset..offset + 4].copy_from_slice(&group.to_ne_bytes());
        }
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.min(self.bytes.len())]
    }
}

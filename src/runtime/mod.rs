//! The Vulkan runtime: devices, tensors, and kernels recorded into submissions.
//!
//! A [`Runtime`] opens one device. [`Tensor`]s are ranges of pooled buffers; each holds a slot of the one
//! bindless heap while it lives, and kernels get its index in their push constants. A [`Recorder`] gathers fills and
//! dispatches, sets barriers only where data depend, and hands everything to the device at once. Whatever the device may
//! still be using is kept alive by the runtime, so handles can be dropped in any order and at any time.
//!
//! # Threads
//!
//! Threads share a runtime: each records, submits, uploads and downloads for itself, and gets the bits that it gets alone.
//!
//! # Streams
//!
//! The device runs what recorders submit in the order of submission. Uploads and downloads are a second stream, also in
//! order: where the device has another queue for it ([`Runtime::copies_beside`]) they run beside the kernels. A submission
//! of either stream waits for those of the other that touch a buffer that it touches too, if one of the two writes there:
//! an upload into new tensors runs beside what computes on others, also from one thread, which goes on when it has
//! submitted; behind a download of what is not computed yet it waits with that. The host's part, staging memory filled or
//! emptied piece by piece on several cores, overlaps anyway. On a device with one queue, or a caller's, each piece's copy
//! takes its turn between submissions, so that shorter ones let it in sooner.

#![deny(unsafe_code)]

mod capability;
mod core;
mod execution;
#[cfg(feature = "forms")]
mod forms;
mod grid;
mod hazard;
mod heap;
mod info;
mod memory;
pub(crate) mod parts;
mod pipeline;
mod pipeline_cache;
#[allow(unsafe_code)]
mod probe;
mod program;
#[allow(unsafe_code)]
mod raw;
mod recorder;
mod select;
mod several;
mod slices;
pub(crate) mod spirv;
mod stream;
pub(crate) mod strided;
mod submission;
mod tensor;
mod timing;
mod transfer;
mod validation;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use execution::{Execution, Progress};
#[cfg(feature = "forms")]
#[doc(hidden)]
pub use forms::Form;
pub use info::{
    DeviceInfo, DeviceKind, FloatControls, Limits, Matrices, PipelineStatistics, Statistic,
};
pub use program::{LoadedKernel, Program};
pub(crate) use raw::embed;
#[doc(hidden)]
pub use raw::{Fault, Faults};
#[cfg(feature = "slang")]
pub(crate) use recorder::PushBlock;
pub use recorder::{Access, Recorder};
pub use select::DeviceSelector;
pub(crate) use slices::Load;
pub use submission::Submission;
pub use tensor::Tensor;
pub use timing::Timing;
pub use validation::Validation;

use self::core::Core;
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};
use crate::manifest::Kernel;

/// How to open a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Which device.
    pub device: DeviceSelector,
    /// Which validation.
    pub validation: Validation,
    /// Tensors that can be alive at a time, within the device's limit.
    pub heap_slots: u32,
    /// The subgroup size that kernels run with; `None` for the one that the driver prefers.
    pub lanes: Option<u32>,
    /// How long a wait for the device may take before it is [`Error::TimedOut`]: by default 10 minutes, so that a device
    /// that hangs is noticed. Work that takes longer in one submission needs more, up to [`Duration::MAX`].
    pub timeout: Duration,
    /// The folder where the driver's compiled pipelines are kept from one process to the next, in a file for each device,
    /// driver and version of this crate; `None` keeps none. It is made when it is missing, and read when the runtime is
    /// opened; the runtime's end writes what is new. Processes may share it. What cannot be used is ignored with a
    /// warning; a folder that cannot be written is no error. Whoever can write there can harm the driver: it must be the
    /// user's own.
    pub pipeline_cache: Option<PathBuf>,
    /// Whether to ask the driver what became of kernels, such as registers and spills, for [`Recorder::pipelines`]; a device
    /// without `VK_KHR_pipeline_executable_properties` tells nothing.
    pub pipeline_statistics: bool,
    /// In which form kernels run, for tests.
    #[cfg(feature = "forms")]
    #[doc(hidden)]
    pub form: Form,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self {
            device: DeviceSelector::Auto,
            validation: Validation::NONE,
            heap_slots: 16384,
            lanes: None,
            timeout: Duration::from_secs(600),
            pipeline_cache: None,
            pipeline_statistics: false,
            #[cfg(feature = "forms")]
            form: Form::Heap,
        }
    }
}

/// What a runtime holds of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of memory taken from the driver: in use, kept for reuse, or free parts of the blocks that small tensors share.
    pub allocated: u64,
    /// Bytes of buffers in use: those of tensors, each at most an eighth larger than its tensor, and of copies under way.
    pub in_use: u64,
    /// Bytes of buffers that are kept for reuse.
    pub idle: u64,
    /// Bytes of the device's memory that this process can have in all, at the moment, as the driver says
    /// (`VK_EXT_memory_budget`); all there are where it does not say.
    pub budget: u64,
    /// Buffers made since the runtime was opened. Work that repeats finds idle ones, and makes no more.
    pub buffers_made: u64,
    /// Slots of the bindless heap that tensors hold.
    pub slots_used: u32,
    /// Slots of the bindless heap for tensors.
    pub slots: u32,
}

/// Lists every Vulkan device, usable or not, in the loader's order.
///
/// # Errors
/// [`Error::NoLoader`], [`Error::NoDriver`], [`Error::NoValidationLayer`].
pub fn devices(validation: Validation) -> Result<Vec<DeviceInfo>> {
    let instance = raw::Instance::new(validation)?;
    let devices = instance.physical_devices()?.into_iter().map(|d| d.info).collect();
    let canary = instance.canary().clone();
    // What the layer says when the instance goes counts as well.
    drop(instance);
    canary.check()?;
    Ok(devices)
}

/// An open device.
///
/// All threads may use it at once. Dropping it waits for the device; tensors and submissions may outlive it.
pub struct Runtime {
    core: Arc<Core>,
    notes: Vec<String>,
    validated: bool,
}

impl Runtime {
    /// Opens a device and checks on it that subgroups are what kernels rely on.
    ///
    /// Open one runtime and share it among threads. Several devices open at once on several threads of a process have
    /// been seen to lock each other out within NVIDIA's driver.
    ///
    /// # Errors
    /// [`Error::NoLoader`], [`Error::NoDriver`], [`Error::NoValidationLayer`], [`Error::NoDevice`] with the reason for
    /// each device that was rejected, [`Error::Unsupported`] when the subgroup size cannot be had, [`Error::Validation`].
    pub fn new(options: &RuntimeOptions) -> Result<Self> {
        Self::open(options, None)
    }

    /// As [`Runtime::new`] on a device that hands out memory full of `word`, for tests: software drivers hand out zeros.
    #[doc(hidden)]
    pub fn on_dirty_memory(options: &RuntimeOptions, word: u32) -> Result<Self> {
        Self::open(options, Some(word))
    }

    fn open(options: &RuntimeOptions, dirt: Option<u32>) -> Result<Self> {
        let instance = raw::Instance::new(options.validation)?;
        let canary = instance.canary().clone();
        // What the validation layer says when a part of it is taken down counts as well.
        Self::on(instance, options, dirt).map_err(|error| canary.check().err().unwrap_or(error))
    }

    fn on(
        instance: Arc<raw::Instance>,
        options: &RuntimeOptions,
        dirt: Option<u32>,
    ) -> Result<Self> {
        let physical = instance.physical_devices()?;
        let infos: Vec<_> = physical.iter().map(|d| d.info.clone()).collect();
        let choice = select::choose(&infos, &options.device)?;
        let (physical, info) = (&physical[choice.position], infos[choice.position].clone());
        if let Some(note) = &choice.note {
            tracing::warn!("{note}");
        }
        let device = raw::Device::open(&instance, physical, options.pipeline_statistics)?;
        Self::start(device, info, choice.note.into_iter().collect(), options, dirt)
    }

    /// A runtime on an open device.
    fn start(
        device: Arc<raw::Device>,
        mut info: DeviceInfo,
        notes: Vec<String>,
        options: &RuntimeOptions,
        dirt: Option<u32>,
    ) -> Result<Self> {
        let lanes = choose_lanes(&info, options.lanes, device.required_subgroup_size)?;
        info.matrices = info.matrices.in_subgroups_of(lanes);
        #[cfg(feature = "forms")]
        if options.form != Form::Heap {
            info.matrices = Matrices::EMULATED;
        }
        let core = Arc::new(Core::new(device, info, lanes, options)?);
        let runtime = Self { core, notes, validated: options.validation.any() };
        runtime.core.prove(options.validation)?;
        if let Some(word) = dirt {
            runtime.core.fill_dummy(word)?;
        }
        // A kernel that reads the dummy reads the same on every run.
        runtime.core.fill_dummy(0)?;
        probe::subgroup(&runtime)?;
        runtime.core.check()?;
        Ok(runtime)
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        &self.core.info
    }

    /// The subgroup size of every kernel: required where the device lets us, and seen there in any case.
    pub fn lanes(&self) -> u32 {
        self.core.lanes
    }

    /// Whether uploads and downloads have a queue of their own, so that the device may run them beside kernels.
    pub fn copies_beside(&self) -> bool {
        self.core.device.copies_beside()
    }

    /// Whether kernels may turn sums into left operands of this type element by element, for those that multiply matrices:
    /// seen on the device when it is first asked for.
    #[doc(hidden)]
    pub fn copies_elements(&self, dtype: Dtype) -> Result<bool> {
        let cell = &self.core.copies_elements[usize::from(dtype == Dtype::Bf16)];
        match cell.get() {
            Some(copies) => Ok(*copies),
            None => Ok(*cell.get_or_init({
                let copies = probe::copies_elements(self, dtype)?;
                move || copies
            })),
        }
    }

    /// What the user should know of the choice of device.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the runtime holds of the device at the moment.
    pub fn memory(&self) -> Usage {
        let core = &self.core;
        core.reap();
        let (in_use, idle, buffers_made) = core.pool.usage();
        Usage {
            allocated: core.device.allocated_memory(),
            in_use,
            idle,
            budget: core.device.memory_budget().0,
            buffers_made,
            slots_used: core.heap.used(),
            slots: core.heap.capacity(),
        }
    }

    /// Gives the driver back what is kept for reuse; says how many bytes it got. A few MiB of a last block may stay.
    ///
    /// Nothing has to be trimmed for the runtime's own sake: where memory is short, it does so before it fails. It is for
    /// other users of the device.
    pub fn trim(&self) -> u64 {
        let core = &self.core;
        core.reap();
        let before = core.device.allocated_memory();
        core.pool.trim();
        before.saturating_sub(core.device.allocated_memory())
    }

    /// A tensor in device memory, contents undefined. Errors call it `name`.
    ///
    /// One that is larger than a binding of the device lies in several buffers, each a whole number of rows
    /// ([`Tensor::binding_elements`]).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], before anything is allocated where the device never has so much, and
    /// [`Error::HeapFull`], after which the runtime goes on.
    pub fn tensor(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Tensor> {
        let tensor = Tensor::new(&self.core, name, dtype, shape)?;
        if self.core.strain.guard.load(Ordering::Relaxed) > 0 {
            let mut recorder = self.recorder()?;
            recorder.fill(&tensor, transfer::GUARD)?;
            recorder.submit()?;
        }
        Ok(tensor)
    }

    /// Fails where [`Runtime::tensor`] would because the device never has so much memory; allocates nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn check_size(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<()> {
        tensor::byte_size(&self.core, name, dtype, shape).map(drop)
    }

    /// As [`Runtime::check_size`] for a tensor that is of use in one binding alone.
    ///
    /// # Errors
    /// Also [`Error::TensorTooLarge`].
    pub fn check_binding(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<()> {
        let bytes = tensor::byte_size(&self.core, name, dtype, shape)?;
        tensor::check_binding(&self.core, name, bytes)
    }

    /// Bytes that a kernel sees of a tensor at a time: what is larger lies in several buffers.
    pub fn largest_binding(&self) -> u64 {
        tensor::largest_binding(&self.core)
    }

    /// A tensor in device memory with the contents of one in host memory, which is free at return.
    ///
    /// # Errors
    /// Those of [`Runtime::tensor`] and of [`Recorder::submit`].
    pub fn upload(&self, name: &str, host: &HostTensor) -> Result<Tensor> {
        let tensor = self.tensor(name, host.dtype(), host.shape())?;
        transfer::upload(self, &tensor, host.bytes())?;
        Ok(tensor)
    }

    /// The contents of a tensor, after all work submitted before that writes it.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the tensor belongs to another runtime, and those of [`Submission::wait`].
    pub fn download(&self, tensor: &Tensor) -> Result<HostTensor> {
        let mut host = HostTensor::zeros(tensor.dtype(), tensor.shape());
        self.read(tensor, host.bytes_mut())?;
        Ok(host)
    }

    /// Copies the contents of a tensor to `bytes`, after all work submitted before that writes it.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the length differs or the tensor belongs to another runtime, and those of
    /// [`Submission::wait`].
    pub fn read(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<()> {
        self.check_tensor(tensor, bytes.len())?;
        transfer::download(self, tensor, bytes)
    }

    /// Copies `bytes` to a tensor, after all work submitted before that uses it.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the length differs or the tensor belongs to another runtime, and those of
    /// [`Recorder::submit`].
    pub fn write(&self, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
        self.check_tensor(tensor, bytes.len())?;
        transfer::upload(self, tensor, bytes)
    }

    /// Starts a recording.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn recorder(&self) -> Result<Recorder<'_>> {
        Recorder::new(self)
    }

    /// How work is run to its end in submissions of a bounded time, such as [`Execution::BOUND`]; takes a bound of your
    /// own and somebody to tell of progress.
    pub fn execution(&self) -> Execution<'_> {
        self.into()
    }

    /// Waits for all work submitted so far.
    ///
    /// # Errors
    /// Those of [`Submission::wait`].
    pub fn wait(&self) -> Result<()> {
        self.core.wait_all().map(drop)
    }

    /// Makes the pipelines of kernels with these specialization constants that are not there yet, on several threads.
    /// Otherwise a pipeline is made when its first dispatch is recorded.
    ///
    /// # Safety
    /// As [`Recorder::dispatch`]: the kernels are valid SPIR-V with these constants. For the launches of this crate's
    /// kernels there is [`kernels::prepare`](crate::kernels::prepare).
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device cannot run a kernel so; [`Error::OutOfMemory`] and [`Error::Vulkan`],
    /// naming the kernel; [`Error::Validation`].
    #[allow(unsafe_code)]
    pub unsafe fn prepare(&self, kernels: &[(&'static Kernel, &[u32])]) -> Result<()> {
        let core = &self.core;
        core.pipelines.prepare(&core.heap, &core.info, kernels)?;
        core.check()
    }

    /// Waits for the device, takes everything down and fails with what the validation layer said of it.
    ///
    /// # Errors
    /// [`Error::Validation`], also when validation is on and tensors or submissions are still alive, for then nothing
    /// was taken down. [`Error::TimedOut`] when the device does not come to an end: it is then left as it is.
    pub fn finish(self) -> Result<()> {
        let canary = self.core.device.instance().canary().clone();
        let core = Arc::downgrade(&self.core);
        let validated = self.validated;
        let shut_down = self.core.shut_down();
        drop(self);
        canary.check()?;
        shut_down?;
        if validated && core.strong_count() > 0 {
            let message = "the runtime was finished while tensors or submissions were alive";
            return Err(Error::Validation(vec![message.into()]));
        }
        Ok(())
    }

    /// Splits grids into dispatches of at most `groups` workgroups an axis, for tests.
    #[doc(hidden)]
    pub fn split_grids(&self, groups: u32) {
        self.core.strain.groups.store(groups, Ordering::Relaxed);
    }

    /// Runs all that is recorded in slices of so many workgroups, also where it is submitted at once, for tests; 0 for
    /// slices as long as they should be, where there are to be slices.
    #[doc(hidden)]
    pub fn slice_grids(&self, groups: u32) {
        self.core.strain.slice.store(groups, Ordering::Relaxed);
    }

    /// As if [`RuntimeOptions::timeout`] had been so long, for tests.
    #[doc(hidden)]
    pub fn limit_waits(&self, limit: Option<Duration>) {
        let limit = limit.map_or(0, |limit| limit.as_nanos() as u64);
        self.core.strain.wait.store(limit, Ordering::Relaxed);
    }

    /// Lets kernels see `words` words of NaN behind each tensor made from now on, for tests: what a kernel reads there
    /// reaches its results, what it writes there shows in [`Runtime::guard_holds`].
    #[doc(hidden)]
    pub fn guard_tensors(&self, words: u32) {
        self.core.strain.guard.store(4 * u64::from(words), Ordering::Relaxed);
    }

    /// Lets no buffer of tensors made from now on, so no binding, have more than `bytes` bytes, for tests: small tensors
    /// then lie in several buffers. 0 for the device's own limit.
    #[doc(hidden)]
    pub fn limit_bindings(&self, bytes: u64) {
        self.core.strain.binding.store(bytes, Ordering::Relaxed);
    }

    /// Whether the words behind a tensor are as they were made.
    #[doc(hidden)]
    pub fn guard_holds(&self, tensor: &Tensor) -> Result<bool> {
        transfer::guard_holds(self, tensor)
    }

    /// Whether the dummy still holds zeros, for tests: a kernel that stores what it was not asked for stores it there.
    #[doc(hidden)]
    pub fn dummy_holds(&self) -> Result<bool> {
        transfer::dummy_holds(self)
    }

    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn check_tensor(&self, tensor: &Tensor, bytes: usize) -> Result<()> {
        let (name, expected, found) = if !tensor.belongs_to(&self.core) {
            ("tensor", "a tensor of this runtime".to_owned(), "one of another".to_owned())
        } else if tensor.bytes() != bytes as u64 {
            ("bytes", format!("{} for `{}`", tensor.bytes(), tensor.name()), bytes.to_string())
        } else {
            return Ok(());
        };
        Err(Error::Parameter { name, expected, found })
    }
}

/// What threads may share and hand on, held to at compile time.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Runtime>();
    shared::<Tensor>();
    shared::<Submission>();
    shared::<Recorder<'static>>();
};

impl Drop for Runtime {
    fn drop(&mut self) {
        // An error has nobody to go to, and is logged.
        let _ = self.core.shut_down();
    }
}

/// The subgroup size to run with.
fn choose_lanes(info: &DeviceInfo, asked: Option<u32>, can_require: bool) -> Result<u32> {
    let lanes = asked.unwrap_or(info.subgroup_size);
    let [least, most] = info.subgroup_sizes;
    let possible = if can_require {
        lanes.is_power_of_two() && (least..=most).contains(&lanes)
    } else {
        lanes == info.subgroup_size
    };
    if possible {
        return Ok(lanes);
    }
    let offered = match can_require {
        true => format!("from {least} to {most}"),
        false => format!("of {} only", info.subgroup_size),
    };
    Err(Error::Unsupported {
        device: info.name.clone(),
        reason: format!("subgroups of {lanes} invocations; it has subgroups {offered}"),
    })
}

/// Locks a mutex; a panic elsewhere while it was held does not make its contents unusable here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_those_that_a_pipeline_can_have() {
        let mut device = info::tests::device(0, "GPU", DeviceKind::Discrete);
        (device.subgroup_size, device.subgroup_sizes) = (32, [8, 64]);
        let lanes = |asked, can_require| choose_lanes(&device, asked, can_require).ok();
        assert_eq!([None, Some(8), Some(64)].map(|n| lanes(n, true)), [32, 8, 64].map(Some));
        assert_eq!([4, 24, 48, 128].map(|n| lanes(Some(n), true)), [None; 4]);
        assert_eq!([None, Some(32)].map(|n| lanes(n, false)), [Some(32); 2]);
        assert_eq!(lanes(Some(16), false), None);
    }
}

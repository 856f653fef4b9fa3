//! Pipelines, made once per kernel and specialization.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::capability;
#[cfg(feature = "forms")]
use super::forms::Form;
use super::heap::Heap;
use super::info::{DeviceInfo, Limits};
use super::lock;
use super::pipeline_cache::PipelineFile;
use super::program::{Identity, Program};
use super::raw::{Device, PUSH_BYTES, Pipeline, PipelineCache, PipelineDesc};
use super::spirv::{self, Patch};
use crate::error::{Error, Result};
use crate::manifest::{Axis, Kernel};

/// Locked while the pipeline is made, so that threads that want others need not wait.
type Cell = Arc<Mutex<Option<Arc<Pipeline>>>>;
/// Those of a kernel, by its specialization constants.
type Variants = HashMap<Box<[u32]>, Cell>;

/// All pipelines of a runtime, by the kernel's identity.
pub(super) struct Pipelines {
    cells: Mutex<HashMap<Identity, Variants>>,
    cache: PipelineCache,
    /// Where the cache is kept, and what was there.
    file: Option<(PipelineFile, Vec<u8>)>,
    /// Whether the driver compiled something that may not be in the file.
    compiled: AtomicBool,
    lanes: u32,
    #[cfg(feature = "forms")]
    form: Form,
    device: Arc<Device>,
}

impl Pipelines {
    /// Pipelines whose subgroups have `lanes` invocations.
    pub(super) fn new(
        device: &Arc<Device>,
        lanes: u32,
        file: Option<PipelineFile>,
        #[cfg(feature = "forms")] form: Form,
    ) -> Result<Self> {
        let data = file.as_ref().and_then(PipelineFile::load).unwrap_or_default();
        Ok(Self {
            cells: Mutex::default(),
            cache: PipelineCache::new(device, &data)?,
            file: file.map(|file| (file, data)),
            compiled: AtomicBool::new(false),
            lanes,
            #[cfg(feature = "forms")]
            form,
            device: device.clone(),
        })
    }

    /// The pipeline of a kernel, made when it is first asked for.
    pub(super) fn get(
        &self,
        heap: &Heap,
        info: &DeviceInfo,
        program: &Program,
        constants: &[u32],
    ) -> Result<Arc<Pipeline>> {
        let cell = self.cell(program, constants);
        let mut cell = lock(&cell);
        if let Some(pipeline) = &*cell {
            return Ok(pipeline.clone());
        }
        let pipeline = Arc::new(self.make(heap, info, program, constants)?);
        Ok(cell.insert(pipeline).clone())
    }

    /// Makes those that are not there, as many at a time as the host has cores.
    pub(super) fn prepare(
        &self,
        heap: &Heap,
        info: &DeviceInfo,
        wanted: &[(&'static Kernel, &[u32])],
    ) -> Result<()> {
        let missing = |&(kernel, constants): &(&'static Kernel, &[u32])| {
            // One that another thread is making is waited for.
            self.cell(&kernel.into(), constants).try_lock().map_or(true, |cell| cell.is_none())
        };
        let missing: Vec<_> = wanted.iter().copied().filter(missing).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((kernel, constants)) = missing.get(next.fetch_add(1, Ordering::Relaxed))
            {
                self.get(heap, info, &(*kernel).into(), constants)?;
            }
            Ok(())
        };
        let threads = match missing.len() {
            0 | 1 => 1,
            more => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(more)),
        };
        std::thread::scope(|scope| {
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            // Without threads this one makes them all.
            let helpers: Vec<_> = (1..threads).filter_map(start).collect();
            helpers.into_iter().fold(work(), |made, helper| {
                made.and(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }

    /// Keeps what was compiled since the runtime was opened.
    pub(super) fn save(&self) {
        let Some((file, known)) = &self.file else { return };
        if !self.compiled.swap(false, Ordering::Relaxed) {
            return;
        }
        match self.cache.data() {
            Ok(data) if data != *known => file.save(&data),
            Ok(_) => {}
            Err(error) => tracing::debug!("the pipeline cache is not written: {error}"),
        }
    }

    /// The cell for a pipeline; those of programs that are gone go when another program's first one is made.
    fn cell(&self, program: &Program, constants: &[u32]) -> Cell {
        let mut cells = lock(&self.cells);
        let identity = program.identity();
        if !cells.contains_key(&identity) {
            cells.retain(|program, _| program.is_alive());
        }
        let variants = cells.entry(identity).or_default();
        match variants.get(constants) {
            Some(cell) => cell.clone(),
            None => variants.entry(constants.into()).or_default().clone(),
        }
    }

    fn make(
        &self,
        heap: &Heap,
        info: &DeviceInfo,
        program: &Program,
        constants: &[u32],
    ) -> Result<Pipeline> {
        let unsupported = |reason: String| Error::Unsupported {
            device: info.name.clone(),
            reason: format!("{}: {reason}", program.title()),
        };
        let workgroup = workgroup_size(program, constants).map_err(unsupported)?;
        check_workgroup(workgroup, self.lanes, &info.limits).map_err(unsupported)?;
        let push_limit = PUSH_BYTES.min(info.limits.max_push_constants_size);
        if program.push_size() > push_limit {
            let found = program.push_size();
            return Err(unsupported(format!(
                "{found} bytes of push constants, {push_limit} are allowed"
            )));
        }
        let descriptors = heap.descriptors();
        #[cfg(feature = "forms")]
        let own = self.form.own_layout(&self.device, program)?;
        #[cfg(feature = "forms")]
        let (descriptors, program) =
            (own.as_ref().unwrap_or(descriptors), &self.form.of_program(program));
        let patch = Patch::of(info.float_controls, info.software());
        let damaged = |error| unsupported(format!("its SPIR-V is damaged: {error}"));
        let module = program.words().map_err(damaged)?;
        let lacking =
            capability::lacking(&module, self.device.matrices.in_subgroups_of(self.lanes))
                .map_err(damaged)?;
        if !lacking.is_empty() {
            let lacking = lacking.join(", ");
            return Err(unsupported(format!(
                "it needs what the device was not opened with: {lacking}"
            )));
        }
        let module = spirv::patch(&module, &patch).map_err(damaged)?;
        let entry_point = CString::new(program.entry_point())
            .map_err(|_| unsupported("its entry point's name has a zero byte".into()))?;
        let constants: Vec<_> =
            program.constant_ids().into_iter().zip(constants.iter().copied()).collect();
        let desc = PipelineDesc {
            spirv: &module,
            entry_point: &entry_point,
            constants: &constants,
            subgroup_size: self.device.required_subgroup_size.then_some(self.lanes),
            full_subgroups: can_be_full(workgroup, self.lanes),
        };
        let (pipeline, cached) = Pipeline::new(&self.device, descriptors, &self.cache, &desc)
            .map_err(|error| unmade(error, program))?;
        tracing::debug!(kernel = program.title(), ?constants, cached, "pipeline");
        if !cached {
            self.compiled.store(true, Ordering::Relaxed);
        }
        Ok(pipeline)
    }
}

/// Names the kernel whose pipeline could not be made.
fn unmade(error: Error, program: &Program) -> Error {
    let of = program.title();
    match error {
        Error::OutOfMemory { place, what, asked, available } => {
            Error::OutOfMemory { place, what: format!("{of}: {what}"), asked, available }
        }
        Error::Vulkan { call, code } => Error::Vulkan { call, code: format!("{code}, for {of}") },
        other => other,
    }
}

/// The workgroup's size under these specialization constants.
fn workgroup_size(program: &Program, constants: &[u32]) -> Result<[u32; 3], String> {
    let ids = program.constant_ids();
    if constants.len() != ids.len() {
        let (expected, found) = (ids.len(), constants.len());
        return Err(format!("expected {expected} specialization constants, found {found}"));
    }
    let mut size = [1; 3];
    for (size, axis) in size.iter_mut().zip(program.workgroup_size()) {
        *size = match axis {
            Axis::Fixed(n) => n,
            Axis::Constant(id) => {
                ids.iter()
                    .position(|known| *known == id)
                    .map(|i| constants[i])
                    .ok_or_else(|| format!("no specialization constant has the id {id}"))?
            }
        };
    }
    Ok(size)
}

/// Whether Vulkan lets us ask for full subgroups; other workgroups end in a part of one whatever we ask.
fn can_be_full(workgroup: [u32; 3], lanes: u32) -> bool {
    workgroup[0].is_multiple_of(lanes)
}

/// Holds a workgroup against the device's limits.
fn check_workgroup(size: [u32; 3], lanes: u32, limits: &Limits) -> Result<(), String> {
    let invocations: u64 = size.iter().map(|&n| u64::from(n)).product();
    let within = size.iter().zip(limits.max_compute_work_group_size).all(|(&n, max)| n <= max);
    let most = limits.max_compute_work_group_invocations;
    if invocations == 0 || invocations > most.into() || !within {
        let sizes = limits.max_compute_work_group_size;
        return Err(format!(
            "a workgroup of {size:?} invocations, but at most {most} and {sizes:?} are allowed"
        ));
    }
    let subgroups = invocations.div_ceil(lanes.max(1).into());
    let most = limits.max_compute_workgroup_subgroups;
    if subgroups > most.into() {
        return Err(format!(
            "a workgroup of {subgroups} subgroups, but at most {most} are allowed"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Constant, Scalar};

    static KERNEL: Kernel = Kernel {
        name: "k",
        dtype: "f32",
        domain: "test",
        variant: "test",
        status: "test",
        source: "k.slang",
        entry_point: "k",
        spirv: &[],
        workgroup_size: [Axis::Constant(3), Axis::Fixed(2), Axis::Fixed(1)],
        push_size: 0,
        push_fields: &[],
        constants: &[
            Constant { name: "a", id: 0, kind: Scalar::U32, default: 0 },
            Constant { name: "lanes", id: 3, kind: Scalar::U32, default: 32 },
        ],
    };

    #[test]
    fn workgroup_sizes_come_from_constants() {
        assert_eq!(workgroup_size(&Program::from(&KERNEL), &[7, 64]), Ok([64, 2, 1]));
        assert!(workgroup_size(&Program::from(&KERNEL), &[64]).unwrap_err().contains("expected 2"));
    }

    #[test]
    fn full_subgroups_are_asked_for_where_they_may_be() {
        assert!(can_be_full([64, 1, 1], 32) && can_be_full([32, 3, 1], 32));
        assert!(!can_be_full([48, 2, 1], 32) && !can_be_full([16, 2, 1], 32));
    }

    #[test]
    fn workgroups_are_held_against_every_limit() {
        let limits = Limits {
            max_compute_work_group_invocations: 256,
            max_compute_work_group_size: [256, 128, 64],
            max_compute_workgroup_subgroups: 8,
            ..Limits::default()
        };
        assert!(check_workgroup([256, 1, 1], 32, &limits).is_ok());
        assert!(check_workgroup([257, 1, 1], 64, &limits).is_err());
        assert!(check_workgroup([2, 128, 1], 32, &limits).is_ok());
        assert!(check_workgroup([1, 129, 1], 32, &limits).is_err());
        assert!(check_workgroup([0, 1, 1], 32, &limits).is_err());
        assert!(check_workgroup([u32::MAX, u32::MAX, 1], 32, &limits).is_err());
        assert!(check_workgroup([256, 1, 1], 16, &limits).unwrap_err().contains("16 subgroups"));
    }
}

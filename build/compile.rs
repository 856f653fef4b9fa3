//! From sources to compiled kernels, with slangc.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use super::model::{Interface, Kernel, Manifest};
use super::reflection::{self, Entry};
use super::slangc::Slangc;
use super::sources::{self, Sources};
use super::spirv;

/// What every shader is compiled with. `-O0`: what reorders arithmetic is the driver's business or nobody's.
pub(crate) const FLAGS: &str = "-target spirv -O0 -fp-mode precise -fvk-use-entrypoint-name -warnings-as-errors all -I shaders/shared";

/// Every capability that a shader may use is named, so that any other one is an error.
pub(crate) const PROFILE: &str =
    "spirv_1_5+spvGroupNonUniform+spvGroupNonUniformArithmetic+spvGroupNonUniformShuffle";

/// Likewise of shaders that import [`MATRICES`], for devices with cooperative matrices.
pub(crate) const MATRIX_PROFILE: &str = "spirv_1_6+spvGroupNonUniform+spvGroupNonUniformArithmetic\
    +spvGroupNonUniformShuffle+spvCooperativeMatrixKHR+spvBFloat16KHR";

/// The shared module of cooperative matrices.
const MATRICES: &str = "matrix";

/// All that the modules depend on beside the sources and the compiler.
pub(crate) fn all_flags() -> String {
    format!("{FLAGS} -profile {PROFILE}; with matrices -profile {MATRIX_PROFILE}")
}

/// Descriptors in the heap of [`Form::FixedHeap`].
pub(crate) const HEAP_SLOTS: u32 = 1024;

/// How kernels reach their tensors; see `shaders/shared/storage.slang`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Through a heap without a size: the product.
    Heap,
    /// Through a heap of [`HEAP_SLOTS`] descriptors.
    FixedHeap,
    /// Through a binding each.
    Plain,
}

impl Form {
    /// What it is called in the build folder.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::FixedHeap => "fixed_heap",
            Self::Plain => "plain",
        }
    }

    /// All flags to compile a shader with. The forms for tests are for any device, so that matrices are emulated there.
    fn flags(self, has_matrices: bool) -> String {
        let profile = if has_matrices && self == Self::Heap { MATRIX_PROFILE } else { PROFILE };
        let flags = format!("{FLAGS} -profile {profile}");
        match self {
            Self::Heap => flags,
            Self::FixedHeap => format!("{flags} -DHEAP_SLOTS={HEAP_SLOTS} -DEMULATED_MATRICES"),
            // Bindings leaving the push block is what it is about.
            Self::Plain => format!(
                "{flags} -DPLAIN_BINDINGS -warnings-disable 31106,31107 -DEMULATED_MATRICES"
            ),
        }
    }
}

/// Kernels with their modules by file name.
pub(crate) struct Compiled {
    pub(crate) manifest: Manifest,
    pub(crate) modules: BTreeMap<String, Vec<u8>>,
}

/// One entry point to compile.
struct Job<'a> {
    source: &'a str,
    interface: &'a Interface,
    entry: &'a Entry,
}

/// Where compiling takes place.
struct Workshop<'a> {
    slangc: &'a Slangc,
    /// The folder that has `shaders/`.
    package: &'a Path,
    /// Intermediate files, kept from build to build.
    scratch: &'a Path,
    sources: &'a Sources,
    form: Form,
}

/// Compiles every entry point of every kernel file below `package`/shaders in one form, with
/// intermediate files in `scratch`. All failures are reported together.
pub(crate) fn compile(
    slangc: &Slangc,
    package: &Path,
    scratch: &Path,
    sources: &Sources,
    form: Form,
) -> Result<Compiled> {
    fs::create_dir_all(scratch).with_context(|| format!("{}", scratch.display()))?;
    let workshop = Workshop { slangc, package, scratch, sources, form };
    let files = parallel(&sources.kernels(), |source| {
        let file = workshop.reflect(source).with_context(|| format!("shaders/{source}"))?;
        Ok((*source, file))
    });
    let (files, mut faults) = split(files);
    let mut jobs = Vec::new();
    for (source, file) in &files {
        let interface = &file.interface;
        jobs.extend(file.entries.iter().map(|entry| Job { source, interface, entry }));
    }
    let kernels = parallel(&jobs, |job| {
        workshop.compile_entry(job).with_context(|| {
            format!("shaders/{}, entry point `{}`", job.source, job.entry.function)
        })
    });
    let (kernels, more) = split(kernels);
    faults.extend(more);
    ensure_none(&faults)?;
    finish(kernels, slangc, sources)
}

fn ensure_none(faults: &[Error]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = faults.iter().map(|fault| format!("{fault:#}")).collect();
    bail!("{} shader(s) failed\n\n{}", faults.len(), texts.join("\n\n"))
}

impl Workshop<'_> {
    fn reflect(&self, source: &str) -> Result<reflection::File> {
        let json = self.produce(source, "json", &["-no-codegen", "-reflection-json"])?;
        let file = reflection::read(&fs::read_to_string(json)?)?;
        if self.form != Form::Plain {
            let bindings = &file.bindings;
            ensure!(bindings.is_empty(), "tensors beside the heap: {}", bindings.join(", "));
        }
        Ok(file)
    }

    fn compile_entry(&self, job: &Job) -> Result<(Kernel, Vec<u8>)> {
        let Job { source, interface, entry } = job;
        let function = entry.function.as_str();
        let arguments = ["-entry", function, "-stage", "compute", "-o"];
        let raw = fs::read(self.produce(source, &format!("{function}.spv"), &arguments)?)?;
        let module = spirv::pin_fma(&spirv::words(&raw)?)?;
        let module: Vec<u8> = module.into_iter().flat_map(u32::to_le_bytes).collect();
        Ok((describe(source, interface, entry, &module)?, module))
    }

    /// Runs slangc for a file with these arguments and the name of its output, which is returned;
    /// or does nothing where an earlier build left the output of the same sources.
    fn produce(&self, source: &str, extension: &str, arguments: &[&str]) -> Result<PathBuf> {
        let name = source.replace('/', ".");
        let output = self.scratch.join(format!("{name}.{extension}"));
        let key_file = self.scratch.join(format!("{name}.{extension}.key"));
        let inputs = self.sources.hash_for(source);
        let flags = self.form.flags(self.sources.imports(source, MATRICES));
        let key = format!("{} {flags} {arguments:?} {inputs}", self.slangc.version);
        if output.exists() && fs::read_to_string(&key_file).is_ok_and(|old| old == key) {
            return Ok(output);
        }
        let path = format!("shaders/{source}");
        let output_name = output.to_str().context("OUT_DIR is not UTF-8")?;
        let mut all: Vec<&str> = flags.split_whitespace().collect();
        all.push(&path);
        all.extend(arguments);
        all.push(output_name);
        self.slangc.run(self.package, &all)?;
        fs::write(&key_file, key).with_context(|| format!("{}", key_file.display()))?;
        Ok(output)
    }
}

/// Puts together what the reflection and the module itself tell.
fn describe(source: &str, interface: &Interface, entry: &Entry, module: &[u8]) -> Result<Kernel> {
    let scan = spirv::scan(&spirv::words(module)?)?;
    ensure!(
        scan.entry_point == entry.function,
        "the module's entry point is `{}`",
        scan.entry_point
    );
    let mut interface = interface.clone();
    for (id, default) in scan.defaults {
        let constant = interface.constants.iter_mut().find(|c| c.id == id);
        let constant =
            constant.ok_or_else(|| anyhow!("constant id {id} is not in the reflection"))?;
        constant.default = default;
    }
    let attributes = entry.attributes.clone();
    Ok(Kernel {
        name: attributes.kernel_name,
        dtype: attributes.dtype,
        domain: attributes.domain,
        variant: attributes.variant,
        status: attributes.status,
        source: source.to_owned(),
        entry_point: scan.entry_point,
        spirv: sources::hash(module),
        workgroup_size: scan.workgroup_size,
        interface,
    })
}

fn finish(
    compiled: Vec<(Kernel, Vec<u8>)>,
    slangc: &Slangc,
    sources: &Sources,
) -> Result<Compiled> {
    let (mut kernels, modules): (Vec<_>, Vec<_>) = compiled.into_iter().unzip();
    let names: Vec<String> = kernels.iter().map(Kernel::file_name).collect();
    share_defaults(&mut kernels);
    let version = slangc.version.to_string();
    let manifest = Manifest::new(version, all_flags(), sources.hash(), kernels)?;
    Ok(Compiled { manifest, modules: names.into_iter().zip(modules).collect() })
}

/// A module without a constant does not tell its default; another entry point of the file may.
fn share_defaults(kernels: &mut [Kernel]) {
    let mut known = BTreeMap::new();
    for kernel in kernels.iter() {
        for constant in kernel.interface.constants.iter().filter(|c| c.default != 0) {
            known.insert((kernel.source.clone(), constant.id), constant.default);
        }
    }
    for kernel in kernels {
        for constant in &mut kernel.interface.constants {
            let key = (kernel.source.clone(), constant.id);
            constant.default = known.get(&key).copied().unwrap_or(0);
        }
    }
}

fn split<T>(results: Vec<Result<T>>) -> (Vec<T>, Vec<Error>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) => bad.push(error),
        }
    }
    (good, bad)
}

/// `work` on every item, on all processors; the results in the items' order.
fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break done };
            done.push((index, work(item)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(items.len());
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let join = |handle: thread::ScopedJoinHandle<'_, Vec<(usize, R)>>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        handles.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

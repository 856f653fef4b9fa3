//! From sources to compiled kernels, with slangc.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use crate::model::{Interface, Kernel, Manifest};
use crate::reflection::{self, Entry};
use crate::slangc::Slangc;
use crate::sources::{self, Sources};
use crate::spirv;

/// What every shader is compiled with. Every capability that a shader may use is named, so that any
/// other one is an error. `-O0`: what reorders arithmetic is the driver's business or nobody's.
pub(crate) const FLAGS: &str = "-target spirv \
    -profile spirv_1_5+spvGroupNonUniform+spvGroupNonUniformArithmetic+spvGroupNonUniformBallot\
    +spvGroupNonUniformShuffle+spvGroupNonUniformVote \
    -O0 -fp-mode precise -fvk-use-entrypoint-name -warnings-as-errors all -I shaders/shared";

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

/// Compiles every entry point of every kernel file below `package`/shaders, with intermediate files
/// in `scratch`. All failures are reported together.
pub(crate) fn compile(
    slangc: &Slangc,
    package: &Path,
    scratch: &Path,
    sources: &Sources,
) -> Result<Compiled> {
    fs::create_dir_all(scratch)?;
    let names = sources.kernels();
    let files = parallel(&names, |source| {
        reflect(slangc, package, scratch, source).with_context(|| format!("shaders/{source}"))
    });
    let (files, mut faults) = split(files);
    let mut jobs = Vec::new();
    for (source, file) in &files {
        let interface = &file.interface;
        jobs.extend(file.entries.iter().map(|entry| Job { source, interface, entry }));
    }
    let kernels = parallel(&jobs, |job| {
        compile_entry(slangc, package, scratch, job).with_context(|| {
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

fn reflect<'a>(
    slangc: &Slangc,
    package: &Path,
    scratch: &Path,
    source: &'a str,
) -> Result<(&'a str, reflection::File)> {
    let json = scratch.join(format!("{}.json", source.replace('/', ".")));
    let json_name = json.to_str().context("OUT_DIR is not UTF-8")?;
    let path = format!("shaders/{source}");
    let mut arguments: Vec<&str> = FLAGS.split_whitespace().collect();
    arguments.extend([path.as_str(), "-no-codegen", "-reflection-json", json_name]);
    slangc.run(package, &arguments)?;
    Ok((source, reflection::read(&fs::read_to_string(&json)?)?))
}

fn compile_entry(
    slangc: &Slangc,
    package: &Path,
    scratch: &Path,
    job: &Job,
) -> Result<(Kernel, Vec<u8>)> {
    let Job { source, interface, entry } = job;
    let function = &entry.function;
    let out = scratch.join(format!("{}.{function}.spv", source.replace('/', ".")));
    let out_name = out.to_str().context("OUT_DIR is not UTF-8")?;
    let path = format!("shaders/{source}");
    let mut arguments: Vec<&str> = FLAGS.split_whitespace().collect();
    arguments.extend([&path, "-entry", function, "-stage", "compute", "-o", out_name]);
    slangc.run(package, &arguments)?;
    let module = fs::read(&out).with_context(|| format!("{}", out.display()))?;
    Ok((describe(source, interface, entry, &module)?, module))
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
    let manifest = Manifest::new(version, FLAGS.to_owned(), sources.hash(), kernels)?;
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

//! Errors planted in the forms of the kernels that are compiled for tests beside the product's: the validation layer
//! must report each, and nothing where there is none. What is silent in those forms is then known to be right.

#[path = "common/gpu.rs"]
mod gpu;

use std::process::ExitCode;

use backslang::manifest::{KERNELS, kernel};
use backslang::runtime::{
    Access, DeviceInfo, Form, Recorder, Runtime, Tensor, Validation, devices,
};
use backslang::{Dtype, Error, Result};
use libtest_mimic::{Completion, Failed, Trial};

const GPU: Validation = Validation { core: true, sync: false, gpu: true };

fn main() -> ExitCode {
    gpu::main(vec![
        trial("a_read_out_of_bounds_is_seen", Form::FixedHeap, GPU, |sums| {
            sums.run(|recorder| sums.record(recorder, ROWS + 1, 1), Some("out of bounds"))
        }),
        trial("a_write_out_of_bounds_is_seen", Form::FixedHeap, GPU, |sums| {
            sums.run(|recorder| sums.record(recorder, ROWS, 2), Some("out of bounds"))
        }),
        trial(UNUSED, Form::FixedHeap, GPU, |sums| {
            let unused = Sums { source: None, ..*sums };
            sums.run(|recorder| unused.record(recorder, ROWS, 1), Some("descriptor"))
        }),
        trial("accesses_in_bounds_are_silent", Form::FixedHeap, GPU, |sums| {
            sums.run(|recorder| sums.record(recorder, ROWS, 1), None)
        }),
        trial("a_missing_barrier_is_seen", Form::Plain, Validation::STANDARD, |sums| {
            let twice = |recorder: &mut Recorder<'_>| {
                sums.record(recorder, ROWS, 1)?;
                recorder.forget_accesses();
                sums.record(recorder, ROWS, 1)
            };
            sums.run(twice, Some("SYNC-HAZARD-WRITE-AFTER-WRITE"))
        }),
        trial("ordered_accesses_are_silent", Form::Plain, Validation::STANDARD, |sums| {
            let twice = |recorder: &mut Recorder<'_>| {
                sums.record(recorder, ROWS, 1)?;
                sums.record(recorder, ROWS, 1)
            };
            sums.run(twice, None)
        }),
    ])
}

const UNUSED: &str = "a_use_of_an_unused_tensor_is_seen";
/// The kernel that sums the gradient of dt_bias.
const SUM: &str = "mamba3_dt_bias_gradient";
/// Words of its push constants, as the shader declares them.
const WORDS: usize = {
    let mut at = 0;
    while !same(KERNELS[at].name, SUM) {
        at += 1;
    }
    KERNELS[at].push_fields.len()
};
const ROWS: usize = 6;
const HEADS: usize = 4;

/// Whether two texts are the same, where `==` cannot be asked.
const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Sums over rows, by [`SUM`].
struct Sums<'a> {
    runtime: &'a Runtime,
    /// What is summed; without it the kernel is told that it is not used.
    source: Option<&'a Tensor>,
    target: &'a Tensor,
}

impl Sums<'_> {
    /// Sums `rows` rows, in each of `chunks` chunks.
    fn record(&self, recorder: &mut Recorder<'_>, rows: usize, chunks: usize) -> Result<()> {
        let kernel = kernel(SUM, "f32").unwrap();
        let names = kernel.push_fields.iter().map(|field| field.name);
        let push = |access: &mut Access<'_>| {
            let words = names.map(|name| match name {
                "source_index" => self.source.map_or(access.unused(), |t| access.read(t)),
                "target_index" => access.write(self.target),
                "rows" | "chunk_rows" => rows as u32,
                "heads" => HEADS as u32,
                _ => 0,
            });
            <[u32; WORDS]>::try_from(words.collect::<Vec<_>>()).unwrap()
        };
        let lanes = self.runtime.lanes();
        // SAFETY: the drivers that run this check bounds.
        unsafe { recorder.dispatch(kernel, &[lanes, 0], [chunks, 1], push) }
    }

    /// Runs what is recorded; the layer's messages must all have `part`, or there must be none.
    fn run(
        &self,
        record: impl FnOnce(&mut Recorder<'_>) -> Result<()>,
        part: Option<&str>,
    ) -> Result<(), Failed> {
        let mut recorder = self.runtime.recorder()?;
        let ran = record(&mut recorder).and_then(|()| recorder.submit()?.wait());
        match (ran, part) {
            (Ok(()), None) => Ok(()),
            (Err(Error::Validation(messages)), Some(part))
                if messages.iter().all(|m| m.contains(part)) =>
            {
                Ok(())
            }
            (ran, part) => Err(format!("expected messages with {part:?}, found {ran:?}").into()),
        }
    }
}

/// A trial on a runtime of its own.
fn trial(
    name: &'static str,
    form: Form,
    validation: Validation,
    test: fn(&Sums<'_>) -> Result<(), Failed>,
) -> Trial {
    let on_runtime = move |runtime: Runtime| {
        let source = runtime.tensor("source", Dtype::F32, &[ROWS, HEADS])?;
        let target = runtime.tensor("target", Dtype::F32, &[HEADS])?;
        let mut recorder = runtime.recorder()?;
        recorder.fill(&source, 0)?;
        recorder.submit()?.wait()?;
        test(&Sums { runtime: &runtime, source: Some(&source), target: &target })?;
        drop((source, target));
        Ok(runtime.finish()?)
    };
    let run = move || {
        let devices = devices(Validation::NONE).unwrap_or_default();
        let all = |kind: fn(&DeviceInfo) -> bool| !devices.is_empty() && devices.iter().all(kind);
        if validation.gpu && all(|device| device.name.contains("SwiftShader")) {
            return Ok(Completion::ignored_with("GPU-assisted validation brings SwiftShader down"));
        }
        if name == UNUSED && !all(DeviceInfo::software) {
            return Ok(Completion::ignored_with(
                "it is reported, then run: a GPU may be lost by it",
            ));
        }
        gpu::on_own(|options| (options.form, options.validation) = (form, validation), on_runtime)
    };
    Trial::ignorable_test(name, move || gpu::alone(run)).with_kind("gpu")
}

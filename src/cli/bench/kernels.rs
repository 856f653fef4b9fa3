//! `bench`: the kernels at the sizes of the cases.

use std::time::{Duration, Instant};

use backslang::Dtype;
use backslang::runtime::{PipelineStatistics, Runtime, Timing};
use serde_json::{Map, Value, json};

use super::cases::{self, Case};
use super::ceilings::Ceilings;
use super::data::Data;
use super::measure::Measure;
use super::shapes::{Counts, Pass, Shape};
use super::table::Table;
use super::work::{self, Work};
use crate::cli::args::{Algorithm, BenchDtype, GlobalArgs, KernelBenchArgs};
use crate::cli::failure::{Failure, Result};
use crate::cli::place::Place;
use crate::cli::report::Report;
use crate::cli::talk::Talk;

/// What a call is repeated for before it is measured: clocks rise, drivers compile.
const WARM_UP: Duration = Duration::from_millis(100);
/// Calls to warm up with at least.
const WARM_CALLS: usize = 2;
/// Repeats by default.
pub(super) const REPEATS: usize = 15;

/// Measures the cases that are asked for.
pub(super) fn bench(args: &KernelBenchArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let dtypes = args.dtype.unwrap_or(BenchDtype::F32).dtypes();
    if args.algorithm == Some(Algorithm::Tiled) && dtypes.contains(&Dtype::F32) {
        let message = "--algorithm tiled: expected --dtype f16 or bf16, found f32 among the types";
        return Err(Failure::usage(message));
    }
    let runtime = open(global)?;
    let (repeats, shrink) = (args.repeats.unwrap_or(REPEATS), args.shrink.unwrap_or(1));
    let mut data = Data::new(&runtime, shrink);
    data.algorithm = args.algorithm.unwrap_or(Algorithm::Auto).into();
    let ceilings = Ceilings::measure(&data, repeats, shrink, talk)?;
    let table = Table::begin(&ceilings, talk)?;
    let (mut measured, mut left_out) = (Vec::new(), Vec::new());
    for &dtype in dtypes {
        for case in cases::chosen(&args.cases, args.forward) {
            let step = talk.step(case.name);
            let outcome = run(&data, &case, dtype, repeats, shrink)?;
            drop(step);
            match outcome {
                Ok(case) => {
                    table.add(&case, &ceilings)?;
                    measured.push(case.object(&ceilings));
                }
                Err(bytes) if args.cases.is_empty() => {
                    let name = case.name;
                    talk.note(&format!("{name} ({dtype}) is left out: it needs {bytes} bytes"));
                    left_out.push(json!({ "case": name, "dtype": dtype.name(), "bytes": bytes }));
                }
                Err(bytes) => return Err(too_large(&case, bytes)),
            }
        }
    }
    drop(data);
    let device = runtime.device().name.clone();
    runtime.finish()?;
    let object = json!({
        "ceilings": ceilings.object(),
        "cases": measured,
        "left_out": left_out,
    });
    Ok(Report { device: Some(device), extra: Some(("kernel_benches", object)), ..<_>::default() })
}

/// The device; without timestamps there would be nothing to show.
pub(super) fn open(global: &GlobalArgs) -> Result<Runtime> {
    let runtime = Place::resolve(global)?.unhurried(true).with_pipeline_statistics().open()?;
    if runtime.device().timestamps {
        return Ok(runtime);
    }
    let name = runtime.device().name.clone();
    Err(Failure::work("bench", format!("{name} has no timestamps, by which kernels are timed")))
}

fn too_large(case: &Case, bytes: u64) -> Failure {
    let name = case.name;
    Failure::work("out_of_memory", format!("{name}: {bytes} bytes are needed, fewer are free"))
}

/// A case that was measured.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) pass: Pass,
    pub(super) shape: Shape,
    pub(super) dtype: Dtype,
    pub(super) sets: usize,
    pub(super) counts: Counts,
    pub(super) times: Times,
}

/// In milliseconds on the device.
pub(super) struct Times {
    pub(super) call: Measure,
    pub(super) kernels: Vec<KernelTimes>,
}

/// Of all dispatches of a kernel in a call.
pub(super) struct KernelTimes {
    pub(super) kernel: String,
    pub(super) dispatches: usize,
    /// What the driver tells of its pipelines; empty where it tells nothing.
    pub(super) pipelines: Vec<PipelineStatistics>,
    pub(super) time: Measure,
}

/// Measures a case, or says how many bytes it needs where the device has fewer.
fn run(
    data: &Data<'_>,
    case: &Case,
    dtype: Dtype,
    repeats: usize,
    shrink: usize,
) -> Result<Result<Measured, u64>> {
    let shape = case.shape.shrunk(shrink);
    measure(data, case.name, case.pass, shape, dtype, repeats)
}

/// As [`run`], of any sizes.
pub(super) fn measure(
    data: &Data<'_>,
    name: &str,
    pass: Pass,
    shape: Shape,
    dtype: Dtype,
    repeats: usize,
) -> Result<Result<Measured, u64>> {
    let work = match work::prepare(data, shape, pass, dtype)? {
        Ok(work) => work,
        Err(bytes) => return Ok(Err(bytes)),
    };
    let times = times(data.runtime, &work, repeats)?;
    let (name, sets) = (name.to_owned(), work.calls.len());
    Ok(Ok(Measured { name, pass, shape, dtype, sets, counts: work.counts, times }))
}

/// Calls the work again and again, its sets of inputs in turn.
fn times(runtime: &Runtime, work: &Work, repeats: usize) -> Result<Times> {
    let mut turn = work.calls.iter().cycle();
    let mut call = || -> Result<Vec<Timing>> {
        let mut recorder = runtime.recorder()?;
        if let Some(record) = turn.next() {
            record(&mut recorder)?;
        }
        Ok(recorder.submit()?.timings()?)
    };
    let mut recorder = runtime.recorder()?;
    if let Some(record) = work.calls.first() {
        record(&mut recorder)?;
    }
    let pipelines = recorder.pipelines();
    recorder.submit()?.wait()?;
    let begin = Instant::now();
    let mut calls = 1;
    while calls < WARM_CALLS || begin.elapsed() < WARM_UP {
        call()?;
        calls += 1;
    }
    let runs = (0..repeats).map(|_| call()).collect::<Result<Vec<_>>>()?;
    Ok(Times::of(&runs, &pipelines))
}

impl Times {
    fn of(runs: &[Vec<Timing>], pipelines: &[PipelineStatistics]) -> Self {
        let sum = |run: &[Timing], name: Option<&str>| -> f64 {
            let of_kernel = run.iter().filter(|t| name.is_none_or(|name| t.kernel == name));
            1e3 * of_kernel.map(seconds).sum::<f64>()
        };
        let values = |name| runs.iter().map(|run| sum(run, name)).collect();
        let first = runs.first().map_or(&[][..], Vec::as_slice);
        let mut kernels: Vec<KernelTimes> = Vec::new();
        for timing in first {
            match kernels.iter_mut().find(|known| known.kernel == timing.kernel) {
                Some(known) => known.dispatches += 1,
                None => kernels.push(KernelTimes {
                    kernel: timing.kernel.to_string(),
                    dispatches: 1,
                    pipelines: of_kernel(pipelines, &timing.kernel),
                    time: Measure::of("", "ms", values(Some(&timing.kernel))),
                }),
            }
        }
        Self { call: Measure::of("", "ms", values(None)), kernels }
    }
}

fn of_kernel(pipelines: &[PipelineStatistics], kernel: &str) -> Vec<PipelineStatistics> {
    let told = |pipeline: &&PipelineStatistics| !pipeline.statistics.is_empty();
    pipelines.iter().filter(|p| p.kernel == kernel).filter(told).cloned().collect()
}

pub(super) fn seconds(timing: &Timing) -> f64 {
    timing.gpu.as_secs_f64()
}

/// TFLOP/s of so many operations in so many milliseconds.
pub(super) fn tflops(operations: f64, ms: f64) -> f64 {
    operations / 1e9 / ms
}

/// GB/s of so many bytes in so many milliseconds.
pub(super) fn gbps(bytes: u64, ms: f64) -> f64 {
    bytes as f64 / 1e6 / ms
}

impl Measured {
    /// What the device would need at its ceilings, in milliseconds.
    pub(super) fn floor(&self, ceilings: &Ceilings) -> f64 {
        let moving = self.counts.bytes() as f64 / 1e6 / ceilings.copy.median();
        let rate = ceilings.multiply(self.dtype).map_or(f64::INFINITY, Measure::median);
        moving.max(self.counts.least / 1e9 / rate)
    }

    pub(super) fn object(&self, ceilings: &Ceilings) -> Value {
        let Self { counts, times, .. } = self;
        let ms = times.call.median();
        let operations = counts.operations();
        json!({
            "case": self.name,
            "pass": self.pass.name(),
            "dtype": self.dtype.name(),
            "shape": self.shape.object(),
            "input_sets": self.sets,
            "time": time(&times.call),
            "kernels": times.kernels.iter().map(|k| kernel(k, counts)).collect::<Vec<_>>(),
            "bytes": counts.bytes(),
            "gbps": gbps(counts.bytes(), ms),
            "of_copy": gbps(counts.bytes(), ms) / ceilings.copy.median(),
            "pairs": counts.pairs,
            "operations": operations,
            "least_operations": counts.least,
            "tflops": tflops(operations, ms),
            "of_multiply": ceilings
                .multiply(self.dtype)
                .map(|rate| tflops(operations, ms) / rate.median()),
            "floor_ms": self.floor(ceilings),
        })
    }
}

fn time(measure: &Measure) -> Value {
    let [low, median, high] = measure.quartiles();
    let [least, most] = measure.range();
    json!({
        "median": median,
        "lower_quartile": low,
        "upper_quartile": high,
        "least": least,
        "most": most,
        "repeats": measure.repeats(),
    })
}

fn kernel(times: &KernelTimes, counts: &Counts) -> Value {
    let operations = counts.of_kernel(&times.kernel).unwrap_or(0.0);
    json!({
        "kernel": times.kernel,
        "dispatches": times.dispatches,
        "time": time(&times.time),
        "operations": operations,
        "tflops": tflops(operations, times.time.median()),
        "pipelines": times.pipelines.iter().map(statistics).collect::<Vec<_>>(),
    })
}

fn statistics(pipeline: &PipelineStatistics) -> Value {
    let named = pipeline.statistics.iter().map(|s| (s.name.clone(), json!(s.value)));
    named.collect::<Map<_, _>>().into()
}

//! What the device can do at most, as far as kernels of ours reach it.

use backslang::Dtype;
use backslang::kernels::ceilings;
use backslang::runtime::{Recorder, Runtime};
use serde_json::{Value, json};

use super::data::Data;
use super::kernels::seconds;
use super::measure::Measure;
use crate::cli::failure::Result;
use crate::cli::talk::Talk;

/// Bytes of the array that is copied: more than caches hold.
const COPIED: usize = 256 << 20;
/// Rows of the largest matrices, and milliseconds that suffice.
const MOST_ROWS: usize = 8192;
const ENOUGH: f64 = 2e-3;

/// Rates that others are held against.
pub(super) struct Ceilings {
    /// GB/s, of 1e9 bytes read and written.
    pub(super) copy: Measure,
    /// TFLOP/s of f32 multiply-adds, of two operations each.
    pub(super) multiply: Measure,
}

impl Ceilings {
    pub(super) fn measure(
        data: &Data<'_>,
        repeats: usize,
        shrink: usize,
        talk: &Talk,
    ) -> Result<Self> {
        let _step = talk.step("ceilings");
        let runtime = data.runtime;
        let most = runtime.largest_binding().min(runtime.device().memory / 8) as usize;
        let bytes = (COPIED / shrink).min(most).max(1 << 16) / 16 * 16;
        let source = data.tensor("source", Dtype::U32, &[bytes / 4])?;
        let target = runtime.tensor("target", Dtype::U32, &[bytes / 4])?;
        let copy = Measure::new("copy", "GB/s", repeats, || {
            let took = once(runtime, |recorder| ceilings::copy(recorder, &source, &target))?;
            Ok(2.0 * bytes as f64 / 1e9 / took)
        })?;
        Ok(Self { copy, multiply: multiply(data, repeats)? })
    }

    pub(super) fn object(&self) -> Value {
        json!([self.copy.object(), self.multiply.object()])
    }
}

/// With matrices so large that a product takes its time.
fn multiply(data: &Data<'_>, repeats: usize) -> Result<Measure> {
    let mut rows = 2 * ceilings::TILE;
    loop {
        let matrix = |name| data.tensor(name, Dtype::F32, &[rows, rows]);
        let (a, b, c) = (matrix("a")?, matrix("b")?, matrix("c")?);
        let product = || once(data.runtime, |recorder| ceilings::multiply(recorder, &a, &b, &c));
        product()?;
        if rows >= MOST_ROWS || product()? > ENOUGH {
            let operations = 2.0 * (rows as f64).powi(3);
            let rate = || Ok(operations / 1e12 / product()?);
            return Measure::new("f32 matrix product", "TFLOP/s", repeats, rate);
        }
        rows *= 2;
    }
}

fn once(
    runtime: &Runtime,
    record: impl FnOnce(&mut Recorder<'_>) -> backslang::Result<()>,
) -> Result<f64> {
    let mut recorder = runtime.recorder()?;
    record(&mut recorder)?;
    Ok(recorder.submit()?.timings()?.iter().map(seconds).sum())
}

//! What the device can do at most, as far as kernels of ours reach it.

use backslang::Dtype;
use backslang::kernels::{ceilings, matrix_rate};
use backslang::runtime::{Recorder, Runtime, Tensor};
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
    /// TFLOP/s of f32 multiply-adds, of two operations each, where the device runs the kernel.
    multiply: Option<Measure>,
    /// The same of matrices of halves, of those types that the device multiplies.
    matrices: Vec<(Dtype, Measure)>,
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
        let multiply = match ceilings::multiplies(runtime) {
            true => Some(multiply(data, Dtype::F32, repeats)?),
            false => None,
        };
        let halves = [Dtype::F16, Dtype::Bf16].into_iter();
        let matrices = halves
            .filter(|dtype| runtime.device().matrices.of(*dtype))
            .map(|dtype| Ok((dtype, self::multiply(data, dtype, repeats)?)))
            .collect::<Result<_>>()?;
        Ok(Self { copy, multiply, matrices })
    }

    pub(super) fn object(&self) -> Value {
        json!(self.all().map(Measure::object).collect::<Vec<_>>())
    }

    /// What products of this element type are held against: those of f32 where the device multiplies no such matrices.
    pub(super) fn multiply(&self, dtype: Dtype) -> Option<&Measure> {
        let own = self.matrices.iter().find(|(of, _)| *of == dtype);
        own.map(|(_, measure)| measure).or(self.multiply.as_ref())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Measure> {
        let matrices = self.matrices.iter().map(|(_, measure)| measure);
        [&self.copy].into_iter().chain(&self.multiply).chain(matrices)
    }
}

/// Records a product of matrices.
type Product = fn(&mut Recorder<'_>, &Tensor, &Tensor, &Tensor) -> backslang::Result<()>;

/// With matrices so large that a product takes its time.
fn multiply(data: &Data<'_>, dtype: Dtype, repeats: usize) -> Result<Measure> {
    let (name, record): (_, Product) = match dtype {
        Dtype::F16 => ("f16 matrix product", matrix_rate::multiply),
        Dtype::Bf16 => ("bf16 matrix product", matrix_rate::multiply),
        _ => ("f32 matrix product", ceilings::multiply),
    };
    let mut rows = 2 * ceilings::TILE;
    loop {
        let matrix = |name, dtype| data.tensor(name, dtype, &[rows, rows]);
        let (a, b, c) = (matrix("a", dtype)?, matrix("b", dtype)?, matrix("c", Dtype::F32)?);
        let product = || once(data.runtime, |recorder| record(recorder, &a, &b, &c));
        product()?;
        if rows >= MOST_ROWS || product()? > ENOUGH {
            let operations = 2.0 * (rows as f64).powi(3);
            let rate = || Ok(operations / 1e12 / product()?);
            return Measure::new(name, "TFLOP/s", repeats, rate);
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

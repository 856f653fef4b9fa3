//! Rows that are printed as they come, so that widths are known before cells.

use super::ceilings::Ceilings;
use super::kernels::{Measured, gbps, tflops};
use super::measure::{Measure, figure};
use crate::cli::failure::Result;
use crate::cli::listings::aligned;
use crate::cli::report;
use crate::cli::talk::Talk;

/// Of the columns but the last.
const WIDTHS: [usize; 10] = [20, 4, 26, 8, 18, 7, 6, 6, 7, 0];
const TITLES: [&str; 10] = [
    "case",
    "type",
    "kernel",
    "ms",
    "quartiles",
    "TFLOP/s",
    "of f32",
    "GB/s",
    "of copy",
    "of floor",
];

/// The measured cases, and what they are held against.
pub(super) struct Table<'a> {
    talk: &'a Talk,
}

impl<'a> Table<'a> {
    pub(super) fn begin(ceilings: &Ceilings, talk: &'a Talk) -> Result<Self> {
        let table = Self { talk };
        let ceiling = |name: &str, measure: &Measure, unit: &str| {
            let [median, quartiles] = measure.words();
            table.say(&format!("{name}: {median} {unit} ({quartiles})\n"))
        };
        ceiling("copy", &ceilings.copy, "GB/s")?;
        ceiling("f32 matrix product", &ceilings.multiply, "TFLOP/s")?;
        table.print(&TITLES.map(String::from))?;
        Ok(table)
    }

    /// A row for the call, and one for each kernel where there are several.
    pub(super) fn add(&self, case: &Measured, ceilings: &Ceilings) -> Result<()> {
        let (counts, times) = (&case.counts, &case.times);
        let (bytes, operations) = (counts.bytes(), counts.operations());
        let [rate, of_rate] = rates(operations, &times.call, ceilings);
        let ms = times.call.median();
        let moved = gbps(bytes, ms);
        let [median, quartiles] = times.call.words();
        let kernel = match &times.kernels[..] {
            [only] => &only.kernel,
            _ => "all",
        };
        self.print(&[
            case.name.clone(),
            case.dtype.name().into(),
            kernel.into(),
            median,
            quartiles,
            rate,
            of_rate,
            figure(moved),
            percent(moved / ceilings.copy.median()),
            percent(case.floor(ceilings) / ms),
        ])?;
        if times.kernels.len() == 1 {
            return Ok(());
        }
        for times in &times.kernels {
            let operations = counts.of_kernel(&times.kernel).unwrap_or(0.0);
            let [rate, of_rate] = rates(operations, &times.time, ceilings);
            let [median, quartiles] = times.time.words();
            let kernel = times.kernel.clone();
            let cells = ["".into(), "".into(), kernel, median, quartiles, rate, of_rate];
            self.print(&cells)?;
        }
        Ok(())
    }

    fn print(&self, cells: &[String]) -> Result<()> {
        self.say(&aligned(cells, &WIDTHS))
    }

    fn say(&self, text: &str) -> Result<()> {
        if self.talk.json || self.talk.quiet { Ok(()) } else { report::say(text) }
    }
}

/// TFLOP/s, and their part of the ceiling; nothing where nothing is multiplied.
fn rates(operations: f64, time: &Measure, ceilings: &Ceilings) -> [String; 2] {
    if operations == 0.0 {
        return ["-".into(), "-".into()];
    }
    let rate = tflops(operations, time.median());
    [figure(rate), percent(rate / ceilings.multiply.median())]
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

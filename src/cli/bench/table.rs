//! Rows that are printed as they come, so that widths are known before cells.

use backslang::Dtype;

use super::ceilings::Ceilings;
use super::kernels::{KernelTimes, Measured, gbps, tflops};
use super::measure::{Measure, figure};
use crate::cli::failure::Result;
use crate::cli::listings::aligned;
use crate::cli::report;
use crate::cli::talk::Talk;

/// Of the columns but the last.
const WIDTHS: [usize; 12] = [19, 4, 26, 7, 16, 7, 7, 6, 7, 8, 9, 0];
const TITLES: &str =
    "case,type,kernel,ms,quartiles,TFLOP/s,of peak,GB/s,of copy,of floor,registers,spills";

/// The measured cases, and what they are held against.
pub(super) struct Table<'a> {
    talk: &'a Talk,
}

impl<'a> Table<'a> {
    pub(super) fn begin(ceilings: &Ceilings, talk: &'a Talk) -> Result<Self> {
        let table = Self { talk };
        for ceiling in ceilings.all() {
            let [median, quartiles] = ceiling.words();
            let (name, unit) = (ceiling.name(), ceiling.unit());
            table.say(&format!("{name}: {median} {unit} ({quartiles})\n"))?;
        }
        table.print(&TITLES.split(',').map(String::from).collect::<Vec<_>>())?;
        Ok(table)
    }

    /// A row for the call, and one for each kernel where there are several.
    pub(super) fn add(&self, case: &Measured, ceilings: &Ceilings) -> Result<()> {
        let (counts, times) = (&case.counts, &case.times);
        let (bytes, operations) = (counts.bytes(), counts.operations());
        let [rate, of_rate] = rates(operations, &times.call, case.dtype, ceilings);
        let ms = times.call.median();
        let moved = gbps(bytes, ms);
        let [median, quartiles] = times.call.words();
        let (kernel, [registers, spills]) = match &times.kernels[..] {
            [only] => (&only.kernel[..], compiled(only)),
            _ => ("all", <_>::default()),
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
            registers,
            spills,
        ])?;
        if times.kernels.len() == 1 {
            return Ok(());
        }
        for times in &times.kernels {
            let operations = counts.of_kernel(&times.kernel).unwrap_or(0.0);
            let [rate, of_rate] = rates(operations, &times.time, case.dtype, ceilings);
            let [median, quartiles] = times.time.words();
            let [registers, spills] = compiled(times);
            let named = ["".into(), "".into(), times.kernel.clone(), median, quartiles];
            let told = ["".into(), "".into(), "".into(), registers, spills];
            self.print(&[&named[..], &[rate, of_rate], &told].concat())?;
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
fn rates(operations: f64, time: &Measure, dtype: Dtype, ceilings: &Ceilings) -> [String; 2] {
    if operations == 0.0 {
        return ["-".into(), "-".into()];
    }
    let rate = tflops(operations, time.median());
    let of_peak = ceilings.multiply(dtype).map(|peak| percent(rate / peak.median()));
    [figure(rate), of_peak.unwrap_or_else(|| "-".into())]
}

/// Registers, and what of them is kept in memory, as the driver tells: the largest of the kernel's pipelines. Drivers have
/// their own names for either.
fn compiled(times: &KernelTimes) -> [String; 2] {
    let spills =
        |name: &str| ["spill", "local", "scratch", "stack"].iter().any(|w| name.contains(w));
    let registers = |name: &str| ["register", "vgprs"].iter().any(|word| name.contains(word));
    let largest = |is: &dyn Fn(&str) -> bool| {
        let told = times.pipelines.iter().flat_map(|pipeline| &pipeline.statistics);
        let named = told.filter(|statistic| is(&statistic.name.to_lowercase()));
        let values = named.map(|statistic| statistic.value);
        values.max_by(f64::total_cmp).map_or_else(|| "-".into(), |value| value.to_string())
    };
    [largest(&|name| registers(name) && !spills(name)), largest(&spills)]
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

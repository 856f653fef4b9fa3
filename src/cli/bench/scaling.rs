//! `bench scaling`: the time of the backwards against each of their sizes.

use serde_json::{Value, json};

use super::cases::GROUPED;
use super::ceilings::Ceilings;
use super::data::Data;
use super::kernels::{self, Measured};
use super::measure::figure;
use super::shapes::{Attention, Mamba3, Pass, Shape};
use crate::cli::args::{BenchDtype, GlobalArgs, ScalingBenchArgs};
use crate::cli::failure::Result;
use crate::cli::listings::aligned;
use crate::cli::report::{self, Report};
use crate::cli::talk::Talk;

/// One size that grows, and the call of a value of it.
type Sweep = (&'static str, fn(usize) -> Shape);

/// Narrow packed rows, so that millions of them fit.
const NARROW: Mamba3 = Mamba3 { rows: 1, inner: 256, state: 64, bc_rows: 1, heads: 4, rope: 16 };
/// One sequence, all tokens of which are queries.
const SINGLE: Attention = Attention { sequences: 1, ..GROUPED };

/// All of them.
pub(crate) const SWEEPS: [Sweep; 7] = [
    ("mamba3-rows", |rows| Shape::Mamba3(Mamba3 { rows, ..NARROW })),
    ("queries", |queries| Shape::Attention(Attention { queries, own: 16384, ..SINGLE })),
    ("history", |own| Shape::Attention(Attention { own, queries: own.min(128), ..SINGLE })),
    ("sequences", |sequences| {
        Shape::Attention(Attention { sequences, own: 512, queries: 512, ..SINGLE })
    }),
    ("heads", |heads| Shape::Attention(Attention { heads, kv_heads: heads.div_ceil(4), ..SINGLE })),
    ("page-size", |page_size| Shape::Attention(Attention { page_size, ..SINGLE })),
    ("unused-pages", |spare| Shape::Attention(Attention { spare, ..SINGLE })),
];

/// The values of a sweep.
fn values(sweep: &str) -> &'static [usize] {
    match sweep {
        "mamba3-rows" => &[1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 1 << 18, 1 << 20, 1 << 22],
        "queries" => &[1, 4, 16, 64, 256, 1024, 4096, 16384],
        "history" => &[128, 512, 2048, 8192, 32768, 131_072, 524_288],
        "sequences" => &[1, 2, 4, 8, 16, 32, 64],
        "heads" => &[4, 8, 16, 32, 64, 128],
        "page-size" => &[1, 4, 16, 64, 256, 2048],
        _ => &[0, 256, 1024, 4096, 16384, 65536],
    }
}

/// Of the columns but the last.
const WIDTHS: [usize; 8] = [12, 4, 8, 8, 18, 8, 8, 0];
const TITLES: [&str; 8] =
    ["sweep", "type", "value", "ms", "quartiles", "ps/pair", "ps/byte", "of floor"];

/// Measures the sweeps that are asked for.
pub(super) fn bench(args: &ScalingBenchArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let runtime = kernels::open(global)?;
    let data = Data::new(&runtime, args.shrink);
    let ceilings = Ceilings::measure(&data, args.repeats, args.shrink, talk)?;
    let mut points = Vec::new();
    print(talk, &TITLES.map(String::from))?;
    for &dtype in args.dtype.unwrap_or(BenchDtype::F32).dtypes() {
        for (sweep, shape) in SWEEPS.iter().filter(|(name, _)| asked(args, name)) {
            for &value in values(sweep) {
                let step = talk.step(&format!("{sweep} {value}"));
                let shape = shape(value).shrunk(args.shrink);
                let point =
                    kernels::measure(&data, sweep, Pass::Backward, shape, dtype, args.repeats)?;
                drop(step);
                let Ok(point) = point else {
                    talk.note(&format!(
                        "{sweep} {value} ({dtype}) is left out: it needs too much memory"
                    ));
                    continue;
                };
                print(talk, &row(&point, value, &ceilings))?;
                points.push(object(&point, value, &ceilings));
            }
        }
    }
    drop(data);
    let device = runtime.device().name.clone();
    runtime.finish()?;
    let extra = json!({ "ceilings": ceilings.object(), "points": points });
    Ok(Report { device: Some(device), extra: Some(("scaling", extra)), ..<_>::default() })
}

fn asked(args: &ScalingBenchArgs, name: &str) -> bool {
    args.sweeps.is_empty() || args.sweeps.iter().any(|sweep| sweep == name)
}

/// Picoseconds of the median for each visible pair, where there are such, and for each byte.
fn costs(point: &Measured) -> [Option<f64>; 2] {
    let each = |count: u64| (count > 0).then(|| 1e9 * point.times.call.median() / count as f64);
    [each(point.counts.pairs), each(point.counts.bytes())]
}

fn row(point: &Measured, value: usize, ceilings: &Ceilings) -> [String; 8] {
    let [median, quartiles] = point.times.call.words();
    let [pair, byte] = costs(point).map(|cost| cost.map_or_else(|| "-".into(), figure));
    let part = 100.0 * point.floor(ceilings) / point.times.call.median();
    [
        point.name.clone(),
        point.dtype.name().into(),
        value.to_string(),
        median,
        quartiles,
        pair,
        byte,
        format!("{part:.0} %"),
    ]
}

fn object(point: &Measured, value: usize, ceilings: &Ceilings) -> Value {
    let [pair, byte] = costs(point);
    json!({
        "sweep": point.name,
        "value": value,
        "ps_per_pair": pair,
        "ps_per_byte": byte,
        "measured": point.object(ceilings),
    })
}

fn print(talk: &Talk, cells: &[String]) -> Result<()> {
    if talk.json || talk.quiet { Ok(()) } else { report::say(&aligned(cells, &WIDTHS)) }
}

//! `bench`: what things take on this device.

mod cases;
mod ceilings;
mod data;
mod first;
mod host;
mod kernels;
mod measure;
mod scaling;
mod shapes;
mod table;
mod work;

pub(crate) use cases::CASES;
pub(crate) use scaling::SWEEPS;

use super::args::{BenchArgs, BenchCommand, GlobalArgs, KernelBenchArgs};
use super::failure::{Failure, Result};
use super::report::Report;
use super::talk::Talk;

/// Measures what is asked for.
pub(crate) fn bench(args: &BenchArgs, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    let Some(other) = &args.other else { return kernels::bench(&args.kernels, global, talk) };
    if args.kernels != KernelBenchArgs::default() {
        let message = "bench: expected the flags of `host` behind it, found some before it";
        return Err(Failure::usage(message));
    }
    match other {
        BenchCommand::Scaling(args) => scaling::bench(args, global, talk),
        BenchCommand::Host(args) => host::bench(args, global, talk),
        BenchCommand::FirstResult => first::result(global),
    }
}

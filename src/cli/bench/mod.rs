//! `bench`: what things take on this device.

mod first;
mod host;
mod measure;

use super::args::{BenchCommand, GlobalArgs};
use super::failure::Result;
use super::report::Report;
use super::talk::Talk;

/// Measures what is asked for.
pub(crate) fn bench(command: &BenchCommand, global: &GlobalArgs, talk: &Talk) -> Result<Report> {
    match command {
        BenchCommand::Host(args) => host::bench(args, global, talk),
        BenchCommand::FirstResult => first::result(global),
    }
}

//! `sample`: valid random inputs, the same for the same seed and sizes.

mod attention;
mod mamba3;
mod random;
mod schedule;

use backslang::HostTensor;

use super::args::{AttentionSizes, SampleArgs, SampleCommand};
use super::failure::Result;
use super::files::{OutputArray, OutputValues, Spelling, Target};
use super::report::Report;
use super::talk::Talk;
use random::Random;

/// Writes the inputs that are asked for.
pub(crate) fn write(command: &SampleCommand, talk: &Talk) -> Result<Report> {
    match command {
        SampleCommand::Mamba3(args) => made(args, &mamba3::names(), talk, |random| {
            mamba3::arrays(&args.sizes, args.dtype, random)
        }),
        SampleCommand::Attention(args) => attention_inputs(args, false, talk),
        SampleCommand::History(args) => attention_inputs(args, true, talk),
    }
}

fn attention_inputs(
    args: &SampleArgs<AttentionSizes>,
    statistics: bool,
    talk: &Talk,
) -> Result<Report> {
    let names = attention::names(&args.sizes, statistics)?;
    made(args, &names, talk, |random| {
        attention::arrays(&args.sizes, args.dtype, random, statistics)
    })
}

/// Looks whether arrays of these names can be written, makes them, and writes them.
fn made<Sizes: clap::Args>(
    args: &SampleArgs<Sizes>,
    names: &[&str],
    talk: &Talk,
    make: impl FnOnce(&mut Random) -> Result<Vec<OutputArray>>,
) -> Result<Report> {
    let target = Target::resolve(&args.output)?.open(names.iter().copied())?;
    let step = talk.step("making random arrays");
    let arrays = make(&mut Random::new(args.seed))?;
    drop(step);
    let _step = talk.step(&format!("writing {}", args.output.display()));
    let outputs = target.write(&arrays)?;
    Ok(Report { outputs, ..Report::default() })
}

fn floats(name: &str, tensor: HostTensor) -> OutputArray {
    OutputArray::floats(name, tensor, Spelling::LITTLE)
}

/// A 0-d parameter.
fn parameter(name: &str, value: f32) -> Result<OutputArray> {
    Ok(floats(name, HostTensor::from_f32(&[], vec![value])?))
}

fn flag(name: &str, value: bool) -> OutputArray {
    array(name, &[], OutputValues::Flag(value))
}

fn integers(name: &str, shape: &[usize], values: Vec<i32>) -> OutputArray {
    array(name, shape, OutputValues::Integers(values))
}

fn array(name: &str, shape: &[usize], values: OutputValues) -> OutputArray {
    OutputArray { name: name.into(), shape: shape.to_vec(), values, spelling: Spelling::LITTLE }
}

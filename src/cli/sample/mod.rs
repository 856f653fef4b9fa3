//! `sample`: valid random inputs, the same for the same seed and sizes.

mod append;
mod attention;
mod mamba3;
mod random;
mod schedule;

use backslang::HostTensor;

use super::args::{AttentionSizes, CacheSizes, SampleArgs, SampleCommand};
use super::failure::{Failure, Result};
use super::files::{OutputArray, OutputValues, Spelling, Target};
use super::report::Report;
use super::talk::Talk;
use attention::Pass;
use random::Random;

/// Writes the inputs that are asked for.
pub(crate) fn write(command: &SampleCommand, talk: &Talk) -> Result<Report> {
    match command {
        SampleCommand::Mamba3(args) => {
            made(args, &mamba3::forward_names(&args.sizes), talk, |random| {
                mamba3::forward(&args.sizes, args.dtype, random)
            })
        }
        SampleCommand::Mamba3Backward(args) => {
            made(args, &mamba3::backward_names(), talk, |random| {
                mamba3::backward(&args.sizes, args.dtype, random)
            })
        }
        SampleCommand::Attention(args) => attention_inputs(args, Pass::Forward, talk),
        SampleCommand::Append(args) => made(args, &append::names(&args.sizes)?, talk, |random| {
            append::arrays(&args.sizes, args.dtype, random)
        }),
        SampleCommand::Backward(args) => attention_inputs(args, Pass::Backward, talk),
        SampleCommand::History(args) => attention_inputs(args, Pass::History, talk),
    }
}

fn attention_inputs(args: &SampleArgs<AttentionSizes>, pass: Pass, talk: &Talk) -> Result<Report> {
    let names = attention::names(&args.sizes, pass)?;
    made(args, &names, talk, |random| attention::arrays(&args.sizes, args.dtype, random, pass))
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

/// A 0-d size.
fn size(name: &str, value: usize) -> Result<OutputArray> {
    Ok(integers(name, &[], vec![narrow(name, value as i128)?]))
}

/// What int32 arrays hold.
fn narrow(name: &str, value: i128) -> Result<i32> {
    i32::try_from(value).map_err(|_| {
        let message = format!("array `{name}`: expected values that fit 32 bits, found {value}");
        Failure::input("too-large", message)
    })
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

impl CacheSizes {
    fn value_dim(&self) -> usize {
        self.value_dim.unwrap_or(self.key_dim)
    }

    fn position_dim(&self) -> usize {
        self.position_dim.unwrap_or(16)
    }
}

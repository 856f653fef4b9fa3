//! `sample`: valid random inputs, the same for the same seed and sizes.

mod attention;
mod mamba3;
mod random;
mod schedule;

use backslang::HostTensor;

use super::args::SampleCommand;
use super::failure::Result;
use super::files::{ByteOrder, OutputArray, OutputValues, Target};
use super::report::Report;
use super::talk::Talk;
use random::Random;

/// Writes the inputs that are asked for.
pub(crate) fn write(command: &SampleCommand, talk: &Talk) -> Result<Report> {
    let step = talk.step("making random arrays");
    let (output, arrays) = match command {
        SampleCommand::Mamba3(args) => {
            (&args.output, mamba3::arrays(&args.sizes, &mut Random::new(args.seed))?)
        }
        SampleCommand::Attention(args) => {
            (&args.output, attention::arrays(&args.sizes, &mut Random::new(args.seed), false)?)
        }
        SampleCommand::History(args) => {
            (&args.output, attention::arrays(&args.sizes, &mut Random::new(args.seed), true)?)
        }
    };
    drop(step);
    let names = arrays.iter().map(|array| array.name.as_str());
    let target = Target::resolve(output)?.open(names)?;
    let _step = talk.step(&format!("writing {}", output.display()));
    let outputs = target.write(&arrays)?;
    Ok(Report { outputs, ..Report::default() })
}

fn floats(name: &str, tensor: HostTensor) -> OutputArray {
    OutputArray::floats(name, tensor, ByteOrder::Little)
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
    OutputArray { name: name.into(), shape: shape.to_vec(), values, order: ByteOrder::Little }
}

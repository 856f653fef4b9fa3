//! What a call comes to once flags and arrays are resolved and checked.

mod attention;
mod mamba3;

use backslang::kernels::Target;
use backslang::runtime::{Execution, Timing};
use backslang::shard::{Divide, Engine, Shard};
use backslang::{Error, HostTensor};

use super::failure::Result;
use super::files::{OutputArray, Spelling};
use super::inputs::Inputs;
use super::plan::Outline;
use super::shards::Identity;

pub(crate) use attention::{AppendJob, AttentionBackwardJob, AttentionJob};
pub(crate) use mamba3::{Mamba3BackwardJob, Mamba3Job};

/// A call that is ready to run.
pub(crate) trait Job {
    /// The names of the results.
    fn output_names(&self) -> Vec<&'static str>;

    /// How each result is spelled in a file.
    fn spellings(&self) -> &Spellings;

    /// The results of a device, and the time of every launch.
    fn on_device(&self, execution: Execution<'_>) -> Result<(Results, Vec<Timing>)>;

    /// The results in float64 on the CPU, rounded once.
    fn on_reference(&self) -> Result<Results>;

    /// What would run on a machine like this.
    fn outline(&self, target: Target) -> Result<Outline>;

    /// The call, to be divided.
    fn call(&self) -> Box<dyn Divide + '_>;

    /// What the results depend on.
    fn identity(&self) -> Identity;

    /// What would run of a part on a machine like this.
    fn outline_of(&self, shard: Shard, target: Target) -> Result<Outline> {
        let mut engine = Engine::nowhere(target);
        self.call().part(shard, &mut engine)?;
        let record = engine.into_record();
        let shards = [("shard", shard.index()), ("shards", shard.count())];
        Ok(Outline {
            sizes: self.outline(target)?.sizes.into_iter().chain(shards).collect(),
            launches: record.launches,
            of_part: Some([record.input_bytes as u64, record.output_bytes as u64]),
            ..Outline::default()
        })
    }

    /// The results as arrays to write.
    fn outputs(&self, results: Results) -> Vec<OutputArray> {
        let spellings = self.spellings();
        let output = |(name, tensor)| OutputArray::floats(name, tensor, spellings.of(name));
        results.into_iter().map(output).collect()
    }
}

/// The results of a job, by name.
pub(crate) type Results = Vec<(&'static str, HostTensor)>;

/// How outputs are spelled, taken from the inputs that they belong to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spellings(Vec<(&'static str, Spelling)>);

impl Spellings {
    /// Spells each output as its input.
    fn new(inputs: &Inputs, pairs: &[(&'static str, &'static str)]) -> Self {
        Self(pairs.iter().map(|&(output, input)| (output, inputs.spelling(input))).collect())
    }

    pub(crate) fn of(&self, output: &str) -> Spelling {
        let found = self.0.iter().find(|(name, _)| *name == output);
        found.map_or(Spelling::LITTLE, |&(_, spelling)| spelling)
    }
}

/// An old gradient has the shape of the new one.
fn expect_shape(array: &'static str, tensor: &HostTensor, expected: &[usize]) -> Result<()> {
    if tensor.shape() == expected {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), tensor.shape().to_vec());
    Err(Error::Shape { array, expected, found }.into())
}

/// A resolved job, and notes on what was ignored.
pub(crate) type Resolved<J> = Result<(J, Vec<(String, bool)>)>;

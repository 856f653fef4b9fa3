//! What a call comes to once flags and arrays are resolved and checked.

mod attention;
mod mamba3;

use backslang::HostTensor;

use super::failure::Result;
use super::files::{OutputArray, Spelling};
use super::inputs::Inputs;

pub(crate) use attention::AttentionJob;
pub(crate) use mamba3::Mamba3Job;

/// A call that is ready to run.
#[derive(Debug)]
pub(crate) enum Job {
    /// `mamba3-preprocess-backward`.
    Mamba3(Mamba3Job),
    /// `paged-attention-backward` and `history-backward`.
    Attention(AttentionJob),
}

/// The results of a job, by name.
pub(crate) type Results = Vec<(&'static str, HostTensor)>;

impl Job {
    /// The names of the results.
    pub(crate) fn output_names(&self) -> Vec<&'static str> {
        match self {
            Self::Mamba3(job) => {
                job.geometry.backward_outputs().named().map(|(name, _)| name).collect()
            }
            Self::Attention(job) => {
                let gradients = job.options.gradients.iter().map(|gradient| gradient.output_name());
                gradients.chain(job.save_statistics.then_some("statistics")).collect()
            }
        }
    }

    /// Spells each result as the array that it is the gradient of.
    pub(crate) fn outputs(&self, results: Results) -> Vec<OutputArray> {
        let spellings = match self {
            Self::Mamba3(job) => &job.spellings,
            Self::Attention(job) => &job.spellings,
        };
        let output = |(name, tensor)| OutputArray::floats(name, tensor, spellings.of(name));
        results.into_iter().map(output).collect()
    }
}

/// How outputs are spelled, taken from the inputs that they belong to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spellings(Vec<(&'static str, Spelling)>);

impl Spellings {
    /// Spells each output as its input.
    fn new(inputs: &Inputs, pairs: &[(&'static str, &'static str)]) -> Self {
        Self(pairs.iter().map(|&(output, input)| (output, inputs.spelling(input))).collect())
    }

    fn of(&self, output: &str) -> Spelling {
        let found = self.0.iter().find(|(name, _)| *name == output);
        found.map_or(Spelling::LITTLE, |&(_, spelling)| spelling)
    }
}

/// A resolved job, and notes on what was ignored.
pub(crate) type Resolved<J> = Result<(J, Vec<(String, bool)>)>;

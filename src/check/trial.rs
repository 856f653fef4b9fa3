//! The one way in which a case is run and held to what it should give.

use std::time::Duration;

use ndarray::ArrayD;

use super::report::CaseReport;
use crate::error::Result;
use crate::host::HostTensor;
use crate::runtime::{Recorder, Runtime, Submission, Tensor};

/// What fills outputs before a run, one word a run: different kinds of NaN in every type.
pub(super) const POISON: [u32; 2] = [0x7fc0_7fc0, 0xffff_ffff];

/// A call on inputs made up here.
pub(super) trait Trial {
    /// Options that must not change a bit.
    type Way;

    /// What every output should be.
    fn expected(&self) -> Result<Vec<Output<Expected>>>;

    /// How much more than within the tolerance f32 arithmetic may be off; at least 1 counts.
    fn growth(&self) -> f64 {
        1.0
    }

    /// The ways to make the call, each with words that end a sentence. The first one is held to what is expected; of
    /// every other, the outputs that it has are held to the bits of the first.
    fn ways(&self) -> Vec<(String, Self::Way)>;

    /// Records the call on outputs that hold `poison`, and gives these.
    fn record(
        &self,
        recorder: &mut Recorder<'_>,
        way: &Self::Way,
        poison: u32,
    ) -> Result<Vec<Output<Tensor>>>;
}

/// An output by its name.
pub(super) type Output<T> = (&'static str, T);

/// What an output should be.
#[derive(Debug, Clone)]
pub(super) enum Expected {
    /// These values, within the tolerance of the output's type.
    Near(ArrayD<f64>),
    /// These bits.
    Exact(HostTensor),
}

/// What one run gave.
pub(super) struct Ran {
    pub(super) outputs: Vec<Output<HostTensor>>,
    pub(super) gpu: Option<Duration>,
}

/// Runs the trial on the device, and enters into the report what is wrong.
pub(super) fn hold(runtime: &Runtime, trial: &impl Trial, report: &mut CaseReport) -> Result<()> {
    hold_runs(trial, report, |way, poison| run(runtime, trial, way, poison))
}

/// As [`hold`], with `run` to run it.
fn hold_runs<T: Trial>(
    trial: &T,
    report: &mut CaseReport,
    mut run: impl FnMut(&T::Way, u32) -> Result<Ran>,
) -> Result<()> {
    let ways = trial.ways();
    let Some(((_, usual), others)) = ways.split_first() else { return Ok(()) };
    let first = run(usual, POISON[0])?.outputs;
    for (name, expected) in trial.expected()? {
        match (find(&first, name), expected) {
            (None, _) => report.faults.push(format!("{name} is not there")),
            (Some(found), Expected::Near(array)) => {
                report.compare(name, found, &array, trial.growth());
            }
            (Some(found), Expected::Exact(bits)) => {
                report.compare_bits(name, found, &bits, "than it should");
            }
        }
    }
    let again = run(usual, POISON[1])?;
    report.gpu = again.gpu;
    compare_bits(report, &again.outputs, &first, "on the second run");
    for (words, way) in others {
        compare_bits(report, &run(way, POISON[0])?.outputs, &first, words);
    }
    Ok(())
}

fn compare_bits(
    report: &mut CaseReport,
    found: &[Output<HostTensor>],
    first: &[Output<HostTensor>],
    when: &str,
) {
    for (name, found) in found {
        match find(first, name) {
            Some(first) => report.compare_bits(name, found, first, when),
            None => report.faults.push(format!("{name} is there only {when}")),
        }
    }
}

fn find<'a, T>(outputs: &'a [Output<T>], name: &str) -> Option<&'a T> {
    outputs.iter().find(|(other, _)| *other == name).map(|(_, output)| output)
}

fn run<T: Trial>(runtime: &Runtime, trial: &T, way: &T::Way, poison: u32) -> Result<Ran> {
    let mut recorder = runtime.recorder()?;
    let outputs = trial.record(&mut recorder, way, poison)?;
    let submission = recorder.submit()?;
    submission.wait()?;
    let gpu = gpu_time(&submission)?;
    let download = |(name, tensor): &Output<Tensor>| Ok((*name, runtime.download(tensor)?));
    Ok(Ran { outputs: outputs.iter().map(download).collect::<Result<_>>()?, gpu })
}

/// Time on the GPU, summed over the dispatches; a queue without timestamps gives none.
fn gpu_time(submission: &Submission) -> Result<Option<Duration>> {
    let timings = submission.timings()?;
    Ok((!timings.is_empty()).then(|| timings.iter().map(|timing| timing.gpu).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Command;
    use crate::host::Dtype;
    use ndarray::IxDyn;

    /// Two outputs, of the type and of f32; ways are told apart by number.
    struct Fake(Dtype);

    impl Trial for Fake {
        type Way = usize;

        fn expected(&self) -> Result<Vec<Output<Expected>>> {
            let array = ArrayD::from_shape_fn(IxDyn(&[64]), |i| ((i[0] + 1) as f64).sin());
            let exact = HostTensor::from_words(vec![7]);
            let near = Expected::Near(array);
            Ok(vec![("x", near.clone()), ("statistics", near), ("k", Expected::Exact(exact))])
        }

        fn ways(&self) -> Vec<(String, usize)> {
            ["usually", "when pruned", "alone"].map(String::from).into_iter().zip(0..).collect()
        }

        fn record(&self, _: &mut Recorder<'_>, _: &usize, _: u32) -> Result<Vec<Output<Tensor>>> {
            unreachable!("runs without a device")
        }
    }

    impl Fake {
        /// What the kernels would give; the last way has one output only.
        fn outputs(&self, way: usize) -> Vec<Output<HostTensor>> {
            let rounded = |(name, expected): Output<Expected>| match expected {
                Expected::Exact(bits) => (name, bits),
                Expected::Near(array) => {
                    let dtype = if name == "x" { self.0 } else { Dtype::F32 };
                    (name, HostTensor::from_f64(dtype, &array).unwrap())
                }
            };
            let outputs = self.expected().unwrap().into_iter().map(rounded);
            outputs.take(if way == 2 { 1 } else { 3 }).collect()
        }
    }

    /// Runs with `spoil` between the kernels and the comparisons: it gets the run's number, the poison and the outputs.
    fn faults(
        dtype: Dtype,
        mut spoil: impl FnMut(usize, u32, &mut Vec<Output<HostTensor>>),
    ) -> Vec<String> {
        let mut report = CaseReport::new(Command::HistoryBackward, dtype, "case");
        let mut runs = 0;
        hold_runs(&Fake(dtype), &mut report, |&way, poison| {
            let mut outputs = Fake(dtype).outputs(way);
            spoil(runs, poison, &mut outputs);
            runs += 1;
            Ok(Ran { outputs, gpu: None })
        })
        .unwrap();
        assert_eq!(runs, 4, "twice as usual, once in each other way");
        report.faults
    }

    const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    #[test]
    fn right_results_pass() {
        for dtype in DTYPES {
            assert!(faults(dtype, |_, _, _| {}).is_empty(), "{dtype}");
        }
    }

    #[test]
    fn an_element_that_is_not_written_is_a_fault() {
        for dtype in DTYPES {
            for element in [0, 1, 63] {
                let faults = faults(dtype, |_, poison, outputs| {
                    let (size, word) = (dtype.size(), poison.to_ne_bytes());
                    let at = element * size;
                    outputs[0].1.bytes_mut()[at..at + size].copy_from_slice(&word[..size]);
                });
                assert!(faults[0].starts_with("x is off by NaN"), "{dtype}: {faults:?}");
            }
        }
    }

    #[test]
    fn a_wrong_element_is_a_fault_in_every_run() {
        for dtype in DTYPES {
            let faults = faults(dtype, |_, _, outputs| {
                let mut values = outputs[0].1.to_f64();
                values[10] += 0.1;
                outputs[0].1 = HostTensor::from_f64(dtype, &values).unwrap();
            });
            assert!(matches!(&faults[..], [one] if one.starts_with("x is off by")), "{faults:?}");
        }
    }

    /// What is f32 is held to its own tolerance where all else is halves.
    #[test]
    fn an_f32_output_is_exact_to_f32() {
        for dtype in DTYPES {
            let faults = faults(dtype, |_, _, outputs| {
                if let Some((_, statistics)) = outputs.get_mut(1) {
                    statistics.as_f32_mut().unwrap()[3] *= 1.0001;
                }
            });
            assert!(matches!(&faults[..], [one] if one.starts_with("statistics is")), "{faults:?}");
        }
    }

    #[test]
    fn other_bits_are_a_fault_wherever_they_are() {
        for dtype in DTYPES {
            for (spoiled, words) in [(1, "on the second run"), (2, "when pruned"), (3, "alone")] {
                let faults = faults(dtype, |run, _, outputs| {
                    if run == spoiled {
                        outputs[0].1.bytes_mut()[0] ^= 1;
                    }
                });
                assert_eq!(faults, [format!("x has other bits {words}")], "{dtype}");
            }
        }
        let copied = faults(Dtype::F16, |_, _, outputs| {
            outputs.iter_mut().filter(|(name, _)| *name == "k").for_each(|(_, output)| {
                output.bytes_mut()[3] = 1;
            });
        });
        assert_eq!(copied, ["k has other bits than it should"]);
    }

    #[test]
    fn an_output_that_is_missing_or_of_another_type_is_a_fault() {
        let missing = faults(Dtype::F16, |run, _, outputs| {
            if run == 0 {
                outputs.remove(1);
            }
        });
        assert_eq!(missing[0], "statistics is not there");
        let wide = faults(Dtype::Bf16, |run, _, outputs| {
            if run == 1 {
                outputs[0].1 = HostTensor::from_f64(Dtype::F32, &outputs[0].1.to_f64()).unwrap();
            }
        });
        assert_eq!(wide, ["x has other bits on the second run"]);
    }
}

//! `--plan`: what a job would run, in numbers that need no device.

use backslang::kernels::{Launch, Target};
use backslang::manifest::{Constant, Scalar};
use backslang::{Dtype, HostTensor};
use serde_json::{Map, Value, json};

use super::report::Report;

/// What would run.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// The sizes by name.
    pub(crate) sizes: Vec<(&'static str, usize)>,
    /// What is launched, in order.
    pub(crate) launches: Vec<Launch>,
    /// Bytes in device memory: of what, and how many.
    pub(crate) bytes: Vec<(&'static str, usize)>,
}

/// Bytes of an array.
pub(crate) fn bytes(tensor: &HostTensor) -> usize {
    tensor.bytes().len()
}

/// Bytes of an array of this type and shape.
pub(crate) fn bytes_of(dtype: Dtype, shape: &[usize]) -> usize {
    dtype.size() * shape.iter().product::<usize>()
}

/// The specialization constants by name; those of type bool as such.
fn constants(launch: &Launch) -> Vec<(&'static str, Value)> {
    let value = |constant: &Constant, bits: u32| match constant.kind {
        Scalar::Bool => json!(bits != 0),
        _ => json!(bits),
    };
    let pairs = launch.kernel().constants.iter().zip(launch.constants());
    pairs.map(|(constant, &bits)| (constant.name, value(constant, bits))).collect()
}

impl Outline {
    /// As the command's result.
    pub(crate) fn report(&self) -> Report {
        Report { text: self.text(), extra: Some(("plan", self.json())), ..Report::default() }
    }

    fn text(&self) -> String {
        let list = |pairs: &[(&str, usize)]| {
            pairs.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("sizes: {}\n", list(&self.sizes));
        for launch in &self.launches {
            let [x, y] = launch.groups();
            text += &format!("run {}: {x} x {y} workgroups", launch.kernel().name);
            for (name, value) in constants(launch) {
                text += &format!(", {name} {value}");
            }
            text.push('\n');
        }
        let Target { lanes, max_workgroup, .. } = Target::TYPICAL;
        text += &format!(
            "for subgroups of {lanes} and workgroups of at most {max_workgroup} invocations\n"
        );
        text + &format!("bytes: {}\n", list(&self.bytes))
    }

    fn json(&self) -> Value {
        let object = |pairs: &[(&'static str, usize)]| {
            pairs.iter().map(|&(name, n)| (name.into(), json!(n))).collect::<Map<_, _>>()
        };
        let step = |launch: &Launch| {
            let constants: Map<_, _> =
                constants(launch).into_iter().map(|(name, value)| (name.into(), value)).collect();
            json!({ "kernel": launch.kernel().name, "workgroups": launch.groups(), "constants": constants })
        };
        json!({
            "sizes": object(&self.sizes),
            "steps": self.launches.iter().map(step).collect::<Vec<_>>(),
            "bytes": object(&self.bytes),
        })
    }
}

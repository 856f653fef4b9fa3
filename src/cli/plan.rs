//! `--plan`: what a job would run, in numbers: on a common GPU, or on the device that is asked for.

use std::collections::HashSet;

use backslang::kernels::{Launch, Target};
use backslang::manifest::{Constant, Scalar};
use backslang::runtime::Runtime;
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
    /// The arrays that are uploaded, with their bytes.
    pub(crate) inputs: Vec<(&'static str, u64)>,
    /// The arrays that are made, with their bytes.
    pub(crate) outputs: Vec<(&'static str, u64)>,
    /// Bytes of the schedule's words, where there is one.
    pub(crate) schedule: Option<u64>,
    /// Bytes beside those.
    pub(crate) scratch: u64,
    /// Bytes of the inputs and outputs of all calls of a part, one after the other, instead of what is above.
    pub(crate) of_part: Option<[u64; 2]>,
}

/// Where it would run.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// The device's name; none for a common GPU.
    pub(crate) device: Option<String>,
    /// What of it shapes the launches.
    pub(crate) target: Target,
    /// Bytes of its memory.
    pub(crate) memory: Option<u64>,
}

impl Machine {
    /// A common GPU.
    pub(crate) const TYPICAL: Self = Self { device: None, target: Target::TYPICAL, memory: None };

    /// That of a runtime.
    pub(crate) fn of(runtime: &Runtime) -> Self {
        let info = runtime.device();
        let (device, memory) = (Some(info.name.clone()), Some(info.memory));
        Self { device, target: Target::of(runtime), memory }
    }
}

/// A limit of the machine that what would run comes to.
struct Limit {
    name: &'static str,
    value: u64,
    /// What is larger.
    what: &'static str,
    found: u64,
    /// What becomes of it.
    then: String,
}

/// The bytes of an array.
pub(crate) fn bytes(name: &'static str, tensor: &HostTensor) -> (&'static str, u64) {
    (name, tensor.bytes().len() as u64)
}

/// The bytes of an array of this type and shape.
pub(crate) fn bytes_of(name: &'static str, dtype: Dtype, shape: &[usize]) -> (&'static str, u64) {
    (name, dtype.size() as u64 * shape.iter().map(|&axis| axis as u64).product::<u64>())
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
    pub(crate) fn report(&self, machine: &Machine) -> Report {
        let (text, json) = (self.text(machine), self.json(machine));
        Report { text, extra: Some(("plan", json)), ..Report::default() }
    }

    /// Bytes on the device by what they are of.
    fn bytes(&self) -> Vec<(&'static str, u64)> {
        if let Some([inputs, outputs]) = self.of_part {
            return vec![("inputs", inputs), ("outputs", outputs)];
        }
        let sum = |arrays: &[(_, u64)]| arrays.iter().map(|(_, bytes)| bytes).sum();
        let mut bytes = vec![("inputs", sum(&self.inputs))];
        bytes.extend(self.schedule.map(|bytes| ("schedule", bytes)));
        bytes.extend([("outputs", sum(&self.outputs)), ("scratch", self.scratch)]);
        bytes
    }

    fn dispatches(&self, target: Target) -> u64 {
        self.launches.iter().map(|launch| launch.dispatches(target)).sum()
    }

    /// Kernels, each for each set of constants.
    fn pipelines(&self) -> usize {
        let run = self.launches.iter().filter(|launch| !launch.groups().contains(&0));
        let pipelines = run.map(|l| (l.kernel().name, l.kernel().dtype, l.constants()));
        pipelines.collect::<HashSet<_>>().len()
    }

    fn limits(&self, machine: &Machine) -> Vec<Limit> {
        let target = machine.target;
        let arrays = self.inputs.iter().chain(&self.outputs);
        let large = arrays.filter(|(_, bytes)| *bytes > target.max_binding);
        let buffers = large.map(|&(what, found)| Limit {
            name: "maxStorageBufferRange",
            value: target.max_binding,
            what,
            found,
            then: "in several buffers".into(),
        });
        let mut limits: Vec<_> = buffers.collect();
        for launch in &self.launches {
            let dispatches = launch.dispatches(target);
            if dispatches > 1 {
                let axis = usize::from(launch.groups()[0] as u64 <= target.max_groups[0].into());
                limits.push(Limit {
                    name: "maxComputeWorkGroupCount",
                    value: target.max_groups[axis].into(),
                    what: launch.kernel().name,
                    found: launch.groups()[axis] as u64,
                    then: format!("in {dispatches} dispatches"),
                });
            }
        }
        let all: u64 = self.bytes().iter().map(|(_, bytes)| bytes).sum();
        if let Some(memory) =
            machine.memory.filter(|memory| all > *memory && self.of_part.is_none())
        {
            limits.push(Limit {
                name: "memory",
                value: memory,
                what: "all arrays",
                found: all,
                then: "an error".into(),
            });
        }
        limits
    }

    fn text(&self, machine: &Machine) -> String {
        let list = |pairs: &[(&str, u64)]| {
            pairs.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
        };
        let sizes: Vec<_> = self.sizes.iter().map(|(name, n)| (*name, *n as u64)).collect();
        let mut text = format!("sizes: {}\n", list(&sizes));
        for launch in &self.launches {
            let [x, y] = launch.groups();
            text += &format!("run {}: {x} x {y} workgroups", launch.kernel().name);
            for (name, value) in constants(launch) {
                text += &format!(", {name} {value}");
            }
            text.push('\n');
        }
        let Target { lanes, max_workgroup, max_binding, .. } = machine.target;
        let dispatches = self.dispatches(machine.target);
        text += &format!("{dispatches} dispatches of {} pipelines\n", self.pipelines());
        text += &format!(
            "for {}, subgroups of {lanes}, workgroups of at most {max_workgroup} invocations, \
             buffers of at most {max_binding} bytes\n",
            machine.device.as_deref().unwrap_or("a common GPU")
        );
        for Limit { name, value, what, found, then } in self.limits(machine) {
            text += &format!("beyond {name} {value}: {what} {found}, {then}\n");
        }
        text + &format!("bytes: {}\n", list(&self.bytes()))
    }

    fn json(&self, machine: &Machine) -> Value {
        let step = |launch: &Launch| {
            let constants: Map<_, _> =
                constants(launch).into_iter().map(|(name, value)| (name.into(), value)).collect();
            json!({ "kernel": launch.kernel().name, "workgroups": launch.groups(), "constants": constants })
        };
        let limit = |limit: Limit| {
            let Limit { name, value, what, found, .. } = limit;
            json!({ "limit": name, "value": value, "what": what, "found": found })
        };
        let Target { lanes, max_workgroup, shared_bytes, max_binding, max_groups, matrices } =
            machine.target;
        json!({
            "sizes": self.sizes.iter().map(|&(name, n)| (name.into(), json!(n))).collect::<Map<_, _>>(),
            "steps": self.launches.iter().map(step).collect::<Vec<_>>(),
            "dispatches": self.dispatches(machine.target),
            "pipelines": self.pipelines(),
            "bytes": self.bytes().into_iter().map(|(name, n)| (name.into(), json!(n))).collect::<Map<_, _>>(),
            "target": {
                "device": machine.device,
                "subgroup_size": lanes,
                "max_workgroup_invocations": max_workgroup,
                "max_shared_memory": shared_bytes,
                "max_workgroup_count": max_groups,
                "max_buffer": max_binding,
                "matrices": matrices.names(),
            },
            "limits": self.limits(machine).into_iter().map(limit).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use backslang::kernels::mamba3::preprocess::Geometry;
    use backslang::kernels::mamba3::preprocess_backward::{self, Accumulate};

    use super::*;

    #[test]
    fn limits_that_are_gone_beyond_are_told() {
        let sizes = Geometry {
            leading: vec![30],
            rows: 30,
            inner_size: 2,
            bc_rows: 1,
            state_size: 2,
            heads: 64,
            rope_angles: 2,
        };
        let (none, typical) = (Accumulate::default(), Target::TYPICAL);
        let outline = Outline {
            launches: preprocess_backward::launches(&sizes, Dtype::F32, none, typical).unwrap(),
            inputs: vec![("k", 5000), ("v", 4096)],
            outputs: vec![("k_gradient", 5000)],
            scratch: 100,
            ..Outline::default()
        };
        let target = Target { max_binding: 4096, max_groups: [4, 1], ..Target::TYPICAL };
        let machine = Machine { device: None, target, memory: Some(14_195) };
        assert_eq!((outline.dispatches(target), outline.pipelines()), (7, 2));
        let told = outline.text(&machine);
        for line in [
            "7 dispatches of 2 pipelines",
            "beyond maxStorageBufferRange 4096: k 5000, in several buffers",
            "beyond maxStorageBufferRange 4096: k_gradient 5000, in several buffers",
            "beyond maxComputeWorkGroupCount 4: mamba3_preprocess_backward 12, in 3 dispatches",
            "beyond maxComputeWorkGroupCount 1: mamba3_dt_bias_gradient 2, in 2 dispatches",
            "beyond memory 14195: all arrays 14196, an error",
            "bytes: inputs 9096, outputs 5000, scratch 100",
        ] {
            assert!(told.lines().any(|found| found == line), "{line}: {told}");
        }
        assert_eq!(told.matches("beyond").count(), 6);
        assert!(outline.limits(&Machine::TYPICAL).is_empty());
    }
}

//! What the SPIR-V itself tells of a kernel.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::Axis;
use crate::runtime::spirv::{Malformed, instructions};

/// Numbers of the SPIR-V specification, by its names.
mod op {
    pub(super) const NAME: u32 = 5;
    pub(super) const ENTRY_POINT: u32 = 15;
    pub(super) const EXECUTION_MODE: u32 = 16;
    pub(super) const CONSTANT: u32 = 43;
    pub(super) const SPEC_CONSTANT_TRUE: u32 = 48;
    pub(super) const SPEC_CONSTANT_FALSE: u32 = 49;
    pub(super) const SPEC_CONSTANT: u32 = 50;
    pub(super) const VARIABLE: u32 = 59;
    pub(super) const DECORATE: u32 = 71;
    pub(super) const EXECUTION_MODE_ID: u32 = 331;
}
const SPEC_ID: u32 = 1;
const BINDING: u32 = 33;
const DESCRIPTOR_SET: u32 = 34;
const LOCAL_SIZE: u32 = 17;
const LOCAL_SIZE_ID: u32 = 38;
const GL_COMPUTE: u32 = 5;
const PUSH_CONSTANT: u32 = 9;
const STORAGE_BUFFER: u32 = 12;

/// What a module of one entry point says of itself, beside what the compiler reflects.
#[derive(Debug, PartialEq)]
pub(super) struct Scan {
    pub(super) entry_point: String,
    pub(super) workgroup_size: [Axis; 3],
    /// Default bits of each specialization constant in the module, by id.
    pub(super) defaults: BTreeMap<u32, u32>,
    pub(super) has_push_constants: bool,
}

/// Words of the module that matter, by the results that they are of.
#[derive(Default)]
struct Words {
    entry_points: Vec<String>,
    /// Whether the axes are results, and the axes.
    size: Option<(bool, [u32; 3])>,
    names: BTreeMap<u32, String>,
    spec_ids: BTreeMap<u32, u32>,
    constants: BTreeMap<u32, u32>,
    /// Descriptor sets and bindings.
    places: BTreeMap<u32, [Option<u32>; 2]>,
    classes: BTreeMap<u32, u32>,
}

impl Scan {
    /// Reads a module; refuses what cannot be bound.
    pub(super) fn read(module: &[u32]) -> Result<Self, String> {
        let words =
            Words::read(module).map_err(|error| format!("its SPIR-V is damaged: {error}"))?;
        words.check_bindings()?;
        let [entry_point] = words.entry_points.as_slice() else {
            return Err(format!("expected one entry point, found {}", words.entry_points.len()));
        };
        let (by_id, size) = words.size.ok_or("the entry point has no [numthreads]")?;
        let mut workgroup_size = size.map(Axis::Fixed);
        if by_id {
            for (axis, id) in workgroup_size.iter_mut().zip(size) {
                *axis = words.axis(id)?;
            }
        }
        let constant = |(result, id): (&u32, &u32)| Some((*id, *words.constants.get(result)?));
        Ok(Self {
            entry_point: entry_point.clone(),
            workgroup_size,
            defaults: words.spec_ids.iter().filter_map(constant).collect(),
            has_push_constants: words.classes.values().any(|class| *class == PUSH_CONSTANT),
        })
    }
}

impl Words {
    fn read(module: &[u32]) -> Result<Self, Malformed> {
        let mut words = Self::default();
        for instruction in instructions(module)? {
            let (_, instruction) = instruction?;
            words.note(instruction[0] & 0xffff, &instruction[1..]);
        }
        Ok(words)
    }

    fn note(&mut self, number: u32, operands: &[u32]) {
        match (number, operands) {
            (op::NAME, [result, name @ ..]) => {
                self.names.insert(*result, string(name));
            }
            (op::ENTRY_POINT, [GL_COMPUTE, _, name @ ..]) => self.entry_points.push(string(name)),
            (op::EXECUTION_MODE, [_, LOCAL_SIZE, x, y, z]) => {
                self.size = Some((false, [*x, *y, *z]));
            }
            (op::EXECUTION_MODE_ID, [_, LOCAL_SIZE_ID, x, y, z]) => {
                self.size = Some((true, [*x, *y, *z]));
            }
            (op::DECORATE, [target, SPEC_ID, id]) => {
                self.spec_ids.insert(*target, *id);
            }
            (op::DECORATE, [target, DESCRIPTOR_SET, set]) => {
                self.places.entry(*target).or_default()[0] = Some(*set);
            }
            (op::DECORATE, [target, BINDING, binding]) => {
                self.places.entry(*target).or_default()[1] = Some(*binding);
            }
            (op::CONSTANT | op::SPEC_CONSTANT, [_, result, value]) => {
                self.constants.insert(*result, *value);
            }
            (op::SPEC_CONSTANT_TRUE, [_, result]) => {
                self.constants.insert(*result, 1);
            }
            (op::SPEC_CONSTANT_FALSE, [_, result]) => {
                self.constants.insert(*result, 0);
            }
            (op::VARIABLE, [_, result, class, ..]) => {
                self.classes.insert(*result, *class);
            }
            _ => {}
        }
    }

    /// The heap is the one binding that there is.
    fn check_bindings(&self) -> Result<(), String> {
        let beside: BTreeSet<String> = self
            .places
            .iter()
            .filter(|(variable, place)| {
                let class = self.classes.get(variable).copied();
                **place != [Some(0); 2] || class != Some(STORAGE_BUFFER)
            })
            .map(|(variable, [set, binding])| {
                let name = self.names.get(variable).map_or("?", String::as_str);
                let [set, binding] = [set, binding].map(|n| n.unwrap_or_default());
                format!("`{name}` (binding {binding}, set {set})")
            })
            .collect();
        if beside.is_empty() {
            return Ok(());
        }
        let heap = "RWByteAddressBuffer storage_buffers[] at binding 0, set 0";
        let beside = Vec::from_iter(beside).join(", ");
        Err(format!("parameters are bound through {heap} alone, but there is {beside}"))
    }

    fn axis(&self, result: u32) -> Result<Axis, String> {
        match (self.spec_ids.get(&result), self.constants.get(&result)) {
            (Some(id), _) => Ok(Axis::Constant(*id)),
            (None, Some(value)) => Ok(Axis::Fixed(*value)),
            (None, None) => {
                Err("an axis of [numthreads] is neither a number nor a specialization constant"
                    .into())
            }
        }
    }
}

/// A string operand: bytes in words, ended by a zero byte.
fn string(operands: &[u32]) -> String {
    let bytes: Vec<u8> =
        operands.iter().flat_map(|w| w.to_le_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::KERNELS;

    #[test]
    fn the_scan_tells_what_the_manifest_tells() {
        for kernel in KERNELS {
            let scan = Scan::read(&kernel.words()).unwrap();
            assert_eq!(scan.entry_point, kernel.entry_point);
            assert_eq!(scan.workgroup_size, kernel.workgroup_size);
            for (id, default) in scan.defaults {
                let constant = kernel.constants.iter().find(|constant| constant.id == id);
                assert_eq!(constant.map(|constant| constant.default), Some(default));
            }
        }
    }

    #[test]
    fn a_module_that_is_none_is_refused() {
        assert!(Scan::read(&[]).unwrap_err().contains("damaged"));
        let mut words = KERNELS[0].words();
        words[5] = 0;
        assert!(Scan::read(&words).unwrap_err().contains("damaged"));
    }
}

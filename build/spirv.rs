//! Reads the little that is needed from the words of a SPIR-V module.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::model::Axis;

/// Instruction and decoration numbers of the SPIR-V specification, by its names.
pub(crate) mod op {
    pub(crate) const EXT_INST_IMPORT: u16 = 11;
    pub(crate) const EXT_INST: u16 = 12;
    pub(crate) const ENTRY_POINT: u16 = 15;
    pub(crate) const EXECUTION_MODE: u16 = 16;
    pub(crate) const CONSTANT: u16 = 43;
    pub(crate) const SPEC_CONSTANT_TRUE: u16 = 48;
    pub(crate) const SPEC_CONSTANT_FALSE: u16 = 49;
    pub(crate) const SPEC_CONSTANT: u16 = 50;
    pub(crate) const DECORATE: u16 = 71;
    pub(crate) const MEMBER_DECORATE: u16 = 72;
    pub(crate) const EXECUTION_MODE_ID: u16 = 331;

    pub(crate) const DECORATION_SPEC_ID: u32 = 1;
    pub(crate) const DECORATION_NO_CONTRACTION: u32 = 42;
    /// Fma of the extended instruction set GLSL.std.450.
    pub(crate) const GLSL_FMA: u32 = 50;
    pub(crate) const MODE_LOCAL_SIZE: u32 = 17;
    pub(crate) const MODE_LOCAL_SIZE_ID: u32 = 38;
    pub(crate) const MODEL_GL_COMPUTE: u32 = 5;
}

const MAGIC: u32 = 0x0723_0203;
const HEADER_WORDS: usize = 5;

/// The words of a module from the bytes of its file.
pub(crate) fn words(bytes: &[u8]) -> Result<Vec<u32>> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    ensure!(rest.is_empty(), "{} bytes are no whole number of SPIR-V words", bytes.len());
    Ok(chunks.iter().map(|c| u32::from_le_bytes(*c)).collect())
}

/// Every instruction: its number and its operand words.
pub(crate) fn instructions(module: &[u32]) -> Result<Vec<(u16, &[u32])>> {
    ensure!(module.first() == Some(&MAGIC), "no SPIR-V: the magic number is missing");
    let mut rest = module.get(HEADER_WORDS..).context("no SPIR-V: the header is cut short")?;
    let mut found = Vec::new();
    while let Some(&first) = rest.first() {
        let count = (first >> 16) as usize;
        ensure!(
            (1..=rest.len()).contains(&count),
            "broken SPIR-V: an instruction of {count} words with {} left",
            rest.len()
        );
        found.push(((first & 0xffff) as u16, &rest[1..count]));
        rest = &rest[count..];
    }
    Ok(found)
}

/// The module with NoContraction on every `fma` too: slangc puts it on additions and multiplications, yet a chain of
/// `fma` is a sum whose order counts as much.
pub(crate) fn pin_fma(module: &[u32]) -> Result<Vec<u32>> {
    let (mut set, mut fused, mut end, mut place) = (None, Vec::new(), HEADER_WORDS, None);
    for (number, operands) in instructions(module)? {
        end += operands.len() + 1;
        match (number, operands) {
            (op::EXT_INST_IMPORT, [result, name @ ..]) if string(name) == "GLSL.std.450" => {
                set = Some(*result);
            }
            (op::EXT_INST, [_, result, from, op::GLSL_FMA, ..]) if Some(*from) == set => {
                fused.push(*result);
            }
            (op::DECORATE | op::MEMBER_DECORATE, _) => place = Some(end),
            _ => {}
        }
    }
    let place = place.context("no decorations")?;
    let head = 3 << 16 | u32::from(op::DECORATE);
    let mut pinned = module[..place].to_vec();
    pinned
        .extend(fused.into_iter().flat_map(|result| [head, result, op::DECORATION_NO_CONTRACTION]));
    pinned.extend(&module[place..]);
    Ok(pinned)
}

/// What the reflection does not tell.
#[derive(Debug, PartialEq)]
pub(crate) struct Scan {
    pub(crate) entry_point: String,
    pub(crate) workgroup_size: [Axis; 3],
    /// Default bits of each specialization constant in the module, by id.
    pub(crate) defaults: BTreeMap<u32, u32>,
}

/// Reads entry point, workgroup size and specialization constants.
pub(crate) fn scan(module: &[u32]) -> Result<Scan> {
    let mut entry_points = Vec::new();
    let mut size: Option<(bool, [u32; 3])> = None;
    let mut spec_ids = BTreeMap::new();
    let mut constants = BTreeMap::new();
    for (number, operands) in instructions(module)? {
        match (number, operands) {
            (op::ENTRY_POINT, [model, _, name @ ..]) => {
                ensure!(*model == op::MODEL_GL_COMPUTE, "the entry point is no compute shader");
                entry_points.push(string(name));
            }
            (op::EXECUTION_MODE, [_, op::MODE_LOCAL_SIZE, x, y, z]) => {
                size = Some((false, [*x, *y, *z]));
            }
            (op::EXECUTION_MODE_ID, [_, op::MODE_LOCAL_SIZE_ID, x, y, z]) => {
                size = Some((true, [*x, *y, *z]));
            }
            (op::DECORATE, [target, op::DECORATION_SPEC_ID, id]) => {
                spec_ids.insert(*target, *id);
            }
            (op::CONSTANT | op::SPEC_CONSTANT, [_, result, value]) => {
                constants.insert(*result, *value);
            }
            (op::SPEC_CONSTANT_TRUE, [_, result]) => {
                constants.insert(*result, 1);
            }
            (op::SPEC_CONSTANT_FALSE, [_, result]) => {
                constants.insert(*result, 0);
            }
            _ => {}
        }
    }
    let [entry_point] = <[String; 1]>::try_from(entry_points)
        .map_err(|all| anyhow::anyhow!("expected one entry point, found {}", all.len()))?;
    let (by_id, size) = size.context("no workgroup size")?;
    let mut workgroup_size = size.map(Axis::Fixed);
    if by_id {
        for (axis, id) in workgroup_size.iter_mut().zip(size) {
            *axis = axis_of(id, &spec_ids, &constants)?;
        }
    }
    let defaults =
        spec_ids.iter().filter_map(|(result, id)| Some((*id, *constants.get(result)?))).collect();
    Ok(Scan { entry_point, workgroup_size, defaults })
}

fn axis_of(
    result: u32,
    spec_ids: &BTreeMap<u32, u32>,
    constants: &BTreeMap<u32, u32>,
) -> Result<Axis> {
    match (spec_ids.get(&result), constants.get(&result)) {
        (Some(id), _) => Ok(Axis::Constant(*id)),
        (None, Some(value)) => Ok(Axis::Fixed(*value)),
        (None, None) => bail!(
            "an axis of `numthreads` is neither a number nor a specialization constant itself"
        ),
    }
}

/// A string operand: bytes in words, ended by a zero byte.
pub(crate) fn string(operands: &[u32]) -> String {
    let bytes: Vec<u8> =
        operands.iter().flat_map(|w| w.to_le_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

//! A SPIR-V module taken apart, for the lints that follow values through it.

use std::collections::BTreeMap;

use super::build::spirv::{instructions, string};

/// Instruction numbers of the specification, by its names.
pub(crate) mod op {
    pub(crate) const NAME: u16 = 5;
    pub(crate) const ENTRY_POINT: u16 = 15;
    pub(crate) const CAPABILITY: u16 = 17;
    pub(crate) const TYPE_FLOAT: u16 = 22;
    pub(crate) const TYPE_VECTOR: u16 = 23;
    pub(crate) const TYPE_RUNTIME_ARRAY: u16 = 29;
    pub(crate) const CONSTANT_TRUE: u16 = 41;
    pub(crate) const CONSTANT_FALSE: u16 = 42;
    pub(crate) const CONSTANT: u16 = 43;
    pub(crate) const SPEC_CONSTANT_TRUE: u16 = 48;
    pub(crate) const SPEC_CONSTANT_FALSE: u16 = 49;
    pub(crate) const SPEC_CONSTANT_OP: u16 = 52;
    pub(crate) const FUNCTION: u16 = 54;
    pub(crate) const FUNCTION_PARAMETER: u16 = 55;
    pub(crate) const FUNCTION_END: u16 = 56;
    pub(crate) const FUNCTION_CALL: u16 = 57;
    pub(crate) const VARIABLE: u16 = 59;
    pub(crate) const LOAD: u16 = 61;
    pub(crate) const STORE: u16 = 62;
    pub(crate) const ACCESS_CHAIN: u16 = 65;
    pub(crate) const IN_BOUNDS_ACCESS_CHAIN: u16 = 66;
    pub(crate) const DECORATE: u16 = 71;
    pub(crate) const MEMBER_DECORATE: u16 = 72;
    pub(crate) const COMPOSITE_CONSTRUCT: u16 = 80;
    pub(crate) const COMPOSITE_EXTRACT: u16 = 81;
    pub(crate) const COMPOSITE_INSERT: u16 = 82;
    pub(crate) const COPY_OBJECT: u16 = 83;
    pub(crate) const BITCAST: u16 = 124;
    pub(crate) const I_ADD: u16 = 128;
    pub(crate) const LOGICAL_OR: u32 = 166;
    pub(crate) const LOGICAL_AND: u32 = 167;
    pub(crate) const LOGICAL_NOT: u32 = 168;
    pub(crate) const SELECT: u16 = 169;
    pub(crate) const PHI: u16 = 245;
    pub(crate) const LOOP_MERGE: u16 = 246;
    pub(crate) const LABEL: u16 = 248;
    pub(crate) const BRANCH: u16 = 249;
    pub(crate) const BRANCH_CONDITIONAL: u16 = 250;
    pub(crate) const SWITCH: u16 = 251;
    pub(crate) const RETURN_VALUE: u16 = 254;
    pub(crate) const SHUFFLE: u16 = 345;
    pub(crate) const COPY_LOGICAL: u16 = 400;
    pub(crate) const TYPE_COOPERATIVE_MATRIX: u16 = 4456;
    pub(crate) const COOPERATIVE_MATRIX_STORE: u16 = 4458;
}

pub(crate) const PUSH_CONSTANT: u32 = 9;
pub(crate) const PRIVATE: u32 = 6;
pub(crate) const FUNCTION: u32 = 7;

pub(crate) const DESCRIPTOR_SET: u32 = 34;
pub(crate) const BUILT_IN: u32 = 11;
pub(crate) const OFFSET: u32 = 35;

/// An instruction: its number and its operands.
pub(crate) type Instruction<'a> = (u16, &'a [u32]);

/// A function: its id and what it consists of.
pub(crate) struct Function<'a> {
    pub(crate) id: u32,
    pub(crate) body: Vec<Instruction<'a>>,
}

/// A module by ids.
pub(crate) struct Module<'a> {
    pub(crate) all: Vec<Instruction<'a>>,
    pub(crate) functions: Vec<Function<'a>>,
    /// The instruction that makes each id, of those that the lints look at.
    pub(crate) made_by: BTreeMap<u32, Instruction<'a>>,
}

impl<'a> Module<'a> {
    pub(crate) fn new(words: &'a [u32]) -> Self {
        let all = instructions(words).unwrap();
        let mut functions: Vec<Function> = Vec::new();
        let mut made_by = BTreeMap::new();
        let mut in_function = false;
        for &(number, words) in &all {
            if let (Some(id), true) = (result(number, words), number != op::LABEL) {
                made_by.entry(id).or_insert((number, words));
            }
            if number == op::FUNCTION {
                functions.push(Function { id: words[1], body: Vec::new() });
                in_function = true;
            }
            if let (true, Some(function)) = (in_function, functions.last_mut()) {
                function.body.push((number, words));
            }
            in_function &= number != op::FUNCTION_END;
        }
        Self { all, functions, made_by }
    }

    /// Whether it multiplies matrices.
    pub(crate) fn has_matrices(&self) -> bool {
        self.all.iter().any(|(number, _)| *number == op::TYPE_COOPERATIVE_MATRIX)
    }

    /// The module-level variables of a storage class.
    pub(crate) fn variables(&self, class: u32) -> Vec<u32> {
        let of_class = |&&(number, words): &&Instruction| {
            number == op::VARIABLE && words[2] == class && class != FUNCTION
        };
        self.all.iter().filter(of_class).map(|(_, words)| words[1]).collect()
    }

    /// What the shader calls an id.
    pub(crate) fn name(&self, id: u32) -> String {
        let name = self.all.iter().find(|(number, words)| *number == op::NAME && words[0] == id);
        name.map_or_else(|| format!("id {id}"), |(_, words)| string(&words[1..]))
    }

    /// The operands of a decoration of an id.
    pub(crate) fn decoration(&self, id: u32, decoration: u32) -> Option<&'a [u32]> {
        self.all.iter().find_map(|&(number, words)| match words {
            [target, kind, rest @ ..]
                if number == op::DECORATE && *target == id && *kind == decoration =>
            {
                Some(rest)
            }
            _ => None,
        })
    }

    /// The value of an integer constant.
    pub(crate) fn constant(&self, id: u32) -> Option<u32> {
        match self.made_by.get(&id) {
            Some((op::CONSTANT, words)) => words.get(2).copied(),
            _ => None,
        }
    }

    /// What a function's parameter is at each call: the argument's id.
    pub(crate) fn arguments(&self, parameter: u32) -> Vec<u32> {
        let place = self.functions.iter().find_map(|function| {
            let mut parameters =
                function.body.iter().filter(|(number, _)| *number == op::FUNCTION_PARAMETER);
            let index = parameters.position(|(_, words)| words[1] == parameter)?;
            Some((function.id, index))
        });
        let Some((function, index)) = place else { return Vec::new() };
        let calls = self
            .all
            .iter()
            .filter(|(number, words)| *number == op::FUNCTION_CALL && words[2] == function);
        calls.filter_map(|(_, words)| words.get(3 + index).copied()).collect()
    }
}

/// The id that an instruction makes. Those of module level that have no type first are told by number.
fn result(number: u16, words: &[u32]) -> Option<u32> {
    match number {
        19..=39 | op::LABEL | op::TYPE_COOPERATIVE_MATRIX => words.first().copied(),
        op::STORE
        | op::COOPERATIVE_MATRIX_STORE
        | op::DECORATE
        | op::MEMBER_DECORATE
        | op::ENTRY_POINT
        | op::CAPABILITY
        | op::LOOP_MERGE
        | op::BRANCH..=255
        | 2..=8
        | 10..=18
        | 247
        | 331 => None,
        _ => words.get(1).copied(),
    }
}

//! Variables, of an invocation and of a function, are stored before they are loaded. Software drivers hand out zeros, so what is never
//! cleared shows on no test device; on others it is whatever the registers held.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::module::{FUNCTION, Function, Module, PRIVATE, op};

/// Variables by bits: set when stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Stored([u128; 4]);

impl Stored {
    const NONE: Self = Self([0; 4]);
    const ALL: Self = Self([u128::MAX; 4]);
    const VARIABLES: usize = 4 * 128;

    fn has(self, variable: usize) -> bool {
        self.0[variable / 128] & 1 << (variable % 128) != 0
    }

    fn with(mut self, variable: usize) -> Self {
        self.0[variable / 128] |= 1 << (variable % 128);
        self
    }

    fn each(self, other: Self, of: impl Fn(u128, u128) -> u128) -> Self {
        Self(std::array::from_fn(|i| of(self.0[i], other.0[i])))
    }

    fn and(self, other: Self) -> Self {
        self.each(other, |a, b| a & b)
    }

    fn or(self, other: Self) -> Self {
        self.each(other, |a, b| a | b)
    }

    fn without(self, other: Self) -> Self {
        self.each(other, |a, b| a & !b)
    }
}

/// The names of the variables that some path loads first, with boolean specialization constants as given by their ids.
/// Loops are taken to run at least once, and a store to one element as one to all.
pub(crate) fn loaded_first(module: &Module, constants: &BTreeMap<u32, bool>) -> BTreeSet<String> {
    let variables: Vec<u32> = module
        .all
        .iter()
        .filter(|(number, words)| {
            *number == op::VARIABLE && [PRIVATE, FUNCTION].contains(&words[2])
        })
        .map(|(_, words)| words[1])
        .collect();
    assert!(variables.len() <= Stored::VARIABLES);
    let mut walk =
        Walk { module, constants, variables, known: HashMap::new(), faults: BTreeSet::new() };
    let entry = module.all.iter().find(|(number, _)| *number == op::ENTRY_POINT).unwrap();
    walk.function(entry.1[1], Stored::NONE, &Vec::new());
    walk.faults
}

/// Of each parameter of a function, which variable it points into.
type Arguments = Vec<(u32, Option<usize>)>;

struct Walk<'a> {
    module: &'a Module<'a>,
    constants: &'a BTreeMap<u32, bool>,
    variables: Vec<u32>,
    /// What is stored after a function, by what was before and what its parameters point into.
    known: HashMap<(u32, Stored, Vec<Option<usize>>), Stored>,
    faults: BTreeSet<String>,
}

struct Block<'a> {
    body: &'a [(u16, &'a [u32])],
    next: Vec<usize>,
    /// Where the loop that starts here goes on, and the block after it.
    continues: Option<(usize, usize)>,
}

impl Walk<'_> {
    fn function(&mut self, id: u32, before: Stored, arguments: &Arguments) -> Stored {
        let key = (id, before, arguments.iter().map(|(_, into)| *into).collect());
        if let Some(&after) = self.known.get(&key) {
            return after;
        }
        let module = self.module;
        let function = module.functions.iter().find(|f| f.id == id).unwrap();
        let blocks = self.blocks(function);
        let reached = reached(&blocks);
        let mut entering = vec![Stored::ALL; blocks.len()];
        entering[0] = before.without(self.own(function));
        let mut leaving = vec![Stored::ALL; blocks.len()];
        loop {
            let mut changed = false;
            for at in reached.iter().copied() {
                if at > 0 {
                    let from = reached.iter().filter(|from| blocks[**from].next.contains(&at));
                    entering[at] = from.fold(Stored::ALL, |all, from| all.and(leaving[*from]));
                }
                for (continues, _) in
                    blocks.iter().filter_map(|b| b.continues).filter(|c| c.1 == at)
                {
                    if reached.contains(&continues) {
                        entering[at] = entering[at].or(leaving[continues]);
                    }
                }
                let after = self.block(&blocks[at], entering[at], arguments, false);
                changed |= after != leaving[at];
                leaving[at] = after;
            }
            if !changed {
                break;
            }
        }
        let mut after = Stored::ALL;
        for at in reached {
            self.block(&blocks[at], entering[at], arguments, true);
            if blocks[at].next.is_empty() {
                after = after.and(leaving[at]);
            }
        }
        self.known.insert(key, after);
        after
    }

    /// The variables of a function, which hold nothing when it is entered.
    fn own(&self, function: &Function) -> Stored {
        let ids = function.body.iter().filter(|(number, _)| *number == op::VARIABLE);
        let places =
            ids.filter_map(|(_, words)| self.variables.iter().position(|v| *v == words[1]));
        places.fold(Stored::NONE, Stored::with)
    }

    /// What the parameters of a called function point into.
    fn arguments(&self, call: &[u32], outer: &Arguments) -> Arguments {
        let function = self.module.functions.iter().find(|f| f.id == call[2]).unwrap();
        let parameters = function.body.iter().filter(|(n, _)| *n == op::FUNCTION_PARAMETER);
        let pairs = parameters.map(|(_, words)| words[1]).zip(&call[3..]);
        pairs.map(|(parameter, value)| (parameter, self.variable(*value, outer))).collect()
    }

    fn block(
        &mut self,
        block: &Block,
        mut stored: Stored,
        arguments: &Arguments,
        report: bool,
    ) -> Stored {
        for &(number, words) in block.body {
            match number {
                op::LOAD => {
                    if let Some(variable) = self.variable(words[2], arguments)
                        && !stored.has(variable)
                        && report
                    {
                        self.faults.insert(self.module.name(self.variables[variable]));
                    }
                }
                op::STORE => {
                    if let Some(variable) = self.variable(words[0], arguments) {
                        stored = stored.with(variable);
                    }
                }
                op::FUNCTION_CALL => {
                    let inner = self.arguments(words, arguments);
                    stored = self.function(words[2], stored, &inner);
                }
                _ => {}
            }
        }
        stored
    }

    /// Which variable a pointer points into.
    fn variable(&self, pointer: u32, arguments: &Arguments) -> Option<usize> {
        match self.module.made_by.get(&pointer) {
            Some((op::ACCESS_CHAIN | op::IN_BOUNDS_ACCESS_CHAIN, words)) => {
                self.variable(words[2], arguments)
            }
            Some((op::FUNCTION_PARAMETER, _)) => {
                arguments.iter().find(|(parameter, _)| *parameter == pointer)?.1
            }
            _ => self.variables.iter().position(|variable| *variable == pointer),
        }
    }

    fn blocks<'a>(&self, function: &'a Function<'a>) -> Vec<Block<'a>> {
        let body = &function.body[..];
        let starts: Vec<usize> = (0..body.len()).filter(|i| body[*i].0 == op::LABEL).collect();
        let index =
            |label: u32| starts.iter().position(|start| body[*start].1[0] == label).unwrap();
        let ends = starts.iter().skip(1).copied().chain([body.len()]);
        let mut blocks = Vec::new();
        for (start, end) in starts.iter().copied().zip(ends) {
            let body = &body[start..end];
            let find = |number| body.iter().find(|(n, _)| *n == number).map(|(_, words)| *words);
            let next = match (find(op::BRANCH), find(op::BRANCH_CONDITIONAL), find(op::SWITCH)) {
                (Some(words), ..) => vec![words[0]],
                (_, Some(words), _) => match self.known_value(words[0]) {
                    Some(true) => vec![words[1]],
                    Some(false) => vec![words[2]],
                    None => words[1..3].to_vec(),
                },
                (.., Some(words)) => words[1..].iter().step_by(2).copied().collect(),
                _ => Vec::new(),
            };
            let continues = find(op::LOOP_MERGE).map(|words| (index(words[1]), index(words[0])));
            blocks.push(Block { body, next: next.into_iter().map(index).collect(), continues });
        }
        blocks
    }

    /// The value of a condition that the specialization constants decide.
    fn known_value(&self, id: u32) -> Option<bool> {
        if let Some(value) = self.constants.get(&id) {
            return Some(*value);
        }
        let &(number, words) = self.module.made_by.get(&id)?;
        let (operation, operands) = match number {
            op::CONSTANT_TRUE | op::SPEC_CONSTANT_TRUE => return Some(true),
            op::CONSTANT_FALSE | op::SPEC_CONSTANT_FALSE => return Some(false),
            op::SPEC_CONSTANT_OP => (words[2], &words[3..]),
            _ => (u32::from(number), words.get(2..)?),
        };
        match (operation, operands) {
            (op::LOGICAL_NOT, [a]) => self.known_value(*a).map(|a| !a),
            (op::LOGICAL_AND, [a, b]) => Some(self.known_value(*a)? & self.known_value(*b)?),
            (op::LOGICAL_OR, [a, b]) => Some(self.known_value(*a)? | self.known_value(*b)?),
            _ => None,
        }
    }
}

/// The blocks that can be reached, in the module's order.
fn reached(blocks: &[Block]) -> BTreeSet<usize> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![0]);
    while let Some(at) = left.pop() {
        if reached.insert(at) {
            left.extend(&blocks[at].next);
        }
    }
    reached
}

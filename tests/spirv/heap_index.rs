//! Every index into the heap is a push constant, the same over a whole dispatch, or so many behind one as the first lane of
//! a subgroup says, the same over a workgroup where that is one subgroup: no access needs `NonUniform`.

use std::collections::BTreeSet;

use super::module::{DESCRIPTOR_SET, FUNCTION, Instruction, Module, PUSH_CONSTANT, op};
use super::vocabulary::name;

/// The faults of a module; none when every index is a member of the push constants, the same one wherever paths meet, or
/// is added to one and uniform.
pub(crate) fn faults(words: &[u32]) -> Vec<String> {
    let module = Module::new(words);
    let bound = |&&(n, w): &&Instruction| {
        n == op::VARIABLE && module.decoration(w[1], DESCRIPTOR_SET).is_some()
    };
    let heaps: Vec<u32> = module.all.iter().filter(bound).map(|(_, words)| words[1]).collect();
    let mut faults = Vec::new();
    let mut function = String::new();
    for &(number, words) in &module.all {
        if number == op::FUNCTION {
            function = module.name(words[1]);
        }
        let fault = match (number, words) {
            (op::ACCESS_CHAIN | op::IN_BOUNDS_ACCESS_CHAIN, [_, _, base, index, ..])
                if heaps.contains(base) =>
            {
                let fault = module.sources(*index, &[], 0).err();
                fault.map(|why| {
                    format!("in `{function}` a heap index that is not from the push block: {why}")
                })
            }
            _ => (takes_pointers(number) && words.iter().any(|word| heaps.contains(word)))
                .then(|| format!("the heap is used other than by index: {}", name(number))),
        };
        faults.extend(fault);
    }
    faults
}

/// Whether operands may be pointers; access chains are looked at apart.
fn takes_pointers(number: u16) -> bool {
    matches!(number, op::FUNCTION_CALL | op::LOAD | op::STORE | op::COPY_OBJECT)
        || matches!(number, op::PHI | op::SELECT | 63 | 64 | 67..=70)
}

/// A place in memory: a variable and the members on the way from it.
struct Place {
    variable: u32,
    path: Vec<u32>,
}

/// Stands in a path for an index that is no constant.
const COMPUTED: u32 = u32::MAX;

/// Deeper than any chain of calls and copies; what loops gives up here.
const DEEPEST: usize = 64;

impl Module<'_> {
    /// An id and the shader's name for it.
    fn called(&self, id: u32) -> String {
        let named = self.all.iter().any(|(number, words)| *number == op::NAME && words[0] == id);
        if named { format!("%{id} `{}`", self.name(id)) } else { format!("%{id}") }
    }

    /// Whether a value is a vector.
    fn is_vector(&self, id: u32) -> bool {
        let ty = self.made_by.get(&id).and_then(|(_, words)| self.made_by.get(&words[0]));
        ty.is_some_and(|(number, _)| *number == op::TYPE_VECTOR)
    }

    /// The push constants that member `path` of a value can be.
    fn sources(&self, id: u32, path: &[u32], depth: usize) -> Result<BTreeSet<u32>, String> {
        let Some(&(number, words)) = self.made_by.get(&id) else {
            return Err(format!("{} is made by nothing known", self.called(id)));
        };
        if depth > DEEPEST {
            return Err(format!("{} goes in circles", self.called(id)));
        }
        let deeper = |id: u32, path: &[u32]| self.sources(id, path, depth + 1);
        match (number, words) {
            (op::COPY_OBJECT | op::COPY_LOGICAL | op::BITCAST, [_, _, from]) => deeper(*from, path),
            (op::COMPOSITE_EXTRACT, [_, _, from, members @ ..]) => {
                deeper(*from, &[members, path].concat())
            }
            (op::COMPOSITE_INSERT, [_, _, part, whole, members @ ..]) => {
                match path.strip_prefix(members) {
                    Some(rest) => deeper(*part, rest),
                    None => deeper(*whole, path),
                }
            }
            // A vector among the parts counts for several members.
            (op::COMPOSITE_CONSTRUCT, [_, _, parts @ ..])
                if parts.iter().any(|part| self.is_vector(*part)) =>
            {
                Err(format!("{} is composed of vectors", self.called(id)))
            }
            (op::COMPOSITE_CONSTRUCT, [_, _, parts @ ..]) => match path {
                [member, rest @ ..] if (*member as usize) < parts.len() => {
                    deeper(parts[*member as usize], rest)
                }
                _ => Err(format!("{} is composed", self.called(id))),
            },
            (op::LOAD, [_, _, pointer, ..]) => self.loaded(*pointer, path, depth),
            (op::FUNCTION_PARAMETER, _) => {
                let arguments = self.arguments(id);
                let each = arguments.iter().map(|argument| deeper(*argument, path));
                let all: Vec<_> = each.collect::<Result<_, _>>()?;
                Ok(all.into_iter().flatten().collect())
            }
            (op::I_ADD, [_, _, from, behind]) if self.is_first_lanes(*behind) => {
                deeper(*from, path)
            }
            (op::FUNCTION_CALL, [_, _, function, arguments @ ..]) => {
                let body = self.functions.iter().find(|f| f.id == *function).map(|f| &f.body);
                let body: Vec<_> = body.into_iter().flatten().collect();
                let returned = body.iter().filter(|(n, _)| *n == op::RETURN_VALUE);
                let returned: Vec<_> = returned.map(|(_, words)| words[0]).collect();
                if let Some(argument) = self.passed_on(&body, &returned, arguments) {
                    return deeper(argument, path);
                }
                self.one(id, returned.iter().map(|value| deeper(*value, path)))
            }
            (op::SELECT, [_, _, _, a, b]) => {
                self.one(id, [deeper(*a, path), deeper(*b, path)].into_iter())
            }
            (op::PHI, [_, _, pairs @ ..]) => {
                self.one(id, pairs.chunks(2).map(|pair| deeper(pair[0], path)))
            }
            _ => Err(format!("{} is made by {}", self.called(id), name(number))),
        }
    }

    /// The argument that a function returns on all paths, or as many places behind it as one lane says.
    fn passed_on(&self, body: &[&Instruction], returned: &[u32], arguments: &[u32]) -> Option<u32> {
        let mut parameters = body.iter().filter(|(number, _)| *number == op::FUNCTION_PARAMETER);
        let from = |value: &u32| match self.made_by.get(value) {
            Some((op::I_ADD, [_, _, from, behind])) if self.is_first_lanes(*behind) => *from,
            _ => *value,
        };
        let first = from(returned.first()?);
        let same = returned.iter().all(|value| from(value) == first);
        let place = parameters.position(|(_, words)| words[1] == first)?;
        if same { arguments.get(place).copied() } else { None }
    }

    /// Whether a value is a constant or what a function takes of one lane of the subgroup, the same for all:
    /// `WaveReadLaneAt` of a constant; or one of two such values.
    fn is_first_lanes(&self, id: u32) -> bool {
        let (called, arguments) = match self.made_by.get(&id) {
            Some((op::SELECT, [_, _, _, a, b])) => {
                return [a, b].into_iter().all(|value| self.is_first_lanes(*value));
            }
            Some((op::FUNCTION_CALL, [_, _, called, arguments @ ..])) => (called, arguments),
            _ => return self.constant(id).is_some(),
        };
        let body = self.functions.iter().find(|f| f.id == *called).map(|f| &f.body);
        let body: Vec<_> = body.into_iter().flatten().collect();
        let parameters = body.iter().filter(|(number, _)| *number == op::FUNCTION_PARAMETER);
        let given = parameters.zip(arguments).map(|((_, words), argument)| (words[1], *argument));
        let given: Vec<_> = given.collect();
        let is_constant = |id: u32| {
            let argument = given.iter().find(|(parameter, _)| *parameter == id);
            self.constant(argument.map_or(id, |(_, argument)| *argument)).is_some()
        };
        let mut returned = body.iter().filter(|(number, _)| *number == op::RETURN_VALUE);
        returned.all(|(_, words)| match self.made_by.get(&words[0]) {
            Some((op::SHUFFLE, [_, _, _, _, lane])) => match self.made_by.get(lane) {
                Some((op::BITCAST, [_, _, lane])) => is_constant(*lane),
                _ => is_constant(*lane),
            },
            _ => false,
        })
    }

    /// Where paths meet, invocations come from all of them: one push constant must be meant on each.
    fn one(
        &self,
        id: u32,
        values: impl Iterator<Item = Result<BTreeSet<u32>, String>>,
    ) -> Result<BTreeSet<u32>, String> {
        let all: BTreeSet<u32> =
            values.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        match all.len() {
            0 => Err(format!("{} is never stored", self.called(id))),
            1 => Ok(all),
            _ => Err(format!("{} is one of several push constants", self.called(id))),
        }
    }

    /// The push constants that member `path` behind a pointer can be.
    fn loaded(&self, pointer: u32, path: &[u32], depth: usize) -> Result<BTreeSet<u32>, String> {
        let mut all = BTreeSet::new();
        for Place { variable, path: way } in self.places(pointer, depth)? {
            let path = [&way[..], path].concat();
            let class = self.made_by.get(&variable).map(|(_, words)| words[2]);
            match class {
                Some(PUSH_CONSTANT) => match path[..] {
                    [member] if member != COMPUTED => {
                        all.insert(member);
                    }
                    _ => {
                        return Err(format!(
                            "{} is no member of the push block",
                            self.called(pointer)
                        ));
                    }
                },
                Some(FUNCTION) if path.contains(&COMPUTED) => {
                    return Err(format!("{} has a computed index", self.called(pointer)));
                }
                Some(FUNCTION) => all.extend(self.stored(variable, &path, depth)?),
                _ => return Err(format!("it is loaded from {}", self.called(variable))),
            }
        }
        Ok(all)
    }

    /// What is stored to member `path` of a function's variable.
    fn stored(&self, variable: u32, path: &[u32], depth: usize) -> Result<BTreeSet<u32>, String> {
        let mut values = Vec::new();
        for (_, words) in self.all.iter().filter(|(number, _)| *number == op::STORE) {
            let (pointer, value) = (words[0], words[1]);
            for place in self.places(pointer, depth)?.into_iter().filter(|p| p.variable == variable)
            {
                let known = place.path.split(|member| *member == COMPUTED).next().unwrap_or(&[]);
                match path.strip_prefix(known) {
                    Some(_) if known.len() < place.path.len() => {
                        return Err(format!("{} has a computed index", self.called(pointer)));
                    }
                    Some(rest) => values.push(self.sources(value, rest, depth + 1)),
                    None => {}
                }
            }
        }
        self.one(variable, values.into_iter())
    }

    /// Where a pointer can point.
    fn places(&self, pointer: u32, depth: usize) -> Result<Vec<Place>, String> {
        let Some(&(number, words)) = self.made_by.get(&pointer) else {
            return Err(format!("{} is made by nothing known", self.called(pointer)));
        };
        if depth > DEEPEST {
            return Err(format!("{} goes in circles", self.called(pointer)));
        }
        match (number, words) {
            (op::VARIABLE, _) => Ok(vec![Place { variable: pointer, path: Vec::new() }]),
            (op::ACCESS_CHAIN | op::IN_BOUNDS_ACCESS_CHAIN, [_, _, base, members @ ..]) => {
                let members = members.iter().map(|m| self.constant(*m).unwrap_or(COMPUTED));
                let mut places = self.places(*base, depth + 1)?;
                places.iter_mut().for_each(|place| place.path.extend(members.clone()));
                Ok(places)
            }
            (op::FUNCTION_PARAMETER, _) => {
                let arguments = self.arguments(pointer);
                let places = arguments.iter().map(|argument| self.places(*argument, depth + 1));
                Ok(places.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
            _ => Err(format!("{} is made by {}", self.called(pointer), name(number))),
        }
    }
}

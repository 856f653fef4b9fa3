//! Planted faults, which the lints must see.

use backslang::manifest::kernel;

use super::module::{Module, op as instruction};
use super::*;

/// The module with each instruction replaced by those that `change` makes of it.
fn changed(module: &[u32], change: impl Fn(u16, &[u32]) -> Vec<Vec<u32>>) -> Vec<u32> {
    let mut words = module[..5].to_vec();
    for (number, operands) in instructions(module).unwrap() {
        for instruction in change(number, operands) {
            words.push((instruction.len() as u32) << 16 | instruction[0]);
            words.extend(&instruction[1..]);
        }
    }
    words
}

fn whole(number: u16, operands: &[u32]) -> Vec<u32> {
    [&[u32::from(number)], operands].concat()
}

/// Takes the instructions for which `keep` is true.
fn filter(module: &[u32], keep: impl Fn(u16, &[u32]) -> bool) -> Vec<u32> {
    changed(module, |number, operands| {
        Vec::from_iter(keep(number, operands).then(|| whole(number, operands)))
    })
}

/// The module with the first operand `from` of every instruction `number` replaced.
fn replaced(module: &[u32], number: u16, from: u32, to: u32) -> Vec<u32> {
    changed(module, |n, operands| {
        let mut operands = operands.to_vec();
        // Not the type and the result.
        let place = operands.iter().skip(1).position(|operand| *operand == from);
        if let (true, Some(place)) = (n == number, place) {
            operands[place + 1] = to;
        }
        vec![whole(n, &operands)]
    })
}

#[test]
fn lint_sees_what_it_is_for() {
    let module = kernel("mamba3_dt_bias_gradient", "f32").unwrap().words();
    assert_eq!(filter(&module, |_, _| true), module);

    let loose = filter(&module, |n, words| n != OP_DECORATE || words[1] != NO_CONTRACTION);
    let faults = lint(&loose);
    let seen = |fault: &String| fault.starts_with("a driver may fuse or reorder OpFAdd: ");
    assert!(!faults.is_empty() && faults.iter().all(seen), "{faults:?}");

    let fused = kernel("history_backward", "f32").unwrap().words();
    let count = instructions(&fused).unwrap().iter().filter(|(n, words)| is_fma(*n, words)).count();
    let loose = filter(&fused, |n, words| n != OP_DECORATE || words[1] != NO_CONTRACTION);
    let found = lint(&loose)
        .into_iter()
        .filter(|fault| fault.starts_with("a driver may fuse or reorder OpExtInst: "));
    assert!(count > 0 && found.count() == count);

    for (words, fault) in [
        (&[3 << 16 | 71, 9, NO_CONTRACTION][..], None),
        (&[7 << 16 | 6035, 1, 2, 3, 4, 5, 6], Some("no fixed order: OpAtomicFAddEXT")),
        (&[7 << 16 | 234, 1, 2, 3, 4, 5, 6], Some("no fixed order: OpAtomicIAdd")),
        (&[2 << 16 | 17, 9], Some("no device is asked for: Float16")),
        // A capability that this module has no use for.
        (&[2 << 16 | 17, 63], Some("nothing here needs: GroupNonUniformArithmetic")),
        (&[6 << 16 | 12, 1, 2, 3, 27, 5], Some("differ in GLSL.std.450's Exp")),
        (&[3 << 16 | 11, 999, u32::from_le_bytes(*b"new\0")], Some("than GLSL.std.450: new")),
        (&[4 << 16 | 71, 9, FP_FAST_MATH_MODE, 16], Some("no kernel needs: FPFastMathMode")),
        (&[3 << 16 | 71, 9, 0], Some("no kernel needs: RelaxedPrecision")),
        (&[3 << 16 | 71, 9, 21], Some("no kernel needs: Volatile")),
        (&[3 << 16 | 71, 9, 19], Some("no kernel needs: Restrict")),
        (&[4 << 16 | 72, 9, 0, 23], Some("no kernel needs: Coherent")),
        (&[2 << 16 | 73, 999], Some("OpDecorationGroup is not among")),
        (&[3 << 16 | 74, 999, 9], Some("OpGroupDecorate is not among")),
        (&[4 << 16 | 75, 999, 9, 0], Some("OpGroupMemberDecorate is not among")),
        (&[4 << 16 | 332, 9, 5300, 1], Some("OpDecorateId is not among")),
        (&[3 << 16 | 63, 998, 999], Some("OpCopyMemory is not among")),
        (&[4 << 16 | 64, 998, 999, 1], Some("OpCopyMemorySized is not among")),
        (&[4 << 16 | 116, 1, 999, 9], Some("OpQuantizeToF16 is not among")),
        (
            &[3 << 16 | 71, 999, NO_CONTRACTION, 5 << 16 | 148, 1, 999, 9, 9],
            Some("OpDot is not among"),
        ),
        (&[5 << 16 | 61, 1, 999, 9, 1], Some("OpLoad with memory operands")),
        (&[4 << 16 | 62, 998, 999, 1], Some("OpStore with memory operands")),
        (&[5 << 16 | 59, 1, 999, 7, 9], Some("OpVariable with an initializer")),
        (&[4 << 16 | 71, 9, BINDING, 1], Some("a binding other than the heap's")),
        (&[3 << 16 | 7, 9, 0x0061_002f], Some("the string \"/\"")),
    ] {
        let found = lint(&[&module, words].concat());
        assert_eq!(found.len(), usize::from(fault.is_some()), "{words:?}: {found:?}");
        let seen = found.iter().zip(fault).all(|(found, fault)| found.contains(fault));
        assert!(seen, "{words:?}: {found:?}");
    }
}

/// The id that a shader calls so.
fn id(words: &[u32], name: &str) -> u32 {
    let found = instructions(words).unwrap().into_iter();
    let mut found =
        found.filter(|(n, words)| *n == instruction::NAME && string(&words[1..]) == name);
    found.next().unwrap().1[0]
}

/// The heap's one access in `load_word`: its index, and that into the buffer.
fn indices(words: &[u32]) -> (u32, u32) {
    let module = Module::new(words);
    let load_word = id(words, "load_word");
    let function = module.functions.iter().find(|f| f.id == load_word).unwrap();
    let mut parameters = function.body.iter().filter(|i| i.0 == instruction::FUNCTION_PARAMETER);
    let mut next = || parameters.next().unwrap().1[1];
    (next(), next())
}

#[test]
fn an_index_from_elsewhere_is_seen() {
    let module = kernel("clear_pages", "f32").unwrap().words();
    assert_eq!(heap_index::faults(&module), Vec::<String>::new());
    let (heap, buffer) = indices(&module);
    let computed = replaced(&module, instruction::ACCESS_CHAIN, heap, buffer);
    let [fault] = &heap_index::faults(&computed)[..] else { panic!() };
    assert!(fault.ends_with("is made by OpIAdd"), "{fault}");

    // The workgroup's own number, given to `load_word` as the index.
    let parsed = Module::new(&module);
    let call = parsed
        .all
        .iter()
        .find(|(n, w)| *n == instruction::FUNCTION_CALL && w[2] == id(&module, "load_word"));
    let argument = call.unwrap().1[3];
    let extracted = parsed.all.iter().find(|(n, _)| *n == instruction::COMPOSITE_EXTRACT);
    let built_in = replaced(&module, instruction::FUNCTION_CALL, argument, extracted.unwrap().1[1]);
    let [fault] = &heap_index::faults(&built_in)[..] else { panic!() };
    assert!(fault.contains("not from the push block: it is loaded from"), "{fault}");

    let passed = [&module[..], &[4 << 16 | 61, 1, 999, id(&module, "storage_buffers")]].concat();
    assert_eq!(heap_index::faults(&passed), ["the heap is used other than by index: OpLoad"]);
}

/// What is added to an index: the value of one lane, and then of each its own.
#[test]
fn a_part_of_each_lane_is_seen() {
    let module = kernel("mamba3_dt_bias_gradient", "f32").unwrap().words();
    assert_eq!(heap_index::faults(&module), Vec::<String>::new());
    let read_lane = id(&module, "WaveReadLaneAt");
    let parsed = Module::new(&module);
    let is_call =
        |(n, w): &&module::Instruction| *n == instruction::FUNCTION_CALL && w[2] == read_lane;
    let (_, call) = parsed.all.iter().find(is_call).unwrap();
    let uneven = replaced(&module, instruction::FUNCTION_CALL, call[4], call[3]);
    let [fault] = &heap_index::faults(&uneven)[..] else { panic!() };
    assert!(fault.ends_with("is made by OpIAdd"), "{fault}");
}

/// A choice between two indices, in front of the access of `load_word`.
#[test]
fn a_choice_of_indices_is_seen() {
    let module = kernel("clear_pages", "f32").unwrap().words();
    let (heap, buffer) = indices(&module);
    let storage = id(&module, "storage_buffers");
    let choose = |other: u32| {
        changed(&module, |number, operands| {
            let is_it = number == instruction::ACCESS_CHAIN && operands[2..] == [storage, heap];
            let mut access = whole(number, operands);
            if !is_it {
                return vec![access];
            }
            access[4] = 998;
            vec![vec![u32::from(instruction::SELECT), 5, 998, 997, heap, other], access]
        })
    };
    assert_eq!(heap_index::faults(&choose(heap)), Vec::<String>::new());
    assert_eq!(heap_index::faults(&choose(buffer)).len(), 1);
    // Each push constant that is loaded: the index's own, and others.
    let parsed = Module::new(&module);
    let push = parsed.variables(module::PUSH_CONSTANT)[0];
    let chain_to_push =
        |pointer| matches!(parsed.made_by.get(&pointer), Some((_, w)) if w[2] == push);
    let loads = parsed.all.iter().filter(|(n, w)| *n == instruction::LOAD && chain_to_push(w[2]));
    let faults: Vec<_> = loads.map(|(_, w)| heap_index::faults(&choose(w[1]))).collect();
    assert!(faults.iter().any(Vec::is_empty));
    let several =
        |faults: &Vec<String>| faults.iter().any(|f| f.ends_with("several push constants"));
    assert!(faults.iter().any(several), "{faults:?}");
}

/// Indices within structs that functions get by pointer: the plan's words in `Metadata` and `Inverse`.
#[test]
fn an_index_stored_in_a_struct_is_followed() {
    let module = kernel("history_backward", "f32").unwrap().words();
    let parsed = Module::new(&module);
    let init = id(&module, "Inverse.$init");
    let body = &parsed.functions.iter().find(|f| f.id == init).unwrap().body;
    let find = |number: u16| body.iter().find(|i| i.0 == number).unwrap().1;
    let (buffer, word) =
        (find(instruction::FUNCTION_PARAMETER)[1], find(instruction::FUNCTION_CALL)[1]);
    let planted = replaced(&module, instruction::STORE, buffer, word);
    let faults = heap_index::faults(&planted);
    let heap = format!("loaded from %{} `storage_buffers`", id(&module, "storage_buffers"));
    assert!(!faults.is_empty() && faults.iter().all(|f| f.ends_with(&heap)), "{faults:?}");
}

/// A vector among the parts moves the members behind it.
#[test]
fn an_index_composed_of_vectors_is_seen() {
    let module = kernel("clear_pages", "f32").unwrap().words();
    let (heap, buffer) = indices(&module);
    let storage = id(&module, "storage_buffers");
    let parsed = Module::new(&module);
    let vector = parsed.all.iter().find(|i| i.0 == instruction::TYPE_VECTOR).unwrap().1[0];
    let uint = parsed.made_by[&heap].1[0];
    let construct = u32::from(instruction::COMPOSITE_CONSTRUCT);
    let extract = u32::from(instruction::COMPOSITE_EXTRACT);
    let plant = |parts: &[u32]| {
        changed(&module, |number, operands| {
            let mut access = whole(number, operands);
            if !(number == instruction::ACCESS_CHAIN && operands[2..] == [storage, heap]) {
                return vec![access];
            }
            access[4] = 997;
            let inner = vec![construct, vector, 998, buffer, buffer, heap];
            let outer = [&[construct, vector, 999], parts].concat();
            vec![inner, outer, vec![extract, uint, 997, 999, 1], access]
        })
    };
    assert_eq!(heap_index::faults(&plant(&[buffer, heap, buffer])), Vec::<String>::new());
    let [fault] = &heap_index::faults(&plant(&[998, heap]))[..] else { panic!() };
    assert!(fault.ends_with("%999 is composed of vectors"), "{fault}");
}

/// Variables of a function, one of which hands on a heap index.
#[test]
fn a_function_variable_that_is_not_stored_is_seen() {
    let kernel = kernel("history_backward", "f32").unwrap();
    let words = kernel.words();
    let parsed = Module::new(&words);
    let init = id(&words, "Inverse.$init");
    let body = &parsed.functions.iter().find(|f| f.id == init).unwrap().body;
    let variable = body.iter().find(|i| i.0 == instruction::VARIABLE).unwrap().1[1];
    let into = |pointer: u32| {
        let chain = |i: &&module::Instruction<'_>| {
            i.0 == instruction::ACCESS_CHAIN && i.1[1] == pointer && i.1[2] == variable
        };
        pointer == variable || body.iter().any(|i| chain(&i))
    };
    let never = filter(&words, |n, w| !(n == instruction::STORE && into(w[0])));
    assert_eq!(loaded_first(kernel, &never), BTreeSet::from([parsed.name(variable)]));
    let faults = heap_index::faults(&never);
    assert!(
        !faults.is_empty() && faults.iter().all(|f| f.contains("is never stored")),
        "{faults:?}"
    );

    // The first store comes after a load.
    let store = body.iter().find(|i| i.0 == instruction::STORE && into(i.1[0])).unwrap();
    let pointer = store.1[0];
    let early = changed(&words, |n, w| {
        let load = vec![u32::from(instruction::LOAD), 1, 999, pointer];
        let whole = whole(n, w);
        if (n, w) == *store { vec![load, whole] } else { vec![whole] }
    });
    assert_eq!(loaded_first(kernel, &early), BTreeSet::from([parsed.name(variable)]));
}

#[test]
fn what_is_not_cleared_is_seen() {
    let kernel = kernel("history_backward", "f32").unwrap();
    let words = kernel.words();
    let parsed = Module::new(&words);
    let clear = id(&words, "clear_sums");
    let body = &parsed.functions.iter().find(|f| f.id == clear).unwrap().body;
    for name in ["cached", "slot_sum", "kept", "ahead"] {
        let variable = id(&words, name);
        let mut pointers = vec![variable];
        let chains =
            body.iter().filter(|(n, w)| *n == instruction::ACCESS_CHAIN && w[2] == variable);
        pointers.extend(chains.map(|(_, words)| words[1]));
        let stores = |n: u16, w: &[u32]| n == instruction::STORE && pointers.contains(&w[0]);
        let value = body.iter().find(|(n, w)| stores(*n, w)).unwrap().1[1];
        let planted = filter(&words, |n, w| !(stores(n, w) && w[1] == value));
        assert_eq!(loaded_first(kernel, &planted), BTreeSet::from([name.to_owned()]));
    }
}

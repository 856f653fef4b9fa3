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
    assert_eq!(lint(&loose), [format!("instruction {OP_F_ADD} without NoContraction")]);

    let fused = kernel("history_backward", "f32").unwrap().words();
    let count = instructions(&fused).unwrap().iter().filter(|(n, words)| is_fma(*n, words)).count();
    let loose = filter(&fused, |n, words| n != OP_DECORATE || words[1] != NO_CONTRACTION);
    let found = lint(&loose).into_iter().filter(|fault| fault.starts_with("instruction 12 "));
    assert!(count > 0 && found.count() == count);

    for (words, fault) in [
        (&[3 << 16 | 71, 9, NO_CONTRACTION][..], None),
        (&[7 << 16 | 6035, 1, 2, 3, 4, 5, 6], Some("atomic instruction 6035")),
        (&[7 << 16 | 234, 1, 2, 3, 4, 5, 6], Some("atomic instruction 234")),
        (&[2 << 16 | 17, 9], Some("capability 9")),
        // GroupNonUniformArithmetic, which this module has no use for.
        (&[2 << 16 | 17, 63], Some("capability 63")),
        // The built-in exp.
        (&[6 << 16 | 12, 1, 2, 3, 27, 5], Some("extended instruction 27")),
        (&[4 << 16 | 71, 9, FP_FAST_MATH_MODE, 16], Some("fast math")),
        (&[4 << 16 | 71, 9, BINDING, 1], Some("a binding other than the heap's")),
        (&[3 << 16 | 7, 9, 0x0061_002f], Some("the string \"/\"")),
    ] {
        let found = lint(&[&module, words].concat());
        assert_eq!(found, Vec::from_iter(fault.map(str::to_owned)), "{words:?}");
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
    assert!(fault.ends_with("is made by instruction 128"), "an addition: {fault}");

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
    assert!(fault.contains("points to variable"), "{fault}");

    let passed = [&module[..], &[4 << 16 | 61, 1, 999, id(&module, "storage_buffers")]].concat();
    assert_eq!(heap_index::faults(&passed), ["instruction 61 uses the heap"]);
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
    let heap = format!("points to variable {}", id(&module, "storage_buffers"));
    assert!(!faults.is_empty() && faults.iter().all(|f| f.ends_with(&heap)), "{faults:?}");
}

#[test]
fn what_is_not_cleared_is_seen() {
    let kernel = kernel("history_backward", "f32").unwrap();
    let words = kernel.words();
    let parsed = Module::new(&words);
    let clear = id(&words, "clear_sums");
    let body = &parsed.functions.iter().find(|f| f.id == clear).unwrap().body;
    for name in ["cached", "key_sum", "value_sum", "position_sum"] {
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

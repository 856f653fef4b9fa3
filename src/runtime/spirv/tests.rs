//! The patches over every kernel of the crate, and over small modules for what those do not have.

use super::*;
use crate::manifest::KERNELS;

const ALL: FloatControls = FloatControls {
    signed_zero_inf_nan_preserve: true,
    denorm_preserve: true,
    rounding_mode_rte: true,
    denorm_independent: true,
    rounding_independent: true,
};

fn modules() -> impl Iterator<Item = (&'static str, Vec<u32>)> {
    KERNELS.iter().map(|k| (k.name, words(k.spirv).unwrap()))
}

fn instructions(module: &[u32]) -> Vec<&[u32]> {
    Instructions::new(&module[HEADER..], HEADER).map(|i| i.unwrap().1).collect()
}

/// A module of the given instructions, each an opcode with its operands.
fn module(instructions: &[(u32, &[u32])]) -> Vec<u32> {
    let mut words = vec![MAGIC, 0x0001_0500, 0, 100, 0];
    for (opcode, operands) in instructions {
        words.push((operands.len() as u32 + 1) << 16 | opcode);
        words.extend_from_slice(operands);
    }
    words
}

const ENTRY: (u32, &[u32]) = (OP_ENTRY_POINT, &[5, 1, 0]);

#[test]
fn nothing_asked_for_changes_nothing() {
    for (name, module) in modules() {
        assert!(patch(&module, &Patch::default()).unwrap() == module, "{name}");
    }
}

#[test]
fn every_kernel_gets_every_mode_once() {
    let all = Patch { float_controls: ALL, ..Patch::default() };
    let added = |i: &&[u32]| {
        matches!(i, [_, 4464 | 4466 | 4467] if opcode(i[0]) == OP_CAPABILITY)
            || matches!(i, [_, _, 4459 | 4461 | 4462, 32] if opcode(i[0]) == OP_EXECUTION_MODE)
    };
    for (name, module) in modules() {
        let patched = patch(&module, &all).unwrap();
        let found = instructions(&patched);
        let entry_points = found.iter().filter(|i| opcode(i[0]) == OP_ENTRY_POINT).count();
        assert_eq!(found.iter().filter(|i| added(i)).count(), 3 + 3 * entry_points, "{name}");
        let rest: Vec<_> = found.iter().copied().filter(|i| !added(i)).collect();
        let before = instructions(&module);
        assert!(rest == before.into_iter().filter(|i| !added(i)).collect::<Vec<_>>(), "{name}");
        assert!(patch(&patched, &all).unwrap() == patched, "{name}: not idempotent");
    }
}

#[test]
fn modes_stand_between_entry_points_and_the_rest() {
    let patched = patch(
        &module(&[
            (OP_CAPABILITY, &[1]),
            (14, &[0, 1]),
            (OP_ENTRY_POINT, &[5, 1, 0]),
            (OP_ENTRY_POINT, &[5, 2, 0]),
            (OP_EXECUTION_MODE, &[1, 17, 64, 1, 1]),
        ]),
        &Patch {
            float_controls: FloatControls { rounding_mode_rte: true, ..<_>::default() },
            ..Patch::default()
        },
    );
    let expected = module(&[
        (OP_CAPABILITY, &[1]),
        (OP_CAPABILITY, &[4467]),
        (14, &[0, 1]),
        (OP_ENTRY_POINT, &[5, 1, 0]),
        (OP_ENTRY_POINT, &[5, 2, 0]),
        (OP_EXECUTION_MODE, &[1, 4462, 32]),
        (OP_EXECUTION_MODE, &[2, 4462, 32]),
        (OP_EXECUTION_MODE, &[1, 17, 64, 1, 1]),
    ]);
    assert_eq!(patched.unwrap(), expected);
}

#[test]
fn a_mode_that_the_module_states_stays() {
    let stated = module(&[
        (OP_CAPABILITY, &[1]),
        (OP_CAPABILITY, &[4465]),
        ENTRY,
        (OP_EXECUTION_MODE, &[1, 4460, 32]),
    ]);
    let only_denorm = FloatControls { denorm_preserve: true, ..FloatControls::default() };
    let patched = patch(&stated, &Patch { float_controls: only_denorm, ..Patch::default() });
    assert!(!patched.unwrap().windows(3).any(|w| w == [1, 4459, 32]));
}

#[test]
fn tied_widths_keep_the_default() {
    let tied = FloatControls { denorm_independent: false, rounding_independent: false, ..ALL };
    let patch_tied = Patch { float_controls: tied, ..Patch::default() };
    let single = module(&[(OP_CAPABILITY, &[1]), ENTRY, (OP_TYPE_FLOAT, &[3, 32])]);
    assert_eq!(patch(&single, &patch_tied).unwrap().len(), single.len() + 3 * 6);
    let both = [single, module(&[(OP_TYPE_FLOAT, &[4, 16])])[HEADER..].to_vec()].concat();
    assert_eq!(patch(&both, &patch_tied).unwrap().len(), both.len() + 6);
}

#[test]
fn every_loop_of_every_kernel_is_kept() {
    let keep = Patch { keep_loops: true, ..Patch::default() };
    let mut loops = 0;
    for (name, module) in modules() {
        let patched = patch(&module, &keep).unwrap();
        let (before, after) = (instructions(&module), instructions(&patched));
        assert_eq!(before.len(), after.len(), "{name}");
        for (before, after) in before.into_iter().zip(after) {
            if opcode(after[0]) == OP_LOOP_MERGE {
                loops += 1;
                assert_eq!(after[3] & (UNROLL | DONT_UNROLL), DONT_UNROLL, "{name}");
                assert_eq!(before[1..3], after[1..3], "{name}");
            } else {
                assert_eq!(before, after, "{name}");
            }
        }
    }
    assert!(loops > 0);
}

#[test]
fn literals_of_loop_controls_stay_with_their_bits() {
    let one = |operands: &[u32]| module(&[ENTRY, (OP_LOOP_MERGE, operands)]);
    let keep = Patch { keep_loops: true, ..Patch::default() };
    for (before, after) in [
        (&[8, 9, 0][..], &[8, 9, 2][..]),
        (&[8, 9, 1], &[8, 9, 2]),
        (&[8, 9, 2], &[8, 9, 2]),
        (&[8, 9, 0x4], &[8, 9, 0x6]),
        (&[8, 9, 0x8, 77], &[8, 9, 0xa, 77]),
        (&[8, 9, 0x80 | 1, 5], &[8, 9, 2]),
        (&[8, 9, 0x100 | 0x80 | 0x40 | 0x10, 1, 2, 3, 4], &[8, 9, 0x52, 1, 2]),
    ] {
        assert_eq!(patch(&one(before), &keep).unwrap(), one(after), "{before:x?}");
    }
}

#[test]
fn the_language_is_hidden() {
    let source = |language| module(&[ENTRY, (OP_SOURCE, &[language, 1, 7])]);
    let hide = Patch { hide_language: true, ..Patch::default() };
    assert_eq!(patch(&source(11), &hide).unwrap(), source(0));
}

#[test]
fn a_device_gets_the_modes_that_it_offers() {
    let source = module(&[(OP_CAPABILITY, &[1]), ENTRY, (OP_SOURCE, &[11, 1])]);
    let with_loop = [&source[..], &[4 << 16 | OP_LOOP_MERGE, 8, 9, 0]].concat();
    let patched = |controls, software| {
        let patched = patch(&with_loop, &Patch::of(controls, software)).unwrap();
        let found = instructions(&patched);
        let kept = found.iter().any(|i| opcode(i[0]) == OP_LOOP_MERGE && i[3] == DONT_UNROLL);
        let modes = found.iter().filter(|i| opcode(i[0]) == OP_EXECUTION_MODE).count();
        let hidden = found.iter().any(|i| opcode(i[0]) == OP_SOURCE && i[1] == UNKNOWN_LANGUAGE);
        (modes, kept, hidden)
    };
    assert_eq!(patched(ALL, true), (3, true, true));
    assert_eq!(patched(FloatControls::default(), false), (0, false, true));
}

#[test]
fn damage_is_found() {
    let (_, good) = modules().next().unwrap();
    let patch = |module: &[u32]| patch(module, &Patch::default());
    assert_eq!(words(&[3, 2, 0x23, 7, 0]), Err(Malformed::Length));
    assert_eq!(words(&[]), Err(Malformed::Length));
    assert_eq!(patch(&[]), Err(Malformed::Length));
    assert_eq!(
        patch(&good.iter().map(|w| w.swap_bytes()).collect::<Vec<_>>()),
        Err(Malformed::Magic)
    );
    assert_eq!(patch(&good[..HEADER]), Err(Malformed::NoEntryPoint));
    assert!(matches!(patch(&[&good[..], &[0]].concat()), Err(Malformed::Instruction(_))));
    // Cut anywhere: an error or, between instructions, a shorter module; never a panic.
    for length in 0..good.len() {
        let _ = patch(&good[..length]);
    }
}

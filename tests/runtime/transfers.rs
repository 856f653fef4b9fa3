//! Uploads, downloads and fills.

use std::collections::VecDeque;

use super::*;

pub(crate) const TESTS: &[Test] = &[
    ("contents_survive_a_round_trip", contents_survive_a_round_trip),
    ("empty_tensors_are_legal", empty_tensors_are_legal),
    ("copies_and_kernels_take_turns", copies_and_kernels_take_turns),
    ("large_contents_go_in_pieces", large_contents_go_in_pieces),
    ("fill_sets_every_word", fill_sets_every_word),
];

pub(crate) const EXCLUSIVE: &[Test] = &[("staging_memory_is_bounded", staging_memory_is_bounded)];

fn contents_survive_a_round_trip(runtime: &Runtime) -> Outcome {
    for n in [1, 2, 3, 63, 64, 65, 1543, 100_003] {
        let host = HostTensor::from_words(pattern(n));
        let tensor = runtime.upload("words", &host)?;
        assert_eq!((tensor.bytes(), tensor.shape()), (4 * n as u64, &[n][..]));
        assert_eq!(runtime.download(&tensor)?, host, "{n}");
    }
    let host = HostTensor::from_f32(&[2, 3], vec![0.0, -0.0, f32::INFINITY, 1e-42, 1.5, -2.0])?;
    assert_eq!(runtime.download(&runtime.upload("floats", &host)?)?, host);
    let scalar = HostTensor::from_f32(&[], vec![7.0])?;
    assert_eq!(runtime.download(&runtime.upload("scalar", &scalar)?)?, scalar);
    Ok(())
}

fn empty_tensors_are_legal(runtime: &Runtime) -> Outcome {
    let empty = HostTensor::from_f32(&[3, 0, 5], vec![])?;
    let tensor = runtime.upload("empty", &empty)?;
    assert_eq!(tensor.bytes(), 0);
    assert_eq!(runtime.download(&tensor)?, empty);
    let full = runtime.upload("full", &HostTensor::from_words(vec![5]))?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor, 1)?;
    // The kernel reads the dummy, which holds zeros.
    mix(&mut recorder, [&tensor, &full], [1, 1], [0, 9])?;
    recorder.submit()?.wait()?;
    assert_eq!(read(runtime, &full)?, [9]);
    Ok(())
}

fn large_contents_go_in_pieces(runtime: &Runtime) -> Outcome {
    // More than 64 MiB, more than the pieces that are under way at a time, and not a multiple of one.
    let host = HostTensor::from_words(pattern((70 << 18) + 12_345));
    let tensor = runtime.upload("large", &host)?;
    assert!(runtime.download(&tensor)? == host);
    Ok(())
}

/// Behind a busy device, too, the host stages only a few pieces ahead.
fn staging_memory_is_bounded(_: &Runtime) -> Outcome {
    const PIECES: usize = 8;
    const PIECE: u64 = 16 << 20;
    let runtime = open(|_| ())?;
    let host = HostTensor::from_words(vec![5; PIECES << 22]);
    let tensor = words(&runtime, "large", PIECES << 22)?;
    slow(&runtime, &tensor)?.wait()?;
    let before = runtime.memory().allocated;
    // Longer than all pieces take to stage.
    for _ in 0..16 {
        slow(&runtime, &tensor)?;
    }
    runtime.write(&tensor, host.bytes())?;
    let after = runtime.memory().allocated;
    assert!(after <= before + 5 * PIECE, "{before} {after}");
    assert!(runtime.download(&tensor)? == host);
    drop(tensor);
    runtime.finish()?;
    Ok(())
}

/// Uploads, kernels and downloads that depend on each other, in memory that is used again and again: nobody waits but for
/// the results.
fn copies_and_kernels_take_turns(runtime: &Runtime) -> Outcome {
    const WORDS: usize = 1000;
    let mixed = |word: u32| {
        (0..100).fold(word, |w, _| w.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    };
    let mut under_way = VecDeque::new();
    for round in 0..300 {
        let fresh = pattern(WORDS + round as usize).split_off(round as usize);
        let source = runtime.upload("source", &HostTensor::from_words(fresh.clone()))?;
        let [first, second] = [words(runtime, "first", WORDS)?, words(runtime, "second", WORDS)?];
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&source, &first], [WORDS, 1], [100, round])?;
        recorder.submit()?;
        // While the kernel reads it.
        runtime.write(&source, bytemuck::cast_slice(&vec![round; WORDS]))?;
        let mut recorder = runtime.recorder()?;
        mix(&mut recorder, [&source, &second], [WORDS, 1], [0, 1])?;
        recorder.submit()?;
        let expected: Vec<_> = fresh.into_iter().map(|w| mixed(w).wrapping_add(round)).collect();
        under_way.push_back((round, first, second, expected));
        if under_way.len() > 3
            && let Some((round, first, second, expected)) = under_way.pop_front()
        {
            assert!(read(runtime, &first)? == expected, "{round}");
            assert!(read(runtime, &second)? == vec![round + 1; WORDS], "{round}");
        }
    }
    Ok(())
}

fn fill_sets_every_word(runtime: &Runtime) -> Outcome {
    let tensor = words(runtime, "filled", 1001)?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor, 0xdead_beef)?;
    recorder.submit()?;
    assert_eq!(read(runtime, &tensor)?, vec![0xdead_beef; 1001]);
    Ok(())
}

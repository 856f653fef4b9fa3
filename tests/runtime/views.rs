//! Views: parts and other shapes of a tensor, in the same memory.

use super::*;

pub(crate) const TESTS: &[Test] = &[
    ("views_are_parts_of_their_tensor", views_are_parts_of_their_tensor),
    ("views_of_halves_keep_their_neighbours", views_of_halves_keep_their_neighbours),
    ("kernels_see_a_view_alone", kernels_see_a_view_alone),
    ("overlapping_views_are_ordered", overlapping_views_are_ordered),
    ("wrong_views_are_refused", wrong_views_are_refused),
    ("views_outlive_their_tensor", views_outlive_their_tensor),
    ("joined_tensors_are_one", joined_tensors_are_one),
];

fn views_are_parts_of_their_tensor(runtime: &Runtime) -> Outcome {
    let all = pattern(7 * 11);
    let packed =
        runtime.upload("packed", &HostTensor::from_words(all.clone()).reshape(&[7, 11])?)?;
    let view = packed.narrow(1, 3..9)?.narrow(0, 2..6)?.reshape(&[2, 2, 3, 2])?;
    assert_eq!((view.strides(), view.offset()), (&[22, 11, 2, 1][..], 25));
    assert_eq!((view.bytes(), view.is_dense()), (96, false));
    let expected: Vec<u32> = (0..24).map(|i| all[25 + i / 6 * 11 + i % 6]).collect();
    assert_eq!(read(runtime, &view)?, expected);

    let new = pattern(100)[76..].to_vec();
    runtime.write(&view, bytemuck::cast_slice(&new))?;
    let mut expected = all;
    (0..24).for_each(|i| expected[25 + i / 6 * 11 + i % 6] = new[i]);
    assert_eq!(read(runtime, &packed)?, expected);
    assert!(packed.is_same(&packed.reshape(&[77])?.reshape(&[7, 11])?));
    assert!(view.is_same(&packed.narrow(0, 2..6)?.narrow(1, 3..9)?.reshape(view.shape())?));
    assert!(!view.is_same(&packed.narrow(0, 1..5)?.narrow(1, 3..9)?.reshape(view.shape())?));
    Ok(())
}

fn views_of_halves_keep_their_neighbours(runtime: &Runtime) -> Outcome {
    let bytes: Vec<u8> = (0..30).collect();
    let packed = runtime.upload("packed", &HostTensor::from_bytes(Dtype::F16, &[5, 3], &bytes)?)?;
    let column = packed.narrow(1, 1..2)?;
    let host = runtime.download(&column)?;
    assert_eq!(host.bytes(), [2, 3, 8, 9, 14, 15, 20, 21, 26, 27]);
    runtime.write(&column, &[255; 10])?;
    let mut expected = bytes;
    (0..5).for_each(|row| expected[6 * row + 2..6 * row + 4].fill(255));
    assert_eq!(runtime.download(&packed)?.bytes(), expected);
    Ok(())
}

fn kernels_see_a_view_alone(runtime: &Runtime) -> Outcome {
    let source = runtime.upload("source", &HostTensor::from_words(pattern(256)))?;
    let target = runtime.upload("target", &HostTensor::from_words(vec![7; 256]))?;
    let part = |tensor: &Tensor| tensor.narrow(0, 64..128);
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&part(&source)?, &part(&target)?], [64, 1], [0, 1])?;
    recorder.submit()?.wait()?;
    let mut expected = vec![7; 256];
    (64..128).for_each(|i| expected[i] = pattern(256)[i].wrapping_add(1));
    assert_eq!(read(runtime, &target)?, expected);
    assert_eq!(part(&target)?.binding_offset(), 0);
    // What does not begin where a binding can is behind its start.
    let odd = target.narrow(0, 65..66)?;
    assert!(odd.binding_offset() == 0 || odd.binding_offset() == 1);
    Ok(())
}

fn overlapping_views_are_ordered(runtime: &Runtime) -> Outcome {
    let tensor = words(runtime, "words", 256)?;
    let mut recorder = runtime.recorder()?;
    recorder.fill(&tensor.narrow(0, 0..128)?, 1)?;
    recorder.fill(&tensor.narrow(0, 128..256)?, 2)?;
    assert_eq!(recorder.barriers(), 0, "apart");
    recorder.fill(&tensor.narrow(0, 64..192)?, 3)?;
    assert_eq!(recorder.barriers(), 1, "overlapping");
    recorder.submit()?.wait()?;
    let expected = [[1; 64], [3; 64], [3; 64], [2; 64]].concat();
    assert_eq!(read(runtime, &tensor)?, expected);
    Ok(())
}

fn wrong_views_are_refused(runtime: &Runtime) -> Outcome {
    let tensor = runtime.tensor("packed", Dtype::F16, &[4, 6])?;
    let parameter = |result: Result<Tensor>| matches!(result, Err(Error::Parameter { .. }));
    assert!(parameter(tensor.narrow(2, 0..1)));
    assert!(parameter(tensor.narrow(1, 0..7)));
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = tensor.narrow(0, 3..2);
    assert!(parameter(reversed));
    let columns = tensor.narrow(1, 0..3)?;
    for shape in [&[12][..], &[4, 4], &[usize::MAX, 2], &[]] {
        assert!(matches!(columns.reshape(shape), Err(Error::Shape { .. })), "{shape:?}");
    }
    assert_eq!(tensor.narrow(0, 2..2)?.bytes(), 0);
    // Beside an axis of 0, any other may be huge.
    let empty = runtime.tensor("empty", Dtype::F32, &[1 << 40, 1 << 40, 0])?;
    assert_eq!(empty.bytes(), 0);
    assert_eq!(empty.narrow(0, 1 << 39..1 << 40)?.shape(), [1 << 39, 1 << 40, 0]);
    assert!(matches!(empty.reshape(&[1 << 33, 1 << 33]), Err(Error::Shape { .. })));
    // Fills set whole words without gaps.
    let mut recorder = runtime.recorder()?;
    let row = tensor.reshape(&[24])?;
    for view in [&columns, &row.narrow(0, 1..3)?, &row.narrow(0, 2..5)?, &row.narrow(0, 0..23)?] {
        assert!(matches!(recorder.fill(view, 0), Err(Error::Parameter { .. })), "{view:?}");
    }
    recorder.fill(&row.narrow(0, 2..4)?, 0)?;
    Ok(())
}

fn views_outlive_their_tensor(runtime: &Runtime) -> Outcome {
    let before = runtime.memory().slots_used;
    let tensor = runtime.upload("words", &HostTensor::from_words(pattern(300)))?;
    let view = tensor.narrow(0, 100..200)?;
    drop(tensor);
    assert_eq!(read(runtime, &view)?, pattern(300)[100..200]);
    drop(view);
    // Tests run side by side, so that the count may be that of another.
    assert!(runtime.memory().slots_used < before + 300);
    Ok(())
}

fn joined_tensors_are_one(runtime: &Runtime) -> Outcome {
    let all = pattern(5 * 128);
    let parts = [0..2, 2..4, 4..5].map(|rows| {
        let words = all[rows.start * 128..rows.end * 128].to_vec();
        let host = HostTensor::from_words(words).reshape(&[rows.len(), 128]);
        runtime.upload("part", &host.unwrap()).unwrap()
    });
    let joined = Tensor::join("joined", &parts)?;
    assert_eq!((joined.shape(), joined.binding_elements()), (&[5, 128][..], Some(256)));
    assert_eq!(read(runtime, &joined)?, all);
    runtime.write(&joined.narrow(0, 1..3)?, bytemuck::cast_slice(&vec![7u32; 256]))?;
    assert_eq!(read(runtime, &parts[0])?, [&all[..128], &[7; 128]].concat());
    assert_eq!(read(runtime, &parts[1])?, [&[7; 128], &all[3 * 128..4 * 128]].concat());
    // Accesses to either are ordered.
    let mut recorder = runtime.recorder()?;
    recorder.fill(&parts[2], 1)?;
    recorder.fill(&joined.narrow(0, 4..5)?, 2)?;
    assert_eq!(recorder.barriers(), 1);
    recorder.submit()?;
    drop(parts);
    assert_eq!(read(runtime, &joined.narrow(0, 4..5)?)?, [2; 128]);

    let other = runtime.tensor("other", Dtype::U32, &[2, 64])?;
    let short = runtime.tensor("short", Dtype::U32, &[1, 128])?;
    let long = runtime.tensor("long", Dtype::U32, &[2, 128])?;
    for wrong in [vec![], vec![long.clone(), other], vec![short, long.clone()], vec![joined]] {
        assert!(matches!(Tensor::join("j", &wrong), Err(Error::Parameter { .. })), "{wrong:?}");
    }
    let view = long.narrow(0, 0..1)?;
    assert!(matches!(Tensor::join("j", &[long, view]), Err(Error::Parameter { .. })));
    Ok(())
}

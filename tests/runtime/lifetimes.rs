//! Handles dropped in any order, threads, several runtimes.

use std::collections::HashMap;

use super::*;

pub(crate) const TESTS: &[Test] = &[
    ("threads_share_a_runtime", threads_share_a_runtime),
    ("threads_give_the_bits_of_one", threads_give_the_bits_of_one),
];

pub(crate) const EXCLUSIVE: &[Test] = &[
    ("handles_drop_in_any_order", handles_drop_in_any_order),
    ("two_runtimes_coexist", two_runtimes_coexist),
];

fn handles_drop_in_any_order(_: &Runtime) -> Outcome {
    let make = || -> Result<_> {
        let runtime = open(|_| ())?;
        let tensor = runtime.upload("word", &HostTensor::from_words(vec![1]))?;
        let submission = slow(&runtime, &tensor)?;
        Ok((runtime, tensor, submission))
    };
    let (runtime, tensor, submission) = make()?;
    drop(runtime);
    assert!(submission.done());
    drop(tensor);
    submission.wait()?;

    let (runtime, tensor, submission) = make()?;
    drop((tensor, submission));
    drop(runtime);

    let (runtime, tensor, submission) = make()?;
    drop(submission);
    let recorder = runtime.recorder()?;
    drop(recorder);
    drop(runtime);
    assert_eq!(tensor.name(), "word");
    drop(tensor);

    let (runtime, tensor, submission) = make()?;
    let finished = runtime.finish();
    let alive = "the runtime was finished while tensors or submissions were alive";
    match finished {
        Err(Error::Validation(messages)) => assert_eq!(messages, [alive]),
        other => assert!(other.is_ok() && !gpu::options().validation.any(), "{other:?}"),
    }
    drop((submission, tensor));
    Ok(())
}

fn threads_share_a_runtime(runtime: &Runtime) -> Outcome {
    let work = |thread: u32| -> Result<bool> {
        for round in 0..20 {
            let host = HostTensor::from_words(vec![thread; 100 + round]);
            let tensor = runtime.upload("words", &host)?;
            let mut recorder = runtime.recorder()?;
            mix(&mut recorder, [&tensor, &tensor], [100 + round, 1], [0, 1000])?;
            recorder.submit()?;
            if read(runtime, &tensor)? != vec![thread + 1000; 100 + round] {
                return Ok(false);
            }
        }
        Ok(true)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || work(i))).collect();
        for thread in threads {
            assert!(thread.join().unwrap()?);
        }
        Ok(())
    })
}

/// Kernels, transfers and sums of several threads at once, each as it is alone.
fn threads_give_the_bits_of_one(runtime: &Runtime) -> Outcome {
    const THREADS: usize = 8;
    let rows = |thread: usize, round: usize| 1 + (thread + 3 * round) % 5 * 70;
    let alone = |n: usize| Ok((n, faults::job_of(runtime, n)?));
    let alone: HashMap<_, _> = (0..5).map(|i| alone(1 + i * 70)).collect::<Result<_>>()?;
    let work = |thread| -> Result<()> {
        for round in 0..5 {
            let rows = rows(thread, round);
            assert!(faults::job_of(runtime, rows)? == alone[&rows], "{rows}");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|i| scope.spawn(move || work(i))).collect();
        for thread in threads {
            thread.join().unwrap()?;
        }
        Ok(())
    })
}

fn two_runtimes_coexist(first: &Runtime) -> Outcome {
    let second = open(|_| ())?;
    let theirs = second.upload("words", &HostTensor::from_words(vec![4]))?;
    let ours = first.upload("words", &HostTensor::from_words(vec![5]))?;
    let mut recorder = first.recorder()?;
    for tensors in [[&theirs, &ours], [&ours, &theirs]] {
        let error = mix(&mut recorder, tensors, [1, 1], [0, 0]).unwrap_err();
        assert!(matches!(error, Error::Parameter { name: "tensor", .. }), "{error}");
    }
    assert!(matches!(recorder.fill(&theirs, 0), Err(Error::Parameter { .. })));
    assert!(matches!(first.download(&theirs), Err(Error::Parameter { .. })));
    recorder.submit()?.wait()?;
    assert_eq!((read(&second, &theirs)?, read(first, &ours)?), (vec![4], vec![5]));
    drop(theirs);
    second.finish()?;
    Ok(())
}

//! Pipelines: made ahead, and kept from one runtime to the next.

use std::fs;
use std::path::{Path, PathBuf};

use backslang::runtime::{Fault, Faults, Statistic};

use super::*;

pub(crate) const EXCLUSIVE: &[Test] = &[
    ("pipelines_are_kept", pipelines_are_kept),
    ("damaged_pipelines_are_replaced", damaged_pipelines_are_replaced),
    ("a_folder_for_pipelines_is_shared", a_folder_for_pipelines_is_shared),
    ("a_place_for_pipelines_may_be_missing", a_place_for_pipelines_may_be_missing),
    ("pipelines_that_cannot_be_had_are_not_kept", pipelines_that_cannot_be_had_are_not_kept),
    ("pipelines_are_made_ahead", pipelines_are_made_ahead),
    ("a_failed_pipeline_is_named", a_failed_pipeline_is_named),
    ("pipelines_are_told_of", pipelines_are_told_of),
];

/// A folder of its own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("backslang-runtime-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(items) = fs::read_dir(folder) else { return Vec::new() };
    items.map(|item| item.unwrap().path()).collect()
}

fn keeping(folder: &Path) -> Result<Runtime> {
    open(|options| {
        options.heap_slots = 20;
        options.pipeline_cache = Some(folder.into());
    })
}

/// Computes something with one kernel.
fn compute(runtime: &Runtime) -> Outcome {
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![5; 10]))?;
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [&tensor, &tensor], [10, 1], [0, 2])?;
    recorder.submit()?;
    assert_eq!(read(runtime, &tensor)?, [7; 10]);
    Ok(())
}

fn round(folder: &Path) -> Outcome {
    let runtime = keeping(folder)?;
    compute(&runtime)?;
    Ok(runtime.finish()?)
}

fn is_whole(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"BSLPIPE1") && bytes.len() > 104)
}

fn pipelines_are_kept(_: &Runtime) -> Outcome {
    let folder = Folder::new("kept");
    let inner = folder.0.join("made/for it");
    for _ in 0..3 {
        round(&inner)?;
        let files = files(&inner);
        assert!(files.len() == 1 && is_whole(&files[0]), "{files:?}");
    }
    Ok(())
}

fn damaged_pipelines_are_replaced(_: &Runtime) -> Outcome {
    let folder = Folder::new("damaged");
    round(&folder.0)?;
    let [file] = &folder.files()[..] else { return Err("expected one file".into()) };
    let whole = fs::read(file)?;
    let mut flipped = whole.clone();
    flipped[whole.len() - 1] ^= 1;
    for bytes in [b"something else".to_vec(), whole[..whole.len() / 2].to_vec(), flipped, vec![]] {
        fs::write(file, &bytes)?;
        round(&folder.0)?;
        assert!(is_whole(file) && fs::read(file)? != bytes);
        assert_eq!(folder.files().len(), 1);
    }
    Ok(())
}

fn a_folder_for_pipelines_is_shared(_: &Runtime) -> Outcome {
    let folder = Folder::new("shared");
    let runtimes = [keeping(&folder.0)?, keeping(&folder.0)?, keeping(&folder.0)?];
    for runtime in runtimes {
        compute(&runtime)?;
        runtime.finish()?;
        let files = folder.files();
        assert!(files.len() == 1 && is_whole(&files[0]), "{files:?}");
    }
    Ok(())
}

fn a_place_for_pipelines_may_be_missing(_: &Runtime) -> Outcome {
    let folder = Folder::new("missing");
    fs::create_dir_all(&folder.0)?;
    let file = folder.0.join("a file");
    fs::write(&file, b"contents")?;
    for place in [file.clone(), file.join("below it")] {
        round(&place)?;
        assert_eq!(fs::read(&file)?, b"contents");
    }
    assert_eq!(folder.files(), [file]);
    Ok(())
}

fn pipelines_that_cannot_be_had_are_not_kept(_: &Runtime) -> Outcome {
    let folder = Folder::new("unread");
    let faults = Faults::new().ok_or("other faults are there")?;
    for fault in [Fault::HostMemory, Fault::DeviceMemory, Fault::Unknown] {
        let runtime = keeping(&folder.0)?;
        compute(&runtime)?;
        faults.fail("vkGetPipelineCacheData", 1, fault);
        runtime.finish()?;
        assert!(faults.stop());
        assert!(folder.files().is_empty(), "{:?}", folder.files());
    }
    // Nor are those of a device that is lost.
    let runtime = keeping(&folder.0)?;
    faults.fail("vkQueueSubmit2", 1, Fault::DeviceLost);
    assert!(compute(&runtime).is_err());
    runtime.finish()?;
    assert!(folder.files().is_empty(), "{:?}", folder.files());
    Ok(())
}

fn pipelines_are_made_ahead(_: &Runtime) -> Outcome {
    static TORN: Kernel = Kernel { spirv: MIX.spirv.split_at(400).0, ..MIX };
    let faults = Faults::new().ok_or("other faults are there")?;
    let runtime = open(|options| options.heap_slots = 20)?;
    let lanes = [1, 2, 4, 8, runtime.lanes()];
    let kernels: Vec<_> = lanes.iter().map(|n| (&MIX, std::slice::from_ref(n))).collect();
    // SAFETY: the kernel's workgroup may have any size.
    unsafe { runtime.prepare(&kernels) }?;
    // Nothing is left to make.
    faults.fail("vkCreateComputePipelines", 1, Fault::Unknown);
    // SAFETY: as above.
    unsafe { runtime.prepare(&kernels) }?;
    compute(&runtime)?;
    assert!(!faults.stop());
    // SAFETY: what is refused does not run.
    let refused = unsafe { runtime.prepare(&[(&TORN, &lanes[..1]), (&MIX, &[16])]) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    compute(&runtime)?;
    Ok(runtime.finish()?)
}

fn a_failed_pipeline_is_named(_: &Runtime) -> Outcome {
    let faults = Faults::new().ok_or("other faults are there")?;
    let runtime = open(|options| options.heap_slots = 20)?;
    let cases = [(Fault::Unknown, 2, [1, 2, 4, 8]), (Fault::DeviceMemory, 1, [3, 5, 6, 7])];
    for (fault, nth, lanes) in cases {
        let kernels: Vec<_> = lanes.iter().map(|n| (&MIX, std::slice::from_ref(n))).collect();
        faults.fail("vkCreateComputePipelines", nth, fault);
        // SAFETY: the kernel's workgroup may have any size.
        let failed = unsafe { runtime.prepare(&kernels) }.unwrap_err();
        assert!(faults.stop());
        let text = failed.to_string();
        assert!(text.contains("`mix`") && text.contains("vkCreateComputePipelines"), "{text}");
        // SAFETY: as above.
        unsafe { runtime.prepare(&kernels) }?;
    }
    compute(&runtime)?;
    Ok(runtime.finish()?)
}

/// Each once, with what the driver tells where it can be asked.
fn pipelines_are_told_of(_: &Runtime) -> Outcome {
    let runtime = open(|options| options.pipeline_statistics = true)?;
    let tensor = runtime.upload("words", &HostTensor::from_words(vec![5; 10]))?;
    let mut recorder = runtime.recorder()?;
    assert_eq!(recorder.pipelines(), []);
    for _ in 0..2 {
        mix(&mut recorder, [&tensor, &tensor], [10, 1], [0, 2])?;
    }
    let told = recorder.pipelines();
    assert_eq!(told.len(), 1);
    let finite = |statistic: &Statistic| !statistic.name.is_empty() && statistic.value.is_finite();
    assert!(told[0].statistics.iter().all(finite), "{told:?}");
    recorder.submit()?;
    assert_eq!(read(&runtime, &tensor)?, [9; 10]);
    drop(tensor);
    Ok(runtime.finish()?)
}

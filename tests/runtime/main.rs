//! The Vulkan runtime on a device.

#[path = "../common/gpu.rs"]
mod gpu;

mod commands;
mod devices;
mod faults;
mod lifetimes;
mod pipelines;
mod resources;
mod rounds;
mod slices;
mod transfers;
mod validation;
mod views;

use std::process::ExitCode;

use backslang::manifest::{Axis, Constant, Kernel, PushField, Scalar};
use backslang::runtime::{Access, Recorder, Runtime, Submission, Tensor};
use backslang::{Dtype, Error, HostTensor, Result};
use bytemuck::{Pod, Zeroable};
use gpu::{exclusive_trial, gpu_trial, open, process_trial, validated_trial};
use libtest_mimic::{Completion, Failed, Trial};

type Outcome = Result<(), Failed>;
type Test = (&'static str, fn(&Runtime) -> Outcome);

fn main() -> ExitCode {
    let shared = [
        devices::TESTS,
        transfers::TESTS,
        views::TESTS,
        commands::TESTS,
        resources::TESTS,
        lifetimes::TESTS,
        slices::TESTS,
    ];
    let shared = shared.concat().into_iter().map(|(name, test)| gpu_trial(name, test));
    let alone = [
        devices::EXCLUSIVE,
        transfers::EXCLUSIVE,
        resources::EXCLUSIVE,
        lifetimes::EXCLUSIVE,
        pipelines::EXCLUSIVE,
        rounds::EXCLUSIVE,
        faults::EXCLUSIVE,
        slices::EXCLUSIVE,
    ];
    let alone = alone.concat().into_iter().map(|(name, test)| exclusive_trial(name, test));
    let many = faults::MANY.iter().chain(rounds::MANY);
    let many = many.map(|&(name, test)| process_trial(name, test));
    let validated = validation::TESTS.iter().map(|&(name, test)| validated_trial(name, test));
    let compiled =
        Trial::ignorable_test("mix_spv_is_what_slangc_makes", mix_spv_is_what_slangc_makes);
    gpu::main(shared.chain(alone).chain(many).chain(validated).chain([compiled]).collect())
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Push {
    first_group_x: u32,
    first_group_y: u32,
    source_index: u32,
    target_index: u32,
    width: u32,
    rounds: u32,
    add: u32,
}

const fn word(name: &'static str, offset: u32) -> PushField {
    PushField { name, offset, kind: Scalar::U32 }
}

/// `tests/shaders/mix.slang`: a word a workgroup.
static MIX: Kernel = Kernel {
    name: "mix",
    dtype: "u32",
    domain: "test",
    variant: "test",
    status: "test",
    source: "tests/shaders/mix.slang",
    entry_point: "mix",
    spirv: include_bytes!("../shaders/mix.spv"),
    workgroup_size: [Axis::Constant(0), Axis::Fixed(1), Axis::Fixed(1)],
    push_size: 28,
    push_fields: &[
        word("first_group_x", 0),
        word("first_group_y", 4),
        word("source_index", 8),
        word("target_index", 12),
        word("width", 16),
        word("rounds", 20),
        word("add", 24),
    ],
    constants: &[Constant { name: "lanes", id: 0, kind: Scalar::U32, default: 32 }],
};

/// Records `target[i] = mix(source[i], rounds) + add` over a grid.
fn mix(
    recorder: &mut Recorder<'_>,
    [source, target]: [&Tensor; 2],
    grid: [usize; 2],
    [rounds, add]: [u32; 2],
) -> Result<()> {
    let lanes = recorder.runtime().lanes();
    let push = |access: &mut Access<'_>| Push {
        source_index: access.read(source),
        target_index: access.write(target),
        width: grid[0] as u32,
        rounds,
        add,
        ..Push::default()
    };
    // SAFETY: tests give tensors of a word a workgroup at least, or empty ones, for which the dummy stands.
    unsafe { recorder.dispatch(&MIX, &[lanes], grid, push) }
}

/// A dispatch that is to be refused.
fn refused_dispatch(
    recorder: &mut Recorder<'_>,
    kernel: &'static Kernel,
    constants: &[u32],
    grid: [usize; 2],
) -> Result<()> {
    // SAFETY: what is refused does not run.
    unsafe { recorder.dispatch(kernel, constants, grid, |_| Push::default()) }
}

fn words(runtime: &Runtime, name: &str, n: usize) -> Result<Tensor> {
    runtime.tensor(name, Dtype::U32, &[n])
}

fn read(runtime: &Runtime, tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(bytemuck::allocation::pod_collect_to_vec(runtime.download(tensor)?.bytes()))
}

/// Words that differ from their neighbours and from those some power of two away.
fn pattern(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).rotate_left(7)).collect()
}

/// A kernel that keeps the device busy for a while.
fn slow(runtime: &Runtime, tensor: &Tensor) -> Result<Submission> {
    let mut recorder = runtime.recorder()?;
    mix(&mut recorder, [tensor, tensor], [1, 1], [20_000_000, 0])?;
    recorder.submit()
}

/// `SLANGC` names the compiler; without it there is nothing to compare with.
fn mix_spv_is_what_slangc_makes() -> Result<Completion, Failed> {
    let Some(slangc) = std::env::var_os("SLANGC").filter(|path| !path.is_empty()) else {
        return Ok(Completion::ignored_with("SLANGC is not set"));
    };
    let made = std::env::temp_dir().join(format!("mix-{}.spv", std::process::id()));
    let status = std::process::Command::new(slangc)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shaders/mix.slang"))
        .args(["-target", "spirv", "-profile", "spirv_1_5", "-O0", "-fp-mode", "precise"])
        .args(["-fvk-use-entrypoint-name", "-entry", "mix", "-stage", "compute", "-o"])
        .arg(&made)
        .status()?;
    assert!(status.success());
    let same = std::fs::read(&made)? == MIX.spirv;
    std::fs::remove_file(&made)?;
    assert!(same, "compile it anew with the arguments above");
    Ok(Completion::Completed)
}

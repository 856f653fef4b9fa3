//! The command on a device that fails: its own sources, called by this binary with a fault planted.

#[path = "../src/cli/mod.rs"]
#[allow(unused, reason = "its unit tests run elsewhere")]
mod cli;

#[path = "cli/harness.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod harness;

#[path = "common/gpu.rs"]
mod gpu;

use std::process::{Command, ExitCode};

use backslang::runtime::{Fault, Faults, Runtime};
use harness::{Folder, Outcome, outcome};

/// What is to fail, where this process is to be the command.
const FAULT: &str = "BACKSLANG_TEST_FAULT";

fn main() -> ExitCode {
    let Ok(fault) = std::env::var(FAULT) else {
        return gpu::main(vec![
            gpu::trial_alone("a_lost_device_leaves_no_output", a_lost_device_leaves_no_output),
            gpu::trial_alone(
                "a_failed_allocation_leaves_no_output",
                a_failed_allocation_leaves_no_output,
            ),
            gpu::trial_alone(
                "without_a_fault_it_is_the_command",
                without_a_fault_it_is_the_command,
            ),
        ]);
    };
    let faults = Faults::new().expect("no other faults");
    if let [call, nth, fault] = fault.split(' ').collect::<Vec<_>>()[..] {
        let fault = if fault == "lost" { Fault::DeviceLost } else { Fault::DeviceMemory };
        faults.fail(call, nth.parse().expect("a number"), fault);
    }
    cli::main()
}

/// Runs the command on the inputs in a folder.
fn faulty(fault: &str, folder: &Folder, words: &str) -> Outcome {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(FAULT, fault).args(["--quiet", "--pipeline-cache", "none"]).args(words.split(' '));
    outcome(command.args(["-i", &folder.at("in"), "-o", &folder.at("out")]))
}

const MAMBA3: &str = "mamba3-preprocess-backward";
const ATTENTION: &str = "paged-attention-backward";

fn a_lost_device_leaves_no_output(runtime: &Runtime) {
    // The probe of the subgroup size has the first timestamps.
    let by_query = runtime.device().timestamps.then_some("vkGetQueryPoolResults 2 lost");
    let cases = [
        ("vkQueueSubmit2 1 lost", MAMBA3, "copies"),
        ("vkQueueSubmit2 5 lost", ATTENTION, "copies"),
        ("vkGetSemaphoreCounterValue 1 lost", MAMBA3, "copies"),
    ];
    // A submission has slices of one kernel.
    let kernels = [(MAMBA3, "mamba3_preprocess_backward"), (ATTENTION, "query_backward")];
    let kernels =
        kernels.iter().filter_map(|(command, kernel)| Some((by_query?, *command, *kernel)));
    for (fault, command, running) in cases.into_iter().chain(kernels) {
        let folder = if command == MAMBA3 { Folder::mamba3() } else { Folder::attention() };
        faulty(fault, &folder, command)
            .failed(1, &["the device was lost while running `", running]);
        let report = faulty(fault, &folder, &format!("{command} --json"));
        assert_eq!(
            (report.code, &report.json()["error"]["kind"]),
            (Some(1), &"device-lost".into())
        );
        assert_eq!(folder.names(""), ["in"], "{fault}");
    }
}

fn a_failed_allocation_leaves_no_output(_: &Runtime) {
    let folder = Folder::attention();
    let sized = ["asked for ", " available"];
    for (call, parts) in [
        ("vkAllocateMemory 1", sized),
        ("vkCreateBuffer 1", sized),
        ("vkCreateComputePipelines 2", ["kernel `", ": vkCreateComputePipelines"]),
    ] {
        let fault = format!("{call} memory");
        faulty(&fault, &folder, ATTENTION)
            .failed(1, &parts)
            .failed(1, &["out of device memory for "]);
        assert_eq!(folder.names(""), ["in"], "{call}");
    }
}

fn without_a_fault_it_is_the_command(_: &Runtime) {
    let folder = Folder::mamba3();
    faulty("", &folder, MAMBA3).succeeded();
    assert_eq!(folder.names("out").len(), 3);
}

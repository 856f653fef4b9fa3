//! Kernels of the user's own: what is read from a Slang file, what is refused, and what is computed.

#[path = "../common/gpu.rs"]
mod gpu;
#[path = "../cli/harness.rs"]
#[allow(dead_code, reason = "the command's own tests use the rest")]
mod harness;

mod command;
mod device;
mod files;

use std::process::ExitCode;

use backslang::slang::{Compiler, UserKernel};
use harness::Folder;
use libtest_mimic::Trial;

fn main() -> ExitCode {
    let plain = |name: &'static str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    gpu::main(vec![
        plain("files_tell_what_they_ask_for", files::tell_what_they_ask_for),
        plain("own_kernels_are_read_as_the_build_reads_them", files::own_kernels),
        plain("faults_are_told_with_file_and_line", files::faults),
        plain("parameters_that_cannot_be_bound_are_named", files::parameters),
        plain("calls_are_held_against_the_file", files::calls),
        plain("diagnostics_of_the_command", command::diagnostics),
        plain("flags_are_refused", command::flags),
        plain("a_plan_needs_no_device", command::plan),
        gpu::trial("the_worked_example", command::worked_example),
        gpu::trial("arrays_of_every_type", command::types),
        gpu::validated_trial("accesses_out_of_bounds_are_seen", |runtime| {
            command::bounds(&runtime);
            Ok(())
        }),
        gpu::trial("a_donor_kernel_runs", device::donor),
        gpu::trial_alone("grids_are_split_where_the_file_allows_it", device::split_grids),
        gpu::trial("lanes_are_filled_in", device::lanes),
        gpu::trial("capabilities_are_refused_by_name", device::capabilities),
        gpu::trial("tensors_are_held_against_the_call", device::tensors_are_held),
    ])
}

/// The compiled kernel of a file with this text, or why there is none.
fn compile(text: &str) -> backslang::Result<UserKernel> {
    let folder = Folder::new();
    folder.write("k.slang", text.as_bytes());
    Compiler::new()?.load(folder.at("k.slang").as_ref())?.kernel(None)
}

/// As [`compile`], with the message of the failure.
fn refused(text: &str) -> String {
    compile(text).map(drop).unwrap_err().to_string()
}

fn assert_has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

/// As the donor's kernels are written: the heap is the file's, the functions take its elements.
const SCALE: &str = r#"
import storage;
import attributes;
struct PushConstants {
    uint first_group_x;
    uint first_group_y;
    uint x_index;
    uint y_index;
    uint count;
    float factor;
};
[[vk::push_constant]] PushConstants push;
[[vk::binding(0, 0)]] RWByteAddressBuffer storage_buffers[];
[[vk::constant_id(3)]] const bool doubled = false;
[[vk::constant_id(1)]] const uint size = 32;
[kernel_name("scale")]
[domain("test")]
[shader("compute")]
[numthreads(size, 1, 1)]
void main(uint3 group : SV_GroupID, uint3 thread : SV_GroupThreadID) {
    uint i = (push.first_group_x + group.x) * size + thread.x;
    if (i >= push.count) return;
    float value = push.factor * load_f32(storage_buffers[push.x_index], i);
    store_f32(storage_buffers[push.y_index], i, doubled ? 2.0 * value : value);
}
"#;

//! backslang within a program that uses Vulkan itself, through `ash`: on the program's device, on ranges of its buffers,
//! in its command buffer. What comes out is held to float64.
//!
//! With `BACKSLANG_VALIDATE=core,sync` the program runs under the validation layer.

mod step;
mod vulkan;

use backslang::raw;
use backslang::runtime::RuntimeOptions;
use vulkan::{Result, Vulkan};

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let checks = std::env::var("BACKSLANG_VALIDATE").unwrap_or_default();
    let vulkan = Vulkan::new(&checks)?;
    let options = RuntimeOptions::default();
    // SAFETY: the program uses the queue on this thread alone, and outlives the runtime.
    let runtime = vulkan.described(|device| unsafe { raw::open(device, &options) })?;
    println!("on {}", runtime.device().name);
    let inputs = step::sample(&mut fastrand::Rng::with_seed(1))?;
    let found = step::gradients(&vulkan, &runtime, &inputs)?;
    step::check(&inputs, &found)?;
    runtime.finish()?;
    match vulkan.finish().first() {
        None => Ok(()),
        Some(message) => Err(message.as_str().into()),
    }
}

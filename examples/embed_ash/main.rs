//! backslang within a program that uses Vulkan itself, through `ash`: on the program's device, on ranges of its buffers,
//! in its command buffer. What comes out is held to float64.
//!
//! With `BACKSLANG_VALIDATE=core,sync` the program runs under the validation layer.

mod step;
mod vulkan;

use backslang::kernels::mamba3::preprocess::Parameters;
use backslang::raw;
use backslang::reference;
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
    let inputs = inputs.map(|_, tensor| tensor.to_f64());
    let expected = reference::mamba3::preprocess_backward(&inputs, &Parameters::default())?;
    for ((name, found), (_, expected)) in found.named().zip(expected.named()) {
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let found = found.to_f64();
        let error = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        let error = error / norm(&mut expected.iter().copied());
        println!("{name:<20} relative error {error:.1e}");
        if error.is_nan() || error > 2e-6 {
            return Err(format!("{name} is not what float64 says").into());
        }
    }
    runtime.finish()?;
    match vulkan.finish().first() {
        None => Ok(()),
        Some(message) => Err(message.as_str().into()),
    }
}

//! One training step of two layers, on the device alone: forward, append to the KV cache, attention, and all the way back,
//! in one submission.
//!
//! A layer is a Mamba-3 projection preprocess whose `x`, `bh` and `ch` are the queries, keys and values of a paged
//! attention over a cache of its own. Nothing is copied from one operator to the next: what one writes is a view of what
//! the other reads.
//!
//! ```text
//! projected ─ preprocess ─┬─ x ────────────────── q ─┐
//!                         ├─ bh, ch ─ append ─ k, v ─┴─ attention ─ output = x slice of the next layer's `projected`
//!                         └─ z, dt, adt, trap, angle: for a scan, which gives their gradients
//! ```

mod model;
mod step;

use backslang::runtime::{Runtime, RuntimeOptions};

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> backslang::Result<()> {
    let runtime = Runtime::new(&RuntimeOptions::default())?;
    let model = model::sample(&mut fastrand::Rng::with_seed(1))?.upload(&runtime)?;
    let mut recorder = runtime.recorder()?;
    let gradients = step::record(&mut recorder, &model)?;
    let submission = recorder.submit()?;
    for timing in submission.timings()? {
        println!("{:<28} {:>8.3} ms", timing.kernel, timing.gpu.as_secs_f64() * 1e3);
    }
    let gradients = gradients.download(&runtime)?;
    for (index, layer) in gradients.layers.iter().enumerate() {
        for (name, gradient) in ["projected", "k", "v"].iter().zip(layer) {
            let square: f64 = gradient.to_f64().iter().map(|x| x * x).sum();
            println!("layer {index}: |{name}_gradient| = {:.6}", square.sqrt());
        }
    }
    runtime.finish()
}

//! What the tests on a device share: one runtime a binary, and a harness in which a missing device is seen.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};

use backslang::runtime::{Runtime, RuntimeOptions, Validation};
use backslang::{Error, Result};
use libtest_mimic::{Arguments, Failed, Trial};

/// The device, opened at the first use, or why there is none.
struct Shared {
    runtime: OnceLock<Result<Runtime, String>>,
    options: RuntimeOptions,
}

/// The options that the environment asks for: `BACKSLANG_DEVICE` and `BACKSLANG_VALIDATE`.
pub fn options() -> RuntimeOptions {
    let parsed = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let mut options = RuntimeOptions::default();
    if let Some(text) = parsed("BACKSLANG_DEVICE") {
        options.device = text.parse().expect("BACKSLANG_DEVICE");
    }
    if let Some(text) = parsed("BACKSLANG_VALIDATE") {
        options.validation = text.parse().expect("BACKSLANG_VALIDATE");
    }
    options
}

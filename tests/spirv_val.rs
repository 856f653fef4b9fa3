//! Every module under spirv-val, for the Vulkan version that the runtime asks for. `BACKSLANG_SPIRV_VAL` names the
//! validator; without it there is nothing to ask.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use backslang::manifest::KERNELS;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

type Test = (&'static str, fn(&str) -> Result<(), Failed>);

const TESTS: &[Test] = &[
    ("every_module_is_valid", every_module_is_valid),
    ("an_invalid_module_is_seen", an_invalid_module_is_seen),
];

fn main() -> ExitCode {
    let trials = TESTS.iter().map(|&(name, test)| {
        let run = move || match std::env::var("BACKSLANG_SPIRV_VAL").ok().filter(|v| !v.is_empty())
        {
            Some(validator) => test(&validator).map(|()| Completion::Completed),
            None => Ok(Completion::ignored_with("BACKSLANG_SPIRV_VAL is not set")),
        };
        Trial::ignorable_test(name, run)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// What the validator says against a module; nothing when it is valid.
fn validate(validator: &str, module: &[u8]) -> Result<Option<String>, Failed> {
    let mut child = Command::new(validator)
        .args(["--target-env", "vulkan1.3", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(module)?;
    }
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((!output.status.success()).then(|| String::from_utf8_lossy(&said).into_owned()))
}

fn every_module_is_valid(validator: &str) -> Result<(), Failed> {
    for kernel in KERNELS {
        let fault = validate(validator, kernel.spirv)?;
        assert_eq!(fault, None, "{} {}", kernel.name, kernel.dtype);
    }
    Ok(())
}

/// Without its last instruction, the end of a function, a module is not valid.
fn an_invalid_module_is_seen(validator: &str) -> Result<(), Failed> {
    for kernel in KERNELS {
        let cut = &kernel.spirv[..kernel.spirv.len() - 4];
        assert!(validate(validator, cut)?.is_some(), "{} {}", kernel.name, kernel.dtype);
    }
    Ok(())
}

//! What the tests on a device share: one runtime a binary, and a harness in which a missing device is seen.
//!
//! `BACKSLANG_DEVICE` chooses the device, `BACKSLANG_VALIDATE` the validation and, with the feature `forms`,
//! `BACKSLANG_FORM` the form of the kernels. Where there is no device the trials
//! show as ignored, with the reason; with `BACKSLANG_REQUIRE_DEVICE=1` they fail.
#![allow(dead_code, unreachable_pub, reason = "each test binary includes it and uses its share")]

use std::cell::Cell;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, RwLock};

use backslang::Error;
use backslang::runtime::{Runtime, RuntimeOptions, Validation};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// The binary's runtime, or why there is none.
type Shared = Result<Runtime, Error>;

/// Held for writing by a trial that takes all memory there is or opens devices of its own, for reading by all others:
/// devices open at once on several threads can lock each other out within a driver.
static TURN: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether this thread's trial runs alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

static RUNTIME: Mutex<Option<Arc<Shared>>> = Mutex::new(None);

/// The options that the environment asks for.
pub fn options() -> RuntimeOptions {
    let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let mut options = RuntimeOptions::default();
    if let Some(text) = set("BACKSLANG_DEVICE") {
        options.device = text.parse().expect("BACKSLANG_DEVICE");
    }
    if let Some(text) = set("BACKSLANG_VALIDATE") {
        options.validation = text.parse().expect("BACKSLANG_VALIDATE");
    }
    if let Some(form) = set("BACKSLANG_FORM") {
        choose_form(&mut options, &form);
    }
    options
}

/// Whether kernels of this form take tensors in several buffers: not those with a binding for each.
pub fn has_parts() -> bool {
    std::env::var("BACKSLANG_FORM").as_deref() != Ok("plain")
}

#[cfg(feature = "forms")]
fn choose_form(options: &mut RuntimeOptions, form: &str) {
    use backslang::runtime::Form;
    options.form = match form {
        "fixed-heap" => Form::FixedHeap,
        "plain" => Form::Plain,
        _ => panic!("BACKSLANG_FORM: expected fixed-heap or plain, found {form}"),
    };
}

#[cfg(not(feature = "forms"))]
fn choose_form(_: &mut RuntimeOptions, form: &str) {
    panic!("BACKSLANG_FORM is {form}, but the feature `forms` is off");
}

/// A trial on the binary's runtime.
pub fn gpu_trial<F>(name: impl Into<String>, test: F) -> Trial
where
    F: FnOnce(&Runtime) -> Result<(), Failed> + Send + 'static,
{
    let run = || {
        let _others = TURN.read();
        on_shared(test)
    };
    Trial::ignorable_test(name, run).with_kind("gpu")
}

/// As [`gpu_trial`], while no other trial runs: for one that takes all memory there is, or calls [`open`].
pub fn exclusive_trial<F>(name: impl Into<String>, test: F) -> Trial
where
    F: FnOnce(&Runtime) -> Result<(), Failed> + Send + 'static,
{
    Trial::ignorable_test(name, || alone(|| on_shared(test))).with_kind("gpu")
}

/// As [`exclusive_trial`], in a process of its own where Mesa keeps what it compiles, in a folder that is new: for one
/// that opens very many devices.
pub fn process_trial<F>(name: &'static str, test: F) -> Trial
where
    F: FnOnce(&Runtime) -> Result<(), Failed> + Send + 'static,
{
    const CHILD: &str = "BACKSLANG_TEST_PROCESS";
    exclusive_trial(name, move |runtime| {
        if std::env::var_os(CHILD).is_some() {
            return test(runtime);
        }
        let cache = std::env::temp_dir().join(format!("backslang-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&cache)?;
        let output = std::process::Command::new(std::env::current_exe()?)
            .args(["--exact", name])
            .env(CHILD, "1")
            .env("MESA_SHADER_CACHE_DISABLE", "false")
            .env("MESA_SHADER_CACHE_DIR", &cache)
            // With an arena a thread, what the drivers' threads leave unused looks like a leak.
            .env("MALLOC_ARENA_MAX", "1")
            .output()?;
        std::fs::remove_dir_all(&cache)?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        match output.status.success() && text.contains("1 passed") {
            true => Ok(()),
            false => Err(text.into_owned().into()),
        }
    })
}

/// Works while no other trial runs.
pub fn alone<T>(work: impl FnOnce() -> T) -> T {
    let _turn = TURN.write();
    ALONE.set(true);
    let done = work();
    ALONE.set(false);
    done
}

/// A runtime of the trial's own, with these changes to what the environment asks for.
pub fn open(change: impl FnOnce(&mut RuntimeOptions)) -> backslang::Result<Runtime> {
    assert!(ALONE.get(), "a trial that opens a device must be an exclusive one");
    let mut options = options();
    change(&mut options);
    Runtime::new(&options)
}

fn on_shared(test: impl FnOnce(&Runtime) -> Result<(), Failed>) -> Result<Completion, Failed> {
    match &*shared() {
        Ok(runtime) => test(runtime).map(|()| Completion::Completed),
        Err(error) if is_missing(error) => Ok(Completion::ignored_with(error)),
        Err(error) => Err(in_full(error).into()),
    }
}

/// A trial on a runtime of its own with core and synchronization validation, ignored where the layer is not installed.
pub fn validated_trial<F>(name: impl Into<String>, test: F) -> Trial
where
    F: FnOnce(Runtime) -> Result<(), Failed> + Send + 'static,
{
    let run = || on_own(|options| options.validation = Validation::STANDARD, test);
    Trial::ignorable_test(name, || alone(run)).with_kind("gpu")
}

/// Tests on a runtime of its own, within [`alone`]; ignored where there is no device, or no layer.
pub fn on_own(
    change: impl FnOnce(&mut RuntimeOptions),
    test: impl FnOnce(Runtime) -> Result<(), Failed>,
) -> Result<Completion, Failed> {
    match open(change) {
        Ok(runtime) => test(runtime).map(|()| Completion::Completed),
        Err(error @ Error::NoValidationLayer(_)) if !options().validation.any() => {
            Ok(Completion::ignored_with(error))
        }
        Err(error) if is_missing(&error) => Ok(Completion::ignored_with(error)),
        Err(error) => Err(in_full(&error).into()),
    }
}

/// A trial on the binary's runtime that fails by panicking.
pub fn trial(name: &str, test: fn(&Runtime)) -> Trial {
    gpu_trial(name, move |runtime| {
        test(runtime);
        Ok(())
    })
}

/// As [`trial`], while no other trial runs.
pub fn trial_alone(name: &str, test: fn(&Runtime)) -> Trial {
    exclusive_trial(name, move |runtime| {
        test(runtime);
        Ok(())
    })
}

/// Whether an error means that there is nothing to test on, and tests may do without.
fn is_missing(error: &Error) -> bool {
    let required = std::env::var("BACKSLANG_REQUIRE_DEVICE").is_ok_and(|text| text == "1");
    let missing = matches!(
        error,
        Error::NoLoader(_) | Error::NoDriver(_) | Error::NoDevice { asked: None, .. }
    );
    !required && missing
}

/// The error's text, with every validation message.
fn in_full(error: &Error) -> String {
    match error {
        Error::Validation(messages) => messages.join("\n"),
        _ => error.to_string(),
    }
}

fn shared() -> Arc<Shared> {
    let mut runtime = RUNTIME.lock().unwrap();
    runtime.get_or_insert_with(|| Arc::new(Runtime::new(&options()))).clone()
}

/// Runs the trials, then takes the runtime down; a message of the validation layer there fails the binary as well.
pub fn main(trials: Vec<Trial>) -> ExitCode {
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    let shared = RUNTIME.lock().unwrap().take().map(Arc::into_inner);
    let finished = match shared {
        Some(Some(Ok(runtime))) => take_down(runtime),
        Some(None) => Err("the runtime is still in use".into()),
        Some(Some(Err(_))) | None => Ok(()),
    };
    match finished {
        Ok(()) => conclusion.exit_code(),
        Err(error) => {
            eprintln!("tear-down failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn take_down(runtime: Runtime) -> Result<(), String> {
    let held = runtime.dummy_holds();
    runtime.finish().map_err(|error| in_full(&error))?;
    match held {
        Ok(true) => Ok(()),
        Ok(false) => Err("a kernel stored what it was not asked for: the dummy is not zero".into()),
        Err(error) => Err(in_full(&error)),
    }
}

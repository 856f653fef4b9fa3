//! The built command, driven as a user drives it. Everything here runs on the float64 reference: no GPU is needed.

#[path = "../common/golden.rs"]
mod golden;

mod accumulate;
mod append;
mod archives;
mod attention;
mod completions;
#[cfg(unix)]
mod examples;
mod exit_codes;
mod failures;
mod goldens;
mod harness;
mod help;
mod indices;
mod inputs;
#[cfg(unix)]
mod interrupts;
mod json;
#[cfg(target_os = "linux")]
mod limits;
mod options;
mod outputs;
mod preprocess;
#[cfg(unix)]
mod progress;
mod reports;
mod samples;
mod schema;
mod shards;
#[cfg(unix)]
mod terminal;
mod types;

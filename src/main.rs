//! The command line: see `backslang --help`.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::main()
}

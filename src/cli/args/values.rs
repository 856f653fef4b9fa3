//! Values of flags, read so that messages name the flag once.

use backslang::Error;
use backslang::check::Command;
use backslang::kernels::attention::Gradients;
use backslang::runtime::Validation;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A list of gradients, or `all`.
pub(super) fn gradients(text: &str) -> Result<Gradients, String> {
    text.parse().map_err(without_name)
}

/// A list of checks that is not empty.
pub(super) fn validation(text: &str) -> Result<Validation, String> {
    match text.parse::<Validation>().map_err(without_name)? {
        Validation::NONE => Err("expected a comma list of core, sync and gpu, found none".into()),
        checks => Ok(checks),
    }
}

/// A command that can be checked.
pub(super) fn checked_command() -> impl TypedValueParser<Value = Command> {
    PossibleValuesParser::new(Command::ALL.map(Command::name))
        .try_map(|name| name.parse::<Command>())
}

/// The message without the parameter's name, which clap has said by then.
fn without_name(error: Error) -> String {
    match error {
        Error::Parameter { expected, found, .. } => format!("expected {expected}, found {found}"),
        error => error.to_string(),
    }
}

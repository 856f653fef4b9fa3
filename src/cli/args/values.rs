//! Values of flags, read so that messages name the flag once.

use backslang::check::Command;
use backslang::kernels::attention::{Gradient, Gradients};
use backslang::runtime::Validation;
use backslang::shard::Shard;
use backslang::{Dtype, Error};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};

use crate::cli::alike;

/// A list of gradients, or `all`.
pub(super) fn gradients(text: &str) -> Result<Gradients, String> {
    text.parse().map_err(|error| without_name(error) + &meant_gradient(text).unwrap_or_default())
}

/// The question whether a gradient is meant by its output's name, or by another spelling.
fn meant_gradient(text: &str) -> Option<String> {
    let names = Gradient::ALL.map(Gradient::name);
    let slip = text.split(',').map(str::trim).find(|word| !names.contains(word))?;
    let plain = slip.strip_suffix("_gradient").unwrap_or(slip).replace('-', "_");
    let meant = alike::meant(&plain, names)?;
    Some(format!("; did you mean `{meant}`?"))
}

/// A part of the work.
pub(super) fn shard(text: &str) -> Result<Shard, String> {
    text.parse().map_err(without_name)
}

/// A number that is finite if it is written as such.
pub(super) fn number(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "expected a number")?;
    if number.is_infinite() && text.parse().is_ok_and(f64::is_finite) {
        return Err("expected a number that fits float32".into());
    }
    Ok(number)
}

/// Sizes small enough that no sum of a few products of two overflows.
pub(super) fn size() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(..=1 << 24)
}

/// An element type of arrays.
pub(super) fn dtype() -> impl TypedValueParser<Value = Dtype> {
    const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    PossibleValuesParser::new(DTYPES.map(Dtype::name)).try_map(|name| {
        DTYPES.into_iter().find(|dtype| dtype.name() == name).ok_or("expected f32, f16 or bf16")
    })
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

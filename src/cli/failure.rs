//! Why the command failed: one line, an exit code, and a word for the JSON report.

use backslang::Error;

use super::files::{FileError, WriteError};

/// Shorthand for results of the command line.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure as it is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Whether flags or inputs are at fault (exit code 2) rather than the work (exit code 1).
    pub(crate) input: bool,
    /// A short, stable word for the kind.
    pub(crate) kind: &'static str,
    /// One line: what, what was expected, what was found.
    pub(crate) message: String,
}

impl Failure {
    /// A flag is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { input: true, kind: "usage", message: message.into() }
    }

    /// Something about the inputs is wrong.
    pub(crate) fn input(kind: &'static str, message: impl Into<String>) -> Self {
        Self { input: true, kind, message: message.into() }
    }

    /// The work itself failed.
    pub(crate) fn work(kind: &'static str, message: impl Into<String>) -> Self {
        Self { input: false, kind, message: message.into() }
    }

    /// A file that holds the array `name`, or that was given as `name`, cannot be used.
    pub(crate) fn file(name: &str, place: impl std::fmt::Display, error: FileError) -> Self {
        let failure = Self::from(error);
        Self { message: format!("{name} ({place}): {}", failure.message), ..failure }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        // Memory is the one thing that the file is not to blame for.
        let input = !matches!(error, FileError::Memory(_));
        Self { input, kind: error.kind(), message: error.to_string() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { input: error.is_input(), kind: error.kind(), message: error.to_string() }
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        Self::work("output", error.to_string())
    }
}

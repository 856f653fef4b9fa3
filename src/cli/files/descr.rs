//! Element types as NumPy spells them, such as `<f4`.

use std::fmt;

use super::excerpt;

/// In which order the bytes of an element are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    /// Least significant byte first: `<`, and `|` where order does not matter.
    Little,
    /// Most significant byte first: `>`.
    Big,
}

impl ByteOrder {
    /// The order of this machine.
    pub(crate) const NATIVE: Self =
        if cfg!(target_endian = "big") { Self::Big } else { Self::Little };
}

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `b`: true or false.
    Bool,
    /// `i`: a signed integer.
    Signed,
    /// `u`: an unsigned integer.
    Unsigned,
    /// `f`: an IEEE floating-point number.
    Float,
    /// `V`: bytes that NumPy does not interpret, such as ml_dtypes' bfloat16.
    Raw,
    /// Anything else: complex numbers, text, dates, objects.
    Other,
}

/// The element type of an array in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Descr {
    /// What an element is.
    pub(crate) kind: Kind,
    /// Its bytes; `None` where the spelling does not say.
    pub(crate) size: Option<usize>,
    /// How its bytes are ordered.
    pub(crate) order: ByteOrder,
    text: String,
}

impl Descr {
    /// NumPy's spelling of float32 with the least significant byte first.
    pub(crate) const LITTLE_FLOAT32: &'static str = "<f4";
    /// NumPy's spelling of float32 with the most significant byte first.
    pub(crate) const BIG_FLOAT32: &'static str = ">f4";

    /// Reads NumPy's spelling; what is not known keeps its text for the message.
    pub(crate) fn parse(text: &str) -> Self {
        let (order, rest) = match text.strip_prefix(['<', '|', '=', '>']) {
            Some(rest) if text.starts_with('>') => (ByteOrder::Big, rest),
            Some(rest) if text.starts_with('=') => (ByteOrder::NATIVE, rest),
            Some(rest) => (ByteOrder::Little, rest),
            None => (ByteOrder::NATIVE, text),
        };
        let mut letters = rest.chars();
        let kind = match letters.next() {
            Some('b') => Kind::Bool,
            Some('i') => Kind::Signed,
            Some('u') => Kind::Unsigned,
            Some('f') => Kind::Float,
            Some('V') => Kind::Raw,
            _ => Kind::Other,
        };
        let size = letters.as_str().parse().ok().filter(|_| kind != Kind::Other);
        Self { kind, size, order, text: text.into() }
    }
}

impl fmt::Display for Descr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.kind, self.size) {
            (Kind::Float, Some(2)) => "float16",
            (Kind::Float, Some(4)) => "float32",
            (Kind::Float, Some(8)) => "float64",
            (Kind::Raw, Some(2)) => "2-byte void, bfloat16 perhaps",
            _ => return write!(f, "'{}'", excerpt(&self.text)),
        };
        write!(f, "'{}' ({name})", self.text)
    }
}

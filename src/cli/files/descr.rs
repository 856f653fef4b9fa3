//! Element types as NumPy spells them, such as `<f4`.

use std::fmt;

use backslang::Dtype;

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
    /// `O`: pickled Python objects.
    Object,
    /// Anything else: complex numbers, text, dates, records.
    Other,
}

/// How floats are spelled in a file: the order of their bytes, and what stands for bfloat16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// How the bytes of an element are ordered.
    pub(crate) order: ByteOrder,
    bfloat16: Bfloat16,
}

/// What stands for bfloat16, which NumPy alone does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bfloat16 {
    /// `|V2`: two bytes, as NumPy saves again what it has loaded.
    Void,
    /// `<V2`, as NumPy saves ml_dtypes' arrays.
    LittleVoid,
    /// `u2`: 16-bit words.
    Words,
    /// ml_dtypes' own name.
    Named,
}

impl Spelling {
    /// Least significant byte first.
    pub(crate) const LITTLE: Self = Self::of(ByteOrder::Little);

    /// In this order, bfloat16 as plain bytes.
    pub(crate) const fn of(order: ByteOrder) -> Self {
        Self { order, bfloat16: Bfloat16::Void }
    }

    /// float64.
    pub(crate) fn doubles(self) -> &'static str {
        if self.order == ByteOrder::Big { ">f8" } else { "<f8" }
    }

    /// The element type in these words.
    pub(crate) fn descr(self, dtype: Dtype) -> &'static str {
        let pick = |little, big| if self.order == ByteOrder::Big { big } else { little };
        match (dtype, self.bfloat16) {
            (Dtype::F32, _) => pick("<f4", ">f4"),
            (Dtype::F16, _) => pick("<f2", ">f2"),
            (Dtype::Bf16, Bfloat16::Void) => pick("|V2", ">V2"),
            (Dtype::Bf16, Bfloat16::LittleVoid) => pick("<V2", ">V2"),
            (Dtype::Bf16, Bfloat16::Words) => pick("<u2", ">u2"),
            (Dtype::Bf16, Bfloat16::Named) => Descr::BFLOAT16,
            _ => pick("<u4", ">u4"),
        }
    }
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
    /// ml_dtypes' name of bfloat16.
    const BFLOAT16: &'static str = "bfloat16";

    /// Reads NumPy's spelling; what is not known keeps its text for the message.
    pub(crate) fn parse(text: &str) -> Self {
        let (order, rest) = match text.strip_prefix(['<', '|', '=', '>']) {
            Some(rest) if text.starts_with('>') => (ByteOrder::Big, rest),
            Some(rest) if text.starts_with('=') => (ByteOrder::NATIVE, rest),
            Some(rest) => (ByteOrder::Little, rest),
            None => (ByteOrder::NATIVE, text),
        };
        if text == Self::BFLOAT16 {
            return Self { kind: Kind::Raw, size: Some(2), order, text: text.into() };
        }
        let mut letters = rest.chars();
        let kind = match letters.next() {
            Some('b') => Kind::Bool,
            Some('i') => Kind::Signed,
            Some('u') => Kind::Unsigned,
            Some('f') => Kind::Float,
            Some('V') => Kind::Raw,
            Some('O') => Kind::Object,
            _ => Kind::Other,
        };
        let sized = !matches!(kind, Kind::Object | Kind::Other);
        let size = letters.as_str().parse().ok().filter(|_| sized);
        Self { kind, size, order, text: text.into() }
    }

    /// How to write floats as they are here.
    pub(crate) fn spelling(&self) -> Spelling {
        let bfloat16 = match self.kind {
            Kind::Unsigned => Bfloat16::Words,
            Kind::Raw if self.text == Self::BFLOAT16 => Bfloat16::Named,
            Kind::Raw if self.text.starts_with('<') => Bfloat16::LittleVoid,
            _ => Bfloat16::Void,
        };
        Spelling { order: self.order, bfloat16 }
    }

    /// What NumPy's users call it.
    fn name(&self) -> Option<String> {
        let bits = |word: &str, bytes: usize| Some(format!("{word}{}", 8 * bytes));
        match (self.kind, self.size) {
            (Kind::Bool, _) => Some("bool".into()),
            (Kind::Signed, Some(bytes @ 1..=8)) => bits("int", bytes),
            (Kind::Unsigned, Some(bytes @ 1..=8)) => bits("uint", bytes),
            (Kind::Float, Some(bytes @ 2..=8)) => bits("float", bytes),
            (Kind::Float, Some(_)) => Some("longdouble".into()),
            (Kind::Raw, _) if self.text == Self::BFLOAT16 => None,
            (Kind::Raw, Some(2)) => Some("2-byte void, bfloat16 perhaps".into()),
            (Kind::Object, _) => Some("Python objects".into()),
            (Kind::Other, _) => {
                match self.text.trim_start_matches(['<', '|', '=', '>']).chars().next()? {
                    'c' => Some("complex".into()),
                    'U' | 'S' | 'a' => Some("text".into()),
                    'M' | 'm' => Some("dates or times".into()),
                    '[' | '(' => Some("structured".into()),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

impl fmt::Display for Descr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = excerpt(&self.text);
        match self.name() {
            // It has quotes of its own.
            Some(name) if self.text.starts_with(['[', '(']) => write!(f, "{text} ({name})"),
            Some(name) => write!(f, "'{text}' ({name})"),
            None => write!(f, "'{text}'"),
        }
    }
}

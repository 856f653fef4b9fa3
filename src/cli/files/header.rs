//! The head of a `.npy` file: magic, version, and a Python dictionary of three entries.

use std::io::Read;

use super::descr::Descr;
use super::{FileError, excerpt};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// How archives begin.
const ARCHIVE_MAGIC: &[u8] = b"PK\x03\x04";
/// Headers have three short entries; NumPy itself refuses more than 10,000 bytes.
const MAX_TEXT: usize = 1 << 16;
/// Most axes of an array; NumPy allows 64.
const MAX_AXES: usize = 64;

/// What the head of a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The element type.
    pub(crate) descr: Descr,
    /// Whether the first axis varies fastest.
    pub(crate) fortran_order: bool,
    /// The sizes of the axes. Their product, zeros left out, fits an address space.
    pub(crate) shape: Vec<usize>,
    /// Bytes that the head takes in the file.
    pub(crate) length: u64,
}

impl Header {
    /// Reads the head and leaves the reader at the first element.
    pub(crate) fn read(reader: &mut dyn Read) -> Result<Self, FileError> {
        let mut start = [0; 8];
        fill(reader, &mut start, "its first 8 bytes")?;
        let [magic @ .., major, minor] = start;
        if magic.starts_with(ARCHIVE_MAGIC) {
            let message = "it is a .npz archive; a whole one can be given with --input";
            return Err(FileError::Header(message.into()));
        }
        if magic.starts_with(b"\x80") || magic == *b"cnumpy" {
            let message = "it looks like a Python pickle (write it with `numpy.save`)";
            return Err(FileError::Header(message.into()));
        }
        if magic != *MAGIC {
            return Err(FileError::Header("it does not begin with \\x93NUMPY".into()));
        }
        let (text_length, length_bytes) = match (major, minor) {
            (1, 0) => {
                let mut length = [0; 2];
                fill(reader, &mut length, "the header's length")?;
                (usize::from(u16::from_le_bytes(length)), 2)
            }
            (2 | 3, 0) => {
                let mut length = [0; 4];
                fill(reader, &mut length, "the header's length")?;
                (usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX), 4)
            }
            _ => {
                let expected = "expected format version 1.0, 2.0 or 3.0";
                return Err(FileError::Header(format!("{expected}, found {major}.{minor}")));
            }
        };
        if text_length > MAX_TEXT {
            let message = format!("its header claims {text_length} bytes, at most {MAX_TEXT} fit");
            return Err(FileError::Header(message));
        }
        let mut text = vec![0; text_length];
        fill(reader, &mut text, "its header")?;
        let text = std::str::from_utf8(&text)
            .map_err(|_| FileError::Header("its header is not text".into()))?;
        Self::parse(text, (8 + length_bytes + text_length) as u64).map_err(FileError::Header)
    }

    /// Elements of the array.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of data that must follow; `None` when the element's size is not known.
    pub(crate) fn data_bytes(&self) -> Option<u64> {
        Some(self.elements() as u64 * self.descr.size? as u64)
    }

    fn parse(text: &str, length: u64) -> Result<Self, String> {
        let mut cursor = Cursor { rest: text };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        cursor.consume('{')?;
        while !cursor.take('}') {
            let key = cursor.string()?;
            cursor.consume(':')?;
            let again = match key {
                "descr" => descr.replace(cursor.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(cursor.boolean()?).is_some(),
                "shape" => shape.replace(cursor.shape()?).is_some(),
                _ => {
                    let key = excerpt(key);
                    return Err(format!("its header has the unknown key `{key}`"));
                }
            };
            if again {
                return Err(format!("its header has the key `{key}` twice"));
            }
            if !cursor.take(',') {
                cursor.consume('}')?;
                break;
            }
        }
        if !cursor.rest.trim().is_empty() {
            return Err("its header goes on after the dictionary".into());
        }
        let missing = |key| format!("its header lacks the key `{key}`");
        let header = Self {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
            length,
        };
        header.check_size()?;
        Ok(header)
    }

    /// The product of the nonzero sizes must fit, so that no product of some of them overflows.
    fn check_size(&self) -> Result<(), String> {
        let size = self.descr.size.unwrap_or(1).max(1);
        let product = self
            .shape
            .iter()
            .filter(|&&axis| axis > 0)
            .try_fold(size, |product, &axis| product.checked_mul(axis))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        match product {
            Some(_) => Ok(()),
            None => Err(format!("its shape {:?} is too large for any memory", self.shape)),
        }
    }
}

fn fill(reader: &mut dyn Read, buffer: &mut [u8], what: &str) -> Result<(), FileError> {
    reader.read_exact(buffer).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => FileError::Header(format!("it ends within {what}")),
        _ => FileError::Io(error),
    })
}

/// Reads the few forms of Python literals that a header has; no nesting, so no recursion.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, symbol: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn consume(&mut self, symbol: char) -> Result<(), String> {
        if self.take(symbol) {
            return Ok(());
        }
        Err(format!("its header has {} where `{symbol}` is expected", self.found()))
    }

    fn found(&self) -> String {
        match self.rest.trim_start().chars().next() {
            Some(c) => format!("{c:?}"),
            None => "its end".into(),
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.take('"') { '"' } else { '\'' };
        if quote == '\'' {
            self.consume('\'')?;
        }
        let (text, rest) = self.rest.split_once(quote).ok_or("its header has an open string")?;
        self.rest = rest;
        Ok(text)
    }

    fn descr(&mut self) -> Result<Descr, String> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(['[', '(']) {
            return Ok(Descr::parse(self.brackets()?));
        }
        Ok(Descr::parse(self.string()?))
    }

    /// A structured element type, which only a message shows: to its last bracket, whatever is inside.
    fn brackets(&mut self) -> Result<&'a str, String> {
        let (mut depth, mut quote) = (0usize, None);
        for (place, symbol) in self.rest.char_indices() {
            match (symbol, quote) {
                (_, Some(open)) => quote = quote.filter(|_| symbol != open),
                ('\'' | '"', None) => quote = Some(symbol),
                ('[' | '(', None) => depth += 1,
                (']' | ')', None) => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                let (text, rest) = self.rest.split_at(place + symbol.len_utf8());
                self.rest = rest;
                return Ok(text);
            }
        }
        Err("its header has a structured element type without an end".into())
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("its `fortran_order` is neither True nor False".into())
    }

    fn shape(&mut self) -> Result<Vec<usize>, String> {
        self.consume('(')?;
        let mut shape = Vec::new();
        while !self.take(')') {
            if shape.len() == MAX_AXES {
                return Err(format!("its shape has more than {MAX_AXES} axes"));
            }
            shape.push(self.size()?);
            if !self.take(',') {
                self.consume(')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn size(&mut self) -> Result<usize, String> {
        let negative = self.take('-');
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        // Python 2 wrote long integers as `3L`.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        let shown = excerpt(digits);
        if digits.is_empty() {
            return Err(format!("its shape has {} where a size is expected", self.found()));
        }
        if negative {
            return Err(format!("its shape has the negative size -{shown}"));
        }
        digits.parse().map_err(|_| format!("its shape has the size {shown}, too large"))
    }
}

//! A sink whose first failure is kept for later.

use std::io::{self, Seek, SeekFrom, Write};

/// Passes everything on until something fails; from then on everything seems to succeed.
///
/// `ZipWriter` would otherwise try once more when it is dropped, and print to standard error.
#[derive(Debug)]
pub(super) struct Latch<W> {
    sink: W,
    failure: Option<io::Error>,
    /// Where the sink is, or would be.
    position: u64,
    /// Where it ends, or would end.
    end: u64,
}

impl<W: Write> Latch<W> {
    /// A latch before an empty sink.
    pub(super) fn new(sink: W) -> Self {
        Self { sink, failure: None, position: 0, end: 0 }
    }

    /// Whether everything arrived.
    pub(super) fn into_result(mut self) -> io::Result<()> {
        self.failure.map_or_else(|| self.sink.flush(), Err)
    }
}

impl<W> Latch<W> {
    fn attempt<T>(&mut self, otherwise: T, work: impl FnOnce(&mut W) -> io::Result<T>) -> T {
        if self.failure.is_some() {
            return otherwise;
        }
        work(&mut self.sink).unwrap_or_else(|error| {
            self.failure = Some(error);
            otherwise
        })
    }
}

impl<W: Write> Write for Latch<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.attempt(bytes.len(), |sink| sink.write(bytes));
        self.position += written as u64;
        self.end = self.end.max(self.position);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt((), Write::flush);
        Ok(())
    }
}

impl<W: Seek> Seek for Latch<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::End(offset) => (self.end, offset),
            SeekFrom::Current(offset) => (self.position, offset),
        };
        let otherwise = base.saturating_add_signed(offset);
        self.position = self.attempt(otherwise, |sink| sink.seek(to));
        Ok(self.position)
    }
}

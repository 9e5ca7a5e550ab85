//! Counts the bytes that go into and come out of unpacking, and stops it before they are too many.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};

use crate::fetch::worker::tree::failure;
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;

/// Maximum number of unpacked bytes for each packed byte. Text shrinks to a hundredth at best.
const MAX_RATIO: u64 = 200;

/// Unpacked bytes that are allowed at any ratio: small files of one repeated line are harmless.
const FREE_BYTES: u64 = 64 << 20;

/// Counters shared by both ends of one unpacking.
#[derive(Default)]
pub(super) struct Meter {
    /// Bytes that went in.
    packed: Cell<u64>,
    /// Bytes that came out.
    unpacked: Cell<u64>,
    /// Bytes that may still be unpacked in this part of the archive.
    allowed: Cell<u64>,
    stopped: RefCell<Option<FetchFailure>>,
}

impl Meter {
    /// Counts what goes in.
    pub(super) fn packed<'a>(&'a self, reader: impl Read + 'a) -> impl Read + 'a {
        Counted { reader, count: &self.packed }
    }

    /// Counts and limits what comes out.
    pub(super) fn unpacked<R: Read>(&self, reader: R) -> Metered<'_, R> {
        Metered { reader, meter: self }
    }

    /// Sets how many bytes may come out from now on.
    pub(super) fn allow(&self, bytes: u64) {
        self.allowed.set(bytes);
    }

    /// Takes the reason why reading stopped, if it did.
    pub(super) fn stopped(&self) -> Option<FetchFailure> {
        self.stopped.take()
    }

    fn stop(&self, text: &str) -> io::Error {
        *self.stopped.borrow_mut() = Some(failure(Class::Limit, text.to_owned()));
        io::Error::other(text.to_owned())
    }
}

struct Counted<'a, R> {
    reader: R,
    count: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(into)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// The unpacked bytes, within the limits.
pub(super) struct Metered<'a, R> {
    reader: R,
    meter: &'a Meter,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let allowed = self.meter.allowed.get();
        let wanted = into.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        if wanted == 0 && !into.is_empty() {
            return Err(self.meter.stop("a layer is refused: the header of an entry is larger than 1 MiB"));
        }
        let read = self.reader.read(into.get_mut(..wanted).unwrap_or_default())?;
        self.meter.allowed.set(allowed - read as u64);
        let unpacked = self.meter.unpacked.get() + read as u64;
        self.meter.unpacked.set(unpacked);
        if unpacked > FREE_BYTES && unpacked / MAX_RATIO > self.meter.packed.get() {
            return Err(self.meter.stop("a layer is refused: it unpacks to more than 200 times its size"));
        }
        Ok(read)
    }
}

//! The path of a source's bytes into the job's log: write, mask, frame, limit (logs.md §3, §6).
//!
//! [`Pipeline`] masks and frames one source. All sources of a job append to one [`Backlog`]: it holds whole entries
//! until they are written, enforces the log limit ([`LogBudget`]), and drops and counts entries while the disk is full.
//! Pure: the caller reads the pipes and the clocks and writes the file.

mod backlog;
mod budget;
#[cfg(test)]
mod tests;

pub use backlog::{Backlog, GIVE_UP_AFTER, RETRY_EVERY, WriterState};
#[cfg(test)]
use budget::OWN_RESERVE;
pub use budget::{LogBudget, LogOrigin};

use std::sync::Arc;

use super::frame::{Framer, HEADER_LEN, LogChannel, Stamp};
use super::mask::{MaskStream, Masker};

/// Masker and formatter of one source (logs.md §2, §3).
///
/// Each call clears `masked`, a scratch buffer that all sources may share, and appends the entries it completes to
/// `out`.
pub struct Pipeline {
    mask: MaskStream,
    framer: Framer,
}

impl Pipeline {
    /// Makes the pipeline of the source with this stream number and kind.
    pub fn new(number: u8, kind: LogChannel, masker: Arc<Masker>) -> Self {
        Self { mask: MaskStream::new(masker), framer: Framer::new(number, kind) }
    }

    /// Takes one write (one read of the pipe) made at `now`. To the formatter, the bytes that the masker releases are
    /// one write (logs.md §3).
    pub fn write(&mut self, bytes: &[u8], now: &Stamp, masked: &mut Vec<u8>, out: &mut Vec<u8>) {
        masked.clear();
        self.mask.push(bytes, masked);
        self.framer.push(masked, now, out);
    }

    /// Returns the masked entry that waits for the end of its line ([`Framer::unfinished`]).
    pub fn unfinished(&self) -> &[u8] {
        self.framer.unfinished()
    }

    /// Switches to a masker that knows more phrases and searches the held bytes again (masking.md §7).
    pub fn replace_masker(
        &mut self,
        masker: Arc<Masker>,
        now: &Stamp,
        masked: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        masked.clear();
        self.mask.replace_masker(masker, masked);
        self.framer.push(masked, now, out);
    }

    /// Ends the source: the masker releases what it holds, then the formatter ends the last line (logs.md §4).
    pub fn finish(&mut self, now: &Stamp, masked: &mut Vec<u8>, out: &mut Vec<u8>) {
        masked.clear();
        self.mask.finish(masked);
        self.framer.push(masked, now, out);
        self.framer.finish(out);
    }
}

/// Counts the bytes of output in `entries`: bodies with their line feeds, without headers.
fn output_bytes(entries: &[u8]) -> u64 {
    let headers = memchr::memchr_iter(b'\n', entries).count() * HEADER_LEN;
    entries.len().saturating_sub(headers) as u64
}

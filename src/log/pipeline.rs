//! The way of a source's bytes into the job's log: write, mask, frame, limit (logs.md §3, §6).
//!
//! [`Pipeline`] is the chain of one source. [`Backlog`] is what all sources of a job append to: whole entries on
//! their way to the file, kept below the log limit ([`LogBudget`]) and kept dense when the disk is full. All of it
//! is pure: the caller reads the pipes and the clocks and writes the file.

mod backlog;
mod budget;
#[cfg(test)]
mod tests;

pub use backlog::{Backlog, GIVE_UP_AFTER, RETRY_EVERY, State};
pub use budget::{LogBudget, OWN_RESERVE, Origin};

use std::sync::Arc;

use super::frame::{Framer, HEADER_LEN, Kind, Stamp};
use super::mask::{MaskStream, Masker};

/// The chain of one source: its masker and its formatter (logs.md §2, §3).
///
/// Each call is given `masked`, a buffer of the caller's that all sources may share, and appends to `out` the entries that
/// are complete by it.
pub struct Pipeline {
    mask: MaskStream,
    framer: Framer,
}

impl Pipeline {
    /// The chain of the source with this stream number and kind.
    pub fn new(number: u8, kind: Kind, masker: Arc<Masker>) -> Self {
        Self { mask: MaskStream::new(masker), framer: Framer::new(number, kind) }
    }

    /// Takes one write (one read of the pipe) made at `now`. The bytes that the masker releases count as one write
    /// (logs.md §3).
    pub fn write(&mut self, bytes: &[u8], now: &Stamp, masked: &mut Vec<u8>, out: &mut Vec<u8>) {
        masked.clear();
        self.mask.push(bytes, masked);
        self.framer.push(masked, now, out);
    }

    /// Goes on with a masker that knows more phrases: held bytes are searched again (masking.md §7).
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

/// How many bytes of output stand in `entries`: the bodies with their line feeds, without the headers.
fn output_bytes(entries: &[u8]) -> u64 {
    let headers = memchr::memchr_iter(b'\n', entries).count() * HEADER_LEN;
    entries.len().saturating_sub(headers) as u64
}

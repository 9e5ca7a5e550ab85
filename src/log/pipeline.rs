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

use super::frame::{Framer, HEADER_LEN, Kind, Stamp};

/// The masker in front of a formatter (logs.md §2: each source has its own).
pub trait Mask {
    /// Takes one write and appends the bytes that are safe to show to `out`; the rest is held back.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>);

    /// The source has ended: appends what is held back to `out`, masked.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// A masker without phrases: every byte passes at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmasked;

impl Mask for Unmasked {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
    }

    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

/// The chain of one source: its masker and its formatter (logs.md §2, §3).
pub struct Pipeline<M> {
    mask: M,
    framer: Framer,
    /// The masked bytes of the current write; kept for its capacity.
    masked: Vec<u8>,
}

impl<M: Mask> Pipeline<M> {
    /// The chain of the source with this stream number and kind, behind `mask`.
    pub const fn new(number: u8, kind: Kind, mask: M) -> Self {
        Self { mask, framer: Framer::new(number, kind), masked: Vec::new() }
    }

    /// Takes one write (one read of the pipe) made at `now` and appends the entries complete by it to `out`.
    ///
    /// The bytes that the masker releases count as one write (logs.md §3).
    pub fn write(&mut self, bytes: &[u8], now: &Stamp, out: &mut Vec<u8>) {
        self.masked.clear();
        self.mask.push(bytes, &mut self.masked);
        self.framer.push(&self.masked, now, out);
    }

    /// Ends the source: the masker releases what it holds, then the formatter ends the last line (logs.md §4).
    pub fn finish(&mut self, now: &Stamp, out: &mut Vec<u8>) {
        self.masked.clear();
        self.mask.finish(&mut self.masked);
        self.framer.push(&self.masked, now, out);
        self.framer.finish(out);
        // A source rarely comes back; its largest write need not stay in memory until it does.
        self.masked = Vec::new();
    }
}

/// How many bytes of output stand in `entries`: the bodies with their line feeds, without the headers.
fn output_bytes(entries: &[u8]) -> u64 {
    let headers = memchr::memchr_iter(b'\n', entries).count() * HEADER_LEN;
    entries.len().saturating_sub(headers) as u64
}

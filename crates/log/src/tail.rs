//! Decides how much of a log's end is intact after a power cut (service.md §6.4 item 4).
//!
//! Bytes that the file system had not written to the disk are missing at the end, or read as zeros at any place. So
//! after the offset up to which the log is known to be good, whole entries count up to the first one that has no header
//! or contains a NUL. If a step really wrote NUL bytes, at most output that no client had seen is lost. Pure: no IO.

use memchr::memchr;

use super::frame::HEADER_LEN;
use super::line::Entry;

/// Checks a log in pieces, from a known offset on.
#[derive(Debug)]
pub struct Tail {
    /// Offset of the next piece.
    at: u64,
    /// End of the last intact entry.
    good: u64,
    /// First bytes of the current entry; `None` if it began before the known offset: its header is not checked.
    header: Option<Vec<u8>>,
    /// True if a NUL byte counts as damage, that is, after the host died.
    is_nul_damage: bool,
    damaged: bool,
}

impl Tail {
    /// Starts at `offset`, up to which the log is known to be good. `within_entry` tells if that is inside an entry.
    pub const fn new(offset: u64, within_entry: bool) -> Self {
        let header = if within_entry { None } else { Some(Vec::new()) };
        Self { at: offset, good: offset, header, is_nul_damage: true, damaged: false }
    }

    /// Accepts NUL bytes: the host did not die, so a step wrote them.
    #[must_use]
    pub fn allowing_nul(self) -> Self {
        Self { is_nul_damage: false, ..self }
    }

    /// Takes the next piece. Returns false once damage was found: nothing after it counts.
    pub fn push(&mut self, mut piece: &[u8]) -> bool {
        while !self.damaged && !piece.is_empty() {
            let end = memchr(b'\n', piece).map_or(piece.len(), |at| at + 1);
            let (line, rest) = piece.split_at(end);
            self.damaged = !self.take(line);
            piece = rest;
        }
        !self.damaged
    }

    /// Takes the next part of an entry, up to its line feed if that is there. Returns false if it is damaged.
    fn take(&mut self, part: &[u8]) -> bool {
        self.at += part.len() as u64;
        if self.is_nul_damage && memchr(0, part).is_some() {
            return false;
        }
        if let Some(header) = &mut self.header {
            let missing = (HEADER_LEN + 1).saturating_sub(header.len()).min(part.len());
            header.extend_from_slice(part.get(..missing).unwrap_or_default());
        }
        if !part.ends_with(b"\n") {
            return true;
        }
        let header = self.header.replace(Vec::new());
        let is_entry = header.is_none_or(|header| {
            // The line feed of an entry with an empty body is the byte right behind the header.
            header.len() > HEADER_LEN && Entry::parse(&header).is_some_and(|entry| entry.has_format())
        });
        if is_entry {
            self.good = self.at;
        }
        is_entry
    }

    /// Returns the offset up to which the log is intact.
    pub const fn good(&self) -> u64 {
        self.good
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRY: &[u8] = b"2026-01-02T03:04:05.000006Z 01O some text\n";

    fn good(offset: u64, within: bool, bytes: &[u8], piece: usize) -> u64 {
        let mut tail = Tail::new(offset, within);
        for piece in bytes.chunks(piece) {
            if !tail.push(piece) {
                break;
            }
        }
        tail.good()
    }

    #[test]
    fn whole_entries_are_good_up_to_the_first_damage() {
        let len = ENTRY.len() as u64;
        let empty_body = [&ENTRY[..32], b"\n"].concat();
        for (tail, expected) in [
            (ENTRY.repeat(3), 3 * len),
            ([ENTRY, &ENTRY[..40]].concat(), len),
            ([ENTRY, &[0; 30], ENTRY].concat(), len),
            ([ENTRY, &ENTRY[..36], &[0; 9], &ENTRY[36..], ENTRY].concat(), len),
            ([ENTRY, &ENTRY[1..]].concat(), len),
            ([ENTRY, b"\n", ENTRY].concat(), len),
            ([ENTRY, &empty_body].concat(), len + 33),
            (Vec::new(), 0),
        ] {
            for piece in [1, 7, 4096] {
                assert_eq!(good(100, false, &tail, piece), 100 + expected, "{tail:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn the_rest_of_an_entry_needs_no_header() {
        let rest = [b"the rest\n", ENTRY, b"half"].concat();
        assert_eq!(good(5, true, &rest, 3), 5 + 9 + ENTRY.len() as u64);
        assert_eq!(good(5, true, b"the re", 3), 5);
        assert_eq!(good(5, true, b"the \0\n", 3), 5);
    }

    proptest! {
        #[test]
        fn what_lacks_a_sector_ends_before_it(
            bodies in prop::collection::vec("[a-z]{0,900}", 1..20),
            lost in 0usize..40,
        ) {
            let mut log = Vec::new();
            for body in &bodies {
                log.extend_from_slice(&ENTRY[..32]);
                log.extend_from_slice(body.as_bytes());
                log.push(b'\n');
            }
            let len = log.len();
            let sector = (lost * 512).min(len)..((lost + 1) * 512).min(len);
            log[sector.clone()].fill(0);
            let end = good(0, false, &log, 333) as usize;
            if sector.is_empty() {
                prop_assert_eq!(end, len);
            } else {
                prop_assert!(end <= sector.start);
                // No entry before the sector is lost.
                prop_assert!(!log[end..sector.start].contains(&b'\n'));
            }
        }
    }
}

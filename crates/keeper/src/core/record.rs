//! The record of one job: its events as the daemon encoded them, read in pieces.

use std::ops::Range;

/// Maximum number of bytes of a record in one reply. The jobs' pipes get their turn between two replies.
pub(super) const PIECE: usize = 1 << 20;

/// Bytes of the length in front of each event.
const LENGTH: usize = 4;

/// Events in order, read as one stream: each event is its length, a little-endian `u32`, and its bytes.
#[derive(Default)]
pub(super) struct Record {
    events: Vec<Vec<u8>>,
    /// Offset of the end of each event in the stream.
    ends: Vec<u64>,
}

impl Record {
    pub(super) fn count(&self) -> u32 {
        self.events.len() as u32
    }

    /// Returns the length of the stream.
    pub(super) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    pub(super) fn push(&mut self, event: Vec<u8>) {
        self.ends.push(self.len() + (LENGTH + event.len()) as u64);
        self.events.push(event);
    }

    /// Returns the bytes of the stream from `offset` on, at most [`PIECE`].
    pub(super) fn piece(&self, offset: u64) -> Vec<u8> {
        let mut piece = Vec::new();
        let first = self.ends.partition_point(|end| *end <= offset);
        let start =
            first.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        let mut skip = offset.saturating_sub(start) as usize;
        for event in self.events.iter().skip(first) {
            let length = (event.len() as u32).to_le_bytes();
            for part in [&length[..], event] {
                let range = within(skip, part.len(), PIECE - piece.len());
                skip = skip.saturating_sub(part.len());
                piece.extend_from_slice(part.get(range).unwrap_or_default());
            }
            if piece.len() == PIECE {
                break;
            }
        }
        piece
    }
}

/// Returns the range of `len` bytes that remains after the first `skip` bytes, at most `room` long.
fn within(skip: usize, len: usize, room: usize) -> Range<usize> {
    let start = skip.min(len);
    start..len.min(start + room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_77_a_record_is_read_in_pieces_from_any_offset() {
        let mut record = Record::default();
        let events = [vec![1; 10], Vec::new(), vec![2; 3 * PIECE], vec![3; PIECE - 9], vec![4]];
        let mut stream = Vec::new();
        for event in events {
            stream.extend_from_slice(&(event.len() as u32).to_le_bytes());
            stream.extend_from_slice(&event);
            record.push(event);
        }
        assert_eq!((record.len(), record.count()), (stream.len() as u64, 5));
        let mut read = Vec::new();
        while (read.len() as u64) < record.len() {
            let piece = record.piece(read.len() as u64);
            assert!(!piece.is_empty() && piece.len() <= PIECE);
            read.extend(piece);
        }
        assert!(read == stream);
        for offset in [0, 1, 4, 13, 14, 17, 18, 22, PIECE, 4 * PIECE, stream.len() - 1] {
            let piece = record.piece(offset as u64);
            assert!(piece == stream[offset..stream.len().min(offset + PIECE)], "{offset}");
        }
        assert!(record.piece(record.len()).is_empty() && record.piece(u64::MAX).is_empty());
    }
}

//! Bytes that come in parts of any size, kept in pieces of one size.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Size of a piece in bytes. The parts themselves are not kept: each is a view of a larger buffer of the HTTP/2 library,
/// and a client decides how small it is. Blocks of this size are mapped one by one (`process::bound_free_memory`): memory
/// is taken as bytes are written, and goes back to the system with the piece.
const PIECE: usize = 1 << 20;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<BytesMut>,
    len: usize,
}

impl Pieces {
    /// Number of bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            if self.pieces.back().is_none_or(|last| last.len() == PIECE) {
                self.pieces.push_back(BytesMut::with_capacity(PIECE));
            }
            let Some(last) = self.pieces.back_mut() else { return };
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - last.len()));
            last.extend_from_slice(now);
            bytes = later;
        }
    }

    /// Removes and returns the first piece.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.len -= piece.len();
        Some(piece.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_however_they_came() {
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|at| (at % 251) as u8).collect();
        for part in [7, 1_000, PIECE, 2 * PIECE + 1, bytes.len()] {
            let mut pieces = Pieces::default();
            bytes.chunks(part).for_each(|part| pieces.push(part));
            assert_eq!(pieces.len(), bytes.len());
            let out: Vec<Bytes> = std::iter::from_fn(|| pieces.pop()).collect();
            assert!(out.concat() == bytes && out.len() == 4 && pieces.is_empty(), "{part}");
        }
    }
}

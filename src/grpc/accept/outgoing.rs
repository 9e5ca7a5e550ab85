//! The path of the daemon's frames to a client.
//!
//! Normally frames are only counted. On a connection that is ended because of a flood, they are rewritten. The
//! library's graceful end sends GOAWAY twice: first without an error and with the largest stream id, then, after a
//! PING, with the true one. The client gets one GOAWAY with ENHANCE_YOUR_CALM and the true id. This module answers the
//! PING itself, because the client's answer would come after its flood.

use super::incoming::{FrameHeader, HEADER_LEN, flag, kind};

/// The largest stream id.
const MAX_STREAM: u32 = 0x7fff_ffff;
/// Error codes (RFC 9113 §7).
const NO_ERROR: u32 = 0;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Position in the stream of frames.
#[derive(Debug, Default)]
pub(super) struct OutgoingFrames {
    header: [u8; HEADER_LEN],
    /// Bytes of the current header already sent.
    come: usize,
    /// Bytes of the current payload not sent yet.
    left: usize,
    /// A control frame, kept until it is complete enough to decide about it.
    control: Vec<u8>,
}

impl OutgoingFrames {
    /// Calls `seen` for each frame whose header ends within the sent `bytes`.
    pub(super) fn sent(&mut self, mut bytes: &[u8], mut seen: impl FnMut(FrameHeader)) {
        while !bytes.is_empty() {
            bytes = match self.header(bytes) {
                Ok((header, rest)) => {
                    seen(header);
                    self.left = header.length;
                    rest
                }
                Err(rest) => rest,
            };
        }
    }

    /// Skips to the end of the next header. Returns the header, if it is complete, and the remaining bytes.
    fn header<'a>(&mut self, bytes: &'a [u8]) -> Result<(FrameHeader, &'a [u8]), &'a [u8]> {
        let bytes = self.payload(bytes);
        let (come, rest) = bytes.split_at((HEADER_LEN - self.come).min(bytes.len()));
        if let Some(place) = self.header.get_mut(self.come..self.come + come.len()) {
            place.copy_from_slice(come);
        }
        self.come += come.len();
        if self.come < HEADER_LEN {
            return Err(rest);
        }
        self.come = 0;
        Ok((FrameHeader::read(self.header), rest))
    }

    /// Appends to `out` the bytes that the client gets for `bytes`. Appends to `answers` the answers to PINGs that the
    /// client does not get.
    pub(super) fn rewrite(&mut self, mut bytes: &[u8], out: &mut Vec<u8>, answers: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.left > 0 || self.come > 0 {
                // Rest of a frame that began before, or of a payload.
                let length = bytes.len();
                let rest = if self.left > 0 { self.payload(bytes) } else { self.begun(bytes) };
                out.extend_from_slice(bytes.get(..length - rest.len()).unwrap_or_default());
                bytes = rest;
                continue;
            }
            let wanted = self.wanted().saturating_sub(self.control.len());
            let (come, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.control.extend_from_slice(come);
            bytes = rest;
            if self.control.len() == self.wanted() {
                self.emit(out, answers);
            }
        }
    }

    fn payload<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let count = self.left.min(bytes.len());
        self.left -= count;
        bytes.get(count..).unwrap_or_default()
    }

    fn begun<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match self.header(bytes) {
            Ok((header, rest)) => {
                self.left = header.length;
                rest
            }
            Err(rest) => rest,
        }
    }

    /// Returns the header of the frame in `control`.
    fn held(&self) -> Option<FrameHeader> {
        self.control.first_chunk().map(|header| FrameHeader::read(*header))
    }

    /// Returns how many bytes of a frame are needed in `control` to decide about it.
    fn wanted(&self) -> usize {
        match self.held() {
            Some(header) if [kind::PING, kind::GOAWAY].contains(&header.kind) => HEADER_LEN + header.length,
            _ => HEADER_LEN,
        }
    }

    fn emit(&mut self, out: &mut Vec<u8>, answers: &mut Vec<u8>) {
        let Some(header) = self.held() else { return };
        let payload = self.control.get(HEADER_LEN..).unwrap_or_default();
        match header.kind {
            kind::PING if !header.has(flag::ACK) => {
                answers.extend(FrameHeader { flags: flag::ACK, ..header }.bytes());
                answers.extend_from_slice(payload);
            }
            kind::GOAWAY => match payload {
                [a, b, c, d, code @ ..] if code == NO_ERROR.to_be_bytes() => {
                    let last = [*a, *b, *c, *d];
                    if u32::from_be_bytes(last) != MAX_STREAM {
                        out.extend(header.bytes());
                        out.extend(last);
                        out.extend(ENHANCE_YOUR_CALM.to_be_bytes());
                    }
                }
                _ => out.extend_from_slice(&self.control),
            },
            kind::PING => out.extend_from_slice(&self.control),
            _ => {
                out.extend_from_slice(&self.control);
                self.left = header.length;
            }
        }
        self.control.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader { length: payload.len(), kind, flags, stream };
        [&header.bytes()[..], payload].concat()
    }

    fn goaway(last: u32, code: u32) -> Vec<u8> {
        frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let bytes = [frame(kind::HEADERS, 4, 1, b"abc"), frame(kind::DATA, 1, 1, b""), goaway(1, 0)].concat();
        for size in 1..=bytes.len() {
            let (mut frames, mut seen) = (OutgoingFrames::default(), Vec::new());
            bytes.chunks(size).for_each(|piece| frames.sent(piece, |header| seen.push(header.kind)));
            assert_eq!(
                (seen.as_slice(), frames.left),
                (&[kind::HEADERS, kind::DATA, kind::GOAWAY][..], 0),
                "{size}"
            );
        }
    }

    #[test]
    fn fault_89_a_graceful_end_becomes_one_goaway_with_the_true_stream() {
        let data = frame(kind::DATA, 0, 5, b"some data of an answer");
        let ping = frame(kind::PING, 0, 0, b"shutdown");
        let answer = frame(kind::PING, flag::ACK, 0, b"12345678");
        let bytes = [&data[..], &goaway(MAX_STREAM, 0), &ping, &answer, &data, &goaway(5, 0), &data].concat();
        let expected = [&data[..], &answer, &data, &goaway(5, 11), &data].concat();
        for size in 1..=bytes.len() {
            // A part of the first frame is sent before the end of the connection begins.
            for begun in 0..data.len() {
                let mut frames = OutgoingFrames::default();
                frames.sent(&bytes[..begun], |_| ());
                let (mut out, mut answers) = (bytes[..begun].to_vec(), Vec::new());
                bytes[begun..].chunks(size).for_each(|piece| frames.rewrite(piece, &mut out, &mut answers));
                assert_eq!(out, expected, "{size} {begun}");
                assert_eq!(answers, frame(kind::PING, flag::ACK, 0, b"shutdown"));
            }
        }
    }

    #[test]
    fn errors_of_the_library_stay() {
        let (mut out, mut answers) = (Vec::new(), Vec::new());
        OutgoingFrames::default().rewrite(&goaway(7, 1), &mut out, &mut answers);
        assert_eq!((out, answers), (goaway(7, 1), vec![]));
    }
}

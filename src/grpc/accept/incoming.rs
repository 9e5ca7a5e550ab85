//! The path of a client's frames to the HTTP/2 library (RFC 9113 §4).
//!
//! Frames pass in place, without a copy, even if they come in pieces. A header block is passed on only when it is
//! complete and its `:authority` is removed; CONTINUATION frames are joined to their HEADERS. Everything else is left
//! to the library to judge. For a malformed block the library gets a frame with an error of the same kind.

use super::MAX_HEADERS;
use super::authority::{AuthorityFilter, BlockError, Filtered};

/// Length of the HTTP/2 connection preface in bytes.
const PREFACE_LEN: usize = 24;

/// Length of a frame's header in bytes.
pub(super) const HEADER_LEN: usize = 9;

/// Maximum payload that a client may send: the library advertises no other (RFC 9113 §6.5.2).
const MAX_PAYLOAD: usize = 16 << 10;

/// Maximum number of bytes kept of one header block. A header list within 16 KiB is shorter in any encoding.
const MAX_BLOCK: usize = 64 << 10;

/// Kinds of frames (RFC 9113 §6).
pub(super) mod kind {
    pub(in crate::grpc::accept) const DATA: u8 = 0;
    pub(in crate::grpc::accept) const HEADERS: u8 = 1;
    pub(in crate::grpc::accept) const RST_STREAM: u8 = 3;
    pub(in crate::grpc::accept) const PING: u8 = 6;
    pub(in crate::grpc::accept) const GOAWAY: u8 = 7;
    pub(in crate::grpc::accept) const CONTINUATION: u8 = 9;
}

/// Flags of frames (RFC 9113 §6).
pub(super) mod flag {
    pub(in crate::grpc::accept) const END_STREAM: u8 = 0x1;
    /// In PING and SETTINGS.
    pub(in crate::grpc::accept) const ACK: u8 = 0x1;
    pub(in crate::grpc::accept) const END_HEADERS: u8 = 0x4;
    pub(in crate::grpc::accept) const PADDED: u8 = 0x8;
    pub(in crate::grpc::accept) const PRIORITY: u8 = 0x20;
}

/// Length of the fields that the flag PRIORITY announces, in bytes.
const PRIORITY_LEN: usize = 5;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHeader {
    pub(super) const fn read([high, middle, low, kind, flags, stream @ ..]: [u8; HEADER_LEN]) -> Self {
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        Self { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff }
    }

    pub(super) fn bytes(self) -> [u8; HEADER_LEN] {
        let [_, high, middle, low] = (self.length as u32).to_be_bytes();
        let [a, b, c, d] = self.stream.to_be_bytes();
        [high, middle, low, self.kind, self.flags, a, b, c, d]
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A header block that needs more than [`MAX_BLOCK`] bytes, or whose list is a multiple of what is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OversizedBlock;

/// The frames of one connection.
#[derive(Debug)]
pub(super) struct IncomingFrames {
    state: FrameState,
    preface_left: usize,
    /// Incomplete header of a frame.
    header: Vec<u8>,
    /// Incomplete header block, preceded by the fields of PRIORITY.
    block: Vec<u8>,
    /// Output that did not fit into the reader's buffer.
    spill: Vec<u8>,
    authority: AuthorityFilter,
}

#[derive(Clone, Copy, Debug)]
enum FrameState {
    /// The next byte belongs to a frame's header, whose earlier bytes, if any, are in `header`.
    Header,
    /// This many bytes of a frame are still to be passed on.
    Passing(usize),
    /// The payload of a HEADERS or CONTINUATION frame is being read.
    Block(PartialHeaders),
    /// The next frame must be a CONTINUATION.
    BetweenBlocks(FrameHeader),
    /// Nothing more is passed on; the library ends the connection.
    Failed,
}

/// An incomplete header block.
#[derive(Clone, Copy, Debug)]
struct PartialHeaders {
    /// Header of its HEADERS frame.
    first: FrameHeader,
    /// Bytes of the current frame that are still to be read.
    left: usize,
    is_last: bool,
}

/// Received bytes. Those passed on overwrite them from the start.
struct Chunk<'a> {
    bytes: &'a mut [u8],
    read: usize,
    written: usize,
    spill: &'a mut Vec<u8>,
}

impl Chunk<'_> {
    fn left(&self) -> usize {
        self.bytes.len() - self.read
    }

    fn next(&self, count: usize) -> &[u8] {
        self.bytes.get(self.read..self.read + count).unwrap_or_default()
    }

    /// Passes on the next `count` bytes.
    fn pass(&mut self, count: usize) {
        let range = self.read..self.read + count;
        self.read += count;
        if !self.spill.is_empty() {
            self.spill.extend_from_slice(self.bytes.get(range).unwrap_or_default());
            return;
        }
        if self.written < range.start {
            self.bytes.copy_within(range, self.written);
        }
        self.written += count;
    }

    /// Passes on `bytes` that are not part of the chunk.
    fn put(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.written..self.written + bytes.len()) {
            Some(place) if self.spill.is_empty() && self.written + bytes.len() <= self.read => {
                place.copy_from_slice(bytes);
                self.written += bytes.len();
            }
            _ => self.spill.extend_from_slice(bytes),
        }
    }
}

impl Default for IncomingFrames {
    fn default() -> Self {
        Self {
            state: FrameState::Header,
            preface_left: PREFACE_LEN,
            header: Vec::new(),
            block: Vec::new(),
            spill: Vec::new(),
            authority: AuthorityFilter::default(),
        }
    }
}

impl IncomingFrames {
    /// True if the whole preface was received.
    pub(super) const fn has_preface(&self) -> bool {
        self.preface_left == 0
    }

    /// True if the output so far ends between two frames.
    pub(super) const fn is_between_frames(&self) -> bool {
        self.rest_of_frame().is_none() && self.has_preface()
    }

    /// Returns how many bytes of a partly passed frame are still missing, or `None` between frames.
    pub(super) const fn rest_of_frame(&self) -> Option<usize> {
        match self.state {
            FrameState::Passing(left) => Some(left),
            _ => None,
        }
    }

    /// Bytes to pass on before the output of the next [`Self::take`]. The caller removes what it has passed on.
    pub(super) const fn spill(&mut self) -> &mut Vec<u8> {
        &mut self.spill
    }

    /// Takes bytes of the client and overwrites them with those to pass on. Returns the number of the latter; more may
    /// be in [`Self::spill`]. Calls `seen` for each frame.
    pub(super) fn take(
        &mut self,
        bytes: &mut [u8],
        mut seen: impl FnMut(FrameHeader),
    ) -> Result<usize, OversizedBlock> {
        let mut spill = std::mem::take(&mut self.spill);
        let mut chunk = Chunk { bytes, read: 0, written: 0, spill: &mut spill };
        let preface = chunk.left().min(self.preface_left);
        self.preface_left -= preface;
        chunk.pass(preface);
        let mut result = Ok(());
        while chunk.left() > 0 && result.is_ok() {
            result = self.step(&mut chunk, &mut seen);
        }
        let written = chunk.written;
        self.spill = spill;
        result.map(|()| written)
    }

    fn step(&mut self, chunk: &mut Chunk, seen: &mut impl FnMut(FrameHeader)) -> Result<(), OversizedBlock> {
        match self.state {
            FrameState::Header => {
                if let Some(header) = self.next_header(chunk) {
                    seen(header);
                    return self.begin(header, chunk);
                }
            }
            FrameState::Passing(left) => {
                let count = left.min(chunk.left());
                chunk.pass(count);
                self.state =
                    if count == left { FrameState::Header } else { FrameState::Passing(left - count) };
            }
            FrameState::Block(partial) => return self.collect(partial, chunk),
            FrameState::BetweenBlocks(first) => {
                if let Some(header) = self.next_header(chunk) {
                    seen(header);
                    return self.go_on(first, header, chunk);
                }
            }
            FrameState::Failed => chunk.read = chunk.bytes.len(),
        }
        Ok(())
    }

    /// Returns the next frame's header once it is complete.
    fn next_header(&mut self, chunk: &mut Chunk) -> Option<FrameHeader> {
        let count = (HEADER_LEN - self.header.len()).min(chunk.left());
        let come = chunk.next(count);
        let header = if count == HEADER_LEN {
            come.try_into().ok()
        } else {
            self.header.extend_from_slice(come);
            self.header.as_slice().try_into().ok()
        };
        chunk.read += count;
        let header = FrameHeader::read(header?);
        self.header.clear();
        Some(header)
    }

    /// Begins a frame outside a header block.
    fn begin(&mut self, header: FrameHeader, chunk: &mut Chunk) -> Result<(), OversizedBlock> {
        if header.kind != kind::HEADERS || header.length > MAX_PAYLOAD {
            chunk.put(&header.bytes());
            self.state =
                if header.length == 0 { FrameState::Header } else { FrameState::Passing(header.length) };
            Ok(())
        } else if header.has(flag::END_HEADERS) && header.length <= chunk.left() {
            self.state = FrameState::Header;
            self.whole(header, chunk)
        } else {
            self.block.clear();
            let is_last = header.has(flag::END_HEADERS);
            self.state = FrameState::Block(PartialHeaders { first: header, left: header.length, is_last });
            self.end_of_frame(chunk)
        }
    }

    /// Filters a complete block in place.
    fn whole(&mut self, header: FrameHeader, chunk: &mut Chunk) -> Result<(), OversizedBlock> {
        let start = chunk.read;
        chunk.read += header.length;
        let Some(payload) = chunk.bytes.get_mut(start..start + header.length) else { return Ok(()) };
        let Some((skipped, kept)) = without_padding(header, payload) else {
            self.fail(misplaced(header.stream), chunk);
            return Ok(());
        };
        let header = FrameHeader { flags: header.flags & !flag::PADDED, ..header };
        let payload = payload.get_mut(skipped..skipped + kept).unwrap_or_default();
        match self.filter(header, payload) {
            Err(BlockError::Malformed) => {
                self.fail(unreadable(header.stream), chunk);
                Ok(())
            }
            Err(BlockError::Abusive) => self.refuse(),
            Ok(Filtered { length, is_too_large: true }) => {
                let block = payload.get(..length).unwrap_or_default().to_vec();
                put_block(header, &too_large(block), chunk);
                Ok(())
            }
            Ok(Filtered { length, is_too_large: false }) => {
                let end = std::mem::replace(&mut chunk.read, start + skipped);
                chunk.put(&FrameHeader { length, ..header }.bytes());
                chunk.pass(length);
                chunk.read = end;
                Ok(())
            }
        }
    }

    /// Filters a block behind the fields of PRIORITY, which stay. The result's length is that of both.
    fn filter(&mut self, header: FrameHeader, payload: &mut [u8]) -> Result<Filtered, BlockError> {
        let fixed = if header.has(flag::PRIORITY) { PRIORITY_LEN } else { 0 };
        let block = payload.get_mut(fixed..).ok_or(BlockError::Malformed)?;
        let filtered = self.authority.filter(block, MAX_HEADERS as usize)?;
        Ok(Filtered { length: fixed + filtered.length, ..filtered })
    }

    /// Collects more of an incomplete block.
    fn collect(&mut self, partial: PartialHeaders, chunk: &mut Chunk) -> Result<(), OversizedBlock> {
        let count = partial.left.min(chunk.left());
        if self.block.len() + count > MAX_BLOCK {
            return self.refuse();
        }
        self.block.extend_from_slice(chunk.next(count));
        chunk.read += count;
        self.state = FrameState::Block(PartialHeaders { left: partial.left - count, ..partial });
        self.end_of_frame(chunk)
    }

    /// Continues after the payload of a HEADERS or CONTINUATION frame, if it is complete.
    fn end_of_frame(&mut self, chunk: &mut Chunk) -> Result<(), OversizedBlock> {
        let FrameState::Block(PartialHeaders { first, left: 0, is_last }) = self.state else { return Ok(()) };
        // Only a HEADERS frame has padding. Until the first CONTINUATION, `block` is exactly its payload.
        if first.has(flag::PADDED) {
            let Some((skipped, kept)) = without_padding(first, &self.block) else {
                self.fail(misplaced(first.stream), chunk);
                return Ok(());
            };
            self.block.truncate(skipped + kept);
            self.block.drain(..skipped);
        }
        let first = FrameHeader { flags: first.flags & !flag::PADDED, ..first };
        self.state = if is_last { FrameState::Header } else { FrameState::BetweenBlocks(first) };
        if is_last { self.emit(first, chunk) } else { Ok(()) }
    }

    /// Begins a frame within a header block.
    fn go_on(
        &mut self,
        first: FrameHeader,
        header: FrameHeader,
        chunk: &mut Chunk,
    ) -> Result<(), OversizedBlock> {
        if header.kind != kind::CONTINUATION || header.stream != first.stream || header.length > MAX_PAYLOAD {
            self.fail(misplaced(first.stream), chunk);
            return Ok(());
        }
        let is_last = header.has(flag::END_HEADERS);
        self.state = FrameState::Block(PartialHeaders { first, left: header.length, is_last });
        self.end_of_frame(chunk)
    }

    /// Passes on the collected block.
    fn emit(&mut self, first: FrameHeader, chunk: &mut Chunk) -> Result<(), OversizedBlock> {
        let mut block = std::mem::take(&mut self.block);
        match self.filter(first, &mut block) {
            Err(BlockError::Malformed) => self.fail(unreadable(first.stream), chunk),
            Err(BlockError::Abusive) => return self.refuse(),
            Ok(Filtered { length, is_too_large }) => {
                block.truncate(length);
                let block = if is_too_large { too_large(block) } else { block };
                put_block(first, &block, chunk);
            }
        }
        Ok(())
    }

    /// Passes on nothing more. The caller ends the connection.
    fn refuse(&mut self) -> Result<(), OversizedBlock> {
        self.block = Vec::new();
        self.state = FrameState::Failed;
        Err(OversizedBlock)
    }

    /// Passes on a frame that makes the library end the connection, and nothing after it.
    fn fail(&mut self, frame: impl AsRef<[u8]>, chunk: &mut Chunk) {
        chunk.put(frame.as_ref());
        self.block = Vec::new();
        self.state = FrameState::Failed;
    }
}

/// Passes on a block in as few frames as possible, the first with the header `first`.
fn put_block(first: FrameHeader, block: &[u8], chunk: &mut Chunk) {
    let mut pieces = block.chunks(MAX_PAYLOAD).peekable();
    let mut header = FrameHeader { length: 0, flags: first.flags & !flag::END_HEADERS, ..first };
    loop {
        let piece = pieces.next().unwrap_or_default();
        header.length = piece.len();
        let is_last = pieces.peek().is_none();
        header.flags |= if is_last { flag::END_HEADERS } else { 0 };
        chunk.put(&header.bytes());
        chunk.put(piece);
        if is_last {
            return;
        }
        header = FrameHeader { kind: kind::CONTINUATION, flags: 0, ..header };
    }
}

/// Makes the list of a block as long as the limit, so that the library refuses the call as it refuses every list over
/// the limit: with status 431.
fn too_large(mut block: Vec<u8>) -> Vec<u8> {
    /// A field `x` that enters no table (RFC 7541 §6.2.3). Then the value's length, in a prefix of 7 bits (§5.1).
    const FIELD: &[u8] = &[0x10, 1, b'x', 0x7f];
    block.extend_from_slice(FIELD);
    let mut left = MAX_HEADERS - 0x7f;
    while left >= 0x80 {
        block.push(left as u8 | 0x80);
        left >>= 7;
    }
    block.push(left as u8);
    block.resize(block.len() + MAX_HEADERS as usize, b'x');
    block
}

/// Filters `bytes` in pieces of this size. Returns the output, or `None` if a header block is too large.
pub(in crate::grpc) fn filtered(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let (mut frames, mut out) = (IncomingFrames::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        let mut piece = piece.to_vec();
        let count = frames.take(&mut piece, |_| ()).ok()?;
        out.extend(piece.into_iter().take(count));
        out.append(frames.spill());
    }
    Some(out)
}

/// Returns offset and length of a HEADERS frame's payload without padding; `None` if the padding is too long.
fn without_padding(header: FrameHeader, payload: &[u8]) -> Option<(usize, usize)> {
    if !header.has(flag::PADDED) {
        return Some((0, payload.len()));
    }
    let (padding, rest) = payload.split_first()?;
    Some((1, rest.len().checked_sub(usize::from(*padding))?))
}

/// Makes a CONTINUATION without HEADERS: a protocol error.
fn misplaced(stream: u32) -> [u8; HEADER_LEN] {
    FrameHeader { length: 0, kind: kind::CONTINUATION, flags: flag::END_HEADERS, stream }.bytes()
}

/// Makes a header block with the index 0: a compression error.
fn unreadable(stream: u32) -> Vec<u8> {
    let header = FrameHeader { length: 1, kind: kind::HEADERS, flags: flag::END_HEADERS, stream };
    [&header.bytes()[..], &[0x80]].concat()
}

#[cfg(test)]
mod tests;

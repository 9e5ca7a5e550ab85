//! Writes single HTTP/2 frames, which no library would do. For hostile clients.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::allow_attributes, reason = "as above: `expect` would fail in a program that uses all")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The HTTP/2 connection preface.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames (RFC 9113 §6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Largest payload of a frame that is always allowed.
pub(crate) const MAX_FRAME: usize = 16 << 10;

const HEADER: usize = 9;

/// Encodes one frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Encodes the payload of a SETTINGS frame.
pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    values.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect()
}

/// Encodes a header field that is not added to a dynamic table (RFC 7541 §6.2.2).
pub(crate) fn header(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        // An integer with a prefix of seven bits.
        let mut left = text.len();
        if left < 127 {
            bytes.push(left as u8);
        } else {
            bytes.push(127);
            left -= 127;
            while left >= 128 {
                bytes.push((left % 128) as u8 | 128);
                left /= 128;
            }
            bytes.push(left as u8);
        }
        bytes.extend_from_slice(text);
    }
    bytes
}

/// Encodes the headers of a call of our service.
pub(crate) fn call_headers(method: &str) -> Vec<u8> {
    let path = format!("/steprunner.v1.StepRunner/{method}");
    [
        header(b":method", b"POST"),
        header(b":scheme", b"http"),
        header(b":path", path.as_bytes()),
        header(b":authority", b"x"),
        header(b"te", b"trailers"),
        header(b"content-type", b"application/grpc"),
    ]
    .concat()
}

/// Encodes a gRPC message: a flag, its length, its bytes.
pub(crate) fn message(bytes: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(bytes);
    framed
}

/// Encodes HEADERS and DATA of a complete call on `stream`.
pub(crate) fn call(stream: u32, method: &str, request: &[u8]) -> Vec<u8> {
    let mut bytes = frame(kind::HEADERS, END_HEADERS, stream, &call_headers(method));
    let message = message(request);
    let mut pieces = message.chunks(MAX_FRAME).peekable();
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() { END_STREAM } else { 0 };
        bytes.extend_from_slice(&frame(kind::DATA, last, stream, piece));
    }
    bytes
}

/// A received frame.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    /// True if END_STREAM is set.
    pub(crate) is_last: bool,
    pub(crate) payload: Vec<u8>,
}

/// A connection that sends nothing by itself.
pub(crate) struct Wire {
    pub(crate) stream: UnixStream,
}

impl Wire {
    /// Connects without sending anything.
    pub(crate) fn silent(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(socket)? })
    }

    /// Connects and sends preface and SETTINGS.
    pub(crate) fn open(socket: &Path) -> io::Result<Self> {
        Self::open_with(socket, &[])
    }

    /// Connects and sends the preface and these SETTINGS.
    pub(crate) fn open_with(socket: &Path, values: &[(u16, u32)]) -> io::Result<Self> {
        let mut wire = Self::silent(socket)?;
        wire.send(PREFACE)?;
        wire.send(&frame(kind::SETTINGS, 0, 0, &settings(values)))?;
        Ok(wire)
    }

    /// Sets timeouts: a longer read or write fails with `WouldBlock`.
    pub(crate) fn patience(&self, limit: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(limit))?;
        self.stream.set_read_timeout(Some(limit))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives the next frame. Returns `None` when the daemon has closed its end.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Frame>> {
        let mut head = [0; HEADER];
        match self.stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            result => result?,
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        Ok(Some(Frame { kind: head[3], stream, is_last: head[4] & END_STREAM != 0, payload }))
    }

    /// Reads until the daemon ends the connection. Returns the error code of its GOAWAY, if there was one.
    pub(crate) fn farewell(&mut self) -> io::Result<Option<u32>> {
        let mut code = None;
        while let Some(frame) = self.receive()? {
            if frame.kind == kind::GOAWAY {
                code = frame.payload.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
            }
        }
        Ok(code)
    }
}

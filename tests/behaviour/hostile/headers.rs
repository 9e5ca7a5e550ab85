//! Header blocks that are long lists in few bytes: references to entries of the compression's table that the daemon
//! takes out, and fields that the HTTP/2 library does not count (faults.md row 103).

use crate::support::frames::{
    self, END_HEADERS, END_STREAM, Frame, Wire, call_headers, frame, kind, message,
};
use crate::support::{Daemon, PATIENCE};

/// A reference to the newest entry of the dynamic table.
const NEWEST: u8 = 0x80 | 0x3e;
/// A reference to `:method` in the static table.
const METHOD: u8 = 0x83;

/// Encodes a field that is added to the dynamic table, with the name at `index` of the static table.
fn inserted(index: u8, value: &[u8]) -> Vec<u8> {
    [&[0x40 | index, u8::try_from(value.len()).unwrap()][..], value].concat()
}

/// Encodes a complete call of Status whose block begins with `more`, or ends with it if `is_behind`.
fn call(stream: u32, more: &[u8], is_behind: bool) -> Vec<u8> {
    let mut block = call_headers("Status");
    let at = if is_behind { block.len() } else { 0 };
    block.splice(at..at, more.iter().copied());
    let mut bytes = Vec::new();
    let count = block.len().div_ceil(frames::MAX_FRAME);
    for (at, piece) in block.chunks(frames::MAX_FRAME).enumerate() {
        let last = if at + 1 == count { END_HEADERS } else { 0 };
        bytes.extend(frame(if at == 0 { kind::HEADERS } else { kind::CONTINUATION }, last, stream, piece));
    }
    bytes.extend(frame(kind::DATA, END_STREAM, stream, &message(b"")));
    bytes
}

/// The end of a call.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Answered,
    Refused,
    ConnectionEnded(Option<u32>),
}

/// Reads until the call on `stream` has an end.
fn end(wire: &mut Wire, stream: u32) -> End {
    let mut code = None;
    while let Some(Frame { kind, stream: of, is_last, payload }) = wire.receive().unwrap() {
        match kind {
            kind::GOAWAY => code = payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap())),
            // An answer has DATA; a refusal by the HTTP/2 library has a status of HTTP and a reset.
            kind::RST_STREAM if of == stream => return End::Refused,
            kind::HEADERS if of == stream && is_last => return End::Refused,
            kind::DATA if of == stream => return End::Answered,
            _ => {}
        }
    }
    End::ConnectionEnded(code)
}

#[tokio::test]
async fn fault_103_a_long_header_list_is_refused_whatever_its_fields_are() {
    /// Error code ENHANCE_YOUR_CALM.
    const CALM: End = End::ConnectionEnded(Some(11));
    let daemon = Daemon::start();
    let (authority, other) = (inserted(1, b"run%2Fs.sock"), inserted(58, &[b'v'; 100]));
    for (name, first, field, few, many) in [
        ("removed entries", &authority[..], NEWEST, 250, 400),
        ("kept entries", &other[..], NEWEST, 90, 200),
        ("the authority without a value", &[][..], 0x81, 300, 500),
    ] {
        let mut wire = Wire::open(&daemon.socket).unwrap();
        wire.patience(PATIENCE).unwrap();
        for (stream, count, expected) in
            [(1, 0, End::Answered), (3, few, End::Answered), (5, many, End::Refused), (7, 0, End::Answered)]
        {
            let more = if stream == 1 { first.to_vec() } else { vec![field; count] };
            wire.send(&call(stream, &more, true)).unwrap();
            assert_eq!(end(&mut wire, stream), expected, "{name}: {count} fields");
        }
        // A multiple of the limit ends the connection before the rest is read.
        wire.send(&call(9, &vec![field; 60_000], true)).unwrap();
        assert_eq!(end(&mut wire, 9), CALM, "{name}");
    }
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    wire.send(&call(1, &vec![METHOD; 60_000], false)).unwrap();
    assert_eq!(end(&mut wire, 1), CALM, "a pseudo-header again and again");
}

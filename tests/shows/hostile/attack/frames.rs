//! Frames that cost more to read than to send.

use super::{BATCH, Field, Tally, flooded};
use crate::hostile::frames::{self, END_HEADERS, END_STREAM, MAX_FRAME, frame, kind};

/// Returns the number of a client stream; each batch has its own.
fn stream_of(batch: u64, at: usize) -> u32 {
    (batch as u32 * BATCH as u32 + at as u32) * 2 + 1
}

pub(super) fn rapid_resets(field: &Field, _: usize) -> Tally {
    let headers = frames::call_headers("Status");
    let write = |batch| {
        let one = |at| {
            let stream = stream_of(batch, at);
            let open = frame(kind::HEADERS, END_HEADERS, stream, &headers);
            [open, frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
        };
        Some((0..BATCH).flat_map(one).collect())
    };
    flooded(field, write)
}

/// Starts more calls than a connection can carry. They have no body and do not end.
pub(super) fn headers(field: &Field, _: usize) -> Tally {
    let headers = frames::call_headers("Status");
    let write = |batch| {
        let one = |at| frame(kind::HEADERS, END_HEADERS, stream_of(batch, at), &headers);
        Some((0..BATCH).flat_map(one).collect())
    };
    flooded(field, write)
}

/// Sends a list of headers that does not end.
pub(super) fn continuation(field: &Field, _: usize) -> Tally {
    let piece = frames::header(b"x-more", &[b'x'; 1_000]);
    let write = |batch| {
        let more = frame(kind::CONTINUATION, 0, 1, &piece);
        Some(if batch == 0 {
            [frame(kind::HEADERS, 0, 1, &frames::call_headers("Status")), more].concat()
        } else {
            more.repeat(16)
        })
    };
    flooded(field, write)
}

pub(super) fn pings(field: &Field, _: usize) -> Tally {
    let all = frame(kind::PING, 0, 0, b"12345678").repeat(BATCH);
    flooded(field, |_| Some(all.clone()))
}

pub(super) fn settings(field: &Field, _: usize) -> Tally {
    let payload = frames::settings(&[(3, 100), (4, 65_535)]);
    let all = frame(kind::SETTINGS, 0, 0, &payload).repeat(BATCH);
    flooded(field, |_| Some(all.clone()))
}

pub(super) fn empty_data(field: &Field, _: usize) -> Tally {
    let open = frame(kind::HEADERS, END_HEADERS, 1, &frames::call_headers("Run"));
    let all = frame(kind::DATA, 0, 1, b"").repeat(BATCH);
    flooded(field, |batch| Some(if batch == 0 { open.clone() } else { all.clone() }))
}

pub(super) fn unread_pings(field: &Field, _: usize) -> Tally {
    let all = frame(kind::PING, 0, 0, b"12345678").repeat(BATCH);
    let mut tally = Tally::default();
    field.flood(&mut tally, |_| Some(all.clone()), false);
    tally
}

/// Sends header blocks of references to entries of the table that the daemon takes out of a client's headers: as many as
/// a header list may hold, more than that, and as many as a block can hold.
pub(super) fn removed_entries(field: &Field, _: usize) -> Tally {
    /// `:authority` with a value of one byte, added to the table; and a reference to the newest entry of the table.
    const ENTRY: &[u8] = &[0x41, 1, b'x'];
    const REFERENCE: u8 = 0x80 | 0x3e;
    const COUNTS: [usize; 3] = [300, 1_200, 60_000];
    let write = |batch: u64| {
        let count = COUNTS[batch as usize % COUNTS.len()];
        let block = [&frames::call_headers("Status")[..], ENTRY, &vec![REFERENCE; count]].concat();
        let mut pieces = block.chunks(MAX_FRAME).enumerate().peekable();
        let mut bytes = Vec::new();
        while let Some((at, piece)) = pieces.next() {
            let last = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            let (kind, flags) =
                if at == 0 { (kind::HEADERS, last | END_STREAM) } else { (kind::CONTINUATION, last) };
            bytes.extend(frame(kind, flags, batch as u32 * 2 + 1, piece));
        }
        Some(bytes)
    };
    flooded(field, write)
}

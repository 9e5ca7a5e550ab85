//! Messages that are too large, too deep, or never end.

use std::io;
use std::time::Duration;

use super::{Field, PATIENCE, STREAMS, Tally, flooded, is_ended};
use crate::hostile::frames::{self, END_HEADERS, END_STREAM, MAX_FRAME, Wire, call, frame, kind};

pub(super) fn huge_metadata(field: &Field, _: usize) -> Tally {
    let mut block = frames::call_headers("Status");
    for at in 0..200 {
        block.extend(frames::header(format!("x-{at}").as_bytes(), &[b'v'; 4_000]));
    }
    let write = |batch: u64| {
        let mut pieces = block.chunks(MAX_FRAME);
        let first = pieces.next()?;
        let stream = batch as u32 * 2 + 1;
        let mut bytes = frame(kind::HEADERS, END_STREAM, stream, first);
        let last = pieces.len().checked_sub(1)?;
        for (at, piece) in pieces.enumerate() {
            let flags = if at == last { END_HEADERS } else { 0 };
            bytes.extend(frame(kind::CONTINUATION, flags, stream, piece));
        }
        Some(bytes)
    };
    flooded(field, write)
}

/// Sends messages of 33 MiB.
pub(super) fn giant_messages(field: &Field, _: usize) -> Tally {
    let piece = frame(kind::DATA, 0, 1, &[0; MAX_FRAME]);
    let mut start = frame(kind::HEADERS, END_HEADERS, 1, &frames::call_headers("Run"));
    let prefix = [&[0][..], &(33_u32 << 20).to_be_bytes()].concat();
    start.extend(frame(kind::DATA, 0, 1, &prefix));
    let write = |batch: u64| match batch {
        0 => Some(start.clone()),
        1..=2_112 => Some(piece.clone()),
        _ => None,
    };
    flooded(field, write)
}

/// Sends as many requests as a connection can carry. Each is almost as long as allowed, and none ends.
pub(super) fn held_messages(field: &Field, _: usize) -> Tally {
    let mut tally = Tally::default();
    let Ok(mut wire) = Wire::open(&field.socket) else { return tally };
    tally.connections += 1;
    let Ok(credit) = Credit::start(&wire) else { return tally };
    let filled = fill(field, &mut wire, &credit, &mut tally);
    field.hold(&[]);
    tally.ended = u64::from(filled.is_err() || is_ended(&wire));
    tally
}

/// Announces as many large requests as a connection can carry, and sends a byte of each now and then.
pub(super) fn trickled_messages(field: &Field, _: usize) -> Tally {
    let mut tally = Tally::default();
    while field.goes_on() {
        let Ok(mut wire) = Wire::open(&field.socket) else { continue };
        tally.connections += 1;
        let trickled = trickle(field, &mut wire, &mut tally);
        tally.ended += u64::from(trickled.is_err() || is_ended(&wire));
    }
    tally
}

fn trickle(field: &Field, wire: &mut Wire, tally: &mut Tally) -> io::Result<()> {
    /// Time between two bytes of a request.
    const PAUSE: Duration = Duration::from_millis(50);
    wire.patience(PATIENCE)?;
    let prefix = [&[0][..], &(32_u32 << 20).to_be_bytes()].concat();
    let streams = || (0..STREAMS).map(|number| number * 2 + 1);
    for stream in streams() {
        field.send(wire, &frame(kind::HEADERS, END_HEADERS, stream, &frames::call_headers("Run")))?;
        field.send(wire, &frame(kind::DATA, 0, stream, &prefix))?;
    }
    while field.goes_on() {
        for stream in streams() {
            field.send(wire, &frame(kind::DATA, 0, stream, b"x"))?;
        }
        tally.batches += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn fill(field: &Field, wire: &mut Wire, credit: &Credit, tally: &mut Tally) -> io::Result<()> {
    wire.patience(PATIENCE)?;
    let prefix = [&[0][..], &(31_u32 << 20).to_be_bytes()].concat();
    for stream in (0..STREAMS).map(|number| number * 2 + 1) {
        field.send(wire, &frame(kind::HEADERS, END_HEADERS, stream, &frames::call_headers("Run")))?;
        field.send(wire, &frame(kind::DATA, 0, stream, &prefix))?;
    }
    // Sends four MiB of each, which is more than enough to see if the daemon keeps them.
    for _ in 0..256 {
        for stream in (0..STREAMS).map(|number| number * 2 + 1) {
            if !credit.take(stream, MAX_FRAME as i64, || field.goes_on()) {
                continue;
            }
            field.send(wire, &frame(kind::DATA, 0, stream, &[1; MAX_FRAME]))?;
            tally.batches += 1;
        }
    }
    Ok(())
}

/// The flow-control windows of a connection, updated by a thread that reads. The connection ends with this value: the thread
/// would keep it open.
struct Credit {
    windows: std::sync::Arc<std::sync::Mutex<Windows>>,
    stream: std::os::unix::net::UnixStream,
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Both).ok();
    }
}

#[derive(Default)]
struct Windows {
    initial: i64,
    used: std::collections::BTreeMap<u32, i64>,
    is_over: bool,
}

impl Credit {
    fn start(wire: &Wire) -> io::Result<Self> {
        let mut from = Wire { stream: wire.stream.try_clone()? };
        from.stream.set_read_timeout(None)?;
        let windows =
            std::sync::Arc::new(std::sync::Mutex::new(Windows { initial: 65_535, ..Windows::default() }));
        let kept = std::sync::Arc::clone(&windows);
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = from.receive() {
                let mut windows = kept.lock().unwrap();
                match frame.kind {
                    kind::SETTINGS => {
                        for entry in frame.payload.chunks_exact(6).filter(|entry| entry[..2] == [0, 4]) {
                            windows.initial = i64::from(u32::from_be_bytes(entry[2..].try_into().unwrap()));
                        }
                    }
                    kind::WINDOW_UPDATE => {
                        let more = u32::from_be_bytes(frame.payload[..4].try_into().unwrap());
                        *windows.used.entry(frame.stream).or_default() -= i64::from(more);
                    }
                    // Nothing more can be sent for a call that was answered.
                    kind::RST_STREAM | kind::HEADERS => {
                        windows.used.insert(frame.stream, i64::MAX / 2);
                    }
                    _ => {}
                }
            }
            kept.lock().unwrap().is_over = true;
        });
        Ok(Self { windows, stream: wire.stream.try_clone()? })
    }

    /// Waits for room on the stream and the connection. Returns `false` if there is none for too long.
    fn take(&self, stream: u32, bytes: i64, goes_on: impl Fn() -> bool) -> bool {
        for _ in 0..100 {
            let mut windows = self.windows.lock().unwrap();
            let initial = windows.initial;
            let used = |windows: &Windows, stream| windows.used.get(&stream).copied().unwrap_or(0);
            if used(&windows, stream) >= i64::MAX / 4 || windows.is_over {
                return false;
            }
            if used(&windows, stream) + bytes <= initial && used(&windows, 0) + bytes <= 65_535 {
                *windows.used.entry(stream).or_default() += bytes;
                *windows.used.entry(0).or_default() += bytes;
                return true;
            }
            drop(windows);
            if !goes_on() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// Sends message lengths that are not valid.
pub(super) fn length_prefixes(field: &Field, _: usize) -> Tally {
    let headers = frames::call_headers("Run");
    let write = |batch: u64| {
        let one = |at: usize| {
            let stream = batch as u32 * 100 + at as u32 * 2 + 1;
            let length = [u32::MAX, 1 << 31, (32 << 20) + 1][at % 3];
            let prefix = [&[0][..], &length.to_be_bytes()].concat();
            let open = frame(kind::HEADERS, END_HEADERS, stream, &headers);
            [open, frame(kind::DATA, END_STREAM, stream, &prefix)].concat()
        };
        Some((0..50).flat_map(one).collect())
    };
    flooded(field, write)
}

pub(super) fn nested_messages(field: &Field, _: usize) -> Tally {
    // Field 18: a map entry whose value is a list nested in lists. Field 902: nested groups.
    let groups: Vec<u8> = (0..20_000).flat_map(|_| [0xb3_u8, 0x38]).collect();
    let mut list = Vec::new();
    for _ in 0..400 {
        let mut value = vec![0x32];
        prost::encoding::encode_varint(list.len() as u64 + 10, &mut value);
        value.push(0x0a);
        prost::encoding::encode_varint(list.len() as u64, &mut value);
        value.extend_from_slice(&list);
        list = value;
    }
    let write = |batch: u64| {
        let request = if batch.is_multiple_of(2) { &groups } else { &list };
        Some(call(batch as u32 * 2 + 1, "Run", request))
    };
    flooded(field, write)
}

//! The attacks: each a loop over connections until it is told to stop.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message;
use step_runner::pb::v1;

use super::frames::{self, END_HEADERS, END_STREAM, MAX_FRAME, Wire, call, frame, kind};
use crate::random::Random;

/// Longest time a write of an attacker blocks before it looks whether to stop.
const PATIENCE: Duration = Duration::from_millis(200);
/// Frames written at once.
const BATCH: usize = 256;
/// Calls on one connection (service.md §1.1).
const STREAMS: u32 = 100;

/// Requests that the daemon takes in at a time, in KiB (service.md §1.1).
const LARGE: u64 = 64 << 10;
/// 64 KiB for each of 1,000 followers (service.md §3.2).
const FOLLOWERS: u64 = 1_000 * 64;

/// What an attack works on.
pub(crate) struct Field {
    pub(crate) socket: PathBuf,
    /// A running job with a long log.
    pub(crate) job: String,
    pub(crate) stop: AtomicBool,
    pub(crate) seed: u64,
}

/// What an attack has met.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    /// Connections made.
    pub(crate) connections: u64,
    /// Connections that the daemon ended.
    pub(crate) ended: u64,
    /// Batches of frames written.
    pub(crate) batches: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.ended += other.ended;
        self.batches += other.batches;
    }
}

/// An attack: its name, how many threads make it, and its run.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) threads: usize,
    pub(crate) run: fn(&Field, usize) -> Tally,
    /// The daemon is to end its connections.
    pub(crate) is_ended: bool,
    /// What the daemon may hold for it while it lasts, in KiB.
    pub(crate) may_hold: u64,
}

pub(crate) const ATTACKS: &[Attack] = &[
    Attack { name: "silent", threads: 1, run: silent, is_ended: true, may_hold: 0 },
    Attack { name: "half a preface", threads: 1, run: half_preface, is_ended: true, may_hold: 0 },
    Attack { name: "rapid resets", threads: 2, run: rapid_resets, is_ended: true, may_hold: 0 },
    Attack { name: "headers", threads: 2, run: headers, is_ended: false, may_hold: 0 },
    Attack { name: "continuation", threads: 2, run: continuation, is_ended: true, may_hold: 0 },
    Attack { name: "pings", threads: 2, run: pings, is_ended: true, may_hold: 0 },
    Attack { name: "settings", threads: 2, run: settings, is_ended: true, may_hold: 0 },
    Attack { name: "empty data", threads: 2, run: empty_data, is_ended: true, may_hold: 0 },
    Attack { name: "pings, answers unread", threads: 2, run: unread_pings, is_ended: true, may_hold: 0 },
    Attack { name: "huge metadata", threads: 2, run: huge_metadata, is_ended: false, may_hold: 0 },
    Attack { name: "giant messages", threads: 2, run: giant_messages, is_ended: false, may_hold: LARGE },
    Attack { name: "giant messages, held", threads: 1, run: held_messages, is_ended: false, may_hold: LARGE },
    Attack { name: "length prefixes", threads: 2, run: length_prefixes, is_ended: false, may_hold: 0 },
    Attack { name: "nested messages", threads: 2, run: nested_messages, is_ended: false, may_hold: 0 },
    Attack {
        name: "followers that never read",
        threads: 1,
        run: deaf_followers,
        is_ended: false,
        may_hold: FOLLOWERS,
    },
    Attack { name: "vanishing", threads: 2, run: vanishing, is_ended: false, may_hold: 0 },
    Attack { name: "run storm", threads: 2, run: run_storm, is_ended: false, may_hold: 0 },
];

impl Field {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Connection after connection: `write` gives the bytes of batch N until it gives none or the daemon ends it.
    fn flood(&self, tally: &mut Tally, write: impl Fn(u64) -> Option<Vec<u8>>, reads: bool) {
        while self.goes_on() {
            let Ok(wire) = Wire::open(&self.socket) else { continue };
            tally.connections += 1;
            if self.pour(wire, tally, &write, reads).is_err() {
                tally.ended += 1;
            }
        }
    }

    fn pour(
        &self,
        mut wire: Wire,
        tally: &mut Tally,
        write: impl Fn(u64) -> Option<Vec<u8>>,
        reads: bool,
    ) -> io::Result<()> {
        wire.patience(PATIENCE)?;
        let _reader = reads.then(|| Reader::start(&wire)).transpose()?;
        let mut batch = 0;
        while let Some(bytes) = write(batch) {
            self.send(&mut wire, &bytes)?;
            batch += 1;
            tally.batches += 1;
            if !self.goes_on() {
                break;
            }
        }
        Ok(())
    }

    /// Writes all of it, however slowly it is taken, until it is told to stop.
    #[expect(clippy::disallowed_methods, reason = "the loop goes on where a short write ended")]
    fn send(&self, wire: &mut Wire, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && self.goes_on() {
            match io::Write::write(&mut wire.stream, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Keeps what was made until the end, or until the daemon has ended most of it.
    fn hold(&self, wires: &[Wire]) -> u64 {
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(20));
        }
        wires.iter().filter(|wire| is_ended(wire)).count() as u64
    }
}

/// Reads and forgets, so that the daemon can always write. Ends with the connection.
struct Reader(std::os::unix::net::UnixStream, Option<std::thread::JoinHandle<()>>);

impl Reader {
    fn start(wire: &Wire) -> io::Result<Self> {
        let mut from = wire.stream.try_clone()?;
        let thread = std::thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            loop {
                match io::Read::read(&mut from, &mut bytes) {
                    Ok(0) => return,
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                    _ => {}
                }
            }
        });
        Ok(Self(wire.stream.try_clone()?, Some(thread)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.shutdown(std::net::Shutdown::Both).ok();
        if let Some(thread) = self.1.take() {
            thread.join().ok();
        }
    }
}

/// Whether the daemon has closed its end.
fn is_ended(wire: &Wire) -> bool {
    wire.stream.set_nonblocking(true).ok();
    let mut bytes = [0; 4 << 10];
    loop {
        match io::Read::read(&mut &wire.stream, &mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// 1,000 that connect and say nothing, and again.
fn silent(field: &Field, _: usize) -> Tally {
    crowd(field, |wire| wire.patience(PATIENCE))
}

fn half_preface(field: &Field, _: usize) -> Tally {
    crowd(field, |wire| wire.send(&frames::PREFACE[..frames::PREFACE.len() - 1]))
}

fn crowd(field: &Field, begin: impl Fn(&mut Wire) -> io::Result<()>) -> Tally {
    let mut wires = Vec::new();
    let mut tally = Tally::default();
    while wires.len() < 1_000 && field.goes_on() {
        let Ok(mut wire) = Wire::silent(&field.socket) else { continue };
        tally.connections += 1;
        begin(&mut wire).ok();
        wires.push(wire);
    }
    tally.ended = field.hold(&wires);
    tally
}

/// Odd numbers of streams: batch N has its own.
fn stream_of(batch: u64, at: usize) -> u32 {
    (batch as u32 * BATCH as u32 + at as u32) * 2 + 1
}

fn rapid_resets(field: &Field, _: usize) -> Tally {
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

/// Calls without end and without a body, more than a connection may carry.
fn headers(field: &Field, _: usize) -> Tally {
    let headers = frames::call_headers("Status");
    let write = |batch| {
        let one = |at| frame(kind::HEADERS, END_HEADERS, stream_of(batch, at), &headers);
        Some((0..BATCH).flat_map(one).collect())
    };
    flooded(field, write)
}

/// One list of headers that does not end.
fn continuation(field: &Field, _: usize) -> Tally {
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

fn pings(field: &Field, _: usize) -> Tally {
    let all = frame(kind::PING, 0, 0, b"12345678").repeat(BATCH);
    flooded(field, |_| Some(all.clone()))
}

fn settings(field: &Field, _: usize) -> Tally {
    let payload = frames::settings(&[(3, 100), (4, 65_535)]);
    let all = frame(kind::SETTINGS, 0, 0, &payload).repeat(BATCH);
    flooded(field, |_| Some(all.clone()))
}

fn empty_data(field: &Field, _: usize) -> Tally {
    let open = frame(kind::HEADERS, END_HEADERS, 1, &frames::call_headers("Run"));
    let all = frame(kind::DATA, 0, 1, b"").repeat(BATCH);
    flooded(field, |batch| Some(if batch == 0 { open.clone() } else { all.clone() }))
}

fn unread_pings(field: &Field, _: usize) -> Tally {
    let all = frame(kind::PING, 0, 0, b"12345678").repeat(BATCH);
    let mut tally = Tally::default();
    field.flood(&mut tally, |_| Some(all.clone()), false);
    tally
}

fn huge_metadata(field: &Field, _: usize) -> Tally {
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

/// 33 MiB in one message.
fn giant_messages(field: &Field, _: usize) -> Tally {
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

/// As many requests as a connection may carry, each almost as long as one may be, none of them ended.
fn held_messages(field: &Field, _: usize) -> Tally {
    let mut tally = Tally::default();
    let Ok(mut wire) = Wire::open(&field.socket) else { return tally };
    tally.connections += 1;
    let filled = fill(field, &mut wire, &mut tally);
    field.hold(&[]);
    tally.ended = u64::from(filled.is_err() || is_ended(&wire));
    tally
}

fn fill(field: &Field, wire: &mut Wire, tally: &mut Tally) -> io::Result<()> {
    wire.patience(PATIENCE)?;
    let credit = Credit::start(wire)?;
    let prefix = [&[0][..], &(31_u32 << 20).to_be_bytes()].concat();
    for stream in (0..STREAMS).map(|number| number * 2 + 1) {
        field.send(wire, &frame(kind::HEADERS, END_HEADERS, stream, &frames::call_headers("Run")))?;
        field.send(wire, &frame(kind::DATA, 0, stream, &prefix))?;
    }
    // Four MiB of each: more than enough to see whether they are kept.
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

/// The windows of a connection, kept by a thread that reads.
struct Credit(std::sync::Arc<std::sync::Mutex<Windows>>);

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
                    // A call that was answered takes no more.
                    kind::RST_STREAM | kind::HEADERS => {
                        windows.used.insert(frame.stream, i64::MAX / 2);
                    }
                    _ => {}
                }
            }
            kept.lock().unwrap().is_over = true;
        });
        Ok(Self(windows))
    }

    /// Waits for room on the stream and on the connection; `false` if there will be none soon.
    fn take(&self, stream: u32, bytes: i64, goes_on: impl Fn() -> bool) -> bool {
        for _ in 0..100 {
            let mut windows = self.0.lock().unwrap();
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

/// Lengths that no message has.
fn length_prefixes(field: &Field, _: usize) -> Tally {
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

fn nested_messages(field: &Field, _: usize) -> Tally {
    // Field 18, a map entry whose value is a list of lists; and a group within a group.
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

/// 1,000 followers of one job that never read.
fn deaf_followers(field: &Field, _: usize) -> Tally {
    let request = v1::FollowLogsRequest { id: field.job.clone(), offset: 0 }.encode_to_vec();
    let mut tally = Tally::default();
    let mut wires = Vec::new();
    for _ in 0..1_000 / STREAMS {
        let Ok(mut wire) = Wire::open(&field.socket) else { continue };
        tally.connections += 1;
        wire.patience(PATIENCE).ok();
        for number in 0..STREAMS {
            if field.send(&mut wire, &call(number * 2 + 1, "FollowLogs", &request)).is_err() {
                break;
            }
            tally.batches += 1;
        }
        wires.push(wire);
    }
    tally.ended = field.hold(&wires);
    tally
}

fn run_request(id: String) -> Vec<u8> {
    let steps = r#"[{"name":"s","script":"echo x"}]"#.to_owned();
    v1::RunRequest { id, steps, ..v1::RunRequest::default() }.encode_to_vec()
}

/// Clients that go away between, and within, any two calls.
fn vanishing(field: &Field, thread: usize) -> Tally {
    let mut random = Random::new(field.seed + thread as u64);
    let mut tally = Tally::default();
    while field.goes_on() {
        let id = format!("vanish-{thread}-{}", random.next() % 4);
        let finish = v1::FinishRequest { id: id.clone() }.encode_to_vec();
        let follow = v1::FollowLogsRequest { id: id.clone(), offset: 0 }.encode_to_vec();
        let status = v1::StatusRequest { id: id.clone() }.encode_to_vec();
        let mut bytes = frames::PREFACE.to_vec();
        bytes.extend(frame(kind::SETTINGS, 0, 0, b""));
        bytes.extend(call(1, "Run", &run_request(id)));
        bytes.extend(call(3, "FollowLogs", &follow));
        bytes.extend(call(5, "FollowSteps", &status));
        bytes.extend(call(7, "Status", &status));
        bytes.extend(call(9, "Cancel", &status));
        bytes.extend(call(11, "Finish", &finish));
        let cut = random.next() as usize % (bytes.len() + 1);
        let Ok(mut wire) = Wire::silent(&field.socket) else { continue };
        tally.connections += 1;
        wire.patience(PATIENCE).ok();
        if field.send(&mut wire, &bytes[..cut]).is_err() {
            tally.ended += 1;
        }
        tally.batches += 1;
    }
    tally
}

/// Ids of the jobs that [`vanishing`] and [`run_storm`] may leave.
pub(crate) fn leftovers() -> impl Iterator<Item = String> {
    let vanish = (0..8).flat_map(|thread| (0..4).map(move |n| format!("vanish-{thread}-{n}")));
    vanish.chain((0..8).flat_map(|thread| (0..25).map(move |n| format!("storm-{thread}-{n}"))))
}

/// Runs of new jobs, of the same ones, and of what is none, as fast as they are answered.
fn run_storm(field: &Field, thread: usize) -> Tally {
    let mut tally = Tally::default();
    while field.goes_on() {
        let Ok(mut wire) = Wire::open(&field.socket) else { continue };
        tally.connections += 1;
        wire.patience(PATIENCE).ok();
        wire.send(&frame(kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).ok();
        if storm(field, thread, &mut wire, &mut tally).is_err() {
            tally.ended += 1;
        }
    }
    tally
}

fn storm(field: &Field, thread: usize, wire: &mut Wire, tally: &mut Tally) -> io::Result<()> {
    let mut stream = 1;
    let mut round = |wire: &mut Wire, calls: Vec<(&str, Vec<u8>)>| {
        let count = calls.len();
        for (method, request) in calls {
            field.send(wire, &call(stream, method, &request))?;
            stream += 2;
        }
        tally.batches += 1;
        answered(field, wire, count)
    };
    while field.goes_on() {
        let id = |n: u32| format!("storm-{thread}-{n}");
        let runs = (0..25).flat_map(|n| {
            let bad = v1::RunRequest { id: id(n), steps: "{".repeat(100), ..v1::RunRequest::default() };
            [("Run", run_request(id(n))), ("Run", run_request(id(n))), ("Run", bad.encode_to_vec())]
        });
        round(wire, runs.collect())?;
        let finishes = (0..25).map(|n| ("Finish", v1::FinishRequest { id: id(n) }.encode_to_vec()));
        round(wire, finishes.collect())?;
    }
    Ok(())
}

/// Reads until so many calls have ended.
fn answered(field: &Field, wire: &mut Wire, mut count: usize) -> io::Result<()> {
    while count > 0 && field.goes_on() {
        match wire.receive() {
            Ok(Some(frame)) if frame.kind == kind::HEADERS => count -= usize::from(frame.is_last),
            Ok(Some(_)) => {}
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn flooded(field: &Field, write: impl Fn(u64) -> Option<Vec<u8>>) -> Tally {
    let mut tally = Tally::default();
    field.flood(&mut tally, write, true);
    tally
}

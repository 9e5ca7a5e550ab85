//! The attacks. Each uses connections in a loop until it must stop.

mod calls;
mod connections;
mod frames;
mod messages;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::frames::Wire;
pub(crate) use calls::leftovers;
use calls::{deaf_followers, deaf_followers_together, run_storm, vanishing};
use connections::{half_preface, silent};
use frames::{
    continuation, empty_data, headers, pings, rapid_resets, removed_entries, settings, unread_pings,
};
use messages::{
    giant_messages, held_messages, huge_metadata, length_prefixes, nested_messages, trickled_messages,
};

/// Longest time that a write blocks before the attacker checks if it must stop.
const PATIENCE: Duration = Duration::from_millis(200);

/// Number of frames written at once.
const BATCH: usize = 256;

/// Number of large requests on one connection.
const STREAMS: u32 = 100;

/// Total size of requests that the daemon receives at a time, in KiB (service.md §1.1).
const LARGE: u64 = 64 << 10;

/// Memory in KiB for 1,000 followers, at 64 KiB each (service.md §3.2).
const FOLLOWERS: u64 = 1_000 * 64;

/// Memory in KiB for 1,000 followers on one connection. They get smaller pieces.
const TOGETHER: u64 = 16 << 10;

/// Target of an attack.
pub(crate) struct Field {
    pub(crate) socket: PathBuf,
    /// A running job with a long log.
    pub(crate) job: String,
    pub(crate) stop: AtomicBool,
    pub(crate) seed: u64,
}

/// Counts of one attack.
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

/// An attack: its name, its number of threads, and its function.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) threads: usize,
    pub(crate) run: fn(&Field, usize) -> Tally,
    /// Time after which the daemon must have ended connections of this attack. `None`: it need not end any.
    pub(crate) ended_after: Option<Duration>,
    /// Memory in KiB that the daemon can use for this attack while it lasts.
    pub(crate) may_hold: u64,
}

/// Memory in KiB of the maximum number of connections (`max_connections`), each before its first request.
const CONNECTIONS: u64 = 4_096 * 8;

/// The daemon ends a connection without a first call after 5 s (service.md §1.1).
const UNUSED: Option<Duration> = Some(Duration::from_secs(6));

/// The daemon ends a flood at once.
const FLOOD: Option<Duration> = Some(Duration::from_secs(1));

pub(crate) const ATTACKS: &[Attack] = &[
    Attack { name: "silent", threads: 1, run: silent, ended_after: UNUSED, may_hold: CONNECTIONS },
    Attack {
        name: "half a preface",
        threads: 1,
        run: half_preface,
        ended_after: UNUSED,
        may_hold: CONNECTIONS,
    },
    Attack { name: "rapid resets", threads: 2, run: rapid_resets, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "headers", threads: 2, run: headers, ended_after: None, may_hold: 0 },
    Attack { name: "continuation", threads: 2, run: continuation, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "pings", threads: 2, run: pings, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "settings", threads: 2, run: settings, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "empty data", threads: 2, run: empty_data, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "pings, answers unread", threads: 2, run: unread_pings, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "huge metadata", threads: 2, run: huge_metadata, ended_after: None, may_hold: 0 },
    Attack { name: "removed entries", threads: 2, run: removed_entries, ended_after: FLOOD, may_hold: 0 },
    Attack { name: "giant messages", threads: 2, run: giant_messages, ended_after: None, may_hold: LARGE },
    Attack {
        name: "giant messages, held",
        threads: 1,
        run: held_messages,
        ended_after: None,
        may_hold: LARGE,
    },
    Attack { name: "trickled messages", threads: 1, run: trickled_messages, ended_after: None, may_hold: 0 },
    Attack { name: "length prefixes", threads: 2, run: length_prefixes, ended_after: None, may_hold: 0 },
    Attack { name: "nested messages", threads: 2, run: nested_messages, ended_after: None, may_hold: 0 },
    Attack {
        name: "followers that never read",
        threads: 1,
        run: deaf_followers,
        ended_after: None,
        may_hold: FOLLOWERS,
    },
    Attack {
        name: "followers that never read, on one connection",
        threads: 1,
        run: deaf_followers_together,
        ended_after: None,
        may_hold: TOGETHER,
    },
    Attack { name: "vanishing", threads: 2, run: vanishing, ended_after: None, may_hold: 0 },
    Attack { name: "run storm", threads: 2, run: run_storm, ended_after: None, may_hold: 0 },
];

impl Field {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Opens connection after connection. `write` returns the bytes of batch N. A connection ends when `write` returns
    /// none or the daemon ends it.
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

    /// Writes all bytes, however slowly they are taken, until the attack must stop.
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

    /// Keeps the connections open until the attack must stop. Returns how many of them the daemon has ended.
    fn hold(&self, wires: &[Wire]) -> u64 {
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(20));
        }
        wires.iter().filter(|wire| is_ended(wire)).count() as u64
    }
}

/// Reads and discards, so that the daemon can always write. Ends with the connection.
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

/// True if the daemon has closed its end.
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

fn flooded(field: &Field, write: impl Fn(u64) -> Option<Vec<u8>>) -> Tally {
    let mut tally = Tally::default();
    field.flood(&mut tally, write, true);
    tally
}

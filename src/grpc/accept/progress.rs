//! Detects clients that no longer read: stopped ones, or ones behind a connection that hangs (faults.md row 91).
//!
//! A client is dead if bytes wait for it in the socket and it has read none for 50 seconds. It is also dead if it
//! leaves a PING unanswered for 20 seconds while nothing else waits. The library sends a PING after 30 seconds without
//! a request. A client that reads slowly is never dead: a PING that waits behind other bytes does not count.

use std::os::fd::AsFd;
use std::time::Duration;

use tokio::time::Instant;

use crate::process;

/// Times after which a client counts as dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Time in which bytes wait and the client reads none.
    pub(crate) stalled: Duration,
    /// Time without an answer to a PING while nothing else waits.
    pub(crate) ping: Duration,
}

impl Patience {
    /// Returns the interval between checks of the socket.
    pub(super) fn between_looks(&self) -> Duration {
        self.stalled / 10
    }
}

/// Maximum memory of a lone PING in the socket, including the kernel's overhead.
const PING_MEMORY: usize = 4 << 10;

/// Watches the progress of one connection.
pub(super) struct Progress {
    patience: Patience,
    /// The last time at which the client made progress, or at which nothing waited for it.
    moved: Instant,
    /// Memory of unread bytes at the last check; `None` if there were none. Writes measure it only while it is known.
    unread: Option<usize>,
    /// Time of the unanswered PING.
    asked: Option<Instant>,
    /// True if nothing else waited when the PING was sent.
    is_ping_alone: bool,
    has_sent: bool,
}

impl Progress {
    pub(super) const fn new(patience: Patience, now: Instant) -> Self {
        Self { patience, moved: now, unread: None, asked: None, is_ping_alone: false, has_sent: false }
    }

    /// Records that the client has sent bytes.
    pub(super) const fn received(&mut self) {
        self.has_sent = true;
    }

    /// Records that the client has answered a PING.
    pub(super) const fn answered(&mut self) {
        self.asked = None;
    }

    /// Records that a PING was written.
    pub(super) fn asked(&mut self, socket: impl AsFd, now: Instant) {
        self.asked = Some(now);
        self.is_ping_alone = process::unread_bytes(socket) <= PING_MEMORY;
        self.has_sent = false;
        if self.is_ping_alone {
            self.moved = now;
        }
    }

    /// Measures before a write how much the client has read, if bytes wait for it.
    pub(super) fn before_write(&mut self, socket: impl AsFd, now: impl FnOnce() -> Instant) {
        if self.unread.is_some() {
            self.compare(process::unread_bytes(socket), now);
        }
    }

    /// Measures after a write how many bytes wait, if some did before.
    pub(super) fn after_write(&mut self, socket: impl AsFd) {
        if self.unread.is_some() {
            self.unread = Some(process::unread_bytes(socket));
        }
    }

    /// Starts again with a shorter patience.
    pub(super) const fn hurry(&mut self, patience: Patience, now: Instant) {
        *self = Self::new(patience, now);
    }

    /// Checks the socket; to be called at intervals. Returns true if the client is dead.
    pub(super) fn look(&mut self, socket: impl AsFd, now: Instant) -> bool {
        let unread = process::unread_bytes(socket);
        let has_sent = std::mem::take(&mut self.has_sent);
        let is_first = unread > 0 && self.unread.is_none() && self.asked.is_none();
        if is_first || unread == 0 && (self.asked.is_none() || has_sent) {
            self.moved = now;
        }
        self.compare(unread, || now);
        self.unread = (unread > 0).then_some(unread);
        self.due() <= now
    }

    fn compare(&mut self, unread: usize, now: impl FnOnce() -> Instant) {
        if self.unread.is_some_and(|before| unread < before) {
            self.moved = now();
        }
    }

    /// Returns when the client counts as dead if it makes no progress until then.
    fn due(&self) -> Instant {
        let stalled = self.moved + self.patience.stalled;
        match self.asked {
            Some(asked) if self.is_ping_alone && self.moved <= asked => {
                stalled.min(asked + self.patience.ping)
            }
            _ => stalled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    const PATIENCE: Patience = Patience { stalled: Duration::from_secs(50), ping: Duration::from_secs(20) };

    /// A connection with a clock that the test sets.
    struct Scene {
        progress: Progress,
        begin: Instant,
        now: Instant,
        ours: UnixStream,
        theirs: UnixStream,
    }

    impl Scene {
        fn new() -> Self {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let now = Instant::now();
            Self { progress: Progress::new(PATIENCE, now), begin: now, now, ours, theirs }
        }

        fn write(&mut self, bytes: &[u8]) {
            self.progress.before_write(&self.ours, || self.now);
            self.ours.write_all(bytes).ok();
            self.progress.after_write(&self.ours);
        }

        fn ask(&mut self) {
            self.write(b"a PING frame");
            self.progress.asked(&self.ours, self.now);
        }

        fn take(&mut self, count: usize) {
            self.theirs.read_exact(&mut vec![0; count]).unwrap();
        }

        /// Returns the seconds until the client is dead, at most 1,000.
        fn life(mut self, mut each_second: impl FnMut(&mut Self, u64)) -> u64 {
            for second in 0..1_000 {
                self.now = self.begin + Duration::from_secs(second);
                each_second(&mut self, second);
                let is_due = second % PATIENCE.between_looks().as_secs() == 0;
                if is_due && self.progress.look(&self.ours, self.now) {
                    return second;
                }
            }
            1_000
        }
    }

    #[test]
    fn fault_91_a_client_for_which_nothing_waits_may_be_still() {
        assert_eq!(Scene::new().life(|_, _| ()), 1_000);
    }

    #[test]
    fn fault_91_a_client_that_takes_nothing_is_dead() {
        for each in [1, 16 << 10] {
            let life = Scene::new().life(|scene, _| scene.write(&vec![b'x'; each]));
            assert!((50..=60).contains(&life), "{life}");
        }
    }

    #[test]
    fn fault_91_a_client_that_leaves_a_ping_unanswered_is_dead() {
        for takes_it in [false, true] {
            let life = Scene::new().life(|scene, second| {
                if second == 30 {
                    scene.ask();
                    scene.take(if takes_it { 12 } else { 0 });
                }
            });
            assert!((50..=55).contains(&life), "{life} {takes_it}");
        }
    }

    #[test]
    fn fault_91_a_client_that_answers_lives() {
        let life = Scene::new().life(|scene, second| match second % 30 {
            0 => scene.ask(),
            19 => {
                scene.take(12);
                scene.progress.received();
                scene.progress.answered();
            }
            _ => {}
        });
        assert_eq!(life, 1_000);
    }

    #[test]
    fn fault_91_a_slow_reader_lives_though_its_pings_wait() {
        let life = Scene::new().life(|scene, second| {
            scene.write(&[b'x'; 8 << 10]);
            if second == 30 {
                scene.ask();
            }
            scene.take(500);
        });
        assert_eq!(life, 1_000);
    }
}

//! What every job of a keeper uses: descriptors' readiness, process starter, groups, clock, buffers, the way out.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::connection::Connection;
use super::output::{Clock, READ_BYTES};
use super::protocol::{FromKeeper, KeeperError, KeeperSettings, Reply};
use super::setup::StateDir;
use crate::journal::{self, event::Event};
use crate::log::frame::Stamp;
use crate::model::JobKey;
use crate::process::cgroup::Pool;
use crate::process::group;
use crate::process::limiter::Limiter;
use crate::process::spawn::Spawner;
use crate::process::sweep::{Found, Marks, Process, Sweeper};
use crate::{failpoint, files};

/// A job's number within this keeper; never used twice, so a late event of a job that is gone meets nothing.
pub(super) type Serial = u32;

/// What became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Connection(u32),
    Children,
    Compiled,
    /// The process of the job's step number so-and-so.
    Process(Serial, u32),
    /// A pipe of the job.
    Pipe(Serial, u32),
}

/// Set in the lower half of a token: a process, else a pipe.
const PROCESS_BIT: u32 = 1 << 31;

impl Token {
    const fn encode(self) -> u64 {
        let (high, low) = match self {
            Self::Listener => (0, 0),
            Self::Children => (0, 1),
            Self::Compiled => (0, 2),
            Self::Connection(number) => (0, PROCESS_BIT | number),
            Self::Process(serial, step) => (serial, PROCESS_BIT | step),
            Self::Pipe(serial, pipe) => (serial, pipe),
        };
        (high as u64) << 32 | low as u64
    }

    pub(super) const fn decode(data: u64) -> Self {
        let (high, low) = ((data >> 32) as u32, data as u32);
        match (high, low) {
            (0, 0) => Self::Listener,
            (0, 1) => Self::Children,
            (0, 2) => Self::Compiled,
            (0, number) => Self::Connection(number & !PROCESS_BIT),
            (serial, low) if low & PROCESS_BIT != 0 => Self::Process(serial, low & !PROCESS_BIT),
            (serial, pipe) => Self::Pipe(serial, pipe),
        }
    }
}

/// The keeper's epoll.
pub(super) struct Readiness(pub(super) std::os::fd::OwnedFd);

impl Readiness {
    pub(super) fn watch(&self, fd: impl AsFd, token: Token, write: bool) -> rustix::io::Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(token.encode()), interest(write))
    }

    pub(super) fn rewatch(&self, fd: impl AsFd, token: Token, write: bool) {
        epoll::modify(&self.0, fd, EventData::new_u64(token.encode()), interest(write)).ok();
    }

    /// A descriptor that is about to be closed needs no call: it leaves by itself.
    pub(super) fn forget(&self, fd: impl AsFd) {
        epoll::delete(&self.0, fd).ok();
    }
}

fn interest(write: bool) -> EventFlags {
    if write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}

/// Buffers that all pipes share: one thread reads them one after another.
pub(super) struct Scratch {
    pub(super) read: Box<[u8]>,
    /// So many bytes of `read` were used since it was wiped.
    most_read: usize,
    pub(super) masked: Vec<u8>,
}

impl Scratch {
    /// `read` holds so many bytes of a pipe.
    pub(super) fn has_read(&mut self, bytes: usize) {
        self.most_read = self.most_read.max(bytes);
    }

    /// Overwrites what jobs wrote: nothing of a job stays in memory when it is forgotten (faults.md §2).
    pub(super) fn wipe(&mut self) {
        if let Some(used) = self.read.get_mut(..self.most_read) {
            used.fill(0);
        }
        self.most_read = 0;
    }
}

/// What jobs use of the keeper.
pub(super) struct Shared {
    pub(super) readiness: Readiness,
    pub(super) state: StateDir,
    pub(super) spawner: Spawner,
    pub(super) pool: Option<Pool>,
    pub(super) limiter: Limiter,
    pub(super) sweeper: Sweeper,
    pub(super) settings: KeeperSettings,
    pub(super) scratch: Scratch,
    pub(super) clock: Clock,
    pub(super) connection: Option<Connection>,
    /// Jobs whose steps wait to be started, in the order asked for.
    pub(super) starts: VecDeque<Serial>,
    /// Steps' processes that are not reaped, by process id.
    pub(super) leaders: HashMap<u32, Serial>,
    /// Tags of all jobs that are not forgotten, ghosts included, and the groups that their steps led and left running.
    pub(super) marks: Marks,
    /// Processor time of orphans by the tag of their job, where no control group counts it.
    pub(super) orphans_used: HashMap<u128, Duration>,
    /// Children that no job started itself, as read in this turn of the loop.
    pub(super) orphans: Option<Vec<u32>>,
    /// What a sweep found in this turn of the loop.
    pub(super) swept: Option<Vec<Found>>,
    /// Number of sweeps so far.
    pub(super) sweeps: u64,
    /// Jobs whose logs grew since the daemon was told.
    grown: Vec<(Serial, JobKey)>,
    timers: BTreeSet<(Instant, Serial)>,
}

impl Shared {
    pub(super) fn new(
        readiness: Readiness,
        state: StateDir,
        spawner: Spawner,
        pool: Option<Pool>,
        limiter: Limiter,
        settings: KeeperSettings,
    ) -> Self {
        Self {
            readiness,
            state,
            spawner,
            pool,
            limiter,
            sweeper: Sweeper::default(),
            settings,
            scratch: Scratch {
                read: vec![0; READ_BYTES].into_boxed_slice(),
                most_read: 0,
                masked: Vec::new(),
            },
            clock: Clock::default(),
            connection: None,
            starts: VecDeque::new(),
            leaders: HashMap::new(),
            marks: Marks::default(),
            orphans_used: HashMap::new(),
            orphans: None,
            swept: None,
            sweeps: 0,
            grown: Vec::new(),
            timers: BTreeSet::new(),
        }
    }

    /// Tells the daemon, if there is one. What it misses it learns by a Resume.
    pub(super) fn tell(&mut self, event: &FromKeeper) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.greeted) {
            connection.push(event);
        }
    }

    /// Sends what was told so far. A connection that is over shows at the end of the turn.
    pub(super) fn flush(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.send();
        }
    }

    /// Something for the operator's log. Never holds a value of a job.
    pub(super) fn notice(&mut self, text: String) {
        self.tell(&FromKeeper::Notice(text));
    }

    /// Answers request `id` of connection `to`, if that still is the connection.
    pub(super) fn reply(&mut self, to: ReplyTo, reply: Result<Reply, KeeperError>) {
        if let Some(connection) =
            self.connection.as_mut().filter(|connection| connection.number == to.connection)
            && to.id != 0
        {
            connection.push(&FromKeeper::Reply { id: to.id, reply });
        }
    }

    /// Reaps an orphan that has ended.
    pub(super) fn reap_orphan(&mut self, pid: u32) {
        let job = self.group_of_orphan(pid);
        if let (Some(time), Some(tag)) = (group::reap_orphan(pid), job) {
            let used = self.orphans_used.entry(tag).or_default();
            *used = used.saturating_add(time);
        }
    }

    /// Tag of the job that an orphan which has ended was in, if its processor time is to be counted here: no control group
    /// does it.
    fn group_of_orphan(&self, pid: u32) -> Option<u128> {
        if self.pool.is_some() {
            return None;
        }
        self.marks.groups.get(&Process::read(pid)?.group).copied()
    }

    /// What is known of processes may be over.
    pub(super) fn forget_processes(&mut self) {
        self.orphans = None;
        self.swept = None;
    }

    pub(super) fn stamp(&mut self) -> Stamp {
        self.clock.now()
    }

    /// Notes that a job's log grew.
    pub(super) fn grew(&mut self, serial: Serial, key: JobKey) {
        self.grown.push((serial, key));
    }

    pub(super) fn has_grown(&self) -> bool {
        !self.grown.is_empty()
    }

    pub(super) fn take_grown(&mut self) -> Vec<(Serial, JobKey)> {
        std::mem::take(&mut self.grown)
    }

    /// Moves a job's timer from `from` to `to`.
    pub(super) fn move_timer(&mut self, serial: Serial, from: Option<Instant>, to: Option<Instant>) {
        if let Some(at) = from {
            self.timers.remove(&(at, serial));
        }
        if let Some(at) = to {
            self.timers.insert((at, serial));
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Jobs whose timers are due.
    pub(super) fn due(&self, now: Instant) -> Vec<Serial> {
        self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, serial)| *serial).collect()
    }

    /// Brings to the disk what was written so far; blocks. `false` if that failed.
    pub(super) fn sync(&self) -> bool {
        crate::files::sync_all(&self.state.directory).is_ok()
    }

    /// Appends an event to a job's journal with one write. Its loss costs nothing while we live; it is reported.
    pub(super) fn journal(&mut self, key: JobKey, event: &Event) {
        let Ok(line) = journal::encode(event) else { return };
        let written = failpoint::io("keeper::journal::append")
            .and_then(|()| self.state.open_job_file(key, "journal"))
            .and_then(|file| files::append(file, &line));
        if let Err(error) = written {
            self.notice(format!("journal of job {key}: an event could not be written: {error}"));
        }
    }
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTo {
    /// Number of the connection.
    pub(super) connection: u32,
    /// The request's id; 0 = nobody.
    pub(super) id: u64,
}

/// Settings before the first Hello.
pub(super) const fn first_settings() -> KeeperSettings {
    KeeperSettings {
        keeper_wait: Duration::from_secs(10),
        kill_wait: Duration::from_secs(2),
        cancel_grace: Duration::from_secs(5),
        leftover_keep: true,
        max_remembered: 0,
        remember_for: Duration::ZERO,
        remove_state: false,
    }
}

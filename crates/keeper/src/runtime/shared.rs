//! Parts shared by the jobs of a keeper: epoll, process starter, groups, clock, buffers, connection.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::connection::Connection;
use super::masking::{Clock, READ_BYTES};
use super::setup::StateDir;
use super::spans::Spans;
use crate::core::{ReplyTo, Serial};
use crate::protocol::{FromKeeper, KeeperError, Reply};
use step_runner_log::frame::Stamp;
use step_runner_log::journal::{self, event::Event};
use step_runner_model::JobKey;
use step_runner_process::cgroup::Pool;
use step_runner_process::freezer::Thawer;
use step_runner_process::group;
use step_runner_process::host::SoftLimits;
use step_runner_process::limiter::Limiter;
use step_runner_process::spawn::Spawner;
use step_runner_system::{failpoint, files};

/// Event source that became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Connection(u32),
    Children,
    Compiled,
    /// A control group may have been frozen.
    Groups,
    /// Process of the job's step with this number.
    Process(Serial, u32),
    /// A pipe of the job.
    Pipe(Serial, u32),
    /// The reaper of the job.
    Reaper(Serial),
}

/// Marks a process in the lower half of a token. Without it, the half is the number of a pipe, or 0 for the reaper.
const PROCESS_BIT: u32 = 1 << 31;

impl Token {
    const fn encode(self) -> u64 {
        let (high, low) = match self {
            Self::Listener => (0, 0),
            Self::Children => (0, 1),
            Self::Compiled => (0, 2),
            Self::Groups => (0, 3),
            Self::Connection(number) => (0, PROCESS_BIT | number),
            Self::Process(serial, process) => (serial, PROCESS_BIT | process),
            Self::Pipe(serial, pipe) => (serial, pipe),
            Self::Reaper(serial) => (serial, 0),
        };
        (high as u64) << 32 | low as u64
    }

    pub(super) const fn decode(data: u64) -> Self {
        let (high, low) = ((data >> 32) as u32, data as u32);
        match (high, low) {
            (0, 0) => Self::Listener,
            (0, 1) => Self::Children,
            (0, 2) => Self::Compiled,
            (0, 3) => Self::Groups,
            (0, number) => Self::Connection(number & !PROCESS_BIT),
            (serial, low) if low & PROCESS_BIT != 0 => Self::Process(serial, low & !PROCESS_BIT),
            (serial, 0) => Self::Reaper(serial),
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

    /// Stops watching. Not needed before a descriptor is closed: the kernel forgets it then.
    pub(super) fn forget(&self, fd: impl AsFd) {
        epoll::delete(&self.0, fd).ok();
    }
}

fn interest(write: bool) -> EventFlags {
    if write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}

/// Buffers shared by all pipes: one thread reads them one after another.
pub(super) struct Scratch {
    pub(super) read: Box<[u8]>,
    /// Bytes of `read` used since the last wipe.
    most_read: usize,
    pub(super) masked: Vec<u8>,
}

impl Scratch {
    /// Notes that `read` held so many bytes of a pipe.
    pub(super) fn has_read(&mut self, bytes: usize) {
        self.most_read = self.most_read.max(bytes);
    }

    /// Overwrites the output of jobs: none of it stays in memory when a job is forgotten (threat-model.md §4.3).
    pub(super) fn wipe(&mut self) {
        if let Some(used) = self.read.get_mut(..self.most_read) {
            used.fill(0);
        }
        self.most_read = 0;
    }
}

/// Parts of the keeper that its jobs use.
pub(super) struct KeeperShared {
    pub(super) readiness: Readiness,
    pub(super) state: StateDir,
    pub(super) spawner: Spawner,
    pub(super) pool: Option<Pool>,
    pub(super) limiter: Limiter,
    pub(super) thawer: Thawer,
    /// Limits for steps.
    pub(super) limits: SoftLimits,
    pub(super) scratch: Scratch,
    pub(super) clock: Clock,
    pub(super) connection: Option<Connection>,
    /// Processes of steps that are our children and not yet reaped, by process id.
    pub(super) leaders: HashMap<u32, Serial>,
    /// Reapers not yet reaped, by process id.
    pub(super) reapers: HashSet<u32>,
    /// Times of the jobs in control groups.
    pub(super) spans: Spans,
}

impl KeeperShared {
    pub(super) fn new(
        readiness: Readiness,
        state: StateDir,
        spawner: Spawner,
        pool: Option<Pool>,
        limiter: Limiter,
        limits: SoftLimits,
    ) -> Self {
        Self {
            readiness,
            state,
            spawner,
            pool,
            limiter,
            thawer: Thawer::default(),
            limits,
            scratch: Scratch {
                read: vec![0; READ_BYTES].into_boxed_slice(),
                most_read: 0,
                masked: Vec::new(),
            },
            clock: Clock::default(),
            connection: None,
            leaders: HashMap::new(),
            reapers: HashSet::new(),
            spans: Spans::default(),
        }
    }

    /// Sends an event to the daemon, if there is one. Else a later one learns of it by a Resume.
    pub(super) fn tell(&mut self, event: &FromKeeper) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.greeted) {
            connection.push(event);
        }
    }

    /// True if a daemon is connected and reads what it gets.
    pub(super) fn may_tell(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_busy())
    }

    /// Sends the queued frames now. The end of the turn notices if the connection is over.
    pub(super) fn flush(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.send();
        }
    }

    /// Sends a line for the operator's log. It must not hold values of a job.
    pub(super) fn notice(&mut self, text: String) {
        self.tell(&FromKeeper::Notice(text));
    }

    /// Answers a request, if its connection still is the present one and the daemon wants a reply.
    pub(super) fn reply(&mut self, to: ReplyTo, reply: Result<Reply, KeeperError>) {
        if let Some(connection) =
            self.connection.as_mut().filter(|connection| connection.number == to.connection)
            && to.id != 0
        {
            connection.push(&FromKeeper::Reply { id: to.id, reply });
        }
    }

    /// Reaps an orphan or a reaper that has ended.
    pub(super) fn reap_orphan(&mut self, pid: u32) {
        self.reapers.remove(&pid);
        group::reap_orphan(pid);
    }

    pub(super) fn stamp(&mut self) -> Stamp {
        self.clock.now()
    }

    /// Syncs the file system of the state folder. Blocks. False if it failed.
    pub(super) fn sync(&self) -> bool {
        step_runner_system::files::sync_all(&self.state.directory).is_ok()
    }

    /// Appends an event to a job's journal with one write. A failure is only reported: it costs nothing while we live.
    pub(super) fn journal(&mut self, key: JobKey, event: &Event) {
        let Ok(line) = journal::encode(event) else { return };
        let written = failpoint::io("keeper::journal::append")
            .and_then(|()| self.state.open_journal(key))
            .and_then(|file| files::append(file, &line));
        if let Err(error) = written {
            self.notice(format!("journal of job {key}: an event could not be written: {error}"));
        }
    }
}

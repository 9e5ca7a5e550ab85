//! The keeper's event loop, on one thread. It blocks only for events, the start of a process, and the sync at a job's
//! end.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::compile::Compiler;
use super::connection::Connection;
use super::containment::reap_orphans;
use super::disk::Disk;
use super::farewell::{NOBODY, STORAGE_FAILED};
use super::job::{Job, Presence};
use super::peer::{Refusals, is_trusted};
use super::protocol::{FromKeeper, Remembered};
use super::setup::{KeeperFailure, KeeperOptions, Prepared, prepare};
use super::shared::{KeeperShared, Readiness, ReplyTo, Serial, Token, first_settings};
use crate::model::JobKey;
use crate::process::{self, Signals};

/// Events taken from the kernel at a time.
const EVENTS: usize = 256;

/// Least time between two reports of log lengths: followers do not notice, and the daemon wakes up far less.
const LENGTHS_EVERY: Duration = Duration::from_millis(5);

/// Time from the end of the last job until memory is given back.
const REST_AFTER: Duration = Duration::from_secs(1);

/// Least time between two rounds of reaping orphans: nobody waits for their exit.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// State of the keeper's process.
pub(super) struct Keeper {
    pub(super) shared: KeeperShared,
    pub(super) jobs: HashMap<Serial, Box<Job>>,
    /// Jobs that a daemon can name: all but dropped ones.
    pub(super) by_key: HashMap<JobKey, Serial>,
    pub(super) next_serial: Serial,
    pub(super) compiler: Compiler,
    pub(super) listener: OwnedFd,
    children: Signals,
    /// Finished ids, and when we were told of each; the oldest first.
    pub(super) remembered: VecDeque<(Remembered, Instant)>,
    pub(super) digest_key: Option<[u8; 16]>,
    connections: u32,
    refusals: Refusals,
    /// Closed for a moment when no other descriptor is left: a daemon must always get in.
    reserve: Option<OwnedFd>,
    /// Since when no daemon has greeted us; `None` while one is connected.
    pub(super) alone_since: Option<Instant>,
    /// True once the keeper ends its jobs without a daemon.
    pub(super) farewell: bool,
    /// True once the daemon said Bye.
    pub(super) leaving: bool,
    disk: Disk,
    lengths_told: Instant,
    reaped: Instant,
    reap_at: Option<Instant>,
    /// When to give memory back, if no job is left.
    rest_at: Option<Instant>,
}

/// Runs a keeper until its daemon says Bye, or no daemon came back. Call it on the main thread of a dedicated process:
/// it changes signals, limits and standard streams of the process, and steps die with the thread.
pub fn run(mut options: KeeperOptions) -> Result<(), KeeperFailure> {
    let first = options.first_connection.take();
    let mut keeper = Keeper::new(prepare(&options)?)?;
    if let Some(socket) = first {
        keeper.connect(socket);
    }
    keeper.serve()
}

impl Keeper {
    fn new(prepared: Prepared) -> Result<Self, KeeperFailure> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(KeeperFailure::system("wait for events"))?;
        let readiness = Readiness(epoll);
        let children = Signals::children().map_err(KeeperFailure::system("watch children"))?;
        let compiler = Compiler::new().map_err(KeeperFailure::system("make an event descriptor"))?;
        readiness
            .watch(&prepared.listener, Token::Listener, false)
            .and_then(|()| readiness.watch(&children, Token::Children, false))
            .and_then(|()| readiness.watch(compiler.fd(), Token::Compiled, false))
            .map_err(KeeperFailure::system("wait for events"))?;
        let reserve = rustix::io::fcntl_dupfd_cloexec(&prepared.listener, 3).ok();
        let now = Instant::now();
        let Prepared { state, listener, spawner, pool, limiter, limits } = prepared;
        Ok(Self {
            shared: KeeperShared::new(readiness, state, spawner, pool, limiter, limits, first_settings()),
            jobs: HashMap::new(),
            by_key: HashMap::new(),
            next_serial: 1,
            compiler,
            listener,
            children,
            remembered: VecDeque::new(),
            digest_key: None,
            connections: 0,
            refusals: Refusals::default(),
            reserve,
            alone_since: Some(now),
            farewell: false,
            leaving: false,
            disk: Disk::default(),
            lengths_told: now,
            reaped: now,
            reap_at: None,
            rest_at: Some(now + REST_AFTER),
        })
    }

    fn serve(mut self) -> Result<(), KeeperFailure> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let timeout = if self.shared.starts.is_empty() {
                self.next_deadline().map(|at| timespec(at.saturating_duration_since(Instant::now())))
            } else {
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            };
            match epoll::wait(
                &self.shared.readiness.0,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(KeeperFailure::system("wait for events")(error)),
            }
            for event in events.drain(..) {
                self.dispatch(Token::decode(event.data.u64()));
            }
            self.on_time();
            self.send();
            self.start_next();
            // After the start: the daemon that we tell wakes up and takes a processor.
            self.tell_lengths();
            self.send();
            if self.leaving || self.farewell && self.is_farewell_over() {
                self.shut_down();
                return Ok(());
            }
        }
    }

    /// Starts one step. A start blocks until the system has executed the program, so the loop looks for requests
    /// between two starts.
    fn start_next(&mut self) {
        let Some(serial) = self.shared.starts.pop_front() else { return };
        if let Some(job) = self.jobs.get_mut(&serial) {
            job.start_queued(&mut self.shared);
            self.settle(serial);
        }
    }

    fn dispatch(&mut self, token: Token) {
        match token {
            Token::Listener => self.accept(),
            Token::Connection(number) => self.on_connection(number),
            Token::Children => {
                self.children.clear();
                self.reap_at = Some(self.reaped + REAP_EVERY);
            }
            Token::Compiled => {
                while let Some((serial, prepared)) = self.compiler.finished() {
                    self.prepared(serial, prepared);
                }
            }
            Token::Process(serial, step) => {
                if let Some(job) = self.jobs.get_mut(&serial)
                    && job.step.as_ref().is_some_and(|running| running.number == step)
                {
                    job.on_process(&mut self.shared);
                    self.settle(serial);
                }
            }
            Token::Reaper(serial) => {
                if let Some(job) = self.jobs.get_mut(&serial) {
                    job.on_reaper(&mut self.shared);
                    self.settle(serial);
                }
            }
            Token::Pipe(serial, pipe) => {
                if let Some(job) = self.jobs.get_mut(&serial) {
                    job.on_pipe(pipe, &mut self.shared);
                    self.settle(serial);
                }
            }
        }
    }

    /// Call it after any change to job `serial`. Removes the job if it is gone.
    pub(super) fn settle(&mut self, serial: Serial) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        job.settle(&mut self.shared);
        if job.presence == Presence::Gone
            && let Some(mut job) = self.jobs.remove(&serial)
        {
            job.forget(&mut self.shared);
            self.shared.scratch.wipe();
            let at = Instant::now() + REST_AFTER;
            self.rest_at = Some(if self.jobs.is_empty() { at } else { self.rest_at.unwrap_or(at) });
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let lengths =
            (self.shared.has_grown() && self.shared.may_tell()).then_some(self.lengths_told + LENGTHS_EVERY);
        let all = [
            self.shared.next_timer(),
            lengths,
            self.reap_at,
            self.rest_at,
            self.farewell_at(),
            self.sync_at(),
        ];
        all.into_iter().flatten().min()
    }

    /// When to sync, while no daemon does.
    fn sync_at(&self) -> Option<Instant> {
        let since = self.alone_since.filter(|_| !self.farewell)?;
        self.jobs.values().any(|job| job.is_synced).then(|| self.disk.due(since))
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.reap_at.is_some_and(|at| at <= now) {
            self.reap_at = None;
            self.reaped = now;
            let jobs = &mut self.jobs;
            reap_orphans(&mut self.shared, |shared, pid| {
                if let Some(job) = shared.leaders.get(&pid).and_then(|serial| jobs.get_mut(serial)) {
                    job.on_process(shared);
                    job.settle(shared);
                }
            });
        }
        for serial in self.shared.due(now) {
            if let Some(job) = self.jobs.get_mut(&serial) {
                job.tick(now, &mut self.shared);
                self.settle(serial);
            }
        }
        if self.sync_at().is_some_and(|at| at <= now) && !self.disk.sync(&self.shared.state.directory, now) {
            self.begin_farewell(STORAGE_FAILED);
        }
        if self.farewell_at().is_some_and(|at| at <= now) {
            self.begin_farewell(NOBODY);
        }
        if self.rest_at.is_some_and(|at| at <= now) {
            self.rest_at = None;
            if self.jobs.is_empty() {
                process::give_back_idle_memory();
            } else {
                process::give_back_memory();
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                // The new connection replaces the old one, which frees a descriptor.
                Err(Errno::MFILE | Errno::NFILE) if self.reserve.take().is_some() => continue,
                Err(_) => break,
            };
            let peer = rustix::net::sockopt::socket_peercred(&socket).ok();
            if peer.as_ref().is_some_and(|peer| is_trusted(&socket, peer, self.shared.pool.as_ref())) {
                self.connect(socket);
            } else if let Some(text) = self.refusals.add(peer.map(|peer| peer.pid), Instant::now()) {
                self.shared.notice(text);
            }
        }
        if self.reserve.is_none() {
            self.reserve = rustix::io::fcntl_dupfd_cloexec(&self.listener, 3).ok();
        }
    }

    /// Takes a connection, and closes an older one.
    fn connect(&mut self, socket: OwnedFd) {
        // Perform what the old daemon sent before it died, even if its successor was faster than we are.
        while !self.leaving
            && let Some(old) = self.shared.connection.as_ref().filter(|old| old.has_input())
        {
            self.on_connection(old.number);
        }
        self.connections += 1;
        let number = self.connections;
        self.disconnect();
        if let Ok(connection) = Connection::new(socket, number)
            && self.shared.readiness.watch(connection.fd(), Token::Connection(number), false).is_ok()
        {
            self.shared.connection = Some(connection);
        }
    }

    fn disconnect(&mut self) {
        self.shared.connection = None;
        self.alone_since.get_or_insert_with(Instant::now);
    }

    fn on_connection(&mut self, number: u32) {
        let Some(connection) =
            self.shared.connection.as_mut().filter(|connection| connection.number == number)
        else {
            return;
        };
        let received = connection.receive();
        let frames = connection.frames();
        let mut over = received.is_err() || frames.is_err();
        for frame in frames.unwrap_or_default() {
            if self.leaving
                || self.perform(ReplyTo { connection: number, id: frame.id }, frame.request).is_err()
            {
                over = true;
                break;
            }
        }
        if over && !self.leaving {
            self.disconnect();
        }
    }

    /// Reports grown logs: the first growth after a quiet time at once, the others together after a short while.
    fn tell_lengths(&mut self) {
        if !self.shared.has_grown() || self.shared.connection.is_some() && !self.shared.may_tell() {
            return;
        }
        let now = Instant::now();
        if now < self.lengths_told + LENGTHS_EVERY {
            return;
        }
        self.lengths_told = now;
        let grown = self.shared.take_grown();
        let jobs = &mut self.jobs;
        let len = |(serial, key)| {
            let job = jobs.get_mut(&serial).filter(|job| !job.is_dropped())?;
            Some((key, job.tell_len()))
        };
        let lengths: Vec<_> = grown.into_iter().filter_map(len).collect();
        self.shared.tell(&FromKeeper::Lengths(lengths));
    }

    fn send(&mut self) {
        let Some(connection) = &mut self.shared.connection else { return };
        let before = connection.watches_write;
        connection.send();
        let write = connection.wants_write();
        if write != before {
            connection.watches_write = write;
            let token = Token::Connection(connection.number);
            self.shared.readiness.rewatch(connection.fd(), token, write);
        }
    }
}

/// Converts a wait, rounded up so that the deadline has passed at its end.
fn timespec(duration: Duration) -> Timespec {
    let whole = duration + Duration::from_micros(1);
    Timespec { tv_sec: whole.as_secs() as i64, tv_nsec: i64::from(whole.subsec_nanos()) }
}

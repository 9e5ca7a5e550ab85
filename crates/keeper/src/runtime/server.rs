//! The keeper's event loop, on one thread. It blocks only for events, the start of a process, and the sync at a job's end.

mod farewell;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::compile::Compiler;
use super::connection::Connection;
use super::disk::Disk;
use super::job::JobBody;
use super::peer::{Refusals, is_trusted};
use super::rest::{GiveBack, Rest};
use super::setup::{KeeperFailure, KeeperOptions, Prepared, prepare};
use super::shared::{KeeperShared, Readiness, Token};
use super::thaws::Thaws;
use crate::core::Core;
use crate::protocol::Request;
use farewell::{NOBODY, STORAGE_FAILED};
use step_runner_process::Signals;
use step_runner_process::cgroup::Pool;

/// Events taken from the kernel at a time.
const EVENTS: usize = 256;

/// Least time between two rounds of reaping orphans: nobody waits for their exit.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// State of the keeper's process.
pub(super) struct Keeper {
    pub(super) shared: KeeperShared,
    pub(super) core: Core<JobBody>,
    pub(super) compiler: Compiler,
    pub(super) listener: OwnedFd,
    children: Signals,
    connections: u32,
    refusals: Refusals,
    thaws: Thaws,
    /// Closed for a moment when no other descriptor is left: a daemon must always get in.
    reserve: Option<OwnedFd>,
    /// True once the daemon said Bye.
    pub(super) leaving: bool,
    disk: Disk,
    reaped: Instant,
    reap_at: Option<Instant>,
    pub(super) rest: Rest,
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
        if let Some(events) = prepared.pool.as_ref().and_then(Pool::events) {
            readiness
                .watch(events, Token::Groups, false)
                .map_err(KeeperFailure::system("wait for events"))?;
        }
        let reserve = rustix::io::fcntl_dupfd_cloexec(&prepared.listener, 3).ok();
        let now = Instant::now();
        let Prepared { state, listener, spawner, pool, limiter, limits } = prepared;
        Ok(Self {
            shared: KeeperShared::new(readiness, state, spawner, pool, limiter, limits),
            core: Core::new(now),
            compiler,
            listener,
            children,
            connections: 0,
            refusals: Refusals::default(),
            thaws: Thaws::default(),
            reserve,
            leaving: false,
            disk: Disk::default(),
            reaped: now,
            reap_at: None,
            rest: Rest::new(now),
        })
    }

    fn serve(mut self) -> Result<(), KeeperFailure> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let timeout = if self.core.has_starts() {
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            } else {
                self.next_deadline().map(|at| timespec(at.saturating_duration_since(Instant::now())))
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
            self.shared.pool.iter_mut().for_each(Pool::thaw_frozen);
            self.on_time();
            if self.shared.connection.as_ref().is_some_and(Connection::wants_write) {
                // One write wakes the daemon once.
                self.tell_lengths();
            }
            self.send();
            self.start_next();
            self.report_thaws();
            // After the start: the daemon that we tell wakes up and takes a processor.
            self.tell_lengths();
            self.send();
            if self.leaving || self.core.is_farewell() && self.core.is_farewell_over() {
                self.shut_down();
                return Ok(());
            }
        }
    }

    /// Starts one step. A start blocks until the system has executed the program, so the loop looks for requests
    /// between two starts.
    fn start_next(&mut self) {
        if let Some(serial) = self.core.start_next(Instant::now()) {
            self.drive();
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
                    self.drive();
                }
            }
            Token::Groups => self.shared.pool.iter_mut().for_each(Pool::take_events),
            Token::Process(serial, process) => self.on_process(serial, |of, _| of == process),
            Token::Reaper(serial) => self.on_reaper(serial),
            Token::Pipe(serial, pipe) => self.on_pipe(serial, pipe),
        }
    }

    /// Reports groups of jobs that somebody had frozen. Called after the start, which thaws, too.
    fn report_thaws(&mut self) {
        let thawed = self.shared.pool.as_ref().map(Pool::take_thaws).unwrap_or_default();
        if let Some(text) = self.thaws.add(thawed, Instant::now()) {
            self.shared.notice(text);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let lengths = self.core.lengths_due().filter(|_| self.shared.may_tell());
        let all = [
            self.core.next_timer(),
            lengths,
            self.reap_at,
            self.rest.at(),
            self.core.farewell_due(),
            self.sync_at(),
        ];
        all.into_iter().flatten().min()
    }

    /// When to sync, while no daemon does.
    fn sync_at(&self) -> Option<Instant> {
        let since = self.core.alone_since().filter(|_| !self.core.is_farewell())?;
        self.core.all().any(|registered| registered.body.is_synced).then(|| self.disk.due(since))
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.reap_at.is_some_and(|at| at <= now) {
            self.reap_at = None;
            self.reaped = now;
            self.reap();
        }
        for serial in self.core.due(now) {
            self.tick(serial, now);
        }
        if self.sync_at().is_some_and(|at| at <= now) && !self.disk.sync(&self.shared.state.directory, now) {
            self.begin_farewell(STORAGE_FAILED);
        }
        if self.core.farewell_due().is_some_and(|at| at <= now) {
            self.begin_farewell(NOBODY);
        }
        match self.rest.due(now) {
            None => {}
            Some(GiveBack::Heap) => step_runner_process::give_back_memory(),
            Some(GiveBack::Program) => {
                if self.core.is_empty() {
                    self.shared.pool.iter_mut().for_each(Pool::rest);
                }
                step_runner_process::give_back_idle_memory();
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
        self.core.disconnected(Instant::now());
    }

    fn on_connection(&mut self, number: u32) {
        let Some(connection) =
            self.shared.connection.as_mut().filter(|connection| connection.number == number)
        else {
            return;
        };
        let received = connection.receive();
        let frames = connection.frames();
        let mut is_closed = received.is_err() || frames.is_err();
        for frame in frames.unwrap_or_default() {
            // The first frame is Hello: what comes before it breaks the protocol.
            let greeted = self.shared.connection.as_ref().is_some_and(|connection| connection.greeted);
            if self.leaving || !greeted && !matches!(frame.request, Request::Hello { .. }) {
                is_closed = true;
                break;
            }
            self.request(number, frame);
        }
        if is_closed && !self.leaving {
            self.disconnect();
        }
    }

    /// Reports grown logs: the first growth after a quiet time at once, the others together after a short while.
    fn tell_lengths(&mut self) {
        let now = Instant::now();
        let is_busy = self.shared.connection.is_some() && !self.shared.may_tell();
        if !is_busy && self.core.lengths_due().is_some_and(|due| due <= now) {
            let lengths = self.core.take_lengths(now);
            self.shared.tell(&lengths);
        }
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

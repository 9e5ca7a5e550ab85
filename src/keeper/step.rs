//! A step: from its spawn to the end of its process and of what can be read from its pipes (service.md §6.1, "Step").

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use super::job::Job;
use super::protocol::{FromKeeper, SpawnStep, StepEnd, StepOver};
use super::shared::{Shared, Token};
use crate::failpoint;
use crate::journal::event::Event;
use crate::log::pipeline::Pipeline;
use crate::model::{ExitStatus, Kind, Shortage};
use crate::process::group;
use crate::process::spawn::{Command, SpawnError, Spawned, Stage};

/// A pipe that others still hold counts as drained after so long without a byte.
const QUIET: Duration = Duration::from_millis(200);

/// However much still comes: after so long the step is over.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Reads of one pipe before other descriptors have their turn: enough to make the turn's own cost small.
const READS_PER_TURN: usize = 4;

/// Reads of one pipe at the end of its step: more than a pipe holds, but no endless writer is followed.
const READS_AT_END: usize = 32;

/// A program that is still open for writing is tried again so often …
const BUSY_TRIES: u32 = 20;

/// … and after this pause each time.
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// The read end of a pipe, and the source it feeds.
pub(super) struct Pipe {
    pub(super) id: u32,
    pub(super) fd: OwnedFd,
    kind: Kind,
    pub(super) source: Pipeline,
    /// The running step's own; else a step before it left it to a process that lives on.
    of_step: bool,
}

impl Pipe {
    pub(super) fn watch(&self, serial: u32, shared: &Shared) {
        // Without memory for the registration the pipe is read at the end of its step.
        shared.readiness.watch(&self.fd, Token::Pipe(serial, self.id), false).ok();
    }
}

/// The step that runs now.
pub(super) struct Step {
    pub(super) number: u32,
    name: String,
    state: State,
}

enum State {
    /// Its turn to be started comes soon.
    Queued { request: Box<SpawnStep> },
    /// Its program is busy; tried again.
    Starting { request: Box<SpawnStep>, tries: u32, at: Instant },
    /// Its process runs.
    Running { pid: Pid, pidfd: OwnedFd },
    /// The process has ended; others still hold its pipes.
    Draining { status: ExitStatus, last_byte: Instant, until: Instant },
    /// What it left is being killed (`leftover = kill`).
    Clearing { over: StepOver, give_up_at: Instant, at: Instant },
}

/// What reading a pipe came to.
#[derive(PartialEq, Eq)]
enum Reading {
    /// No byte was there.
    Nothing,
    /// Some were.
    Some,
    /// Everyone has closed it.
    Ended,
}

impl Job {
    /// Queues the start of a step: requests are answered first. Whatever comes of it is told by `StepOver`.
    pub(super) fn spawn(&mut self, request: Box<SpawnStep>, shared: &mut Shared) {
        if self.ending.is_some() || self.closing.is_some() || self.closed.is_some() || self.step.is_some() {
            // No new step starts once an end was asked for (service.md §6.2).
            self.not_started(request.step, "cancelled", Errno::CANCELED, shared);
            return;
        }
        let (number, name) = (request.step, request.name.clone());
        self.step = Some(Step { number, name, state: State::Queued { request } });
        shared.starts.push_back(self.serial);
    }

    /// It is the job's turn to start its process.
    pub(super) fn start_queued(&mut self, shared: &mut Shared) {
        match self.step.take() {
            Some(Step { state: State::Queued { request }, .. }) if self.ending.is_some() => {
                self.not_started(request.step, "cancelled", Errno::CANCELED, shared);
            }
            Some(Step { state: State::Queued { request }, .. }) => self.try_spawn(request, 0, shared),
            other => self.step = other,
        }
    }

    fn try_spawn(&mut self, request: Box<SpawnStep>, tries: u32, shared: &mut Shared) {
        match self.start_process(&request, shared) {
            Ok(spawned) => self.started(&request, spawned, shared),
            Err(error) if error.is_busy() && tries < BUSY_TRIES => {
                let (number, name) = (request.step, request.name.clone());
                let at = Instant::now() + BUSY_PAUSE;
                self.step =
                    Some(Step { number, name, state: State::Starting { request, tries: tries + 1, at } });
            }
            Err(error) => {
                self.step = None;
                self.not_started(request.step, error.stage.name(), error.errno, shared);
            }
        }
    }

    fn start_process(&mut self, request: &SpawnStep, shared: &mut Shared) -> Result<Spawned, SpawnError> {
        let command = Command {
            program: &request.program,
            argv: &request.argv,
            env: &request.env,
            work_dir: &request.work_dir,
        };
        self.containment.prepare(shared).map_err(|error| SpawnError::new(Stage::Limits, &error))?;
        let spawned = shared.spawner.spawn(&command, &self.containment.confinement());
        let Err(error) = &spawned else { return spawned };
        let exhausted = matches!(error.errno, Errno::AGAIN | Errno::NOMEM);
        let by_group = matches!(error.stage, Stage::Fork | Stage::Cgroup);
        if exhausted || !by_group || !self.containment.do_without_leaf(shared) {
            return spawned;
        }
        // The group cannot take the process (removed from outside, threaded): the job goes on without one.
        shared.notice(format!(
            "control group refused a process ({}): the job is followed by its tag",
            error.errno
        ));
        shared.spawner.spawn(&command, &self.containment.confinement())
    }

    fn started(&mut self, request: &SpawnStep, spawned: Spawned, shared: &mut Shared) {
        failpoint::hit("keeper::step::spawned");
        let pid = spawned.pid.as_raw_nonzero().get() as u32;
        shared.leaders.insert(pid, self.serial);
        self.containment.add_group(pid, shared);
        let start_time = spawned.start_time;
        shared.journal(self.key, &Event::StepStarted { step: request.step, pgid: pid, pid, start_time });
        for (fd, kind) in [(spawned.stdout, Kind::Out), (spawned.stderr, Kind::Err)] {
            self.next_pipe += 1;
            let source = self.masking.source(kind);
            let pipe = Pipe { id: self.next_pipe, fd, kind, source, of_step: true };
            if !self.is_parked() {
                pipe.watch(self.serial, shared);
            }
            self.pipes.push(pipe);
        }
        let token = Token::Process(self.serial, request.step);
        if shared.readiness.watch(&spawned.pidfd, token, false).is_err() {
            // Out of memory for the registration: the child's signal still tells of its end.
            shared.notice("a process could not be watched".to_owned());
        }
        let state = State::Running { pid: spawned.pid, pidfd: spawned.pidfd };
        self.step = Some(Step { number: request.step, name: request.name.clone(), state });
    }

    fn not_started(&mut self, step: u32, what: &str, errno: Errno, shared: &mut Shared) {
        let end = StepEnd::NotStarted { what: what.to_owned(), errno: errno.raw_os_error() };
        let usage = self.containment.usage(shared);
        self.tell_over(StepOver { step, end, left: 0, shortage: None, usage }, shared);
    }

    fn tell_over(&mut self, over: StepOver, shared: &mut Shared) {
        self.over.push(over.clone());
        if self.is_dropped() {
            return;
        }
        shared.tell(&FromKeeper::StepOver { key: self.key, over });
    }

    /// Its running process, not reaped yet.
    pub(super) fn leader(&self) -> Option<Pid> {
        match self.step.as_ref()?.state {
            State::Running { pid, .. } => Some(pid),
            State::Queued { .. }
            | State::Starting { .. }
            | State::Draining { .. }
            | State::Clearing { .. } => None,
        }
    }

    /// The process of the step may have ended.
    pub(super) fn on_process(&mut self, shared: &mut Shared) {
        if let Some(Step { state: State::Running { pid, pidfd }, .. }) = &self.step
            && let Some((status, time)) = group::reap(pidfd.as_fd())
        {
            shared.leaders.remove(&(pid.as_raw_nonzero().get() as u32));
            self.containment.add_reaped(time);
            self.process_ended(status, shared);
        }
    }

    /// Takes the exit status and what stands in the pipes.
    pub(super) fn process_ended(&mut self, status: ExitStatus, shared: &mut Shared) {
        let now = Instant::now();
        if let Some(step) = &mut self.step {
            step.state = State::Draining { status, last_byte: now, until: now + DRAIN_LIMIT };
        }
        for index in (0..self.pipes.len()).rev() {
            if self.pipes.get(index).is_some_and(|pipe| pipe.of_step) {
                self.read_pipe(index, READS_AT_END, shared);
            }
        }
        self.end_if_drained(shared);
    }

    /// Pipe `id` has bytes or was closed.
    pub(super) fn on_pipe(&mut self, id: u32, shared: &mut Shared) {
        let Some(index) = self.pipes.iter().position(|pipe| pipe.id == id) else { return };
        let of_step = self.pipes.get(index).is_some_and(|pipe| pipe.of_step);
        let reading = self.read_pipe(index, READS_PER_TURN, shared);
        if of_step {
            if reading == Reading::Some
                && let Some(Step { state: State::Draining { last_byte, .. }, .. }) = &mut self.step
            {
                *last_byte = Instant::now();
            }
            self.end_if_drained(shared);
        }
    }

    /// Reads at most `reads` times; one that has ended is removed.
    fn read_pipe(&mut self, index: usize, reads: usize, shared: &mut Shared) -> Reading {
        let mut reading = Reading::Nothing;
        for _ in 0..reads {
            let Some(pipe) = self.pipes.get_mut(index) else { break };
            if self.log.is_waiting() {
                break;
            }
            match rustix::io::read(&pipe.fd, &mut *shared.scratch.read) {
                Ok(0) => return self.pipe_ended(index, shared),
                Ok(read) => {
                    reading = Reading::Some;
                    let now = shared.clock.now();
                    let scratch = &mut shared.scratch;
                    scratch.has_read(read);
                    let bytes = scratch.read.get(..read).unwrap_or_default();
                    self.log.output(&now, |out| pipe.source.write(bytes, &now, &mut scratch.masked, out));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return self.pipe_ended(index, shared),
            }
        }
        reading
    }

    fn pipe_ended(&mut self, index: usize, shared: &mut Shared) -> Reading {
        let mut pipe = self.pipes.remove(index);
        let now = shared.stamp();
        self.log.output(&now, |out| pipe.source.finish(&now, &mut shared.scratch.masked, out));
        Reading::Ended
    }

    /// Reads and closes everything at the end of the job.
    pub(super) fn close_pipes(&mut self, shared: &mut Shared) {
        for index in (0..self.pipes.len()).rev() {
            if self.read_pipe(index, READS_AT_END, shared) != Reading::Ended {
                self.pipe_ended(index, shared);
            }
        }
    }

    fn end_if_drained(&mut self, shared: &mut Shared) {
        if let Some(Step { state: State::Draining { status, .. }, .. }) = &self.step
            && !self.pipes.iter().any(|pipe| pipe.of_step)
        {
            let status = *status;
            self.end_step(status, shared);
        }
    }

    /// The disk takes bytes again: what waited in the pipes has its full time to be read.
    pub(super) fn drain_anew(&mut self, now: Instant) {
        if let Some(Step { state: State::Draining { last_byte, until, .. }, .. }) = &mut self.step {
            *last_byte = now;
            *until = now + DRAIN_LIMIT;
        }
    }

    /// The step is over: its sources end, what it left is counted.
    fn end_step(&mut self, status: ExitStatus, shared: &mut Shared) {
        let Some(step) = self.step.take() else { return };
        let now = shared.stamp();
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.of_step) {
            self.log.output(&now, |out| pipe.source.finish(&now, &mut shared.scratch.masked, out));
            pipe.source = self.masking.source(pipe.kind);
            pipe.of_step = false;
        }
        let left = self.containment.survivors(shared).len() as u32;
        if left == 0 {
            self.containment.remove_groups(shared);
        } else {
            self.line(Kind::Out, &format!("step {} left {left} processes running", step.name), shared);
        }
        let ended = Event::StepEnded { step: step.number, status: Some(status) };
        let shortage = self.containment.shortage();
        if let Some(shortage) = shortage.filter(|_| status.is_success()) {
            // The step has failed in part and does not say so.
            let what = match shortage {
                Shortage::Memory => "processes were killed, as memory ran short",
                Shortage::Processes => "processes were refused, as the job has reached its limit",
            };
            self.line(Kind::Err, &format!("warning: step {}: {what}", step.name), shared);
        }
        let usage = self.containment.usage(shared);
        let over = StepOver { step: step.number, end: StepEnd::Exited(status), left, shortage, usage };
        if left > 0 && !shared.settings.leftover_keep {
            shared.journal(self.key, &ended);
            self.containment.kill(shared);
            let at = Instant::now();
            let state = State::Clearing { over, give_up_at: at + shared.settings.kill_wait, at };
            self.step = Some(Step { state, ..step });
        } else {
            // The daemon decides what comes next while the line is written, which only the death of this process gives a
            // reader.
            self.tell_over(over, shared);
            shared.flush();
            shared.journal(self.key, &ended);
        }
    }

    /// Its process cannot be killed: the step is over all the same (service.md §6.2).
    pub(super) fn give_up_step(&mut self, shared: &mut Shared) {
        match self.step.as_ref().map(|step| &step.state) {
            Some(State::Running { .. }) => {
                const SIGKILL: u8 = 9;
                self.end_step(ExitStatus::Signal(SIGKILL), shared);
            }
            Some(State::Draining { status, .. }) => self.end_step(*status, shared),
            Some(State::Queued { .. } | State::Starting { .. } | State::Clearing { .. }) | None => {}
        }
    }

    pub(super) fn step_tick(&mut self, now: Instant, shared: &mut Shared) {
        if self.step_deadline().is_none_or(|at| at > now) {
            return;
        }
        let Some(step) = self.step.take() else { return };
        match step.state {
            State::Starting { request, .. } if self.ending.is_some() => {
                self.not_started(request.step, "cancelled", Errno::CANCELED, shared);
            }
            State::Starting { request, tries, .. } => self.try_spawn(request, tries, shared),
            State::Draining { status, .. } => {
                self.step = Some(step);
                self.end_step(status, shared);
            }
            State::Clearing { over, give_up_at, .. } => {
                if self.containment.is_empty(shared) || now >= give_up_at {
                    self.containment.remove_groups(shared);
                    self.tell_over(over, shared);
                } else {
                    self.containment.kill(shared);
                    let state = State::Clearing { over, give_up_at, at: now + Duration::from_millis(5) };
                    self.step = Some(Step { state, ..step });
                }
            }
            State::Queued { .. } | State::Running { .. } => self.step = Some(step),
        }
    }

    /// When [`Job::step_tick`] has something to do. While the disk is full nothing is: bytes wait in the pipes.
    pub(super) fn step_deadline(&self) -> Option<Instant> {
        match self.step.as_ref()?.state {
            State::Queued { .. } | State::Running { .. } => None,
            State::Starting { at, .. } | State::Clearing { at, .. } => Some(at),
            State::Draining { .. } if self.log.is_waiting() => None,
            State::Draining { last_byte, until, .. } => Some(until.min(last_byte + QUIET)),
        }
    }
}

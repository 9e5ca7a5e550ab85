//! A step: from its spawn to the end of its process and of its output (service.md §6.1, "Step").

mod reaped;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use super::containment::StartOutcome;
use super::job::Job;
use super::leftover;
use super::pipe::Pipe;
use super::protocol::{FromKeeper, SpawnStep, StepEnd, StepOver};
use super::shared::{KeeperShared, Token};
use crate::failpoint;
use crate::journal::event::Event;
use crate::model::{ExitStatus, FinishedProcess, LogChannel, Shortage, StepUsage};
use crate::process::group;
use crate::process::reaper::OrderedPipes;
use crate::process::spawn::{Command, SpawnError, Spawned, Stage};

/// A pipe that other processes hold counts as drained after this time without a byte.
const QUIET: Duration = Duration::from_millis(200);

/// Longest time to drain the pipes of a step, however much still comes.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Reads of one pipe before other descriptors have their turn: enough to make the turn's own cost small.
const READS_PER_TURN: usize = 4;

/// Reads of one pipe at the end of its step: more than a pipe holds, but an endless writer is not followed.
const READS_AT_END: usize = 32;

/// Most retries to start a program that is open for writing.
const BUSY_TRIES: u32 = 20;

/// Pause between two such retries.
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// The step that runs now.
pub(super) struct Step {
    pub(super) number: u32,
    name: String,
    state: StepState,
}

enum StepState {
    /// It waits for its turn to be started.
    Queued { request: Box<SpawnStep> },
    /// Its program is busy; the start is tried again.
    Starting { request: Box<SpawnStep>, tries: u32, at: Instant },
    /// The job's reaper was ordered to start its process.
    Launching { request: Box<SpawnStep>, tries: u32, pipes: OrderedPipes, wake_at: Instant },
    /// Its process runs, as our child or the reaper's. The reaper reports the end of its children.
    Running { pid: Pid, pidfd: Option<OwnedFd>, is_ours: bool, wake_at: Option<Instant> },
    /// The process has ended; others still hold its pipes.
    Draining { status: ExitStatus, usage: Option<StepUsage>, last_byte: Instant, until: Instant },
    /// Its left-over processes are being killed (`leftover = kill`).
    Clearing { over: StepOver, give_up_at: Instant, at: Instant },
}

struct StartedProcess {
    pid: Pid,
    pidfd: Option<OwnedFd>,
    /// True if it is our child.
    is_ours: bool,
    start_time: u64,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl From<Spawned> for StartedProcess {
    fn from(spawned: Spawned) -> Self {
        let Spawned { pid, pidfd, start_time, stdout, stderr } = spawned;
        Self { pid, pidfd: Some(pidfd), is_ours: true, start_time, stdout, stderr }
    }
}

/// Pause between attempts to continue a reaper that owes news: a process of the job may have stopped it.
const WAKE_PAUSE: Duration = Duration::from_millis(100);

/// Status of a process that nobody could wait for.
const KILLED: ExitStatus = ExitStatus::Signal(9);

/// Result of reading a pipe.
#[derive(PartialEq, Eq)]
enum Reading {
    Nothing,
    Some,
    /// All writers have closed it.
    Ended,
}

impl Job {
    /// Queues the start of a step: requests are answered first. `StepOver` reports the result in any case.
    pub(super) fn spawn(&mut self, request: Box<SpawnStep>, shared: &mut KeeperShared) {
        if request.watch_unfinished {
            self.watch_unfinished();
        }
        if self.ending.is_some() || self.closing.is_some() || self.closed.is_some() || self.step.is_some() {
            // No new step starts once an end was asked for (service.md §6.2).
            self.not_started(request.step, "cancelled", Errno::CANCELED, shared);
            return;
        }
        let (number, name) = (request.step, request.name.clone());
        self.step = Some(Step { number, name, state: StepState::Queued { request } });
        shared.starts.push_back(self.serial);
    }

    /// Starts the queued process; it is the job's turn.
    pub(super) fn start_queued(&mut self, shared: &mut KeeperShared) {
        match self.step.take() {
            Some(Step { state: StepState::Queued { request }, .. }) if self.ending.is_some() => {
                self.not_started(request.step, "cancelled", Errno::CANCELED, shared);
            }
            Some(Step { state: StepState::Queued { request }, .. }) => self.try_spawn(request, 0, shared),
            other => self.step = other,
        }
    }

    fn try_spawn(&mut self, request: Box<SpawnStep>, tries: u32, shared: &mut KeeperShared) {
        match self.start_process(&request, shared) {
            Ok(StartOutcome::Running(spawned)) => self.started(&request, spawned.into(), shared),
            Ok(StartOutcome::Ordered(pipes)) => {
                let (number, name) = (request.step, request.name.clone());
                let wake_at = Instant::now() + WAKE_PAUSE;
                let state = StepState::Launching { request, tries, pipes, wake_at };
                self.step = Some(Step { number, name, state });
            }
            Err(error) => self.start_failed(request, tries, error, shared),
        }
    }

    fn start_failed(
        &mut self,
        request: Box<SpawnStep>,
        tries: u32,
        error: SpawnError,
        shared: &mut KeeperShared,
    ) {
        self.step = None;
        if error.is_busy() && tries < BUSY_TRIES {
            let (number, name) = (request.step, request.name.clone());
            let at = Instant::now() + BUSY_PAUSE;
            self.step =
                Some(Step { number, name, state: StepState::Starting { request, tries: tries + 1, at } });
        } else {
            self.not_started(request.step, error.stage.name(), error.errno, shared);
        }
    }

    fn start_process(
        &mut self,
        request: &SpawnStep,
        shared: &mut KeeperShared,
    ) -> Result<StartOutcome, SpawnError> {
        let command = Command {
            program: &request.program,
            argv: &request.argv,
            env: &request.env,
            work_dir: &request.work_dir,
        };
        let begun = self.containment.start(&command, self.serial, shared);
        let Err(error) = &begun else { return begun };
        let exhausted = matches!(error.errno, Errno::AGAIN | Errno::NOMEM);
        let by_group = matches!(error.stage, Stage::Fork | Stage::Cgroup);
        if exhausted || !by_group || !self.containment.do_without_leaf(shared) {
            return begun;
        }
        // The group cannot take the process (removed from outside, threaded): the job goes on without one.
        shared.notice(format!(
            "control group refused a process ({}): a reaper holds the job's processes together",
            error.errno
        ));
        self.containment.start(&command, self.serial, shared)
    }

    fn started(&mut self, request: &SpawnStep, started: StartedProcess, shared: &mut KeeperShared) {
        failpoint::hit("keeper::step::spawned");
        let StartedProcess { pid, pidfd, is_ours, start_time, stdout, stderr } = started;
        let number = pid.as_raw_nonzero().get() as u32;
        if is_ours {
            shared.leaders.insert(number, self.serial);
        }
        self.leftovers.begin(number);
        let event = Event::StepStarted { step: request.step, pgid: number, pid: number, start_time };
        self.journal(&event, shared);
        for (fd, kind) in [(stdout, LogChannel::Out), (stderr, LogChannel::Err)] {
            self.next_pipe += 1;
            let source = self.masking.source(kind);
            let pipe = Pipe::new(self.next_pipe, fd, kind, source);
            if !self.is_parked() {
                pipe.watch(self.serial, shared);
            }
            self.pipes.push(pipe);
        }
        let token = Token::Process(self.serial, request.step);
        if pidfd.as_ref().is_some_and(|pidfd| shared.readiness.watch(pidfd, token, false).is_err()) {
            // Out of memory for the registration: SIGCHLD still reports the end.
            shared.notice("a process could not be watched".to_owned());
        }
        let state = StepState::Running { pid, pidfd, is_ours, wake_at: None };
        self.step = Some(Step { number: request.step, name: request.name.clone(), state });
    }

    fn not_started(&mut self, step: u32, what: &str, errno: Errno, shared: &mut KeeperShared) {
        let end = StepEnd::NotStarted { what: what.to_owned(), errno: errno.raw_os_error() };
        let usage = self.containment.usage();
        let ran = self.ran(None);
        self.tell_over(StepOver { step, end, left: 0, shortage: None, usage, ran }, shared);
    }

    /// Describes the run of the step that has just ended. `usage` came with the wait for its process; control groups
    /// are not read for a single step.
    fn ran(&self, usage: Option<StepUsage>) -> FinishedProcess {
        FinishedProcess { ended: crate::clock::boot_micros(), log_len: self.log.len(), usage }
    }

    fn tell_over(&mut self, over: StepOver, shared: &mut KeeperShared) {
        self.over.push(over.clone());
        self.tell(&FromKeeper::StepOver { key: self.key, over }, shared);
    }

    /// True if a process of the running step lives or was ordered.
    pub(super) fn has_process(&self) -> bool {
        let state = self.step.as_ref().map(|step| &step.state);
        matches!(state, Some(StepState::Running { .. } | StepState::Launching { .. }))
    }

    /// Returns the running step's process, which has not been reaped.
    pub(super) fn leader(&self) -> Option<Pid> {
        match self.step.as_ref()?.state {
            StepState::Running { pid, .. } => Some(pid),
            StepState::Queued { .. }
            | StepState::Starting { .. }
            | StepState::Launching { .. }
            | StepState::Draining { .. }
            | StepState::Clearing { .. } => None,
        }
    }

    /// Reaps the step's process if it has ended, or makes its reaper report the end.
    pub(super) fn on_process(&mut self, shared: &mut KeeperShared) {
        let Some(Step { state: StepState::Running { pid, pidfd: Some(pidfd), is_ours, wake_at }, .. }) =
            &mut self.step
        else {
            return;
        };
        if !*is_ours {
            shared.readiness.forget(pidfd);
            *wake_at = Some(Instant::now() + WAKE_PAUSE);
            self.containment.wake_reaper();
        } else if let Some((status, usage)) = group::reap(pidfd.as_fd()) {
            shared.leaders.remove(&(pid.as_raw_nonzero().get() as u32));
            self.containment.add_reaped(usage.time());
            self.process_ended(status, Some(usage), shared);
        }
    }

    /// Takes the exit status, and reads the pipes.
    pub(super) fn process_ended(
        &mut self,
        status: ExitStatus,
        usage: Option<StepUsage>,
        shared: &mut KeeperShared,
    ) {
        let now = Instant::now();
        if let Some(step) = &mut self.step {
            step.state = StepState::Draining { status, usage, last_byte: now, until: now + DRAIN_LIMIT };
        }
        // In this order standard output comes first, as most programs complain last.
        let mut index = 0;
        while let Some(pipe) = self.pipes.get(index) {
            let has_gone = pipe.of_step && self.read_pipe(index, READS_AT_END, shared) == Reading::Ended;
            index += usize::from(!has_gone);
        }
        self.end_if_drained(shared);
    }

    /// Reads pipe `id`, which has bytes or was closed.
    pub(super) fn on_pipe(&mut self, id: u32, shared: &mut KeeperShared) {
        let Some(index) = self.pipes.iter().position(|pipe| pipe.id == id) else { return };
        let of_step = self.pipes.get(index).is_some_and(|pipe| pipe.of_step);
        let reading = self.read_pipe(index, READS_PER_TURN, shared);
        if of_step {
            if reading == Reading::Some
                && let Some(Step { state: StepState::Draining { last_byte, .. }, .. }) = &mut self.step
            {
                *last_byte = Instant::now();
            }
            self.end_if_drained(shared);
        }
    }

    /// Reads a pipe at most `reads` times. A pipe that has ended is removed.
    fn read_pipe(&mut self, index: usize, reads: usize, shared: &mut KeeperShared) -> Reading {
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

    fn pipe_ended(&mut self, index: usize, shared: &mut KeeperShared) -> Reading {
        let mut pipe = self.pipes.remove(index);
        let now = shared.stamp();
        self.log.output(&now, |out| pipe.source.finish(&now, &mut shared.scratch.masked, out));
        self.end_unfinished(&mut pipe, shared);
        Reading::Ended
    }

    /// Reads and closes all pipes at the end of the job.
    pub(super) fn close_pipes(&mut self, shared: &mut KeeperShared) {
        while !self.pipes.is_empty() {
            if self.read_pipe(0, READS_AT_END, shared) != Reading::Ended {
                self.pipe_ended(0, shared);
            }
        }
    }

    fn end_if_drained(&mut self, shared: &mut KeeperShared) {
        if let Some(Step { state: StepState::Draining { status, usage, .. }, .. }) = &self.step
            && !self.pipes.iter().any(|pipe| pipe.of_step)
        {
            let (status, usage) = (*status, *usage);
            self.end_step(status, usage, shared);
        }
    }

    /// Restarts the limits on draining, as the disk takes bytes again.
    pub(super) fn drain_anew(&mut self, now: Instant) {
        if let Some(Step { state: StepState::Draining { last_byte, until, .. }, .. }) = &mut self.step {
            *last_byte = now;
            *until = now + DRAIN_LIMIT;
        }
    }

    /// Ends the step: finishes its sources and counts the processes it left.
    fn end_step(&mut self, status: ExitStatus, used: Option<StepUsage>, shared: &mut KeeperShared) {
        let Some(step) = self.step.take() else { return };
        let now = shared.stamp();
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.of_step) {
            self.log.output(&now, |out| pipe.source.finish(&now, &mut shared.scratch.masked, out));
            pipe.become_leftover(self.masking.source(pipe.kind));
        }
        let survivors = self.containment.survivors(shared);
        let new = self.leftovers.of_step(&survivors);
        // Once an end was asked for, its processes are ending, one after the other.
        if !new.is_empty() && self.ending.is_none() {
            self.line(LogChannel::Out, &leftover::line(&step.name, &new, &self.masking), shared);
        }
        let left = survivors.len() as u32;
        let ended = Event::StepEnded { step: step.number, status: Some(status) };
        let shortage = self.containment.shortage();
        if let Some(shortage) = shortage.filter(|_| status.is_success()) {
            // Part of the step failed, but its status says success.
            let what = match shortage {
                Shortage::Memory => "processes were killed, as memory ran short",
                Shortage::Processes => "processes were refused, as the job has reached its limit",
            };
            self.line(LogChannel::Err, &format!("warning: step {}: {what}", step.name), shared);
        }
        let usage = self.containment.usage();
        let (end, ran) = (StepEnd::Exited(status), self.ran(used));
        let over = StepOver { step: step.number, end, left, shortage, usage, ran };
        if left > 0 && !shared.settings.leftover_keep {
            self.journal(&ended, shared);
            self.containment.kill(None, shared);
            let at = Instant::now();
            let state = StepState::Clearing { over, give_up_at: at + shared.settings.kill_wait, at };
            self.step = Some(Step { state, ..step });
        } else {
            // Report first, then write the journal line: it is read only if this process dies.
            self.tell_over(over, shared);
            shared.flush();
            self.journal(&ended, shared);
        }
    }

    /// Ends a step whose process cannot be killed (service.md §6.2).
    pub(super) fn give_up_step(&mut self, shared: &mut KeeperShared) {
        match self.step.as_ref().map(|step| &step.state) {
            Some(StepState::Running { .. }) => self.end_step(KILLED, None, shared),
            Some(StepState::Launching { request, .. }) => {
                let step = request.step;
                self.step = None;
                self.not_started(step, Stage::Fork.name(), Errno::TIMEDOUT, shared);
            }
            Some(StepState::Draining { status, usage, .. }) => self.end_step(*status, *usage, shared),
            Some(StepState::Queued { .. } | StepState::Starting { .. } | StepState::Clearing { .. })
            | None => {}
        }
    }

    pub(super) fn step_tick(&mut self, now: Instant, shared: &mut KeeperShared) {
        if self.step_deadline().is_none_or(|at| at > now) {
            return;
        }
        let Some(step) = self.step.take() else { return };
        match step.state {
            StepState::Starting { request, .. } if self.ending.is_some() => {
                self.not_started(request.step, "cancelled", Errno::CANCELED, shared);
            }
            StepState::Starting { request, tries, .. } => self.try_spawn(request, tries, shared),
            StepState::Draining { status, usage, .. } => {
                self.step = Some(step);
                self.end_step(status, usage, shared);
            }
            StepState::Clearing { over, give_up_at, .. } => {
                if self.containment.is_empty(shared) || now >= give_up_at {
                    self.tell_over(over, shared);
                } else {
                    self.containment.kill(None, shared);
                    let state = StepState::Clearing { over, give_up_at, at: now + Duration::from_millis(5) };
                    self.step = Some(Step { state, ..step });
                }
            }
            StepState::Launching { .. } | StepState::Running { .. } => {
                self.step = Some(step);
                self.wake_again(now);
            }
            StepState::Queued { .. } => self.step = Some(step),
        }
    }

    /// When [`Job::step_tick`] has something to do. A draining step has nothing while the disk is full: bytes wait in
    /// the pipes.
    pub(super) fn step_deadline(&self) -> Option<Instant> {
        match self.step.as_ref()?.state {
            StepState::Queued { .. } => None,
            StepState::Launching { wake_at, .. } => Some(wake_at),
            StepState::Running { wake_at, .. } => wake_at,
            StepState::Starting { at, .. } | StepState::Clearing { at, .. } => Some(at),
            StepState::Draining { .. } if self.log.is_waiting() => None,
            StepState::Draining { last_byte, until, .. } => Some(until.min(last_byte + QUIET)),
        }
    }
}

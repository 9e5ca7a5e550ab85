//! The processes of a job: started, watched, reaped, and described when their step is over (service.md §6.1, "Step").

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

use super::containment::{Containment, StartOutcome};
use super::escaped::{Signs, is_below};
use super::leftover::Leftovers;
use super::shared::{KeeperShared, Token};
use crate::core::{NotStarted, Serial, StartFailure};
use crate::protocol::{RegisterJob, SpawnStep, StartPart, StepEnd};
use step_runner_model::{ExitStatus, ProcessNumber, StepUsage};
use step_runner_process::freezer::thaw_process;
use step_runner_process::group;
use step_runner_process::reaper::{OrderedPipes, ReaperEvent};
use step_runner_process::spawn::{Command, SpawnError, Spawned, Stage};
use step_runner_process::sweep::Process;

/// The process of a running step, not yet reaped.
struct Running {
    /// Its number in the job.
    process: ProcessNumber,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    /// True if it is our child, and not the reaper's.
    is_ours: bool,
}

/// A process that has just been started.
pub(super) struct StartedProcess {
    pub(super) pid: Pid,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) is_ours: bool,
    pub(super) start_time: u64,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl From<Spawned> for StartedProcess {
    fn from(spawned: Spawned) -> Self {
        let Spawned { pid, pidfd, start_time, stdout, stderr } = spawned;
        Self { pid, pidfd: Some(pidfd), is_ours: true, start_time, stdout, stderr }
    }
}

/// Result of a look at a process that may have ended.
pub(super) enum Seen {
    /// It lives, or it is no process of a running step.
    Nothing,
    /// It has ended, and its reaper has to report how.
    Reported(ProcessNumber),
    /// It has ended and was reaped.
    Reaped(ProcessNumber, ExitStatus, StepUsage),
}

/// Processes of one job.
pub(super) struct Processes {
    serial: Serial,
    tag: u128,
    pub(super) containment: Containment,
    pub(super) leftovers: Leftovers,
    running: Vec<Running>,
    /// The processes that a reaper was ordered to start, and their pipes.
    launching: Vec<(ProcessNumber, OrderedPipes)>,
}

impl Processes {
    pub(super) fn new(serial: Serial, asked: &RegisterJob) -> Self {
        Self {
            serial,
            tag: asked.tag,
            containment: Containment::new(serial, asked.tag, asked.limits),
            leftovers: Leftovers::default(),
            running: Vec::new(),
            launching: Vec::new(),
        }
    }

    /// Starts the process of a step. `None`: a reaper was ordered to do it.
    pub(super) fn start(
        &mut self,
        request: &SpawnStep,
        shared: &mut KeeperShared,
    ) -> Result<Option<StartedProcess>, StartFailure> {
        match self.start_contained(request, shared) {
            Ok(StartOutcome::Running(spawned)) => Ok(Some(spawned.into())),
            Ok(StartOutcome::Ordered(pipes)) => {
                self.launching.push((request.process, pipes));
                Ok(None)
            }
            Err(error) => Err(failure(error)),
        }
    }

    fn start_contained(
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
        let started = self.containment.start(request.process, &command, shared);
        let Err(error) = &started else { return started };
        let exhausted = matches!(error.errno, Errno::AGAIN | Errno::NOMEM);
        let by_group = matches!(error.stage, Stage::Fork | Stage::Cgroup);
        if exhausted || !by_group || !self.containment.do_without_leaf(shared) {
            return started;
        }
        // The group cannot take the process (removed from outside, threaded): the job goes on without one.
        shared.notice(format!(
            "control group refused a process ({}): a reaper holds the job's processes together",
            error.errno
        ));
        self.containment.start(request.process, &command, shared)
    }

    /// Returns the pipes of a process that its reaper was ordered to start, and forgets it, because the reaper has answered
    /// or died.
    pub(super) fn take_launched(&mut self, process: ProcessNumber) -> Option<OrderedPipes> {
        let index = self.launching.iter().position(|(launching, _)| *launching == process)?;
        Some(self.launching.swap_remove(index).1)
    }

    /// Watches a process that runs.
    pub(super) fn watch(
        &mut self,
        process: ProcessNumber,
        pid: Pid,
        pidfd: Option<OwnedFd>,
        is_ours: bool,
        start_time: u64,
        shared: &mut KeeperShared,
    ) {
        let leader = raw(pid);
        if is_ours {
            shared.leaders.insert(leader, self.serial);
            shared.spans.begin(self.serial, self.tag, start_time);
        }
        self.leftovers.begin(process, leader);
        let token = Token::Process(self.serial, process);
        if pidfd.as_ref().is_some_and(|pidfd| shared.readiness.watch(pidfd, token, false).is_err()) {
            // Out of memory for the registration: SIGCHLD still reports the end.
            shared.notice("a process could not be watched".to_owned());
        }
        self.running.reserve_exact(1);
        self.running.push(Running { process, pid, pidfd, is_ours });
    }

    /// Reaps the process of a running step, given by its number and its pid, if it has ended. A reaper's process is only
    /// watched no more: its reaper reports the exit status.
    pub(super) fn look_at(
        &mut self,
        is_it: impl Fn(ProcessNumber, u32) -> bool,
        shared: &mut KeeperShared,
    ) -> Seen {
        let found = self.running.iter().position(|run| is_it(run.process, raw(run.pid)));
        let Some((index, run)) = found.and_then(|index| Some((index, self.running.get(index)?))) else {
            return Seen::Nothing;
        };
        let Some(pidfd) = &run.pidfd else { return Seen::Nothing };
        if !run.is_ours {
            shared.readiness.forget(pidfd);
            return Seen::Reported(run.process);
        }
        let Some((status, usage)) = group::reap(pidfd.as_fd()) else { return Seen::Nothing };
        let run = self.running.swap_remove(index);
        shared.leaders.remove(&raw(run.pid));
        if !self.running.iter().any(|run| run.is_ours) {
            shared.spans.end(self.serial);
        }
        self.containment.add_reaped(usage.time());
        Seen::Reaped(run.process, status, usage)
    }

    /// Forgets the running process of a step, as its reaper has reported its end or died. False if there is none.
    pub(super) fn take_reported(&mut self, process: ProcessNumber) -> bool {
        let index = self.running.iter().position(|run| !run.is_ours && run.process == process);
        index.map(|index| self.running.swap_remove(index)).is_some()
    }

    /// Forgets the process of a step that is over, dead or not.
    pub(super) fn forget(&mut self, process: ProcessNumber) {
        self.running.retain(|run| run.process != process);
        self.launching.retain(|(launching, _)| *launching != process);
        self.containment.end_step(process);
    }

    /// Returns what tells the job's processes from those of other jobs.
    pub(super) fn signs(&self) -> Signs<'_> {
        let (serial, tag, leftovers) = (self.serial, self.tag, &self.leftovers);
        Signs { serial, tag, leftovers, leaders: leaders_of(&self.running) }
    }

    /// Returns the living processes of the job, those of running steps too. Cheap if there are none.
    pub(super) fn survivors(&mut self, shared: &KeeperShared) -> Vec<Process> {
        self.with_signs(|containment, signs| containment.survivors(signs, shared))
    }

    /// Returns the living processes of the job that are not those of a running step. Cheap if there are none.
    pub(super) fn left(&mut self, shared: &KeeperShared) -> Vec<Process> {
        self.with_signs(|containment, signs| containment.left(signs, shared))
    }

    /// True if no process of the job is left.
    pub(super) fn is_empty(&mut self, shared: &KeeperShared) -> bool {
        self.with_signs(|containment, signs| containment.is_empty(signs, shared))
    }

    /// Thaws processes that outlived a SIGKILL: a SIGKILL does not reach those in a frozen group of version 1.
    pub(super) fn thaw_survivors(&mut self, shared: &KeeperShared) {
        self.survivors(shared).into_iter().for_each(|process| thaw_process(process.pid));
    }

    /// Sends SIGTERM to the processes of a running step.
    pub(super) fn terminate(&mut self, process: ProcessNumber, shared: &KeeperShared) {
        let leader = self.leader(process);
        self.with_signs(|containment, signs| containment.terminate_step(process, leader, signs, shared));
    }

    /// Sends SIGTERM to all processes of the job that have not got it yet.
    pub(super) fn terminate_rest(&mut self, shared: &KeeperShared) {
        self.with_signs(|containment, signs| containment.terminate_rest(signs, shared));
    }

    /// Sends SIGKILL to all processes.
    pub(super) fn kill(&mut self, shared: &mut KeeperShared) {
        let outside = self.with_signs(|containment, signs| containment.outside(signs, shared));
        for run in self.running.iter().filter(|run| run.is_ours) {
            group::kill(run.pid);
        }
        self.containment.kill(&outside, shared);
    }

    /// Sends SIGKILL to the processes of a step.
    pub(super) fn kill_step(&mut self, process: ProcessNumber, shared: &KeeperShared) {
        let mut outside = Vec::new();
        if let Some(run) = self.running.iter().find(|run| run.process == process) {
            let leader = raw(run.pid);
            outside = self.containment.outside(&self.signs(), shared);
            outside.retain(|escaped| is_below(escaped, leader));
            if run.is_ours {
                group::kill(run.pid);
            }
        }
        self.containment.kill_step(process, &outside);
    }

    fn leader(&self, process: ProcessNumber) -> Option<u32> {
        self.running.iter().find(|run| run.process == process).map(|run| raw(run.pid))
    }

    fn with_signs<T>(&mut self, act: impl FnOnce(&mut Containment, &Signs<'_>) -> T) -> T {
        let (serial, tag, leftovers) = (self.serial, self.tag, &self.leftovers);
        let signs = Signs { serial, tag, leftovers, leaders: leaders_of(&self.running) };
        act(&mut self.containment, &signs)
    }
}

/// Returns the processes of running steps that are our children.
fn leaders_of(running: &[Running]) -> Vec<u32> {
    running.iter().filter(|run| run.is_ours).map(|run| raw(run.pid)).collect()
}

fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

/// Describes a failed start to the core.
fn failure(error: SpawnError) -> StartFailure {
    StartFailure {
        part: StartPart::Stage(error.stage),
        errno: error.errno.raw_os_error(),
        is_busy: error.is_busy(),
    }
}

/// Makes the end of a step that has no process, for the daemon.
pub(super) fn not_started(why: NotStarted) -> StepEnd {
    let (part, errno) = match why {
        NotStarted::Cancelled => (StartPart::Cancelled, Errno::CANCELED.raw_os_error()),
        NotStarted::ReaperKilled => (StartPart::Stage(Stage::Fork), Errno::CHILD.raw_os_error()),
        NotStarted::GivenUp => (StartPart::Stage(Stage::Fork), Errno::TIMEDOUT.raw_os_error()),
        NotStarted::Failed(failure) => (failure.part, failure.errno),
    };
    StepEnd::NotStarted { part, errno }
}

/// Makes the failure of a start that the reaper reports.
pub(super) fn reported_failure(stage: u8, errno: i32) -> StartFailure {
    failure(ReaperEvent::error(stage, errno))
}

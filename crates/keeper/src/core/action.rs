//! The actions that the core asks its runtime to perform.
//!
//! The runtime performs actions in the order in which [`Core::next_action`](super::Core::next_action) returns them.
//! Some actions are questions, which an [`Event`](super::Event) answers. The actions that follow from an answer come
//! before those that were requested after the question.

use crate::protocol::{Closed, FromKeeper, KeeperError, RegisterJob, Remembered, Reply, Request, StartPart};
use step_runner_log::journal::event::Event as JournalEvent;
use step_runner_model::{CallId, ExitStatus, JobKey, LogChannel, Outcome, ProcessNumber, StepUsage};

/// A job's number within this keeper. It is never reused, so a late event of a removed job finds no job.
pub type Serial = u32;

/// Address of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Number of the connection.
    pub connection: u32,
    /// The request's id; 0 if no reply is wanted.
    pub id: u64,
}

/// An action for the runtime.
pub enum Action {
    /// Answer a request.
    Reply {
        /// Receiver of the reply.
        to: ReplyTo,
        /// The answer.
        reply: Result<Reply, KeeperError>,
    },
    /// Answer Hello: the runtime adds what it knows of the host.
    Greet {
        /// Receiver of the reply.
        to: ReplyTo,
        /// True if the daemon speaks our version. Only then can it make further requests and receive events.
        is_understood: bool,
        /// Jobs that a daemon can name.
        jobs: Vec<JobKey>,
        /// Finished ids.
        remembered: Vec<Remembered>,
        /// Key for digests of requests.
        digest_key: [u8; 16],
    },
    /// Answer `ReadUsages`.
    ReadUsages {
        /// Receiver of the reply.
        to: ReplyTo,
        /// The requested jobs that the keeper holds.
        jobs: Vec<(JobKey, Serial)>,
    },
    /// Perform a request that waited: call [`Core::perform`](super::Core::perform).
    Perform {
        /// Receiver of the reply.
        to: ReplyTo,
        /// The request.
        request: Request,
    },
    /// Send an event to the daemon.
    Tell(FromKeeper),
    /// Send a line for the operator's log.
    Notice(String),
    /// Send all queued frames now, because what follows may take time.
    Flush,
    /// Open the log of a new job and prepare its phrases. The answer is a call of
    /// [`Core::registered`](super::Core::registered), unless that fails: then the runtime replies.
    Register {
        /// Number of the new job.
        serial: Serial,
        /// Receiver of the reply.
        to: ReplyTo,
        /// The job.
        asked: Box<RegisterJob>,
    },
    /// Prepare further phrases of a job. The answer, now or later, is a call of
    /// [`Core::prepared`](super::Core::prepared).
    Prepare(Serial, Vec<Vec<u8>>),
    /// The changes of a job are complete for now: call [`Core::settle`](super::Core::settle).
    Settle(Serial),
    /// The daemon said Bye: end all processes and this one.
    Leave,
    /// Perform an action for a job.
    Job(Serial, JobAction),
}

/// An action for the runtime that concerns one job.
pub enum JobAction {
    /// Write a line of the daemon or the keeper to the log.
    Line(LogChannel, String),
    /// Append an event to the job's journal.
    Journal(JournalEvent),
    /// Report unfinished lines from now on.
    WatchUnfinished,
    /// Start this process ([`Job::request`](super::Job::request)). Answer: [`Event::Started`],
    /// [`Event::Ordered`] or [`Event::StartFailed`].
    ///
    /// [`Event::Started`]: super::Event::Started
    /// [`Event::Ordered`]: super::Event::Ordered
    /// [`Event::StartFailed`]: super::Event::StartFailed
    Start(ProcessNumber),
    /// Continue the reaper that owes news of this process: a process of the job may have stopped it.
    WakeReaper(ProcessNumber),
    /// Describe the end of a step that has no process. Answer: [`Event::Ended`](super::Event::Ended).
    NotStarted(ProcessNumber, NotStarted),
    /// End the output of a step, and describe its end. Answer: [`Event::Ended`](super::Event::Ended).
    FinishStep(FinishStep),
    /// Check if any process of the job is left. Answer: [`Event::CheckedEmpty`](super::Event::CheckedEmpty).
    CheckEmpty(EmptyCheck),
    /// Check if what steps have left is gone. Answer: [`Event::CheckedLeftEmpty`](super::Event::CheckedLeftEmpty).
    CheckLeftEmpty {
        /// Why it is ended.
        reason: ClearReason,
        /// The processes of the steps that have left it.
        processes: Vec<ProcessNumber>,
    },
    /// Thaw the job's processes, so that they can handle signals.
    Thaw,
    /// Thaw each process that is left, as it has outlived SIGKILL.
    ThawSurvivors,
    /// Send SIGTERM to the running process of a step and to its group.
    Terminate(ProcessNumber),
    /// Send SIGTERM to what the steps of these processes have left.
    TerminateLeft(Vec<ProcessNumber>),
    /// Send SIGKILL to everything in the place of the step with this process: the process itself, or what is left of it.
    KillStep(ProcessNumber),
    /// Write the processes of the running steps with these processes to the log, as a tree.
    ShowProcesses(Vec<ProcessNumber>),
    /// Send SIGTERM to all processes that belong to no running step.
    TerminateRest,
    /// Send SIGKILL to all processes of the job.
    Kill,
    /// Read the pipes to their end and write the last lines. Answer: [`Event::EndWritten`](super::Event::EndWritten).
    WriteEnd {
        /// Last lines of the daemon.
        lines: Vec<(LogChannel, String)>,
        /// True if processes live that could not be killed.
        has_survivors: bool,
    },
    /// Close the log, and give back what the job had. Answer: [`Event::LogClosed`](super::Event::LogClosed).
    CloseLog {
        /// The report so far.
        closed: Closed,
        /// Outcome to record, if no daemon is there to do it.
        outcome: Option<Outcome>,
    },
    /// Record the end of a job that is closed, unless a daemon did.
    RecordEnd(Outcome),
}

/// Facts about the process of a step that has ended.
pub struct FinishStep {
    /// Its number.
    pub process: ProcessNumber,
    /// Name of the step, for lines about it.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Use of resources, if it was waited for.
    pub usage: Option<StepUsage>,
    /// True if the log is to name the processes that it left.
    pub names_left: bool,
}

/// Reason why a step has no process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// An end of the job was requested before.
    Cancelled,
    /// The reaper was killed before it could start it.
    ReaperKilled,
    /// The reaper did not start it before it was given up.
    GivenUp,
    /// The start failed.
    Failed(StartFailure),
}

/// A failed start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// The part of the start that failed.
    pub part: StartPart,
    /// The system's error number.
    pub errno: i32,
    /// True if the program is open for writing, which may pass.
    pub is_busy: bool,
}

/// Reason why the core asks if any process of a job is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyCheck {
    /// The close begins; `true` if the job's processes were asked to end before.
    Close(bool),
    /// The next stage of the job's end is due.
    End,
    /// The running steps were given up.
    GivenUp,
    /// The left-over processes of the step with this process are being killed.
    Clear(ProcessNumber),
}

/// Reason why what steps have left is ended while their job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearReason {
    /// This call waits for that, before its next attempt.
    NextAttempt(CallId),
    /// The step with this process was stopped. It is over, but its grace is not.
    Stopped(ProcessNumber),
}

/// The queue of actions, in the order in which they must be performed.
#[derive(Default)]
pub(super) struct Actions {
    /// Actions added since the last one was taken.
    fresh: Vec<Action>,
    /// Actions added before, in reverse order: the next one is last.
    waiting: Vec<Action>,
}

impl Actions {
    pub(super) fn push(&mut self, action: Action) {
        self.fresh.push(action);
    }

    pub(super) fn job(&mut self, serial: Serial, action: JobAction) {
        self.push(Action::Job(serial, action));
    }

    pub(super) fn next(&mut self) -> Option<Action> {
        self.waiting.extend(self.fresh.drain(..).rev());
        self.waiting.pop()
    }
}

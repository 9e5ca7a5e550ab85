//! One job, from the server's answer to the deletion of its record (agent.md §5, §9).
//!
//! [`Job`] takes events and the time, and returns actions. Its caller performs them one after another, each to its end
//! before the next: a record is on disk before the request that it allows. It may be killed between any two of them.

mod end;
mod log;
mod start;
#[cfg(test)]
mod tests;
mod tries;

use crate::answer::Reply;
use crate::final_update::{FinalUpdate, TraceSum};
use crate::outcome::{EnvironmentFailure, FailedStep, Outcome, Refusal};
use crate::record::{Phase, Record, Stop};
use crate::time::{Moment, Now};
use crate::trace::{Checkpoint, Request};
pub use log::Disk;
use log::TraceFile;
use tries::Tries;

/// Something that happened to a job.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time that [`Job::wake`] named has come.
    Tick,
    /// The answer to [`Action::Claim`].
    Claimed(Reply),
    /// The answer to [`Action::Append`] or [`Action::SignOfLife`].
    Traced(Reply),
    /// The answer to [`Action::Report`].
    Reported(Reply),
    /// A line of the agent about a preparation, masked.
    Line(String),
    /// The answer to [`Action::Remove`]: true if nothing of that name is there any more.
    Removed(bool),
    /// The answer to [`Action::Prepare`].
    Prepared(Result<(), (EnvironmentFailure, String)>),
    /// The answer to [`Action::Look`]: true if it is the environment that the job was submitted to.
    Looked(bool),
    /// The answer to [`Action::Run`].
    RunAnswered(RunAnswer),
    /// The next bytes of the log.
    Log(Vec<u8>),
    /// The log has no more bytes.
    LogEnded,
    /// The log cannot be read now.
    LogBroken,
    /// The daemon's job has ended.
    Ended(DaemonEnd),
    /// The environment, or the daemon's job, is gone. What of the log could be read has come before.
    Lost(String),
    /// The answer to [`Action::Cancel`]: true if the daemon took it.
    CancelAnswered(bool),
    /// The answer to [`Action::Finish`]: true if the daemon does not have the job any more.
    FinishAnswered(bool),
    /// The agent was stopped so that its jobs fail.
    Stop(Stop),
}

/// The daemon's answer to a request for a job.
#[derive(Clone, Debug)]
pub enum RunAnswer {
    /// It has the job, as a list of steps with these names.
    Accepted(Vec<String>),
    /// It refuses the job.
    Refused(Refusal, String),
    /// It did not answer.
    None,
}

/// The end of a job as its daemon tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonEnd {
    /// Exit code (service.md §3.5).
    pub code: i32,
    /// The step of the root list that decided the end.
    pub failed: Option<FailedStep>,
    /// True if the stop of the daemon ended the job.
    pub is_stop: bool,
    /// The daemon's words for the end.
    pub message: String,
}

/// How a daemon is to end a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CancelHow {
    /// With the stages from `after_script` on.
    WithCleanup,
    /// Without them; processes get time to end.
    Gently,
    /// Processes are killed.
    Forced,
}

/// Something to do. Each is done to its end before the next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the record, by renaming, so that it survives the machine.
    Store(Box<Record>),
    /// Append to the file of the head, so that it survives the machine.
    StoreHead(Vec<u8>),
    /// Cut the file of the head to this length: its last write was cut off.
    CutHead(u64),
    /// Cut the file of the trace to this length.
    CutTrace(u64),
    /// Append to the file of the trace.
    Extend(Vec<u8>),
    /// Replace the checkpoint.
    StoreCheckpoint(Checkpoint),
    /// Write the file of the tail, so that it survives the machine. The files before it do so, too, from now on.
    StoreTail(Vec<u8>),
    /// Write how much of the trace the server has.
    StoreSent(u64),
    /// Delete the record with all its files. The job is over.
    DeleteRecord,
    /// The slot is free.
    FreeSlot,
    /// Tell the server that the job runs.
    Claim,
    /// Send these bytes of trace and tail.
    Append {
        /// First byte.
        from: u64,
        /// End.
        to: u64,
    },
    /// Tell the server that the job runs on.
    SignOfLife(TraceSum),
    /// Tell the server the result.
    Report(Outcome, TraceSum),
    /// Remove everything that has the name of the job's environment, and stop preparing it.
    Remove,
    /// Prepare the environment.
    Prepare,
    /// The job was prepared, or not; the scheduler counts the failures.
    PreparationOver {
        /// True if the machine, engine or cluster is at fault.
        is_system_failure: bool,
    },
    /// See if the environment is there.
    Look,
    /// Send the job to the daemon, with the record's id and time limit.
    Run,
    /// Follow the log from this offset, and the job's end.
    Follow(u64),
    /// Cancel the daemon's job.
    Cancel(CancelHow),
    /// Let the daemon forget the job.
    Finish,
    /// Tell the operator.
    Tell(String),
}

/// One job.
pub struct Job {
    record: Record,
    trace: TraceFile,
    claim: Tries,
    look: Tries,
    removal: Tries,
    preparation: Tries,
    run: Tries,
    follow: Tries,
    cancel: Tries,
    finish: Tries,
    report: Tries,
    /// How the cancel that is out, or was answered, ends the job.
    cancelled: Option<CancelHow>,
    /// Time at which the job's time limit is over.
    deadline: Moment,
    /// Time at which a preparation, or an unanswered Run, is given up.
    prepare_until: Moment,
    daemon_end: Option<DaemonEnd>,
    is_log_over: bool,
    final_update: FinalUpdate,
    is_over: bool,
}

impl Job {
    /// Begins with a job that the server has just given. Its record must be in the phase [`Phase::Taken`].
    pub fn take(record: Record, now: Now) -> (Self, Vec<Action>) {
        let trace = TraceFile::new(&record, now.steady);
        let mut job = Self::with(record, trace, now);
        job.claim.start(now.steady);
        let mut actions = vec![job.store()];
        job.proceed(now, &mut actions);
        (job, actions)
    }

    fn with(record: Record, trace: TraceFile, now: Now) -> Self {
        let since_end = record.ended.map_or_else(Default::default, |ended| now.wall.since(ended));
        Self {
            final_update: FinalUpdate::new(now.steady, since_end, record.wanted.abort),
            deadline: now.steady
                + record.timeout.saturating_sub(now.wall.since(record.acknowledged.unwrap_or(record.taken))),
            prepare_until: now.steady + record.prepare_timeout,
            trace,
            claim: Tries::new(30),
            look: Tries::new(10),
            removal: Tries::new(30),
            preparation: Tries::new(10),
            run: Tries::new(10),
            follow: Tries::new(10),
            cancel: Tries::new(10),
            finish: Tries::new(30),
            report: Tries::new(300),
            cancelled: None,
            daemon_end: None,
            is_log_over: false,
            is_over: false,
            record,
        }
    }

    /// Returns the record.
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// True once the record is deleted. Nothing follows.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes an event. Returns what to do, in this order.
    pub fn handle(&mut self, event: Event, now: Now) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_over {
            return actions;
        }
        self.apply(event, now, &mut actions);
        self.proceed(now, &mut actions);
        actions
    }

    fn apply(&mut self, event: Event, now: Now, actions: &mut Vec<Action>) {
        match event {
            Event::Tick => {}
            Event::Claimed(reply) => self.claimed(&reply, now, actions),
            Event::Traced(reply) => self.traced(&reply, now, actions),
            Event::Reported(reply) => self.reported(&reply, now, actions),
            Event::Line(line) => self.head(&line, now, actions),
            Event::Removed(is_gone) => self.removal.answered(is_gone, now),
            Event::Prepared(result) => self.prepared(result, now, actions),
            Event::Looked(is_there) => self.looked(is_there, now, actions),
            Event::RunAnswered(answer) => self.run_answered(answer, now, actions),
            Event::Log(_) | Event::LogEnded | Event::LogBroken | Event::Ended(_)
                if self.record.phase != Phase::Running => {}
            Event::Log(bytes) => self.trace.log(&bytes),
            Event::LogEnded => self.is_log_over = true,
            Event::LogBroken => self.follow.answered(self.is_log_over && self.daemon_end.is_some(), now),
            Event::Ended(end) => self.daemon_end = Some(end),
            Event::Lost(message) => self.lost(&message, now, actions),
            Event::CancelAnswered(is_taken) => self.cancel.answered(is_taken, now),
            Event::FinishAnswered(is_gone) => self.finish.answered(is_gone, now),
            Event::Stop(how) => {
                self.record.wanted.stop = self.record.wanted.stop.max(Some(how));
                self.wanted(now, actions);
            }
        }
    }

    /// Does what is due.
    fn proceed(&mut self, now: Now, actions: &mut Vec<Action>) {
        match self.record.phase {
            Phase::Taken => self.proceed_taken(now, actions),
            Phase::Preparing => self.proceed_preparing(now, actions),
            Phase::Submitted => self.proceed_submitted(now, actions),
            Phase::Running => self.proceed_running(now, actions),
            Phase::Ended | Phase::Reported => {}
        }
        if self.record.phase > Phase::Taken && self.record.phase < Phase::Reported {
            self.upload(now, actions);
        }
        match self.record.phase {
            Phase::Ended => self.proceed_ended(now, actions),
            Phase::Reported => self.proceed_reported(now, actions),
            _ => {}
        }
    }

    /// Stores safe bytes of the trace, and sends some.
    fn upload(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.trace.flush(false, now.steady, actions);
        match self.trace.upload.request(now.steady) {
            Some(Request::Append { from, to }) => actions.push(Action::Append { from, to }),
            Some(Request::SignOfLife) => actions.push(Action::SignOfLife(self.trace.safe())),
            None => {}
        }
    }

    fn store(&self) -> Action {
        Action::Store(Box::new(self.record.clone()))
    }

    /// Returns when to send [`Event::Tick`], if nothing else happens before.
    pub fn wake(&self) -> Option<Moment> {
        if self.is_over {
            return None;
        }
        let removal = || self.removal.wake().filter(|_| self.finish.has_been_tried());
        let calls = match self.record.phase {
            Phase::Taken => [self.claim.wake(), Some(self.deadline), None],
            Phase::Preparing => {
                let preparation = self.preparation.wake().filter(|_| self.removal.is_done());
                [self.removal.wake(), preparation, Some(self.prepare_until)]
            }
            Phase::Submitted => [self.look.wake(), self.run.wake(), Some(self.prepare_until)],
            Phase::Running => [self.follow.wake(), self.cancel.wake(), None],
            Phase::Ended => {
                let report = self.report.wake().filter(|_| self.trace.upload.is_done());
                [self.finish.wake(), removal(), report]
            }
            Phase::Reported => [self.finish.wake(), removal(), None],
        };
        let has_trace = !matches!(self.record.phase, Phase::Taken | Phase::Reported);
        let trace = self.trace.wake().filter(|_| has_trace);
        let give_up = (self.record.phase == Phase::Ended).then(|| self.final_update.too_late_at());
        calls.into_iter().flatten().chain(trace).chain(give_up).min()
    }
}

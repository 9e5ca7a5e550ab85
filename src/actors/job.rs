//! The actor of one job. It passes each message to the job's [`Driver`], which decides, and performs what the driver
//! returns (docs/internals/architecture.md).
//!
//! It owns the job's connections to others: the link to the keeper, the step's actor, the sinks, the view, the folder and
//! the timers. It decides nothing about the job itself. It gets [`Begin`], [`CancelAsk`], [`KeeperEventArrived`] and
//! `KeeperLost` from the supervisor and the keeper's connection, and `StepDone` from its step. It sends requests to the
//! keeper, results to the [`TraceSink`], state to the [`JobView`] and `JobEnded` to the supervisor. The keeper records
//! every event before it performs the event's effects: both go over the same connection, in order. What the actor itself
//! does for an event, such as storing a result, may come first: the keeper's reports let a next daemon repeat such an event.

mod current;
mod driver;
mod effects;
mod ending;
mod fetch;
mod handled_event;
mod notes;
mod waiting;

pub(super) use driver::{PerformedEffects, Reports, ResumedState};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use super::context::DaemonContext;
use super::deliver;
use super::labels;
use super::log_sink::LogSink;
use super::messages::{
    Abandon, Begin, CancelAsk, Defect, Ended, JobBroken, KeeperEvent, KeeperEventArrived, RegisteredRequest,
    ToSupervisor, WatchUnfinished,
};
use super::redact::Redactor;
use super::spec::JobActorSpec;
use super::stored::Encode;
use super::trace_sink::TraceSink;
use super::view::{JobView, JobViewState};
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::event::{Event, ProcessNumber};
use crate::job::machine::Machine;
use crate::job::reaper::Moment;
use crate::job::record::Recorder;
use crate::journal::event as journal;
use crate::keeper::link::KeeperLink;
use crate::keeper::protocol::Request;
use crate::model::{CancelCause, JobKey, JobState};
use crate::store::{JobFolder, file_vars};
use crate::threads::{self, Work};
use crate::variables::FileVariable;
use current::OpenSteps;
use driver::{CancelReaction, Driver, RecordedMachine};
use effects::GivenUp;

/// Capacity of a job's mailbox. A job has only a few messages under way: one each from its step, the keeper and the
/// supervisor. Further callers wait for room.
const MAILBOX: usize = 16;

/// Largest number of file variables that the actors' thread itself writes or removes …
const FEW_FILES: usize = 16;

/// … and their largest total size in bytes.
const SMALL_FILES: usize = 256 << 10;

/// True if the actors' thread itself writes these files.
fn are_few_files(files: &[FileVariable]) -> bool {
    files.len() <= FEW_FILES && files.iter().map(|file| file.content.len()).sum::<usize>() <= SMALL_FILES
}

pub(super) struct JobParts {
    pub(super) view: Arc<JobView>,
    pub(super) context: Arc<DaemonContext>,
    pub(super) folder: JobFolder,
    pub(super) link: KeeperLink,
    pub(super) supervisor: ToSupervisor,
    pub(super) machine: Machine,
    pub(super) redactor: Redactor,
    pub(super) spec: JobActorSpec,
    pub(super) tag: u128,
    pub(super) encode: Encode,
    /// The request as the keeper holds it; set for a job that waits for its slot.
    pub(super) waits_with: Option<RegisteredRequest>,
}

/// State, besides the machine, of a job that ran on without a daemon.
pub(super) struct Replay {
    pub(super) resumed: ResumedState,
    pub(super) recorder: Recorder,
    pub(super) trees: Vec<String>,
    /// Cause of a cancel that the journal reports.
    pub(super) cancel: Option<CancelCause>,
}

/// The actor of one job; see the module.
pub(crate) struct JobActor {
    view: Arc<JobView>,
    context: Arc<DaemonContext>,
    folder: JobFolder,
    link: KeeperLink,
    supervisor: ToSupervisor,
    driver: Driver,
    redactor: Redactor,
    spec: JobActorSpec,
    tag: u128,
    trace_sink: Addr<TraceSink>,
    encode: Encode,
    /// The actors of the processes under way.
    steps: BTreeMap<ProcessNumber, Recipient<Ended>>,
    /// Starts that other threads prepare.
    starting: BTreeMap<ProcessNumber, GivenUp>,
    /// The fetches of functions under way.
    fetching: BTreeMap<ProcessNumber, SpawnHandle>,
    /// The steps under way, for Status.
    open: OpenSteps,
    /// Timer of the next attempt to find a keeper for a waiting job.
    retry: Option<SpawnHandle>,
    /// True if freeing the job's memory takes long.
    is_large: bool,
}

impl JobActor {
    /// Starts the actor of a new job. It does nothing until [`Begin`].
    pub(super) fn start_new(parts: JobParts) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            Self::new(parts, Recorder::default(), Driver::new)
        })
    }

    /// Creates a mailbox for a job that ran on without a daemon. Messages wait in it until [`Self::start_replayed`].
    pub(super) fn mailbox() -> Context<Self> {
        let mut ctx = Context::new();
        ctx.set_mailbox_capacity(MAILBOX);
        ctx
    }

    pub(super) fn start_replayed(mut ctx: Context<Self>, parts: JobParts, replay: Replay) {
        let Replay { resumed, recorder, trees, cancel } = replay;
        let is_cancelled = resumed.is_cancelled;
        let drive = |machine, waits_with| Driver::resume(machine, waits_with, resumed);
        let mut job = Self::new(parts, recorder, drive);
        job.hold_trees(&trees);
        job.go_on(is_cancelled, &mut ctx);
        // A cancel in the record was handled already. A repeated Finish would end its grace at once.
        if let Some(cause) = cancel.filter(|_| !is_cancelled) {
            job.cancel(CancelAsk { cause, grace_limit: None, force: false }, &mut ctx);
        }
        ctx.run(job);
    }

    fn new(
        parts: JobParts,
        recorder: Recorder,
        drive: impl FnOnce(RecordedMachine, Option<RegisteredRequest>) -> Driver,
    ) -> Self {
        let JobParts {
            view,
            context,
            folder,
            link,
            supervisor,
            machine,
            redactor,
            spec,
            tag,
            encode,
            waits_with,
        } = parts;
        LogSink::begin(&view.log);
        let is_large = !redactor.is_ready();
        let trace_sink = TraceSink::new(Arc::clone(&view.trace), folder.clone()).start();
        let driver = drive(RecordedMachine::new(view.key, machine, recorder), waits_with);
        Self {
            view,
            context,
            folder,
            link,
            supervisor,
            driver,
            redactor,
            spec,
            tag,
            trace_sink,
            encode,
            steps: BTreeMap::new(),
            starting: BTreeMap::new(),
            fetching: BTreeMap::new(),
            open: OpenSteps::default(),
            retry: None,
            is_large,
        }
    }

    /// Performs the effects that the replay left over.
    fn go_on(&mut self, is_cancelled: bool, ctx: &mut Context<Self>) {
        if is_cancelled {
            self.show_cancel();
        }
        let JobViewState { start_time, since, .. } = self.view.state();
        if let (Some(_), Some(timeout)) = (start_time, self.spec.timeout) {
            Self::limit_time(timeout.saturating_sub(since.age(clock::uptime())), ctx);
        }
        self.drain(ctx);
    }

    fn key(&self) -> JobKey {
        self.view.key
    }

    fn limit_time(timeout: Duration, ctx: &mut Context<Self>) {
        let ask = CancelAsk { cause: CancelCause::TimeLimit, grace_limit: None, force: false };
        ctx.run_later(timeout, move |job, ctx| job.cancel(ask, ctx));
    }

    /// Asks the job to end.
    fn cancel(&mut self, ask: CancelAsk, ctx: &mut Context<Self>) {
        let CancelReaction { is_accepted, reaction } = self.driver.cancel(ask, self.link.is_over());
        if is_accepted {
            self.show_cancel();
            // Journal the cancel now even if it waits for a keeper, because the caller is told that it is recorded.
            if let Err(error) = self.folder.append(&journal::Event::Cancel { cause: ask.cause }) {
                tracing::warn!(error = %Chain(&error), job = %self.view.id, "the cancel was not written to the journal");
            }
        }
        self.react(reaction, ctx);
    }

    fn show_cancel(&self) {
        self.view.update(JobViewState::cancel);
    }

    /// Ends the job after a defect of the daemon.
    fn end_broken(&mut self, message: String, ctx: &mut Context<Self>) {
        let reaction = self.driver.defect(message, self.link.is_over());
        self.react(reaction, ctx);
    }

    /// Begins the job if the driver agrees: not if the job has begun, is cancelled, or has no keeper yet.
    fn begin(&mut self, ctx: &mut Context<Self>) {
        if !self.driver.begin(self.link.is_over()) {
            return;
        }
        // An earlier daemon may have died after it wrote the journal line and before it recorded the event. The job
        // has a start time then, but none of its steps has begun.
        let started = self.view.read(|state| state.start_time);
        let at = started.unwrap_or_else(clock::now_micros);
        self.view.update(|state| {
            (state.state, state.start_time) = (JobState::Running, Some(at));
            state.since = Moment::AfterStart(clock::uptime());
        });
        if started.is_none()
            && let Err(error) =
                self.folder.append(&journal::Event::Started { at, boot: Some(clock::boot_micros()) })
        {
            tracing::warn!(error = %Chain(&error), job = %self.view.id, "the start was not written to the journal");
        }
        if let Some(timeout) = self.spec.timeout {
            Self::limit_time(timeout, ctx);
        }
        self.write_files(ctx, move |job, written, ctx| match written {
            Ok(()) => job.handle_event(Event::Admitted { at }, ctx),
            Err(message) => job.handle_event(Event::Unprepared { message }, ctx),
        });
    }

    /// Writes the file variables, on another thread if they are many or large.
    fn write_files(
        &mut self,
        ctx: &mut Context<Self>,
        then: impl FnOnce(&mut Self, Result<(), String>, &mut Context<Self>) + 'static,
    ) {
        let write = |folder: &JobFolder, files: &[FileVariable]| {
            file_vars::write_all(folder, files).map_err(|error| Chain(&error).to_string())
        };
        let files = &self.spec.files;
        if are_few_files(files) {
            let written = write(&self.folder, files);
            return then(self, written, ctx);
        }
        let (folder, files) = (self.folder.clone(), files.clone());
        let written = threads::run(Work::Files, move || write(&folder, &files));
        let written = async { written.await.unwrap_or_else(|error| Err(error.to_string())) };
        self.pause(ctx, written, then);
    }
}

impl Actor for JobActor {
    type Context = Context<Self>;
}

/// A job whose actor dies midway must not look as if it ran: the supervisor ends it (faults.md row 59). The framework
/// restarts no actor after a panic.
impl Drop for JobActor {
    fn drop(&mut self) {
        if !self.driver.is_published() {
            deliver(&self.supervisor.broken, JobBroken(self.view.id.clone()));
        }
    }
}

impl Handler<Begin> for JobActor {
    type Result = ();

    fn handle(&mut self, Begin { has_waited }: Begin, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::begin");
        if has_waited {
            let seconds = clock::now_micros().saturating_sub(self.view.registered) / 1_000_000;
            labels::tell_waited(&self.view.id, &self.spec.share.key, &mut self.redactor, seconds);
        }
        self.begin(ctx);
    }
}

impl Handler<Abandon> for JobActor {
    type Result = ();

    fn handle(&mut self, _: Abandon, ctx: &mut Self::Context) {
        self.driver.abandon();
        ctx.stop();
    }
}

impl Handler<CancelAsk> for JobActor {
    type Result = ();

    fn handle(&mut self, ask: CancelAsk, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::cancel");
        self.cancel(ask, ctx);
    }
}

impl Handler<KeeperEventArrived> for JobActor {
    type Result = ();

    fn handle(&mut self, KeeperEventArrived(event): KeeperEventArrived, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::keeper_said");
        match event {
            KeeperEvent::StepEnded(ended) => {
                self.view.update(|state| {
                    (state.cpu_time, state.peak_memory) = (ended.usage.cpu_time, ended.usage.peak_memory);
                    state.used(ended.ran.usage);
                });
                if let Some(ended) = self.driver.step_ended(ended)
                    && let Some(step) = self.steps.get(&ended.process)
                {
                    deliver(step, Ended(ended));
                }
            }
            KeeperEvent::Cleared(call) => self.handle_event(Event::Cleared { call }, ctx),
            KeeperEvent::Closed(closed) => {
                if let Some(job) = self.driver.closed(closed) {
                    self.end(job, ctx);
                }
            }
        }
    }
}

impl Handler<WatchUnfinished> for JobActor {
    type Result = ();

    fn handle(&mut self, _: WatchUnfinished, _: &mut Self::Context) {
        self.link.tell_short(Request::WatchUnfinished { key: self.key() });
    }
}

impl Handler<Defect> for JobActor {
    type Result = ();

    fn handle(&mut self, Defect(message): Defect, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::defect");
        self.end_broken(message, ctx);
    }
}

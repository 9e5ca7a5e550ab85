//! The actor of one job: feeds the job's machine with events and performs the effects (architecture.md).
//!
//! It gets [`Begin`], [`CancelAsk`], [`KeeperEventArrived`] and [`KeeperLost`] from the supervisor and the keeper's
//! connection, and `StepDone` from its step. It sends requests to the keeper, results to the [`TraceSink`], state to
//! the [`JobView`] and `JobOver` to the supervisor. The keeper records every event before it performs the event's effects:
//! both go over the same connection, in order.

mod effects;
mod ending;
mod fetch;
mod handled_event;
mod waiting;

pub(super) use effects::StepDone;
pub(super) use ending::StorageLost;
pub(super) use waiting::{HeldRequest, KeeperLost};

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle};

use super::admission::{DaemonContext, JobActorSpec};
use super::deliver;
use super::log_sink::LogSink;
use super::redact::Redactor;
use super::step::{Over, StepActor};
use super::supervisor::{JobBroken, Supervisor};
use super::sync_group::NotSynced;
use super::trace_sink::{EncodeResult, TraceSink};
use super::view::{JobView, JobViewState};
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::Effect;
use crate::job::event::{CallId, Event};
use crate::job::machine::Machine;
use crate::job::reaper::Moment;
use crate::job::record::Recorder;
use crate::journal::event as journal;
use crate::keeper::link::KeeperLink;
use crate::keeper::protocol::{Closed, Request, StepOver};
use crate::model::{CancelCause, JobKey, JobState, Outcome, StepResult};
use crate::store::{JobFolder, file_vars};
use crate::threads::{self, Work};
use crate::variables::FileVariable;
use handled_event::Later;
use waiting::Waiting;

/// Capacity of a job's mailbox. A job has only a few messages under way: one each from its step, the keeper and the
/// supervisor. Further callers wait for room.
const MAILBOX: usize = 16;

/// Largest number of file variables that the actors' thread itself writes or removes …
const FEW_FILES: usize = 16;

/// … and their largest total size in bytes.
const SMALL_FILES: usize = 256 << 10;

pub(super) struct JobParts {
    pub(super) view: Arc<JobView>,
    pub(super) context: Arc<DaemonContext>,
    pub(super) folder: JobFolder,
    pub(super) link: KeeperLink,
    pub(super) supervisor: Addr<Supervisor>,
    pub(super) machine: Machine,
    pub(super) redactor: Redactor,
    pub(super) shell: JobActorSpec,
    pub(super) tag: u128,
    pub(super) encode: EncodeResult,
    /// The request as the keeper holds it; set for a job that waits for its slot.
    pub(super) waits_with: Option<HeldRequest>,
}

/// State, besides the machine, of a job that ran on without a daemon.
pub(super) struct Replay {
    pub(super) effects: VecDeque<Effect>,
    pub(super) recorder: Recorder,
    pub(super) fetched: HashSet<CallId>,
    pub(super) exited: HashSet<CallId>,
    pub(super) unmasked: Option<(u32, String)>,
    pub(super) trees: Vec<String>,
    pub(super) is_cancelled: bool,
    /// Cause of a cancel that the journal reports.
    pub(super) cancel: Option<CancelCause>,
    pub(super) last_op: u32,
    pub(super) over: Vec<StepOver>,
    pub(super) closed: Option<Closed>,
    /// Number of stored messages of FollowSteps.
    pub(super) stored: u32,
}

/// The actor of one job; see the module.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, not a state of one machine")]
pub(crate) struct JobActor {
    view: Arc<JobView>,
    context: Arc<DaemonContext>,
    folder: JobFolder,
    link: KeeperLink,
    supervisor: Addr<Supervisor>,
    /// `None` while another thread handles an event that takes long.
    machine: Option<Machine>,
    redactor: Redactor,
    shell: JobActorSpec,
    tag: u128,
    trace_sink: Addr<TraceSink>,
    encode: EncodeResult,
    step: Option<(CallId, Addr<StepActor>)>,
    /// The fetch of a function under way.
    fetching: Option<SpawnHandle>,
    /// Effects to perform, in order.
    queue: VecDeque<Effect>,
    /// Encodes events for the keeper's record. It travels with the machine.
    recorder: Recorder,
    /// Number of pending awaits. The next effect waits until it is 0.
    awaited: usize,
    /// Work that waits until the machine is back.
    later: VecDeque<Later>,
    /// True if its memory takes long to free.
    is_large: bool,
    /// Number of the last effect for the keeper (protocol, `op`).
    op: u32,
    /// Number of messages of FollowSteps so far.
    emitted: u32,
    performed: PerformedEffects,
    ending: Option<Outcome>,
    /// Set if the job's data may not be on the disk.
    storage_lost: Option<NotSynced>,
    /// The job's own result, until its log is closed.
    root: Option<Box<StepResult>>,
    /// True once the keeper has closed the log.
    is_closed: bool,
    /// True if this daemon was asked to cancel the job.
    cancel_asked: bool,
    /// Set while the job waits for its slot.
    waiting: Option<Waiting>,
    /// True if the keeper died during an await.
    lost: bool,
    /// True once only the publication of its end is left to do.
    over: bool,
    /// True once Status shows its end.
    published: bool,
}

/// Effects that earlier daemons have performed; empty for a new job.
#[derive(Default)]
struct PerformedEffects {
    last_op: u32,
    stored: u32,
    /// Separate from `exited`, because an invocation's fetch and process have the same number.
    fetched: HashSet<CallId>,
    exited: HashSet<CallId>,
    over: Vec<StepOver>,
    closed: Option<Closed>,
    /// Number of the effect whose phrases could not be masked, and the reason.
    unmasked: Option<(u32, String)>,
}

impl JobActor {
    /// Starts the actor of a job that was just registered. It does nothing until [`Begin`].
    pub(super) fn start_new(parts: JobParts) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            Self::new(parts)
        })
    }

    /// Creates a mailbox for a job that ran on without a daemon. Messages wait in it until [`Self::start_replayed`].
    pub(super) fn mailbox() -> Context<Self> {
        let mut ctx = Context::new();
        ctx.set_mailbox_capacity(MAILBOX);
        ctx
    }

    pub(super) fn start_replayed(mut ctx: Context<Self>, parts: JobParts, replay: Replay) {
        let Replay { effects, recorder, fetched, exited, unmasked, trees, is_cancelled, cancel, .. } = replay;
        let Replay { last_op, over, closed, stored, .. } = replay;
        let mut job = Self::new(parts);
        job.performed = PerformedEffects { last_op, stored, fetched, exited, over, closed, unmasked };
        (job.queue, job.recorder) = (effects, recorder);
        job.hold_trees(&trees);
        job.go_on(is_cancelled, &mut ctx);
        // A cancel in the record was handled already. A repeated Finish would end its grace at once.
        if let Some(cause) = cancel.filter(|_| !is_cancelled) {
            job.ask_to_end(&CancelAsk { cause, grace_limit: None }, &mut ctx);
        }
        ctx.run(job);
    }

    fn new(parts: JobParts) -> Self {
        let JobParts {
            view,
            context,
            folder,
            link,
            supervisor,
            machine,
            redactor,
            shell,
            tag,
            encode,
            waits_with,
        } = parts;
        LogSink::begin(&view.log);
        let is_large = !redactor.is_ready();
        let trace_sink = TraceSink::new(Arc::clone(&view.trace), folder.clone()).start();
        Self {
            view,
            context,
            folder,
            link,
            supervisor,
            machine: Some(machine),
            redactor,
            shell,
            tag,
            trace_sink,
            encode,
            step: None,
            fetching: None,
            queue: VecDeque::new(),
            awaited: 0,
            later: VecDeque::new(),
            is_large,
            recorder: Recorder::default(),
            op: 0,
            emitted: 0,
            performed: PerformedEffects::default(),
            ending: None,
            storage_lost: None,
            root: None,
            is_closed: false,
            cancel_asked: false,
            waiting: waits_with.map(Waiting::new),
            lost: false,
            over: false,
            published: false,
        }
    }

    /// Performs the effects that the replay left over.
    fn go_on(&mut self, is_cancelled: bool, ctx: &mut Context<Self>) {
        if is_cancelled {
            self.cancel_asked = true;
            self.show_cancel();
        }
        let JobViewState { start_time, since, .. } = self.view.state();
        if let (Some(_), Some(timeout)) = (start_time, self.shell.timeout) {
            Self::limit_time(timeout.saturating_sub(since.age(clock::uptime())), ctx);
        }
        self.drain(ctx);
    }

    fn key(&self) -> JobKey {
        self.view.key
    }

    /// True if the start of this process is still in the effect queue.
    fn is_to_start(&self, call: CallId) -> bool {
        self.queue.iter().any(|effect| matches!(effect, Effect::Spawn(spawn) if spawn.call == call))
    }

    fn limit_time(timeout: Duration, ctx: &mut Context<Self>) {
        ctx.run_later(timeout, |job, ctx| job.cancel(CancelCause::TimeLimit, None, ctx));
    }

    fn cancel(&mut self, cause: CancelCause, grace_limit: Option<Duration>, ctx: &mut Context<Self>) {
        // A closing call ends the grace of an earlier cancel at once (language.md §15).
        let closes = cause == CancelCause::Finish && self.cancel_asked;
        let grace_limit = if closes { Some(Duration::ZERO) } else { grace_limit };
        // A repeated cancel must not grow the record: it counts only if it leaves less time (service.md §6.2).
        if self.over || self.ending.is_some() || (self.cancel_asked && grace_limit.is_none()) {
            return;
        }
        self.cancel_asked = true;
        self.show_cancel();
        if let Err(error) = self.folder.append(&journal::Event::Cancel { cause }) {
            tracing::warn!(error = %Chain(&error), job = %self.view.id, "the cancel was not written to the journal");
        }
        self.handle_event(Event::CancelAsked { cause, grace_limit }, ctx);
    }

    fn show_cancel(&self) {
        self.view.update(JobViewState::cancel);
    }

    fn begin(&mut self, ctx: &mut Context<Self>) {
        // If an earlier daemon died between journal and record, the job has started, but none of its steps.
        let started = self.view.state().start_time;
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
        if let Some(timeout) = self.shell.timeout {
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
        let files = &self.shell.files;
        let bytes: usize = files.iter().map(|file| file.content.len()).sum();
        if files.len() <= FEW_FILES && bytes <= SMALL_FILES {
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
        if !self.published {
            deliver(&self.supervisor, JobBroken(self.view.id.clone()));
        }
    }
}

/// Starts the job: it has its slot.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Begin;

impl Handler<Begin> for JobActor {
    type Result = ();

    fn handle(&mut self, _: Begin, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::begin");
        if self.defer_begin() {
            return;
        }
        // Only the request is recorded and no event is under way: the job has neither begun nor been cancelled.
        if self.machine.is_some() && self.recorder.count() == 1 {
            self.waiting = None;
            self.begin(ctx);
        }
    }
}

#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub(super) struct CancelAsk {
    pub(super) cause: CancelCause,
    pub(super) grace_limit: Option<Duration>,
}

impl Handler<CancelAsk> for JobActor {
    type Result = ();

    fn handle(&mut self, ask: CancelAsk, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::cancel");
        self.ask_to_end(&ask, ctx);
    }
}

impl JobActor {
    fn ask_to_end(&mut self, ask: &CancelAsk, ctx: &mut Context<Self>) {
        if self.defer_cancel(ask, ctx) {
            return;
        }
        self.waiting = None;
        self.cancel(ask.cause, ask.grace_limit, ctx);
    }
}

/// An event that the keeper reports about a job.
pub(super) enum KeeperEvent {
    StepOver(StepOver),
    Closed(Closed),
}

/// Delivers a keeper event to the job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperEventArrived(pub(super) KeeperEvent);

impl Handler<KeeperEventArrived> for JobActor {
    type Result = ();

    fn handle(&mut self, KeeperEventArrived(event): KeeperEventArrived, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::keeper_said");
        match event {
            KeeperEvent::StepOver(over) => {
                self.view.update(|state| {
                    (state.cpu_time, state.peak_memory) = (over.usage.cpu_time, over.usage.peak_memory);
                    state.used(over.ran.usage);
                });
                match &self.step {
                    Some((call, step)) if *call == over.step => deliver(step, Over(over)),
                    // The replay has not reached this start yet, because the disk refuses an earlier result.
                    _ if self.is_to_start(over.step) => self.performed.over.push(over),
                    _ => {}
                }
            }
            // The job has not reached its own end yet; `finish` takes it from here.
            KeeperEvent::Closed(closed) if self.ending.is_none() => self.performed.closed = Some(closed),
            KeeperEvent::Closed(closed) => self.end(closed, ctx),
        }
    }
}

/// Makes the keeper report unfinished lines. It forgets this if it does not hold the job yet; each start of a step says
/// it again.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct WatchUnfinished;

impl Handler<WatchUnfinished> for JobActor {
    type Result = ();

    fn handle(&mut self, _: WatchUnfinished, _: &mut Self::Context) {
        self.link.tell_short(Request::WatchUnfinished { key: self.key() });
    }
}

/// Reports a defect of the daemon that drives this job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Defect(pub(super) String);

impl Handler<Defect> for JobActor {
    type Result = ();

    fn handle(&mut self, Defect(message): Defect, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::defect");
        if self.defer_defect(&message, ctx) {
            return;
        }
        self.waiting = None;
        self.handle_event(Event::Broken { message }, ctx);
    }
}

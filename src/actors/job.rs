//! One job: feeds its machine with events and performs the effects (architecture.md).
//!
//! Inputs: [`Begin`], [`CancelAsk`], [`KeeperSaid`], [`KeeperLost`] from the supervisor and the keeper, `StepDone` from
//! its step. Outputs: requests to the keeper, results to the [`TraceSink`], state to the [`JobView`], `JobOver` to the
//! supervisor. Every event is in the keeper's record before its effects are performed: both go the same way, in order.

mod effects;
mod ending;
mod fetch;
mod waiting;

pub(super) use effects::StepDone;
pub(super) use ending::StorageLost;
pub(super) use waiting::KeeperLost;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle};

use super::admission::{ShellSpec, Surroundings};
use super::deliver;
use super::log_sink::LogSink;
use super::redact::Redactor;
use super::step::{Over, StepActor};
use super::supervisor::{JobBroken, Supervisor};
use super::sync_group::NotSynced;
use super::trace_sink::{EncodeResult, TraceSink};
use super::view::{JobView, State};
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::Effect;
use crate::job::event::{CallId, Event};
use crate::job::machine::Machine;
use crate::job::reaper::Moment;
use crate::job::record;
use crate::journal::event as journal;
use crate::keeper::link::KeeperLink;
use crate::keeper::protocol::{Closed, Request, StepOver};
use crate::model::{CancelCause, JobKey, JobState, Outcome, StepResult};
use crate::store::{JobFolder, file_vars};
use waiting::Waiting;

/// Room in a job's mailbox. A job has at most a handful of messages under way: one from its step, one from the keeper,
/// one from the supervisor; more callers wait for room.
const MAILBOX: usize = 16;

/// What a job's actor is made of.
pub(super) struct JobParts {
    pub(super) view: Arc<JobView>,
    pub(super) around: Arc<Surroundings>,
    pub(super) folder: JobFolder,
    pub(super) link: KeeperLink,
    pub(super) supervisor: Addr<Supervisor>,
    pub(super) machine: Machine,
    pub(super) redactor: Redactor,
    pub(super) shell: ShellSpec,
    pub(super) tag: u128,
    pub(super) encode: EncodeResult,
    /// First part of the record, of a job that waits for its slot.
    pub(super) head: Option<Vec<u8>>,
}

/// What a later daemon knows of a job that went on without it.
pub(super) struct Replay {
    pub(super) events: Vec<Event>,
    pub(super) last_op: u32,
    pub(super) over: Vec<StepOver>,
    pub(super) closed: Option<Closed>,
    /// Results stored so far.
    pub(super) stored: u32,
}

/// See the module's text.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, not a state of one machine")]
pub struct JobActor {
    view: Arc<JobView>,
    around: Arc<Surroundings>,
    folder: JobFolder,
    link: KeeperLink,
    supervisor: Addr<Supervisor>,
    machine: Machine,
    redactor: Redactor,
    shell: ShellSpec,
    tag: u128,
    trace_sink: Addr<TraceSink>,
    encode: EncodeResult,
    step: Option<(CallId, Addr<StepActor>)>,
    /// The search for a function under way.
    fetching: Option<SpawnHandle>,
    /// Effects to perform, in order.
    queue: VecDeque<Effect>,
    /// An effect is awaited; the next ones wait for it.
    busy: bool,
    /// Events in the record.
    recorded: u32,
    /// Number of the last effect the keeper performs (protocol, `op`).
    op: u32,
    /// Results emitted.
    emitted: u32,
    replayed: Replayed,
    ending: Option<Outcome>,
    /// What it wrote may not be on the disk.
    storage_lost: Option<NotSynced>,
    /// The job's own result, until its log is closed.
    root: Option<Box<StepResult>>,
    /// The keeper has closed the log.
    is_closed: bool,
    /// This daemon was asked to cancel the job.
    cancel_asked: bool,
    /// While it waits for its slot.
    waiting: Option<Waiting>,
    /// The keeper died while an effect was awaited.
    lost: bool,
    /// Nothing more is to be done for it.
    over: bool,
    /// Status shows its end.
    published: bool,
}

/// What was done before this daemon came; empty for a new job.
#[derive(Default)]
struct Replayed {
    last_op: u32,
    stored: u32,
    /// An invocation's function is fetched and its process runs under the same number, so the two are kept apart.
    fetched: HashSet<CallId>,
    exited: HashSet<CallId>,
    over: Vec<StepOver>,
    closed: Option<Closed>,
    /// Number of the effect whose phrases could not be masked, and why.
    unmasked: Option<(u32, String)>,
}

impl JobActor {
    /// Starts the actor of a job that was just registered. It does nothing before [`Begin`].
    pub(super) fn start_new(parts: JobParts) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            Self::new(parts)
        })
    }

    /// Starts the actor of a job that went on while no daemon was there.
    pub(super) fn start_replayed(parts: JobParts, replay: Replay) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            let Replay { events, last_op, over, closed, stored } = replay;
            let mut job = Self::new(parts);
            let (fetched, exited) = answered(&events);
            let unmasked = events.iter().find_map(unmasked);
            job.replayed = Replayed { last_op, stored, fetched, exited, over, closed, unmasked };
            job.hold_trees(&events);
            job.replay(&events, ctx);
            job
        })
    }

    fn new(parts: JobParts) -> Self {
        let JobParts { view, around, folder, link, supervisor, machine, redactor, shell, tag, encode, head } =
            parts;
        LogSink::begin(&view.log);
        let trace_sink = TraceSink::new(Arc::clone(&view.trace), folder.clone(), encode).start();
        Self {
            view,
            around,
            folder,
            link,
            supervisor,
            machine,
            redactor,
            shell,
            tag,
            trace_sink,
            encode,
            step: None,
            fetching: None,
            queue: VecDeque::new(),
            busy: false,
            recorded: 1,
            op: 0,
            emitted: 0,
            replayed: Replayed::default(),
            ending: None,
            storage_lost: None,
            root: None,
            is_closed: false,
            cancel_asked: false,
            waiting: head.map(Waiting::new),
            lost: false,
            over: false,
            published: false,
        }
    }

    fn replay(&mut self, events: &[Event], ctx: &mut Context<Self>) {
        for event in events {
            self.queue.extend(self.machine.handle(event));
        }
        self.recorded += events.len() as u32;
        if events.iter().any(|event| matches!(event, Event::CancelAsked { .. })) {
            self.cancel_asked = true;
            self.show_cancel();
        }
        let State { start_time, since, .. } = self.view.state();
        if let (Some(_), Some(timeout)) = (start_time, self.shell.timeout) {
            Self::limit_time(timeout.saturating_sub(since.age(clock::uptime())), ctx);
        }
        self.drain(ctx);
    }

    fn key(&self) -> JobKey {
        self.view.key
    }

    /// Records an event, then has its effects performed. One that cannot be recorded would be missing from every replay:
    /// the job fails instead.
    fn handle_event(&mut self, event: &Event, ctx: &mut Context<Self>) {
        let effects = match self.record(event) {
            Ok(()) => self.machine.handle(event),
            Err(reason) => {
                tracing::error!(reason, job = %self.view.id, "an event was not recorded");
                let broken = Event::Broken { message: format!("what happened cannot be recorded: {reason}") };
                if let Err(reason) = self.record(&broken) {
                    tracing::error!(reason, job = %self.view.id, "the end for want of it was not recorded");
                }
                self.machine.handle(&broken)
            }
        };
        self.recorded += 1;
        self.queue.extend(effects);
        self.drain(ctx);
    }

    fn record(&self, event: &Event) -> Result<(), String> {
        let event = record::encode(event).map_err(|e| Chain(&e).to_string())?;
        let told = self.link.tell(Request::Record { key: self.key(), seq: self.recorded, event });
        told.map_err(|e| Chain(&e).to_string())
    }

    /// The start of this process waits for its turn.
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
        // A repeated ask changes nothing unless it leaves less time (service.md §6.2): it must not grow the record.
        if self.over || self.ending.is_some() || (self.cancel_asked && grace_limit.is_none()) {
            return;
        }
        self.cancel_asked = true;
        self.show_cancel();
        if let Err(error) = self.folder.append(&journal::Event::Cancel { cause }) {
            tracing::warn!(%error, job = %self.view.id, "the cancel was not written to the journal");
        }
        self.handle_event(&Event::CancelAsked { cause, grace_limit }, ctx);
    }

    fn show_cancel(&self) {
        self.view.update(State::cancel);
    }

    fn begin(&mut self, ctx: &mut Context<Self>) {
        // A daemon that was killed between the journal and the record has started the job, but nothing of it.
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
            tracing::warn!(%error, job = %self.view.id, "the start was not written to the journal");
        }
        if let Some(timeout) = self.shell.timeout {
            Self::limit_time(timeout, ctx);
        }
        match file_vars::write_all(&self.folder, &self.shell.files) {
            Ok(()) => self.handle_event(&Event::Admitted { at }, ctx),
            Err(error) => self.handle_event(&Event::Unprepared { message: Chain(&error).to_string() }, ctx),
        }
    }
}

/// Calls whose fetch is answered, and calls whose process is over.
fn answered(events: &[Event]) -> (HashSet<CallId>, HashSet<CallId>) {
    let (mut fetched, mut exited) = (HashSet::new(), HashSet::new());
    for event in events {
        match event {
            Event::Fetched { call, .. } => drop(fetched.insert(*call)),
            Event::Exited { call, .. } => drop(exited.insert(*call)),
            _ => {}
        }
    }
    (fetched, exited)
}

fn unmasked(event: &Event) -> Option<(u32, String)> {
    match event {
        Event::Unmasked { op, message } => Some((*op, message.clone())),
        _ => None,
    }
}

impl Actor for JobActor {
    type Context = Context<Self>;
}

/// A job whose actor dies in the middle of its work must not look as if it were running: the supervisor ends it
/// (faults.md row 59). The framework restarts nothing after a panic.
impl Drop for JobActor {
    fn drop(&mut self) {
        if !self.published {
            deliver(&self.supervisor, JobBroken(self.view.id.clone()));
        }
    }
}

/// The job has its slot.
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
        // Its record holds the request and nothing else: it has neither begun nor been cancelled.
        if self.recorded == 1 {
            self.waiting = None;
            self.begin(ctx);
        }
    }
}

/// Somebody or something wants the job to stop.
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
        if self.defer_cancel(&ask, ctx) {
            return;
        }
        self.waiting = None;
        self.cancel(ask.cause, ask.grace_limit, ctx);
    }
}

/// News of the keeper.
pub(super) enum Said {
    StepOver(StepOver),
    Closed(Closed),
}

/// The keeper has news about this job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperSaid(pub(super) Said);

impl Handler<KeeperSaid> for JobActor {
    type Result = ();

    fn handle(&mut self, KeeperSaid(said): KeeperSaid, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::keeper_said");
        match said {
            Said::StepOver(over) => {
                self.view.update(|state| {
                    (state.cpu_time, state.peak_memory) = (over.usage.cpu_time, over.usage.peak_memory);
                });
                match &self.step {
                    Some((call, step)) if *call == over.step => deliver(step, Over(over)),
                    // A replay has not come to its start yet: the disk refuses a result before it.
                    _ if self.is_to_start(over.step) => self.replayed.over.push(over),
                    _ => {}
                }
            }
            // Kept for the effect that asks for it, if that waits for something still.
            Said::Closed(closed) if self.ending.is_none() => self.replayed.closed = Some(closed),
            Said::Closed(closed) => self.end(closed, ctx),
        }
    }
}

/// A defect of the daemon was met while it drove this job.
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
        self.handle_event(&Event::Broken { message }, ctx);
    }
}

//! Loading: reads and replays the records of jobs that a keeper kept running, in pieces, while the daemon serves.
//!
//! A record can have 64 MiB, and a daemon can take over many. So a start waits for them only a moment, then the socket
//! opens. Until its record is replayed, a job is served from its files and from the keeper's description: Status, logs
//! and step results work as usual. Messages to the job wait in the mailbox of its future actor.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, Context, WrapFuture};
use tokio::sync::oneshot;

use super::Supervisor;
use super::times::Start;
use crate::actors::job::{JobActor, JobParts, PerformedEffects, Replay, Reports, ResumedState};
use crate::actors::keeper_port::{Keeper, KeeperPort};
use crate::actors::messages::{RegisteredRequest, ToSupervisor};
use crate::actors::redact::Redactor;
use crate::actors::spec::{JobActorSpec, read_head};
use crate::actors::view::JobView;
use crate::error::Chain;
use crate::job::event::Event;
use crate::job::machine::Machine;
use crate::job::replay::Replayed;
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{RegisteredJob, Reply, Request, SecretBytes};
use crate::log::mask::PhraseSet;
use crate::model::{CancelCause, JobId, JobKey, JobState};
use crate::threads::{self, Work};

/// Time that a start waits for records. It is enough for records of usual size.
pub(super) const START_WAIT: Duration = Duration::from_secs(1);

/// Size of a small record. Small records, and those of waiting jobs, are read first: a waiting job survives its keeper,
/// but only with its record.
const SMALL: u64 = 256 << 10;

/// Limit on the total size of the records that are read first.
const ALL_SMALL: u64 = 32 << 20;

/// A job as its keeper describes it.
pub(super) struct ResumedJob {
    pub(super) registered: RegisteredJob,
    pub(super) record: Option<Vec<u8>>,
}

/// A job whose record is still to be replayed.
pub(super) struct PendingReplay {
    pub(super) view: Arc<JobView>,
    pub(super) keeper: Keeper,
    pub(super) resumed: ResumedJob,
    /// Cause of a cancel that the journal reports.
    pub(super) cancel: Option<CancelCause>,
    /// Step results stored so far.
    pub(super) stored: u32,
    /// The mailbox of its future actor.
    pub(super) ctx: Context<JobActor>,
}

/// Jobs whose records are still to be replayed.
#[derive(Default)]
pub(super) struct PendingReplays {
    /// A stack: the next job is the last element. Small records do not wait for large ones.
    jobs: Vec<PendingReplay>,
    /// True while one of them is being replayed.
    is_busy: bool,
    /// Dropped when no job is left.
    done: Option<oneshot::Sender<()>>,
}

impl PendingReplays {
    pub(super) fn add(&mut self, job: PendingReplay) {
        self.jobs.push(job);
    }

    /// Loads this job next: a client waits for its end.
    pub(super) fn prefer(&mut self, id: &JobId) {
        if let Some(at) = self.jobs.iter().position(|job| job.view.id == *id) {
            let job = self.jobs.remove(at);
            self.jobs.push(job);
        }
    }
}

pub(super) enum NotLoaded {
    /// The keeper died; its record is lost.
    KeeperGone,
    Unusable(String),
}

impl From<LinkError> for NotLoaded {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Gone | LinkError::Silent => Self::KeeperGone,
            error => Self::Unusable(Chain(&error).to_string()),
        }
    }
}

pub(super) struct LoadedRecord {
    spec: JobActorSpec,
    redactor: Redactor,
    replayed: Replayed,
    /// The first event, if the record has no other.
    head: Option<Vec<u8>>,
}

impl Supervisor {
    /// Loads all added jobs, one after another. The returned receiver resolves when none is left.
    pub(super) fn load_all(&mut self, ctx: &mut Context<Self>) -> oneshot::Receiver<()> {
        let (sender, done) = oneshot::channel();
        self.pending_replays.done = Some(sender);
        self.pending_replays.jobs.sort_by_key(|job| std::cmp::Reverse(job.resumed.registered.record_len));
        self.load_next(ctx);
        done
    }

    fn load_next(&mut self, ctx: &mut Context<Self>) {
        use actix::AsyncContext;
        let Some(mut job) = self.pending_replays.jobs.pop() else { return self.loaded_all() };
        self.pending_replays.is_busy = true;
        let (port, record) = (self.port.clone(), job.resumed.record.take());
        let load = async move {
            let loaded = load(&port, &job.keeper, job.view.key, &job.resumed.registered, record).await;
            (job, loaded)
        };
        ctx.spawn(load.into_actor(self).map(|(job, loaded), supervisor, ctx| {
            supervisor.pending_replays.is_busy = false;
            match loaded {
                Err(NotLoaded::KeeperGone) => {
                    // Its remaining processes are killed first: see `interrupt_unloaded`.
                    supervisor.pending_replays.jobs.push(job);
                    if supervisor.is_keeper_forgotten {
                        supervisor.interrupt_unloaded(ctx);
                    }
                    return;
                }
                Err(NotLoaded::Unusable(reason)) => supervisor.give_up(&job.view, &reason),
                Ok(loaded) => {
                    let view = Arc::clone(&job.view);
                    if let Err(reason) = supervisor.drive(job, loaded, ctx) {
                        supervisor.give_up(&view, &reason);
                    }
                }
            }
            supervisor.load_next(ctx);
        }));
    }

    fn loaded_all(&mut self) {
        self.is_keeper_forgotten = false;
        if self.pending_replays.done.take().is_some() {
            // Now all cache leases of jobs that go on are known.
            let fetcher = Arc::clone(&self.context.fetcher);
            actix::spawn(async move { fetcher.recovered().await });
        }
    }

    /// Interrupts the jobs whose records were not read. Called after the keeper's death, once its remaining processes
    /// are killed.
    pub(super) fn interrupt_unloaded(&mut self, ctx: &mut Context<Self>) {
        self.is_keeper_forgotten = self.pending_replays.is_busy;
        let jobs = std::mem::take(&mut self.pending_replays.jobs).into_iter();
        let (read, unread): (Vec<_>, Vec<_>) = jobs.partition(|job| job.resumed.record.is_some());
        self.pending_replays.jobs = read;
        for job in unread {
            self.end_unrevived(&job.view, "the process that ran it died");
        }
        if !self.pending_replays.is_busy {
            self.load_next(ctx);
        }
    }

    fn give_up(&mut self, view: &JobView, reason: &str) {
        tracing::error!(job = %view.id, reason, "a running job cannot be taken up");
        if let Some(keeper) = self.port.now() {
            keeper.link.tell_short(Request::Drop { key: view.key });
        }
        self.end_unrevived(view, "its record cannot be read");
    }

    /// Starts the actor of a job whose record was replayed.
    pub(super) fn drive(
        &self,
        job: PendingReplay,
        loaded: LoadedRecord,
        me: &Context<Self>,
    ) -> Result<(), String> {
        use actix::AsyncContext;
        let PendingReplay { view, keeper, resumed: ResumedJob { registered, .. }, cancel, stored, ctx } = job;
        let LoadedRecord { spec, redactor, replayed, head } = loaded;
        let Replayed { machine, effects, recorder, fetched, exited, trees, unmasked, .. } = replayed;
        // The journal's line may be missing because the disk was full; the record has the time.
        if let (None, Some(at)) = (view.read(|state| state.start_time), replayed.admitted) {
            view.update(|state| {
                (state.state, state.start_time) = (JobState::Running, Some(at));
                state.since = Start::by_wall(at).since;
            });
        }
        let waits = view.read(|state| state.start_time).is_none();
        let brief = registered.brief.0.into();
        let waits_with = head.filter(|_| waits).map(|head| RegisteredRequest { head: head.into(), brief });
        let parts = JobParts {
            folder: self.state.folder(view.key),
            view,
            context: Arc::clone(&self.context),
            link: keeper.link,
            supervisor: ToSupervisor::new(&me.address()),
            machine,
            redactor,
            spec,
            tag: registered.tag,
            encode: self.encode,
            waits_with,
        };
        let asked = registered.ended.iter().map(|ended| ended.process).chain(registered.running).collect();
        let (last_op, places) = (registered.last_op, registered.places.into_iter().collect());
        let performed = PerformedEffects { last_op, places, stored, fetched, exited, asked, unmasked };
        let reports = Reports { ended: registered.ended, closed: registered.closed.map(Box::new) };
        let is_cancelled = replayed.is_cancelled;
        let resumed = ResumedState { effects, performed, reports, is_cancelled };
        let replay = Replay { resumed, recorder, trees, cancel };
        let start = || JobActor::start_replayed(ctx, parts, replay);
        std::panic::catch_unwind(AssertUnwindSafe(start))
            .map_err(|_| "a defect ended the replay of its record".to_owned())
    }
}

/// Asks a keeper for all its jobs and reads their small records.
pub(super) async fn take_all(
    port: &KeeperPort,
    keeper: &Keeper,
    keys: Vec<JobKey>,
) -> Result<BTreeMap<JobKey, ResumedJob>, LinkError> {
    let (mut all, mut room) = (BTreeMap::new(), ALL_SMALL);
    for key in keys {
        match port.ask_living(&keeper.link, Request::Resume { key }).await {
            Ok(Reply::Resumed(registered)) => {
                let len = registered.record_len;
                let is_early = len <= SMALL || registered.events == 1;
                let record = if is_early && len <= room {
                    room -= len;
                    Some(read(port, keeper, key, len).await?)
                } else {
                    None
                };
                all.insert(key, ResumedJob { registered: *registered, record });
            }
            // The keeper dropped the job meanwhile. The other jobs must not suffer for it.
            Ok(_) | Err(LinkError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Reads a record piece by piece. The result is cut short if the keeper drops the job meanwhile.
async fn read(port: &KeeperPort, keeper: &Keeper, key: JobKey, len: u64) -> Result<Vec<u8>, LinkError> {
    let mut stream = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
    while (stream.len() as u64) < len {
        let offset = stream.len() as u64;
        match port.ask_living(&keeper.link, Request::ReadRecord { key, offset }).await {
            Ok(Reply::Piece(SecretBytes(piece))) if !piece.is_empty() => stream.extend_from_slice(&piece),
            Ok(_) | Err(LinkError::Refused(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(stream)
}

/// Reads the record of a job, unless given, and replays it. Ends a silent keeper.
pub(super) async fn load(
    port: &KeeperPort,
    keeper: &Keeper,
    key: JobKey,
    registered: &RegisteredJob,
    record: Option<Vec<u8>>,
) -> Result<LoadedRecord, NotLoaded> {
    let stream = match record {
        Some(stream) => stream,
        None => match read(port, keeper, key, registered.record_len).await {
            Ok(stream) => stream,
            Err(error) => {
                if matches!(error, LinkError::Silent)
                    && let Err(problem) = port.end_silent().await
                {
                    tracing::error!(problem = %Chain(&problem), "the keeper was not ended");
                }
                return Err(error.into());
            }
        },
    };
    let replayed = threads::run(Work::Jobs, move || replay(&stream)).await;
    let replayed = replayed.unwrap_or_else(|_| Err("a defect ended the replay of its record".into()));
    replayed.map_err(NotLoaded::Unusable)
}

fn replay(stream: &[u8]) -> Result<LoadedRecord, String> {
    let mut events = Events(stream);
    let head = events.next().ok_or("the record is empty")?;
    let (spec, accepted) = read_head(head).ok_or("the record's head is damaged")?;
    let Event::Accepted(job) = accepted else {
        return Err("the record does not begin with a request".into());
    };
    let machine = Machine::new(&job).map_err(|_| "the request does not parse any more")?;
    let alone = events.0.is_empty().then(|| head.to_vec());
    let replayed = Replayed::new(machine).play(&mut events).map_err(|e| Chain(&e).to_string())?;
    if !events.0.is_empty() {
        return Err("the record is cut".into());
    }
    let (phrases, _warnings) =
        PhraseSet::prepare(&spec.phrases, &spec.token_prefixes, &spec.masking.config())
            .map_err(|e| e.to_string())?;
    Ok(LoadedRecord { spec, redactor: Redactor::new(phrases), replayed, head: alone })
}

/// The length-prefixed events of a record. Stops before an incomplete event.
struct Events<'r>(&'r [u8]);

impl<'r> Iterator for Events<'r> {
    type Item = &'r [u8];

    fn next(&mut self) -> Option<&'r [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let (event, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(event)
    }
}

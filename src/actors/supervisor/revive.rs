//! Driving a job anew from the keeper's record of it: after a restart, or when a defect ended its actor.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFuture, ActorFutureExt, Addr, WrapFuture};

use super::Supervisor;
use crate::actors::admission::{Head, ShellSpec, read_head};
use crate::actors::deliver;
use crate::actors::job::{Defect, JobActor, JobParts, KeeperLost, KeeperSaid, Replay};
use crate::actors::keeper_port::Keeper;
use crate::actors::log_sink::LogFeed;
use crate::actors::redact::Redactor;
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{JobView, State};
use crate::clock;
use crate::error::Chain;
use crate::job::event::Event;
use crate::job::machine::Machine;
use crate::job::reaper::Moment;
use crate::job::record;
use crate::journal::event::End;
use crate::keeper::protocol::{HeldJob, Reply, Request};
use crate::log::mask::PhraseSet;
use crate::model::{JobId, JobState, Outcome};
use crate::store::{JobFolder, JobRecord, close_interrupted};

/// So many actors of one job may die before it is given up.
const MAX_BREAKS: u32 = 3;

/// A job to be driven anew.
pub(super) struct Revival<'a> {
    pub(super) keeper: &'a Keeper,
    pub(super) held: HeldJob,
    pub(super) times: Times,
    pub(super) me: &'a Addr<Supervisor>,
    /// What the clients of this daemon see of it, if they do.
    pub(super) known: Option<Arc<JobView>>,
}

impl Supervisor {
    /// As [`Self::revived`]; a record that makes the replay panic costs its own job only.
    pub(super) fn try_revive(&self, revival: Revival<'_>) -> Result<(Arc<JobView>, Addr<JobActor>), String> {
        let attempt = || self.revived(revival);
        std::panic::catch_unwind(AssertUnwindSafe(attempt))
            .unwrap_or_else(|_| Err("a defect ended the replay of its record".into()))
    }

    fn revived(&self, revival: Revival<'_>) -> Result<(Arc<JobView>, Addr<JobActor>), String> {
        let Revival { keeper, held, times, me, known } = revival;
        let HeldJob { tag, record: events, last_op, over, closed, log_inode, log_len } = held;
        let (first, events) = events.0.split_first().ok_or("the record is empty")?;
        let Head { shell, accepted, place: _ } = read_head(first).ok_or("the record's head is damaged")?;
        let Event::Accepted(spec) = accepted else {
            return Err("the record does not begin with a request".into());
        };
        let machine = Machine::new(&spec).map_err(|_| "the request does not parse any more")?;
        let events = events.iter().map(|event| record::decode(event)).collect::<Result<Vec<_>, _>>();
        let events = events.map_err(|e| Chain(&e).to_string())?;
        // A full disk may have refused the journal's line; the record has it.
        let started = times.started.or_else(|| events.iter().find_map(admitted_at).map(Start::by_wall));
        let id = JobId::parse(&shell.id).map_err(|e| e.to_string())?;
        let folder = self.state.folder(id.key());
        let (phrases, _warnings) =
            PhraseSet::prepare(&shell.phrases, &shell.token_prefixes, &shell.masking.config())
                .map_err(|e| e.to_string())?;
        // Whoever appended results last may have been cut off in one.
        let stored = folder.mend_steps().map_err(|e| Chain(&e).to_string())?.count;
        let fresh =
            || Arc::new(self.view_of(&shell, id, Times { started, ..times }, log_inode, log_len, &folder));
        let view = known.unwrap_or_else(fresh);
        view.update(|state| state.steps_done = 0); // counted anew by the replay
        let parts = JobParts {
            view: Arc::clone(&view),
            around: Arc::clone(&self.around),
            folder,
            link: keeper.link.clone(),
            supervisor: me.clone(),
            machine,
            redactor: Redactor::new(phrases),
            shell,
            tag,
            encode: self.encode,
            head: (events.is_empty() && started.is_none()).then(|| first.clone()),
        };
        let replay = Replay { events, last_op, over, closed, stored };
        Ok((view, JobActor::start_replayed(parts, replay)))
    }

    fn view_of(
        &self,
        shell: &ShellSpec,
        id: JobId,
        Times { started, waits }: Times,
        log_inode: u64,
        log_len: u64,
        folder: &JobFolder,
    ) -> JobView {
        let state = State {
            state: if started.is_some() { JobState::Running } else { JobState::Queued },
            start_time: started.map(|start| start.at),
            since: started.map_or(waits, |start| start.since),
            ..State::default()
        };
        let group = || self.around.sync_group.clone();
        let log = LogFeed::growing(log_len, group(), folder);
        let trace = TraceFeed::growing(folder.steps_len(), group());
        JobView::new(id, shell.registered, log_inode, log, trace, state).of_request(shell.digest)
    }

    /// Takes up a job anew whose actor died of a defect, to end it; one that kills its actor again is interrupted.
    pub(super) fn revive(&self, id: JobId, me: Addr<Self>) -> impl ActorFuture<Self, Output = ()> + 'static {
        let (port, key) = (self.port.clone(), id.key());
        let again = self.registry.view(&id).is_some_and(|view| view.breaks() <= MAX_BREAKS);
        // What comes behind the keeper's answer is not in it, and would go to the actor that died.
        self.registry.hold_back(key);
        async move {
            if !again {
                return None;
            }
            let keeper = port.living().await?;
            match keeper.link.ask(Request::Resume { key }).await {
                Ok(Reply::Resumed(held)) => Some((keeper, *held)),
                _ => None,
            }
        }
        .into_actor(self)
        .map(move |held, supervisor, _| {
            let news = supervisor.registry.hand_out(key);
            let Some(view) = supervisor.registry.view(&id).filter(|view| !view.is_ended()) else { return };
            let State { start_time, since, .. } = view.state();
            let times = Times { started: start_time.map(|at| Start { at, since }), waits: since };
            let keeper = held.as_ref().map(|(keeper, _)| keeper.clone());
            let revived = held
                .ok_or_else(|| "the keeper does not hold it, or it broke too often".to_owned())
                .and_then(|(keeper, held)| {
                    let known = Some(Arc::clone(&view));
                    supervisor.try_revive(Revival { keeper: &keeper, held, times, me: &me, known })
                });
            match revived {
                Ok((_, actor)) => {
                    supervisor.registry.replace(&id, actor.clone());
                    for said in news {
                        deliver(&actor, KeeperSaid(said));
                    }
                    deliver(
                        &actor,
                        Defect("a defect ended the part of the daemon that drove this job".into()),
                    );
                    if keeper.is_some_and(|keeper| keeper.link.is_over()) {
                        // The news of its death may have gone to the actor that died.
                        deliver(&actor, KeeperLost);
                    }
                }
                Err(reason) => {
                    tracing::error!(job = %id, reason, "the job cannot be taken up again");
                    if let Some(keeper) = supervisor.port.now() {
                        keeper.link.tell_short(Request::Drop { key });
                    }
                    supervisor.end_unrevived(&view);
                }
            }
        })
    }
}

/// When a job was admitted.
const fn admitted_at(event: &Event) -> Option<i64> {
    match event {
        Event::Admitted { at } => Some(*at),
        _ => None,
    }
}

/// When a job started.
#[derive(Clone, Copy)]
pub(super) struct Start {
    /// Microseconds since the epoch.
    pub(super) at: i64,
    pub(super) since: Moment,
}

/// What the age of a job is counted from.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) started: Option<Start>,
    /// Registered.
    pub(super) waits: Moment,
}

impl Start {
    /// By the wall clock: the only one there is if nothing else was written down (service.md §6.3).
    pub(super) fn by_wall(at: i64) -> Self {
        Self { at, since: before_start(wall_age(at)) }
    }
}

/// See [`Moment::before_start`].
pub(super) fn before_start(age: Duration) -> Moment {
    Moment::before_start(age, clock::uptime())
}

fn wall_age(at: i64) -> Duration {
    Duration::from_micros(u64::try_from(clock::now_micros().saturating_sub(at)).unwrap_or(0))
}

impl Supervisor {
    /// How long ago something was that happened to a job: by the clock that never jumps, if it was in this boot of the
    /// host (faults.md row 63).
    pub(super) fn age(&self, record: &JobRecord, at: i64, boot: Option<u64>) -> Duration {
        match boot.filter(|_| record.boot_id == *self.boot_id) {
            Some(boot) => Duration::from_micros(clock::boot_micros().saturating_sub(boot)),
            None => wall_age(at),
        }
    }

    /// Writes the end of a job that cannot be driven any more.
    fn end_unrevived(&mut self, view: &JobView) {
        let closed = self.state.folder(view.key).read_job().and_then(|job| {
            // Closing it tries to remove them; whether in vain is seen at the reaper's next look.
            view.update(|state| state.files_left = !job.record.files.is_empty());
            let end =
                close_interrupted(&job, "a defect of the daemon", clock::now_micros(), clock::boot_micros());
            end.map(|end| self.complete(&job.folder, end)).map_err(|e| Chain(&e).to_string())
        });
        let end = closed.unwrap_or_else(|reason| {
            tracing::error!(job = %view.id, reason, "its end was not written");
            let outcome = Outcome::interrupted("a defect of the daemon");
            let end = End::new(outcome, clock::now_micros(), view.log.len(), view.log_inode);
            End { steps_done: view.state().steps_done, ..end }
        });
        self.sync_now();
        view.trace.reach(self.state.folder(view.key).steps_len());
        view.end(end);
        self.ended(&view.id);
    }
}

#[cfg(test)]
mod tests {
    use crate::actors::admission::HEAD_FORMAT;
    use crate::job::record;
    use crate::keeper::protocol::PROTOCOL_VERSION;

    #[test]
    fn fault_46_records_of_another_format_are_of_another_protocol() {
        // Whoever raises a format writes the next protocol beside it: of a keeper that was greeted every record is read, or
        // its job is interrupted.
        assert_eq!((PROTOCOL_VERSION, HEAD_FORMAT, record::FORMAT), (3, 2, 4));
    }
}

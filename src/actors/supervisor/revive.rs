//! Starts a new actor for a job from the keeper's record, after a restart or after a defect killed the job's actor.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFuture, ActorFutureExt, AsyncContext, WrapFuture};

use super::Supervisor;
use super::loading::{NotLoaded, PendingReplay, ResumedJob, load};
use super::times::{Times, wall_age};
use crate::actors::deliver;
use crate::actors::job::JobActor;
use crate::actors::log_sink::{LogFeed, LogSink};
use crate::actors::messages::{Defect, KeeperEventArrived, KeeperLost};
use crate::actors::stored::StoredKind;
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{FilesState, JobView, JobViewState};
use crate::clock;
use crate::error::Chain;
use crate::journal::event::End;
use crate::keeper::protocol::{RegisteredJob, Reply, Request};
use crate::model::{JobId, JobState, Outcome, StepUsage};
use crate::store::{JobFolder, JobRecord, close_interrupted};

/// Number of actors of one job that may die before the job is interrupted.
const MAX_BREAKS: u32 = 3;

impl Supervisor {
    /// Builds the view of a job whose record is still to be replayed, from its files and the keeper's description. Also
    /// returns the number of stored messages of FollowSteps.
    pub(super) fn view_of(
        &self,
        id: JobId,
        record: &JobRecord,
        digest: [u8; 32],
        Times { started, waits }: Times,
        registered: &RegisteredJob,
    ) -> Result<(Arc<JobView>, u32), String> {
        let folder = self.state.folder(id.key());
        let (stored, steps_done) = self.mend_steps(&folder)?;
        let usage = registered.ended.last().map(|ended| ended.usage).unwrap_or_default();
        let state = JobViewState {
            state: if started.is_some() { JobState::Running } else { JobState::Queued },
            start_time: started.map(|start| start.at),
            since: started.map_or(waits, |start| start.since),
            steps_done,
            cpu_time: usage.cpu_time,
            peak_memory: usage.peak_memory,
            usage: registered.ended.iter().filter_map(|ended| ended.ran.usage).reduce(StepUsage::and),
            ..JobViewState::default()
        };
        let group = || self.context.sync_group.clone();
        let log = LogFeed::growing(registered.log_len, group(), &folder);
        LogSink::begin(&log);
        let trace = TraceFeed::replaying(folder.steps_len(), group());
        let view = JobView::new(id, record.registered, registered.log_inode, log, trace, state);
        Ok((Arc::new(view.of_request(digest, record.origin)), stored))
    }

    /// Cuts off an incomplete last message of the stored step results. Returns the number of messages, and how many of
    /// them are step results.
    fn mend_steps(&self, folder: &JobFolder) -> Result<(u32, u32), String> {
        let stored = folder.mend_steps_of(|stored| (self.kind)(stored) == StoredKind::Step);
        let stored = stored.map_err(|e| Chain(&e).to_string())?;
        Ok((stored.count, stored.marked))
    }

    /// Starts a new actor, to end a job whose actor died of a defect. After too many deaths the job is interrupted.
    pub(super) fn revive(&self, id: JobId) -> impl ActorFuture<Self, Output = ()> + 'static {
        let (port, key) = (self.port.clone(), id.key());
        let again = self.registry.view(&id).is_some_and(|view| view.breaks() <= MAX_BREAKS);
        // Events that the keeper sends after its answer are not in that answer, and would go to the dead actor. Hold
        // them back.
        self.registry.hold_back(key);
        async move {
            let not_registered =
                || "the keeper no longer holds the job, or the job's actor failed too often".to_owned();
            if !again {
                return Err(not_registered());
            }
            let keeper = port.living().await.ok_or_else(not_registered)?;
            match keeper.link.ask(Request::Resume { key }).await {
                Ok(Reply::Resumed(registered)) => match load(&port, &keeper, key, &registered, None).await {
                    Ok(loaded) => Ok((keeper, *registered, loaded)),
                    Err(NotLoaded::KeeperGone) => Err(not_registered()),
                    Err(NotLoaded::Unusable(reason)) => Err(reason),
                },
                _ => Err(not_registered()),
            }
        }
        .into_actor(self)
        .map(move |loaded, supervisor, ctx| {
            let news = supervisor.registry.hand_out(key);
            let Some(view) = supervisor.registry.view(&id).filter(|view| !view.is_ended()) else { return };
            let revived = loaded.and_then(|(keeper, registered, loaded)| {
                let (stored, steps_done) = supervisor.mend_steps(&supervisor.state.folder(key))?;
                view.update(|state| state.steps_done = steps_done);
                let mailbox = JobActor::mailbox();
                let actor = mailbox.address();
                let (view, link) = (Arc::clone(&view), keeper.link.clone());
                let resumed = ResumedJob { registered, record: None };
                let job = PendingReplay { view, keeper, resumed, cancel: None, stored, ctx: mailbox };
                supervisor.drive(job, loaded, ctx).map(|()| (actor, link))
            });
            match revived {
                Ok((actor, link)) => {
                    supervisor.registry.replace(&id, actor.clone());
                    for event in news {
                        deliver(&actor, KeeperEventArrived(event));
                    }
                    deliver(
                        &actor,
                        Defect("a defect ended the part of the daemon that drove this job".into()),
                    );
                    if link.is_over() {
                        // The news of the keeper's death may have gone to the dead actor.
                        deliver(&actor, KeeperLost);
                    }
                }
                Err(reason) => {
                    tracing::error!(job = %id, reason, "the job cannot be taken up again");
                    if let Some(keeper) = supervisor.port.now() {
                        keeper.link.tell_short(Request::Drop { key });
                    }
                    supervisor.end_unrevived(&view, "a defect of the daemon");
                }
            }
        })
    }
}

impl Supervisor {
    /// Returns the age of an event of a job. `at` is its time by the wall clock, `boot` by the clock since the host's
    /// boot. If the host has not booted since, uses `boot`, because that clock never jumps (faults.md row 63).
    pub(super) fn age(&self, record: &JobRecord, at: i64, boot: Option<u64>) -> Duration {
        match boot.filter(|_| record.boot_id == *self.boot_id) {
            Some(boot) => Duration::from_micros(clock::boot_micros().saturating_sub(boot)),
            None => wall_age(at),
        }
    }

    /// Writes the end of a job that cannot be driven any more because of `cause`.
    pub(super) fn end_unrevived(&mut self, view: &JobView, cause: &str) {
        let closed = self.state.folder(view.key).read_job().and_then(|job| {
            // Closing tries to remove the files. If that fails, the reaper tries again.
            view.update(|state| state.files_left = FilesState::unless(job.record.files.is_empty()));
            let (now, boot, told) = (clock::now_micros(), clock::boot_micros(), view.log.reported_len());
            let end = close_interrupted(&job, cause, Some(told), now, boot);
            end.map(|end| self.complete(&job.folder, end)).map_err(|e| Chain(&e).to_string())
        });
        let end = closed.unwrap_or_else(|reason| {
            tracing::error!(job = %view.id, reason, "the end of the job was not written");
            let outcome = Outcome::interrupted(cause);
            let end = End::new(outcome, clock::now_micros(), view.log.len(), view.log_inode());
            End { steps_done: view.read(|state| state.steps_done), ..end }
        });
        self.sync_now();
        view.trace.reach(self.state.folder(view.key).steps_len());
        view.end(end);
        self.ended(&view.id);
    }
}

#[cfg(test)]
mod tests {
    use crate::actors::spec::HEAD_FORMAT;
    use crate::job::record;
    use crate::keeper::protocol::PROTOCOL_VERSION;

    #[test]
    fn fault_46_records_of_another_format_are_of_another_protocol() {
        // Raise the protocol version together with any format: then every record of a keeper with our version can be
        // read, and jobs of other keepers are interrupted.
        assert_eq!((PROTOCOL_VERSION, HEAD_FORMAT, record::FORMAT), (13, 3, 9));
    }

    #[test]
    fn the_guide_to_upgrades_names_the_version_of_the_protocol() {
        let guide = include_str!("../../../docs/operate/upgrade.md");
        assert!(guide.contains(&format!("\"Keeper protocol: {PROTOCOL_VERSION}\"")), "{PROTOCOL_VERSION}");
    }
}

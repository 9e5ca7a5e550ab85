//! The graceful stop (service.md §6.4): jobs are cancelled or waited for, then the keeper ends.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, Context, Handler, Message, ResponseActFuture, WrapFuture};
use tokio::time::{Instant, timeout_at};

use super::{Stop, Supervisor};
use crate::actors::view::JobView;
use crate::config::OnStop;
use crate::failpoint;
use crate::model::CancelCause;

/// Stop: no new job is taken; answered when none lives, or when time is over.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Shutdown {
    /// Kill everything instead.
    pub at_once: bool,
}

impl Handler<Shutdown> for Supervisor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, Shutdown { at_once }: Shutdown, _: &mut Context<Self>) -> Self::Result {
        failpoint::hit("actors::supervisor::shut_down");
        self.stop = Stop::Draining;
        if at_once {
            self.stop = Stop::AtOnce;
            self.pause_queue();
            return Box::pin(self.leave().map(|_, _, _| ()));
        }
        let drain = match self.config().on_stop {
            OnStop::Cancel => Duration::ZERO,
            OnStop::Drain => self.config().drain_timeout,
        };
        let drained = all_ended(self.living(), Instant::now() + drain);
        Box::pin(drained.into_actor(self).then(|_, supervisor, _| supervisor.end_all()))
    }
}

impl Supervisor {
    pub(super) fn living(&self) -> Vec<Arc<JobView>> {
        self.registry.all().into_iter().map(|(view, _)| view).filter(|view| !view.is_ended()).collect()
    }

    fn end_all(&mut self) -> ResponseActFuture<Self, ()> {
        self.stop = Stop::Ending;
        self.pause_queue();
        let grace = self.config().shutdown_grace;
        let living = self.living();
        for view in &living {
            self.cancel(&view.id, CancelCause::Shutdown, Some(grace));
        }
        let lines = self.time_for_last_lines();
        // What a job needs after its grace: the kill, and its last lines.
        let ended = all_ended(living.clone(), Instant::now() + grace + self.config().kill_wait + lines);
        let left = ended.into_actor(self).then(|ended, supervisor, _| {
            if !ended {
                tracing::warn!("jobs did not end in time; they are left to the next start");
            }
            supervisor.leave()
        });
        Box::pin(left.then(move |was_heard, supervisor, _| {
            // The death of a keeper that was killed ends its jobs: their followers are to be told.
            let ended = async move { was_heard || all_ended(living, Instant::now() + lines).await };
            ended.into_actor(supervisor).map(|_, _, _| ())
        }))
    }

    fn time_for_last_lines(&self) -> Duration {
        // With a sync their ends are shown when they are on the disk.
        Duration::from_secs(if self.around.sync_group.is_some() { 3 } else { 1 })
    }

    /// The keeper kills what is left and ends. `false`: it did not answer and was killed, and what it left was too.
    fn leave(&self) -> ResponseActFuture<Self, bool> {
        let port = self.port.clone();
        let said = async move { port.say_bye().await };
        Box::pin(said.into_actor(self).then(|was_heard, supervisor, _| {
            let keys = supervisor.living().iter().map(|view| view.key).collect();
            let killed = (!was_heard).then(|| supervisor.kill_remains(keys));
            async move {
                if let Some(killed) = killed {
                    killed.await;
                }
                was_heard
            }
            .into_actor(supervisor)
        }))
    }
}

async fn all_ended(jobs: Vec<Arc<JobView>>, deadline: Instant) -> bool {
    for view in jobs {
        if timeout_at(deadline, view.log.ended()).await.is_err() {
            return false;
        }
    }
    true
}

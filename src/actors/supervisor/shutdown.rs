//! The graceful stop (service.md §6.4): jobs are cancelled or waited for, then the keeper ends.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, Context, Handler, ResponseActFuture, WrapFuture};
use tokio::time::{Instant, timeout_at};

use super::{Stop, Supervisor};
use crate::actors::messages::Shutdown;
use crate::actors::view::JobView;
use crate::config::OnStop;
use crate::failpoint;
use crate::model::CancelCause;

impl Handler<Shutdown> for Supervisor {
    type Result = ResponseActFuture<Self, Duration>;

    fn handle(&mut self, Shutdown { at_once }: Shutdown, _: &mut Context<Self>) -> Self::Result {
        failpoint::hit("actors::supervisor::shut_down");
        self.stop.raise(Stop::Draining);
        if at_once {
            self.stop.raise(Stop::AtOnce);
            self.pause_queue();
            return Box::pin(self.end_keeper().map(|_, _, _| Duration::ZERO));
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
    /// Returns the jobs that have not ended.
    pub(super) fn living(&self) -> Vec<Arc<JobView>> {
        let all = self.registry.all().into_iter().map(|(view, _)| view);
        all.filter(|view| !view.is_ended()).collect()
    }

    fn end_all(&mut self) -> ResponseActFuture<Self, Duration> {
        let begun = Instant::now();
        self.stop.raise(Stop::Ending);
        self.pause_queue();
        let grace = self.config().shutdown_grace;
        let living = self.living();
        for view in &living {
            self.cancel(&view.id, CancelCause::Shutdown, Some(grace));
        }
        let lines = self.time_for_last_lines();
        // After its grace a job needs time for the kill and its last log lines.
        let ended = all_ended(living.clone(), Instant::now() + grace + self.config().kill_wait + lines);
        let left = ended.into_actor(self).then(|ended, supervisor, _| {
            if !ended {
                tracing::warn!("jobs did not end in time; they are left to the next start");
            }
            supervisor.end_keeper()
        });
        Box::pin(left.then(move |was_heard, supervisor, _| {
            // If the keeper had to be killed, its death ends its jobs. Wait until their followers know.
            let ended = async move { was_heard || all_ended(living, Instant::now() + lines).await };
            ended.into_actor(supervisor).map(move |_, _, _| grace.saturating_sub(begun.elapsed()))
        }))
    }

    fn time_for_last_lines(&self) -> Duration {
        // With syncs, an end is shown only once it is on the disk.
        Duration::from_secs(if self.context.sync_group.is_some() { 3 } else { 1 })
    }

    /// Tells the keeper to kill the remaining jobs and to end. If it does not answer, kills it and the processes of its
    /// jobs, and returns `false`.
    fn end_keeper(&self) -> ResponseActFuture<Self, bool> {
        let port = self.port.clone();
        let said = async move { port.say_bye().await };
        Box::pin(said.into_actor(self).then(|was_heard, supervisor, _| {
            let killed = (!was_heard).then(|| supervisor.kill_remains(supervisor.living()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_never_goes_back() {
        let mut stop = Stop::No;
        for (next, now) in [
            (Stop::Ending, Stop::Ending),
            (Stop::Draining, Stop::Ending),
            (Stop::AtOnce, Stop::AtOnce),
            (Stop::Ending, Stop::AtOnce),
            (Stop::No, Stop::AtOnce),
        ] {
            stop.raise(next);
            assert_eq!(stop, now);
        }
    }
}

//! The graceful stop (service.md §6.4): jobs are cancelled or waited for, then the keeper ends.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, Context, Handler, Message, ResponseActFuture, WrapFuture};
use tokio::time::{Instant, timeout_at};

use super::{Stop, Supervisor};
use crate::actors::keeper_port::KeeperPort;
use crate::actors::view::JobView;
use crate::config::OnStop;
use crate::failpoint;
use crate::keeper::protocol::Request;
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
            return Box::pin(say_bye(self.port.clone()).into_actor(self));
        }
        let drain = match self.config().on_stop {
            OnStop::Cancel => Duration::ZERO,
            OnStop::Drain => self.config().drain_timeout,
        };
        let drained = all_ended(self.living(), Instant::now() + drain);
        Box::pin(
            drained.into_actor(self).then(|_, supervisor, _| supervisor.end_all().into_actor(supervisor)),
        )
    }
}

impl Supervisor {
    pub(super) fn living(&self) -> Vec<Arc<JobView>> {
        self.registry.all().into_iter().map(|(view, _)| view).filter(|view| !view.is_ended()).collect()
    }

    fn end_all(&mut self) -> impl Future<Output = ()> + use<> {
        self.stop = Stop::Ending;
        self.pause_queue();
        let grace = self.config().shutdown_grace;
        let living = self.living();
        for view in &living {
            self.cancel(&view.id, CancelCause::Shutdown, Some(grace));
        }
        // What a job needs after its grace: the kill, and its last lines.
        let mut deadline = Instant::now() + grace + self.config().kill_wait + Duration::from_secs(1);
        if self.around.sync_group.is_some() {
            // Their ends are shown when they are on the disk.
            deadline += Duration::from_secs(2);
        }
        let port = self.port.clone();
        async move {
            if !all_ended(living, deadline).await {
                tracing::warn!("jobs did not end in time; they are left to the next start");
            }
            say_bye(port).await;
        }
    }
}

/// The keeper kills what is left and ends.
async fn say_bye(port: KeeperPort) {
    if let Some(keeper) = port.living().await {
        keeper.link.ask(Request::Bye).await.ok();
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

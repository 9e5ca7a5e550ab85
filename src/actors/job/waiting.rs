//! Hands a job that waits for its slot to the next keeper, if its keeper dies.

use actix::{ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};

use super::JobActor;
use super::driver::{KeeperLoss, NextAttempt, WaitingRequests};
use crate::actors::messages::{KeeperLost, NotRegistered, RegisterAgain};
use crate::failpoint;
use crate::keeper::link::KeeperLink;

impl JobActor {
    /// Handles the keeper's death.
    pub(super) fn keeper_lost(&mut self, ctx: &mut Context<Self>) {
        let request = match self.driver.keeper_lost() {
            KeeperLoss::Nothing => return,
            KeeperLoss::Interrupt => return self.interrupt(ctx),
            KeeperLoss::RegisterAgain(request) => request,
        };
        self.stop_retrying(ctx);
        let (key, log_len) = (self.key(), self.view.log.reported_len());
        let asked = RegisterAgain { key, spec: self.spec.clone(), request, tag: self.tag, log_len };
        let registered = self.supervisor.register_again.send(asked);
        ctx.spawn(registered.into_actor(self).map(|registered, job, ctx| match registered {
            Ok(Ok(link)) => job.registered_again(link, ctx),
            Ok(Err(reason)) => job.not_registered(reason, ctx),
            Err(_) => job.not_registered(NotRegistered::Impossible, ctx),
        }));
    }

    fn not_registered(&mut self, reason: NotRegistered, ctx: &mut Context<Self>) {
        match self.driver.not_registered(reason) {
            NextAttempt::Nothing => {}
            NextAttempt::After(pause) => {
                tracing::warn!(job = %self.view.id, ?pause, "no process can be started for this waiting job; it is tried again");
                self.retry = Some(ctx.run_later(pause, Self::keeper_lost));
            }
            NextAttempt::Interrupt => self.interrupt(ctx),
        }
    }

    /// Cancels the timer of the next attempt to find a keeper.
    pub(super) fn stop_retrying(&mut self, ctx: &mut Context<Self>) {
        if let Some(retry) = self.retry.take() {
            ctx.cancel_future(retry);
        }
    }

    fn registered_again(&mut self, link: KeeperLink, ctx: &mut Context<Self>) {
        let Some(WaitingRequests { begin, cancel, defect }) = self.driver.registered_again() else { return };
        self.link = link;
        if let Some(ask) = cancel {
            self.cancel(ask, ctx);
        }
        if let Some(message) = defect {
            self.end_broken(message, ctx);
        }
        if begin {
            self.begin(ctx);
        }
    }
}

impl Handler<KeeperLost> for JobActor {
    type Result = ();

    fn handle(&mut self, _: KeeperLost, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::keeper_lost");
        self.give_up_starts();
        if !self.driver.defer_keeper_loss() && self.link.is_over() {
            self.keeper_lost(ctx);
        }
    }
}

//! Offers the next step to the keeper while a process runs (docs/internals/architecture.md, "The next step in advance").
//!
//! The keeper drops the offer if the running step fails, is cancelled, leaves a process, or changes a premise of the next
//! start. Then the daemon starts the next step itself.

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::JobActor;
use super::effects::is_small;
use crate::actors::step::StepActor;
use crate::clock;
use crate::fetch::Fetcher;
use crate::job::machine::{Foresight, NextStart};
use crate::lang::ast::Reference;

impl JobActor {
    /// Offers the next step once the request to start the running one is on its way.
    pub(super) fn offer_soon(&mut self, ctx: &mut Context<Self>) {
        if self.driver.may_foresee() {
            let sent = tokio::task::yield_now().into_actor(self);
            ctx.spawn(sent.map(|(), job, ctx| job.offer(ctx)));
        }
    }

    /// Offers the next step to the keeper, if it is certain which step comes next.
    pub(super) fn offer(&mut self, ctx: &mut Context<Self>) {
        let Some(foresight) = self.driver.foresee() else { return };
        let after = foresight.after();
        let (start, read) = match foresight.wanted() {
            None => (foresight.start(), None),
            Some(Reference::Local { path, files }) => {
                let Some((fetched, stamp)) = Fetcher::at_hand(path, files) else { return };
                let start = foresight.with(fetched.clone()).and_then(Foresight::start);
                (start, Some((fetched, stamp)))
            }
            Some(_) => return,
        };
        let Some(NextStart { lines, spawn }) = start.filter(|start| is_small(&start.spawn)) else { return };
        let task = self.task(None, spawn, ctx);
        if !task.is_at_hand() {
            return;
        }
        let (fetched, stamp) = read.unzip();
        let Some(offer) = StepActor::offer(task, after, lines, stamp) else { return };
        if let Some(fetched) = fetched {
            // Record the function before the offer: a later daemon must know it, too.
            let Some((record, is_noted)) = self.driver.note_foreseen(fetched, clock::boot_micros()) else {
                return;
            };
            self.send_record(record);
            if !is_noted {
                return self.drain(ctx);
            }
        }
        self.link.send(offer);
    }
}

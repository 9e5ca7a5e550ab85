//! A job's fetches of functions: none longer than the job needs it.

use std::future::Future;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::JobActor;
use crate::job::event::{Event, FetchFailure, Fetched, ProcessNumber};

impl JobActor {
    /// Awaits the fetched function in the background. Other messages (a cancel) are handled meanwhile.
    pub(super) fn fetch(
        &mut self,
        process: ProcessNumber,
        found: impl Future<Output = Result<Fetched, FetchFailure>> + 'static,
        ctx: &mut Context<Self>,
    ) {
        let answered = found.into_actor(self).map(move |result, job, ctx| {
            job.fetching.remove(&process);
            job.handle_event(Event::Fetched { process, result }, ctx);
        });
        self.fetching.insert(process, ctx.spawn(answered));
    }

    /// Gives up a fetch: nobody waits for the function any more.
    pub(super) fn stop_fetch(&mut self, process: ProcessNumber, ctx: &mut Context<Self>) {
        if let Some(fetching) = self.fetching.remove(&process) {
            ctx.cancel_future(fetching);
        }
    }

    /// Gives up all fetches.
    pub(super) fn stop_fetching(&mut self, ctx: &mut Context<Self>) {
        for fetching in std::mem::take(&mut self.fetching).into_values() {
            ctx.cancel_future(fetching);
        }
    }

    /// Leases the trees to this job that an earlier daemon fetched for it.
    pub(super) fn hold_trees(&self, trees: &[String]) {
        for tree in trees {
            self.context.fetcher.hold(self.key(), tree);
        }
    }
}

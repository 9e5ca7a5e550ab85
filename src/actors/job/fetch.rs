//! A job's search for a function: at most one at a time, and none that outlives its purpose.

use std::future::Future;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::JobActor;
use crate::job::event::{CallId, Event, FetchFailure, Fetched};

impl JobActor {
    /// Handles the answer to an invocation when it is there; what comes meanwhile (a cancel) is handled meanwhile.
    pub(super) fn fetch(
        &mut self,
        call: CallId,
        found: impl Future<Output = Result<Fetched, FetchFailure>> + 'static,
        ctx: &mut Context<Self>,
    ) {
        let answered = found.into_actor(self).map(move |result, job, ctx| {
            job.fetching = None;
            job.handle_event(&Event::Fetched { call, result }, ctx);
        });
        self.fetching = Some(ctx.spawn(answered));
    }

    /// Nobody waits for the function any more: the transfer ends at once.
    pub(super) fn stop_fetching(&mut self, ctx: &mut Context<Self>) {
        if let Some(fetching) = self.fetching.take() {
            ctx.cancel_future(fetching);
        }
    }

    /// Leases to this job the trees that an earlier daemon fetched for it.
    pub(super) fn hold_trees(&self, events: &[Event]) {
        for event in events {
            if let Event::Fetched { result: Ok(Fetched { tree: Some(tree), .. }), .. } = event {
                self.around.fetcher.hold(self.key(), tree);
            }
        }
    }
}

//! A job's fetches of functions: none longer than the job needs it.

use std::future::Future;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};

use super::{JobActor, deliver};
use crate::actors::messages::FetchRetried;
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

    /// Returns what tells this actor of each read that a fetch tries again.
    pub(super) fn on_retry(
        process: ProcessNumber,
        ctx: &Context<Self>,
    ) -> impl Fn(&str, &str) + Sync + use<> {
        let job = ctx.address();
        move |from: &str, why: &str| {
            deliver(&job, FetchRetried { process, from: from.to_owned(), why: why.to_owned() });
        }
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

impl Handler<FetchRetried> for JobActor {
    type Result = ();

    fn handle(&mut self, FetchRetried { process, from, why }: FetchRetried, ctx: &mut Self::Context) {
        let (id, line) = (self.view.id.clone(), format!("fetching: {}", why.escape_debug()));
        // An expression may have put a secret into the path.
        let from = self.masked(true, move |redactor| redactor.mask(&from).into_data());
        actix::spawn(async move {
            let from = from.await;
            tracing::warn!(from, job = %id, "{line}");
        });
        self.handle_event(Event::FetchRetried { process, why }, ctx);
    }
}

//! A job that waits for its slot (queue.md §5). No step of it has run, so it survives its keeper: the next one takes
//! it.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture};

use super::{Begin, CancelAsk, Defect, JobActor};
use crate::actors::supervisor::{HoldAgain, NotHeld};
use crate::error::Chain;
use crate::failpoint;
use crate::journal::event as journal;
use crate::keeper::link::KeeperLink;

/// A job's request, in the form that the keeper holds.
#[derive(Clone, Default)]
pub(in crate::actors) struct HeldRequest {
    /// First event of the record.
    pub(in crate::actors) head: Arc<[u8]>,
    /// See [`Brief`](crate::actors::admission::Brief).
    pub(in crate::actors) brief: Arc<[u8]>,
}

pub(super) struct Waiting {
    request: HeldRequest,
    /// Set while the job has no keeper: the last one died, the next one has not taken it. Requests wait here.
    without_keeper: Option<Deferred>,
    /// Keepers in a row that died before they took the job.
    died: u32,
    /// Attempts in a row that found no keeper.
    refused: u32,
    /// The scheduled next attempt.
    again: Option<SpawnHandle>,
}

/// Limit on keepers that die in a row: that many do not die by chance.
const MAX_DIED: u32 = 5;

/// Limit on attempts in a row (some ten minutes): resources for a keeper come back by then, or never.
const MAX_REFUSED: u32 = 24;

/// Pause before the second attempt; each further pause is twice as long …
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// … up to this limit.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Requests to a job that no keeper holds.
#[derive(Default)]
struct Deferred {
    begin: bool,
    cancel: Option<CancelAsk>,
    defect: Option<String>,
}

impl Waiting {
    pub(super) fn new(request: HeldRequest) -> Self {
        Self { request, without_keeper: None, died: 0, refused: 0, again: None }
    }

    /// Returns the pause before the next attempt. `None` after too many attempts, or if the job is to end anyway: that
    /// needs no keeper, because no step has run.
    fn pause(&mut self) -> Option<Duration> {
        let wanted =
            self.without_keeper.as_ref().is_none_or(|asked| asked.cancel.is_none() && asked.defect.is_none());
        let pause = FIRST_PAUSE.saturating_mul(1 << self.refused.min(5)).min(LONGEST_PAUSE);
        self.refused += 1;
        (wanted && self.refused < MAX_REFUSED).then_some(pause)
    }
}

impl JobActor {
    /// Defers the start if no keeper holds the job. `false` if one does.
    pub(super) fn defer_begin(&mut self) -> bool {
        self.deferred().map(|deferred| deferred.begin = true).is_some()
    }

    /// Defers a cancel if no keeper holds the job. It is journalled now, because its caller is told so.
    pub(super) fn defer_cancel(&mut self, ask: &CancelAsk, ctx: &mut Context<Self>) -> bool {
        let is_first = match self.deferred() {
            None => return false,
            Some(deferred) => deferred.cancel.replace(*ask).is_none(),
        };
        if is_first && let Err(error) = self.folder.append(&journal::Event::Cancel { cause: ask.cause }) {
            tracing::warn!(error = %Chain(&error), job = %self.view.id, "the cancel was not written to the journal");
        }
        self.end_without_keeper(ctx);
        true
    }

    /// Defers the end after a defect if no keeper holds the job.
    pub(super) fn defer_defect(&mut self, message: &str, ctx: &mut Context<Self>) -> bool {
        let is_deferred =
            self.deferred().map(|deferred| deferred.defect = Some(message.to_owned())).is_some();
        if is_deferred {
            self.end_without_keeper(ctx);
        }
        is_deferred
    }

    /// Ends the job now if it should end and no keeper is available.
    fn end_without_keeper(&mut self, ctx: &mut Context<Self>) {
        if let Some(again) = self.waiting.as_mut().and_then(|waiting| waiting.again.take()) {
            ctx.cancel_future(again);
            self.interrupt(ctx);
        }
    }

    pub(super) fn take_deferred_cancel(&mut self) -> Option<CancelAsk> {
        self.waiting.as_mut()?.without_keeper.as_mut()?.cancel.take()
    }

    fn deferred(&mut self) -> Option<&mut Deferred> {
        let waiting = self.waiting.as_mut()?;
        if self.link.is_over() {
            // The supervisor's `KeeperLost` is still under way.
            waiting.without_keeper.get_or_insert_default();
        }
        waiting.without_keeper.as_mut()
    }

    /// Handles the keeper's death if it came during an await. True if it did.
    pub(super) fn keeper_was_lost(&mut self, ctx: &mut Context<Self>) -> bool {
        let lost = std::mem::take(&mut self.lost) && !self.over && self.link.is_over();
        if lost {
            self.keeper_lost(ctx);
        }
        lost
    }

    /// Handles the keeper's death: interrupts a begun job, hands a waiting job to the next keeper.
    pub(super) fn keeper_lost(&mut self, ctx: &mut Context<Self>) {
        let Some(waiting) = &mut self.waiting else { return self.interrupt(ctx) };
        waiting.without_keeper.get_or_insert_default();
        if let Some(again) = waiting.again.take() {
            ctx.cancel_future(again);
        }
        let request = waiting.request.clone();
        let (key, log_len) = (self.key(), self.view.log.reported_len());
        let hold = HoldAgain { key, shell: self.shell.clone(), request, tag: self.tag, log_len };
        let held = self.supervisor.send(hold);
        ctx.spawn(held.into_actor(self).map(|held, job, ctx| match held {
            Ok(Ok(link)) => job.held_again(link, ctx),
            // `KeeperLost` follows and starts the next attempt.
            Ok(Err(NotHeld::Died)) if job.one_more_died() => {}
            Ok(Err(NotHeld::NotNow)) => job.try_again(ctx),
            Ok(Err(_)) | Err(_) => job.interrupt(ctx),
        }));
    }

    /// Schedules the next attempt to find a keeper. The job stays in the queue (service.md §6.4).
    fn try_again(&mut self, ctx: &mut Context<Self>) {
        let Some(waiting) = &mut self.waiting else { return };
        match waiting.pause() {
            Some(pause) => {
                tracing::warn!(job = %self.view.id, ?pause, "no process can be started for this waiting job; it is tried again");
                waiting.again = Some(ctx.run_later(pause, Self::keeper_lost));
            }
            None => self.interrupt(ctx),
        }
    }

    /// Counts a dead keeper. True if another one is worth a try.
    fn one_more_died(&mut self) -> bool {
        self.waiting.as_mut().is_some_and(|waiting| {
            waiting.died += 1;
            waiting.died < MAX_DIED
        })
    }

    fn held_again(&mut self, link: KeeperLink, ctx: &mut Context<Self>) {
        let Some(waiting) = &mut self.waiting else { return };
        self.link = link;
        (waiting.died, waiting.refused) = (0, 0);
        let Deferred { begin, cancel, defect } = waiting.without_keeper.take().unwrap_or_default();
        if let Some(ask) = cancel {
            ctx.notify(ask);
        }
        if let Some(message) = defect {
            ctx.notify(Defect(message));
        }
        if begin {
            ctx.notify(Begin);
        }
    }
}

/// Reports that the job's keeper died (service.md §6.4).
#[derive(Message)]
#[rtype(result = "()")]
pub(in crate::actors) struct KeeperLost;

impl Handler<KeeperLost> for JobActor {
    type Result = ();

    fn handle(&mut self, _: KeeperLost, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::keeper_lost");
        if self.awaited > 0 {
            // The await also ends without a keeper. Let it: a result that is being stored is stored first.
            self.lost = true;
        } else if self.link.is_over() {
            self.keeper_lost(ctx);
        }
    }
}

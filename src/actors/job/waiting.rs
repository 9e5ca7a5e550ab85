//! A job that waits for its slot (queue.md §5): nothing of it has run, so it outlives its keeper; the next one takes it.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture};

use super::{Begin, CancelAsk, Defect, JobActor};
use crate::actors::supervisor::{HoldAgain, NotHeld};
use crate::failpoint;
use crate::journal::event as journal;
use crate::keeper::link::KeeperLink;

/// What another keeper needs to take the job.
pub(super) struct Waiting {
    head: Arc<[u8]>,
    /// Its keeper died, the next one has not taken it yet. What comes meanwhile waits here.
    without_keeper: Option<Deferred>,
    /// Keepers that died before they had taken it, one after the other.
    died: u32,
    /// Attempts in a row for which there was no keeper to be had.
    refused: u32,
    /// The next attempt, while there is none to be had.
    again: Option<SpawnHandle>,
}

/// So many keepers in a row do not die of bad luck.
const MAX_DIED: u32 = 5;

/// What is used up when a keeper is to be started comes back, or does not within so many attempts (some ten minutes).
const MAX_REFUSED: u32 = 24;

/// Pause before the second attempt; each one is twice as long as the one before …
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What was asked of a job that no keeper held.
#[derive(Default)]
struct Deferred {
    begin: bool,
    cancel: Option<CancelAsk>,
    defect: Option<String>,
}

impl Waiting {
    pub(super) fn new(head: Vec<u8>) -> Self {
        Self { head: head.into(), without_keeper: None, died: 0, refused: 0, again: None }
    }

    /// How long to wait for the next attempt; `None`: there have been enough, or somebody wants an end, which needs no
    /// keeper, as nothing of the job has run.
    fn pause(&mut self) -> Option<Duration> {
        let wanted =
            self.without_keeper.as_ref().is_none_or(|asked| asked.cancel.is_none() && asked.defect.is_none());
        let pause = FIRST_PAUSE.saturating_mul(1 << self.refused.min(5)).min(LONGEST_PAUSE);
        self.refused += 1;
        (wanted && self.refused < MAX_REFUSED).then_some(pause)
    }
}

impl JobActor {
    /// Puts off the start while no keeper holds the job; `false`: one does.
    pub(super) fn defer_begin(&mut self) -> bool {
        self.deferred().map(|deferred| deferred.begin = true).is_some()
    }

    /// Puts off a cancel likewise. It is written down now: its caller is told that it is.
    pub(super) fn defer_cancel(&mut self, ask: &CancelAsk, ctx: &mut Context<Self>) -> bool {
        let is_first = match self.deferred() {
            None => return false,
            Some(deferred) => deferred.cancel.replace(*ask).is_none(),
        };
        if is_first && let Err(error) = self.folder.append(&journal::Event::Cancel { cause: ask.cause }) {
            tracing::warn!(%error, job = %self.view.id, "the cancel was not written to the journal");
        }
        self.end_without_keeper(ctx);
        true
    }

    /// Puts off the end that a defect brings about likewise.
    pub(super) fn defer_defect(&mut self, message: &str, ctx: &mut Context<Self>) -> bool {
        let is_deferred =
            self.deferred().map(|deferred| deferred.defect = Some(message.to_owned())).is_some();
        if is_deferred {
            self.end_without_keeper(ctx);
        }
        is_deferred
    }

    /// Ends a job that shall end, if no keeper is to be had that could hear of it.
    fn end_without_keeper(&mut self, ctx: &mut Context<Self>) {
        if let Some(again) = self.waiting.as_mut().and_then(|waiting| waiting.again.take()) {
            ctx.cancel_future(again);
            self.interrupt(ctx);
        }
    }

    /// The cancel that waits for a keeper.
    pub(super) fn take_deferred_cancel(&mut self) -> Option<CancelAsk> {
        self.waiting.as_mut()?.without_keeper.as_mut()?.cancel.take()
    }

    fn deferred(&mut self) -> Option<&mut Deferred> {
        let waiting = self.waiting.as_mut()?;
        if self.link.is_over() {
            // The supervisor has not said so yet, but it will.
            waiting.without_keeper.get_or_insert_default();
        }
        waiting.without_keeper.as_mut()
    }

    /// What was awaited when the keeper died is over.
    pub(super) fn keeper_was_lost(&mut self, ctx: &mut Context<Self>) -> bool {
        let lost = std::mem::take(&mut self.lost) && !self.over && self.link.is_over();
        if lost {
            self.keeper_lost(ctx);
        }
        lost
    }

    /// The keeper died: what it ran is interrupted, what waited is given to the next one.
    pub(super) fn keeper_lost(&mut self, ctx: &mut Context<Self>) {
        let Some(waiting) = &mut self.waiting else { return self.interrupt(ctx) };
        waiting.without_keeper.get_or_insert_default();
        if let Some(again) = waiting.again.take() {
            ctx.cancel_future(again);
        }
        let head = Arc::clone(&waiting.head);
        let hold = HoldAgain { key: self.key(), shell: self.shell.clone(), head, tag: self.tag };
        let held = self.supervisor.send(hold);
        ctx.spawn(held.into_actor(self).map(|held, job, ctx| match held {
            Ok(Ok(link)) => job.held_again(link, ctx),
            // The supervisor says so; then it is tried again.
            Ok(Err(NotHeld::Died)) if job.one_more_died() => {}
            Ok(Err(NotHeld::NotNow)) => job.try_again(ctx),
            Ok(Err(_)) | Err(_) => job.interrupt(ctx),
        }));
    }

    /// No keeper is to be had for now: the job stays in the queue (service.md §6.4).
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

    /// Whether another keeper is worth a try.
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

/// A keeper died (service.md §6.4).
#[derive(Message)]
#[rtype(result = "()")]
pub(in crate::actors) struct KeeperLost;

impl Handler<KeeperLost> for JobActor {
    type Result = ();

    fn handle(&mut self, _: KeeperLost, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::keeper_lost");
        if self.busy {
            // What is awaited comes to its end without a keeper too: a result that is being stored is stored first.
            self.lost = true;
        } else if self.link.is_over() {
            self.keeper_lost(ctx);
        }
    }
}

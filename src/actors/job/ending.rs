//! The end of a job, in the order that makes its promises hold: *Status finished* implies a complete log, *stream
//! ended* implies Status finished (service.md §6.1).

use actix::{ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};

use super::{CancelAsk, JobActor};
use crate::actors::deliver;
use crate::actors::supervisor::JobOver;
use crate::actors::sync_group::NotSynced;
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::Effect;
use crate::job::event::Event;
use crate::journal::event::End;
use crate::keeper::protocol::{Closed, Request};
use crate::model::{EndClass, Outcome, StepResult, StepStatus};
use crate::store::{Closing, Death, StoreError};

/// Longest message of a Status in bytes: the answer for all jobs must stay one that clients take (service.md §1.1).
const MAX_MESSAGE: usize = 1 << 10;

impl JobActor {
    /// The keeper closed the log and nothing of the job lives: the rest of the end. The job's own result is stored only
    /// now: had the keeper died before, it would be another one.
    pub(super) fn end(&mut self, closed: Closed, ctx: &mut Context<Self>) {
        if self.over || self.is_closed {
            return;
        }
        failpoint::hit("actors::job::end");
        self.is_closed = true;
        // What steps have filled the disk with makes room for the results.
        let tmp_removed = self.remove_tmp();
        let stored = self.root.take().map(|root| self.store_root(root));
        let done = async move {
            tmp_removed.await;
            match stored {
                Some(stored) => stored.await,
                None => true,
            }
        };
        self.pause(ctx, done, move |job, stored, ctx| {
            if !stored {
                tracing::warn!(job = %job.view.id, "the job's results were not stored");
            }
            job.end_stored(closed, ctx);
        });
    }

    fn end_stored(&mut self, closed: Closed, ctx: &mut Context<Self>) {
        let Closed { log_len, unkilled, cpu_time, peak_memory, log_damaged } = closed;
        if !unkilled.is_empty() {
            tracing::warn!(job = %self.view.id, ?unkilled, "processes could not be killed");
        }
        let mut outcome = self
            .ending
            .take()
            .unwrap_or_else(|| Outcome::failed("internal: the log was closed before the job's end"));
        if log_damaged {
            // Nothing in the log tells that its end is missing.
            tracing::error!(job = %self.view.id, "the log could not be written to its end");
            outcome = Outcome::failed("storage error: the log could not be written to its end");
        }
        outcome.message = shortened(&self.redactor.line(&outcome.message));
        if !unkilled.is_empty() {
            outcome.message = and_unkilled(&outcome.message, unkilled.len());
        }
        let files_left = !self.remove_files();
        let end = End {
            end_boot: Some(clock::boot_micros()),
            steps_done: self.view.state().steps_done,
            cpu_time: cpu_time.and_then(|t| u64::try_from(t.as_micros()).ok()),
            peak_memory,
            lost_from: log_damaged.then_some(log_len),
            ..End::new(outcome, clock::now_micros(), log_len, self.view.log_inode)
        };
        self.view.update(|state| {
            (state.unkilled, state.files_left) = (!unkilled.is_empty(), files_left);
        });
        self.over = true;
        let (folder, recorded) = (self.folder.clone(), end.clone());
        self.end_when(move || folder.record_end(&recorded), end, ctx);
    }

    /// Has `record` write the end, which is shown then: with `durability = power` when it is on the disk, and all that it
    /// speaks of before it.
    fn end_when(
        &mut self,
        record: impl FnOnce() -> Result<(), StoreError> + Send + 'static,
        end: End,
        ctx: &mut Context<Self>,
    ) {
        let Some(group) = &self.around.sync_group else {
            let written = record();
            if let Err(error) = &written {
                tracing::error!(%error, job = %self.view.id, "the end was not written; the keeper knows it");
            }
            // A keeper that goes on holding the job tells the next daemon of its end.
            return self.leave(end, written.is_ok(), ctx);
        };
        if let Some(lost) = self.storage_lost.take() {
            return self.leave_lost(end, &lost, ctx);
        }
        let recorded = group.commit(Box::new(record));
        ctx.spawn(recorded.into_actor(self).map(move |recorded, job, ctx| {
            match recorded.err().or_else(|| job.storage_lost.take()) {
                None => job.leave(end, true, ctx),
                Some(lost) => job.leave_lost(end, &lost, ctx),
            }
        }));
    }

    /// An end that may not have reached the disk is not the end it says (faults.md row 27).
    fn leave_lost(&mut self, mut end: End, lost: &NotSynced, ctx: &mut Context<Self>) {
        tracing::error!(error = %lost, job = %self.view.id, "the end of a job could not be made durable");
        self.view.log.lose();
        self.view.trace.lose();
        let shown = self.view.log.len();
        end.lost_from = Some(end.lost_from.map_or(shown, |from| from.min(shown)));
        end.outcome = Outcome::failed(lost.to_string());
        let written = self.folder.record_end(&end);
        self.leave(end, written.is_ok(), ctx);
    }

    fn leave(&mut self, end: End, forget: bool, ctx: &mut Context<Self>) {
        self.publish(end, ctx);
        if forget {
            self.link.tell_short(Request::Drop { key: self.key() });
        }
    }

    /// The keeper died (service.md §6.4). What is left of the job's processes was killed before this.
    pub(super) fn interrupt(&mut self, ctx: &mut Context<Self>) {
        // One whose log is closed has ended by itself.
        if self.over || self.is_closed {
            return;
        }
        self.over = true;
        let tmp_removed = self.remove_tmp();
        self.pause(ctx, tmp_removed, |job, (), ctx| job.interrupt_cleared(ctx));
    }

    fn interrupt_cleared(&mut self, ctx: &mut Context<Self>) {
        if let Some(CancelAsk { cause, grace_limit }) = self.take_deferred_cancel() {
            self.ending = Some(Outcome::stopped(cause));
            self.queue.extend(self.machine.handle(&Event::CancelAsked { cause, grace_limit }));
        }
        for result in self.results_left() {
            let bytes = (self.encode)(&self.redactor.result(result));
            if let Ok(len) = self.folder.append_step(&bytes) {
                self.view.trace.grow(len);
            }
        }
        // Nothing of it ran: whoever cancelled it is told what he asked for.
        let cancelled = self.ending.take().filter(|_| self.view.state().start_time.is_none());
        let outcome = cancelled
            .filter(|outcome| outcome.class == EndClass::Cancelled)
            .unwrap_or_else(|| Outcome::interrupted("the process that ran it died"));
        let (now, boot) = (clock::now_micros(), clock::boot_micros());
        let begun = self.folder.read_job().and_then(|job| {
            Closing::begin(&job, outcome.clone(), Death::Processes, now, boot)
                .map_err(|e| Chain(&e).to_string())
        });
        let steps_done = self.view.state().steps_done;
        // Closing it has tried; whether in vain is seen at the reaper's next look.
        self.view.update(|state| state.files_left = !self.shell.files.is_empty());
        match begun {
            Ok(closing) => {
                let end = End { steps_done, ..closing.end() };
                self.end_when(move || closing.record(), end, ctx);
            }
            Err(error) => {
                tracing::error!(error, job = %self.view.id, "the end of a job whose keeper died was not written");
                let end = End::new(outcome, now, self.view.log.len(), self.view.log_inode);
                self.publish(End { steps_done, ..end }, ctx);
            }
        }
    }

    /// Results of an interrupted job that were not stored: those of steps that had ended, then the root's.
    fn results_left(&mut self) -> Vec<StepResult> {
        let status = match &self.ending {
            Some(outcome) if outcome.class == EndClass::Cancelled => StepStatus::Cancelled,
            _ => StepStatus::Failure,
        };
        let mut results = Vec::new();
        for effect in std::mem::take(&mut self.queue) {
            match effect {
                Effect::Emit(result) => {
                    self.emitted += 1;
                    self.view.update(|state| state.steps_done += 1);
                    if self.emitted > self.replayed.stored {
                        results.push(*result);
                    }
                }
                Effect::Finish { root, .. } => self.root = Some(root),
                _ => {}
            }
        }
        // All its steps were over, but its end was not.
        if let Some(root) = self.root.take() {
            results.push(StepResult { status, ..*root });
            return results;
        }
        let effects = self.machine.handle(&Event::Broken { message: "interrupted".into() });
        results.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Finish { root, .. } => Some(*root),
            _ => None,
        }));
        results
    }

    /// `false`: not all were removed. The reaper and Finish try again.
    fn remove_files(&self) -> bool {
        if self.shell.files.is_empty() {
            return true;
        }
        let removed = self.folder.remove_file_variables();
        if let Err(error) = &removed {
            tracing::warn!(error, job = %self.view.id, "file variables are not removed yet");
        }
        removed.is_ok()
    }

    /// Status shows the end, then followers get theirs, then the supervisor hears of it.
    fn publish(&mut self, end: End, ctx: &mut Context<Self>) {
        self.over = true;
        let Outcome { class, exit_code, .. } = &end.outcome;
        tracing::info!(job = %self.view.id, ?class, exit_code, "job ended");
        self.view.end(end);
        self.published = true;
        deliver(&self.supervisor, JobOver(self.view.id.clone()));
        ctx.stop();
    }
}

/// A message cut in its middle: its end says with which exit status a process failed the job (language.md §14.4).
fn shortened(message: &str) -> String {
    const CUT: &str = " … ";
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let half = (MAX_MESSAGE - CUT.len()) / 2;
    let (head, tail) = (message.floor_char_boundary(half), message.ceil_char_boundary(message.len() - half));
    let part = |range| message.get(range).unwrap_or_default();
    [part(0..head), CUT, part(tail..message.len())].concat()
}

/// A message that tells of processes that live on.
fn and_unkilled(message: &str, unkilled: usize) -> String {
    let separator = if message.is_empty() { "" } else { "; " };
    format!("{message}{separator}{unkilled} processes could not be killed")
}

/// A sync failed while the job lived (faults.md row 27).
#[derive(Message)]
#[rtype(result = "()")]
pub(in crate::actors) struct StorageLost(pub(in crate::actors) NotSynced);

impl Handler<StorageLost> for JobActor {
    type Result = ();

    fn handle(&mut self, StorageLost(error): StorageLost, ctx: &mut Self::Context) {
        let message = error.to_string();
        if self.storage_lost.replace(error).is_none() && !self.over && self.ending.is_none() {
            self.handle_event(&Event::Broken { message }, ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_keep_their_beginning_and_their_end() {
        let message = format!("step {:?}: exec: exit status 3", "ä".repeat(MAX_MESSAGE));
        let short = shortened(&message);
        assert!(short.len() <= MAX_MESSAGE);
        assert!(short.starts_with("step \"ä") && short.ends_with("exec: exit status 3"), "{short}");
        assert_eq!(shortened("short"), "short");
        assert_eq!(and_unkilled("cancelled", 2), "cancelled; 2 processes could not be killed");
        assert_eq!(and_unkilled("", 1), "1 processes could not be killed");
    }
}

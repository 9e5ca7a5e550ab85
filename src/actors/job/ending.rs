//! The end of a job. The order of its parts keeps two promises: if Status says *finished*, the log is complete; if a
//! stream has ended, Status says finished (service.md §6.1).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorContext, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};

use super::driver::{ClosedJob, EndedRoot, InterruptedJob, Noted, end_at_loss, outcome_at_close};
use super::{FEW_FILES, JobActor};
use crate::actors::deliver;
use crate::actors::messages::{Flush, JobEnded, StorageLost};
use crate::actors::redact::MaskedResult;
use crate::actors::sync_group::NotSynced;
use crate::actors::view::FilesState;
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::journal::event::End;
use crate::keeper::protocol::{Closed, Request};
use crate::model::Outcome;
use crate::store::{Closing, Death, StoreError, written_log_len};
use crate::threads::{self, Work};

/// Longest message of a Status in bytes: clients must accept the answer for all jobs (service.md §1.1).
const MAX_MESSAGE: usize = 1 << 10;

impl JobActor {
    /// Stores the results and the end of a job whose log the keeper closed: no process of it is left. The job's own
    /// result is stored only now. If the keeper had died earlier, the result would be another one.
    pub(super) fn end(&mut self, job: ClosedJob, ctx: &mut Context<Self>) {
        failpoint::hit("actors::job::end");
        let ClosedJob { outcome, root, allowed_failures, closed } = job;
        // A step may have written a secret to its files: they go before Status says finished. Files that take long to
        // delete go beside the job. It also makes room on the disk for the results.
        let left = self.remove_tmp().filter(|removed| !removed.delete_if_small());
        if let (Some(removed), Ok(guard)) = (left, Arc::clone(&self.view.leftovers).try_lock_owned()) {
            let (list, id) = (self.context.left_over.clone(), self.view.id.clone());
            actix::spawn(async move {
                list.delete(Some(id), removed).await;
                drop(guard);
            });
        }
        let view = Arc::clone(&self.view);
        let room = async move { drop(view.leftovers.lock().await) };
        let stored = self.store_root(root, room);
        self.view.update(|state| state.allowed_failures = allowed_failures);
        let message = self.masked_line(outcome.clone(), MAX_MESSAGE);
        let files_left = self.remove_files();
        let done = async move { (stored.await, message.await, files_left.await) };
        self.pause(ctx, done, move |job, (stored, message, files_left), ctx| {
            if !stored {
                tracing::warn!(job = %job.view.id, "the job's results were not stored");
            }
            job.end_stored(Outcome { message, ..outcome }, closed, files_left, ctx);
        });
    }

    /// Writes the end of a job whose results are stored. `outcome` has its message masked and on one line.
    fn end_stored(
        &mut self,
        outcome: Outcome,
        closed: Closed,
        files_left: FilesState,
        ctx: &mut Context<Self>,
    ) {
        let outcome = outcome_at_close(outcome, &closed);
        let Closed { log_len, unkilled, cpu_time, peak_memory, log_damaged } = closed;
        if !unkilled.is_empty() {
            tracing::warn!(job = %self.view.id, ?unkilled, "processes could not be killed");
        }
        if log_damaged {
            tracing::error!(job = %self.view.id, "the log could not be written to its end");
        }
        let end = End {
            end_boot: Some(clock::boot_micros()),
            steps_done: self.view.read(|state| state.steps_done),
            allowed_failures: self.view.read(|state| state.allowed_failures),
            cpu_time: cpu_time.and_then(|t| u64::try_from(t.as_micros()).ok()),
            peak_memory,
            usage: self.view.read(|state| state.usage),
            lost_from: log_damaged.then_some(log_len),
            ..End::new(outcome, clock::now_micros(), log_len, self.view.log_inode())
        };
        self.view.update(|state| {
            (state.unkilled, state.files_left) = (!unkilled.is_empty(), files_left);
        });
        let (folder, recorded) = (self.folder.clone(), end.clone());
        self.end_when(move || folder.record_end(&recorded), end, ctx);
    }

    /// Runs `record`, which writes the end, then publishes it. With `durability = power` the end is published only once
    /// it is on the disk, and everything that it refers to is synced before it.
    fn end_when(
        &mut self,
        record: impl FnOnce() -> Result<(), StoreError> + Send + 'static,
        end: End,
        ctx: &mut Context<Self>,
    ) {
        let Some(group) = &self.context.sync_group else {
            let written = record();
            if let Err(error) = &written {
                tracing::error!(error = %Chain(error), job = %self.view.id, "the end was not written; the keeper knows it");
            }
            // A keeper that still holds the job tells the next daemon of its end.
            return self.publish_and_release(end, written.is_ok(), ctx);
        };
        if let Some(lost) = self.driver.take_storage_loss() {
            return self.publish_and_release_lost(end, &lost, ctx);
        }
        let recorded = group.commit(Box::new(record));
        ctx.spawn(recorded.into_actor(self).map(move |recorded, job, ctx| {
            match recorded.err().or_else(|| job.driver.take_storage_loss()) {
                None => job.publish_and_release(end, true, ctx),
                Some(lost) => job.publish_and_release_lost(end, &lost, ctx),
            }
        }));
    }

    /// Turns an end that may not have reached the disk into a failure (faults.md row 27).
    fn publish_and_release_lost(&mut self, end: End, lost: &NotSynced, ctx: &mut Context<Self>) {
        tracing::error!(error = %Chain(lost), job = %self.view.id, "the end of a job could not be made durable");
        self.view.log.lose();
        self.view.trace.lose();
        let end = end_at_loss(end, lost, self.view.log.len());
        let written = self.folder.record_end(&end);
        self.publish_and_release(end, written.is_ok(), ctx);
    }

    fn publish_and_release(&mut self, end: End, forget: bool, ctx: &mut Context<Self>) {
        self.publish(end, ctx);
        if forget {
            self.link.tell_later(Request::Drop { key: self.key() });
        }
    }

    /// Ends a job that the driver has interrupted, because its keeper died (service.md §6.4). The job's processes were
    /// killed before.
    pub(super) fn interrupt(&mut self, ctx: &mut Context<Self>) {
        self.stop_retrying(ctx);
        self.stop_fetching(ctx);
        self.give_up_starts();
        let removed = self.remove_tmp();
        let (list, id) = (self.context.left_over.clone(), self.view.id.clone());
        let deleted = async move {
            if let Some(removed) = removed {
                list.delete(Some(id), removed).await;
            }
        };
        self.pause(ctx, deleted, |job, (), ctx| job.collect_results(ctx));
    }

    /// Stores the results of an interrupted job, then its end.
    pub(super) fn collect_results(&mut self, ctx: &mut Context<Self>) {
        let has_started = self.view.read(|state| state.start_time).is_some();
        let log_len = written_log_len(&self.folder, self.view.log.reported_len());
        let Some(left) = self.driver.collect_results(has_started, clock::boot_micros(), log_len) else {
            return;
        };
        let InterruptedJob { notes, root, outcome } = left;
        let stored = self.left_to_store(notes, root);
        let sink = self.trace_sink.clone();
        let encoded = async move {
            // Waiting news come first.
            drop(sink.send(Flush { last: false }).await);
            let mut encoded = Vec::with_capacity(stored.len());
            for stored in stored {
                encoded.push(stored.await);
            }
            encoded
        };
        self.pause(ctx, encoded, |job, encoded, ctx| {
            for result in encoded {
                if let Ok(len) = job.folder.append_step(result.bytes()) {
                    job.view.trace.grow(len);
                }
            }
            job.interrupted(outcome, ctx);
        });
    }

    /// Masks and encodes what is not stored of an interrupted job, in order.
    fn left_to_store(
        &mut self,
        notes: Vec<Noted>,
        root: EndedRoot,
    ) -> Vec<Pin<Box<dyn Future<Output = MaskedResult>>>> {
        let mut stored: Vec<Pin<Box<dyn Future<Output = MaskedResult>>>> = Vec::new();
        for Noted { note, is_new, result, .. } in notes {
            if is_new {
                stored.push(Box::pin(self.last_event(*note)));
            }
            if let Some(result) = result {
                self.view.update(|state| state.steps_done += 1);
                stored.push(Box::pin(self.encoded(*result)));
            }
        }
        if let Some(note) = root.event {
            stored.push(Box::pin(self.last_event(*note)));
        }
        if let Some(root) = root.result {
            stored.push(Box::pin(self.encoded(*root)));
        }
        stored
    }

    /// Writes the end of an interrupted job whose results are stored.
    fn interrupted(&mut self, outcome: Outcome, ctx: &mut Context<Self>) {
        let (now, boot) = (clock::now_micros(), clock::boot_micros());
        let begun = self.folder.read_job().and_then(|job| {
            let death = Death::Processes { log_len: Some(self.view.log.reported_len()) };
            Closing::begin(&job, outcome.clone(), death, now, boot).map_err(|e| Chain(&e).to_string())
        });
        let steps_done = self.view.read(|state| state.steps_done);
        // Closing tries to remove the files. If that fails, the reaper tries again.
        self.view.update(|state| state.files_left = FilesState::unless(self.spec.files.is_empty()));
        match begun {
            Ok(closing) => {
                let end = End { steps_done, ..closing.end() };
                self.end_when(move || closing.record(), end, ctx);
            }
            Err(error) => {
                tracing::error!(error, job = %self.view.id, "the end of a job whose keeper died was not written");
                let end = End::new(outcome, now, self.view.log.len(), self.view.log_inode());
                self.publish(End { steps_done, ..end }, ctx);
            }
        }
    }

    /// Removes the file variables. If some are left, the reaper and Finish try again.
    fn remove_files(&self) -> impl Future<Output = FilesState> + use<> {
        let (count, folder, view) = (self.spec.files.len(), self.folder.clone(), Arc::clone(&self.view));
        let list = self.context.left_over.clone();
        async move {
            let removed = match count {
                0 => Ok(()),
                1..=FEW_FILES => folder.remove_file_variables(),
                _ => {
                    let removed = threads::run(Work::Ends, move || folder.remove_file_variables()).await;
                    let Ok(removed) = removed else { return FilesState::Kept };
                    removed
                }
            };
            if let Err(left) = &removed {
                tracing::warn!(error = %Chain(left), job = %view.id, "file variables are not removed yet");
                list.note_files(&view.id, left);
            }
            FilesState::after(&removed)
        }
    }

    /// Frees large memory on another thread: it is overwritten first, which takes long.
    fn free_elsewhere(&mut self) {
        if self.is_large {
            let kept = (self.driver.take_machine(), std::mem::take(&mut self.spec.phrases));
            let kept = (kept, std::mem::take(&mut self.spec.files), self.redactor.take());
            drop(threads::run(Work::Jobs, move || drop(kept)));
        }
    }

    /// Publishes the end: first in Status, then to the followers, then to the supervisor.
    fn publish(&mut self, end: End, ctx: &mut Context<Self>) {
        // Followers must not see an end before the log is complete.
        if !self.driver.publish() {
            return;
        }
        let Outcome { class, exit_code, .. } = &end.outcome;
        let micros = self.view.read(|state| state.start_time).map(|start| end.end_time.saturating_sub(start));
        let took = micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
        let took = took.map(tracing::field::debug);
        tracing::info!(job = %self.view.id, ?class, exit_code, took, "job ended");
        self.view.end(end);
        self.free_elsewhere();
        deliver(&self.supervisor.ended, JobEnded(self.view.id.clone()));
        ctx.stop();
    }
}

impl Handler<StorageLost> for JobActor {
    type Result = ();

    fn handle(&mut self, StorageLost(error): StorageLost, ctx: &mut Self::Context) {
        let reaction = self.driver.storage_lost(error, self.link.is_over());
        self.react(reaction, ctx);
    }
}

//! How the effects of a job's machine are performed: one after another, in the order given.
//!
//! What the keeper performs carries a number (`op`) that counts up. A replayed job counts the same way; what an earlier
//! daemon got done is counted and left out.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};

use super::{JobActor, deliver};
use crate::actors::blocking;
use crate::actors::step::{Over, StepActor, StepTask};
use crate::actors::trace_sink::{Append, Flush, TraceSink};
use crate::failpoint;
use crate::job::effect::{Effect, Spawn};
use crate::job::event::{CallId, Event, FileContent, ProcessEnd};
use crate::keeper::link::LinkError;
use crate::keeper::protocol::Request;
use crate::model::{Kind, Outcome, StepResult, StepStatus};

/// At its end a job tries so often to store the results that the disk refuses …
const LAST_TRIES: u32 = 5;

/// … with this pause between.
const LAST_PAUSE: Duration = Duration::from_millis(200);

impl JobActor {
    /// Performs what waits, until something must be awaited.
    pub(super) fn drain(&mut self, ctx: &mut Context<Self>) {
        while !self.busy
            && let Some(effect) = self.queue.pop_front()
        {
            self.perform(effect, ctx);
        }
        if self.queue.is_empty() {
            // A step may run for hours: room for a handful of effects is a tenth of what its job costs.
            self.queue = VecDeque::new();
        }
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::Log { kind, text } => {
                if let Some(op) = self.next_op() {
                    let line = |text| Request::Line { key: self.key(), op, kind, text };
                    if let Err(error) = self.link.tell(line(text)) {
                        self.link.tell_short(line(left_out(&error)));
                    }
                }
            }
            Effect::Phrases(phrases) => self.add_phrases(phrases, ctx),
            Effect::MakeFiles(files) => {
                if let Err(error) = crate::actors::step::make_files(&self.folder, &files) {
                    tracing::warn!(%error, job = %self.view.id, "files of a function were not made");
                }
            }
            Effect::Fetch { call, reference, inside, environment } => {
                if !self.replayed.fetched.contains(&call) {
                    let (fetcher, job) = (Arc::clone(&self.around.fetcher), self.key());
                    let found = async move { fetcher.find(job, *reference, inside, environment).await };
                    self.fetch(call, found, ctx);
                }
            }
            Effect::Spawn(spawn) => self.spawn(spawn, ctx),
            Effect::Stop { grace } => self.link.tell_short(Request::Stop { key: self.key(), grace }),
            Effect::Emit(result) => {
                self.emitted += 1;
                if self.emitted > self.replayed.stored {
                    self.store(result, ctx);
                } else {
                    self.view.update(|state| state.steps_done += 1);
                }
            }
            Effect::Finish { outcome, root, lines } => self.finish(outcome, root, lines, ctx),
        }
    }

    /// Number of the next effect for the keeper; `None` if an earlier daemon had it done.
    pub(super) fn next_op(&mut self) -> Option<u32> {
        self.op += 1;
        (self.op > self.replayed.last_op).then_some(self.op)
    }

    /// Awaits `work` before the next effect.
    pub(super) fn pause<T: 'static>(
        &mut self,
        ctx: &mut Context<Self>,
        work: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
    ) {
        self.busy = true;
        ctx.spawn(work.into_actor(self).map(move |done, job, ctx| {
            job.busy = false;
            then(job, done, ctx);
            if !job.keeper_was_lost(ctx) {
                job.drain(ctx);
            }
        }));
    }

    fn add_phrases(&mut self, phrases: Vec<Vec<u8>>, ctx: &mut Context<Self>) {
        let op = self.next_op();
        if let Some((_, message)) = self.replayed.unmasked.take_if(|(op, _)| *op == self.op) {
            return self.end_unmasked(message, ctx);
        }
        if let Err(error) = self.redactor.add(&phrases) {
            return self.cannot_mask(&error, ctx);
        }
        let Some(op) = op else { return };
        let (link, key) = (self.link.clone(), self.key());
        // The next process starts after the keeper's answer (masking.md §7).
        self.pause(
            ctx,
            async move { link.ask(Request::Phrases { key, op, phrases }).await },
            |job, done, ctx| match done {
                // Without a keeper nothing runs, and the job is interrupted.
                Ok(_) | Err(LinkError::Gone) => {}
                Err(error) => job.cannot_mask(&error, ctx),
            },
        );
    }

    /// Masking would be incomplete from here on: nothing more may run, and nothing that may hold the value may leave. It is
    /// recorded, as who takes up the job must not go on where this one stopped.
    fn cannot_mask(&mut self, error: &dyn std::error::Error, ctx: &mut Context<Self>) {
        let message = format!("a value marked sensitive cannot be masked: {error}");
        tracing::error!(message, job = %self.view.id, "the job is ended");
        if let Err(reason) = self.record(&Event::Unmasked { op: self.op, message: message.clone() }) {
            tracing::error!(reason, job = %self.view.id, "that it cannot be masked was not recorded");
        }
        self.recorded += 1;
        self.end_unmasked(message, ctx);
    }

    fn end_unmasked(&mut self, message: String, ctx: &mut Context<Self>) {
        self.queue.clear();
        drop(self.machine.handle(&Event::Unmasked { op: self.op, message: message.clone() }));
        let root = StepResult { status: StepStatus::Failure, ..StepResult::default() };
        let lines = vec![(Kind::Err, format!("job failed: {message}"))];
        self.finish(Outcome::failed(message), Box::new(root), lines, ctx);
    }

    fn spawn(&mut self, spawn: Box<Spawn>, ctx: &mut Context<Self>) {
        let call = spawn.call;
        let op = self.next_op();
        if self.replayed.exited.contains(&call) {
            return;
        }
        let task = StepTask {
            job: ctx.address(),
            link: self.link.clone(),
            key: self.key(),
            tag: self.tag,
            socket: self.around.socket.clone(),
            folder: self.folder.clone(),
            daemon_path: self.around.daemon_path.clone(),
            spawn,
            limits: self.shell.limits,
            op,
        };
        let step = StepActor::launch(task);
        if let Some(at) = self.replayed.over.iter().position(|over| over.step == call) {
            deliver(&step, Over(self.replayed.over.swap_remove(at)));
        }
        self.step = Some((call, step));
    }

    /// Stores a result; followers see it before anything else of the job happens.
    pub(super) fn store(&mut self, result: Box<StepResult>, ctx: &mut Context<Self>) {
        let result = Box::new(self.redactor.result(*result));
        let stored = self.trace_sink.send(Append(result));
        self.pause(ctx, stored, |job, stored, ctx| {
            match stored {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, job = %job.view.id, "a step's result is not stored yet");
                }
                Err(_) => job.sink_broke(ctx),
            }
            job.view.update(|state| state.steps_done += 1);
        });
    }

    /// A defect ended the sink of step results: the job fails rather than go on without one of them.
    fn sink_broke(&mut self, ctx: &mut Context<Self>) {
        tracing::error!(job = %self.view.id, "a defect ended the sink of this job's step results; the job is ended too");
        self.trace_sink =
            TraceSink::new(Arc::clone(&self.view.trace), self.folder.clone(), self.encode).start();
        let message = "a defect ended the part of the daemon that keeps step results".into();
        self.handle_event(&Event::Broken { message }, ctx);
    }

    fn finish(
        &mut self,
        outcome: Outcome,
        root: Box<StepResult>,
        lines: Vec<(Kind, String)>,
        ctx: &mut Context<Self>,
    ) {
        self.ending = Some(outcome);
        self.stop_fetching(ctx);
        if self.emitted >= self.replayed.stored {
            self.root = Some(Box::new(self.redactor.result(*root)));
        }
        if let Some(op) = self.next_op() {
            let leftover_grace = self.around.config().leftover_grace;
            let close = |lines| Request::Close { key: self.key(), op, leftover_grace, lines };
            if let Err(error) = self.link.tell(close(lines)) {
                self.link.tell_short(close(vec![(Kind::Err, left_out(&error))]));
            }
        }
        if let Some(closed) = self.replayed.closed.take() {
            self.end(closed, ctx);
        }
    }

    /// Stores the job's own result, and what the disk refused so far; `false` if it goes on refusing.
    pub(super) fn store_root(&self, root: Box<StepResult>) -> impl Future<Output = bool> + use<> {
        let sink = self.trace_sink.clone();
        // Should a defect have ended the sink.
        let next = TraceSink::new(Arc::clone(&self.view.trace), self.folder.clone(), self.encode);
        async move {
            let (sink, mut is_stored) = if let Ok(stored) = sink.send(Append(root.clone())).await {
                (sink, stored.is_ok())
            } else {
                let sink = next.start();
                let stored = sink.send(Append(root)).await;
                (sink, stored.is_ok_and(|stored| stored.is_ok()))
            };
            for left in (0..LAST_TRIES).rev() {
                if is_stored {
                    break;
                }
                tokio::time::sleep(LAST_PAUSE).await;
                is_stored = sink.send(Flush { last: left == 0 }).await.is_ok_and(|stored| stored.is_ok());
            }
            is_stored
        }
    }
}

/// In place of lines that the keeper cannot be sent.
fn left_out(error: &LinkError) -> String {
    format!("lines of the log are left out: {error}")
}

/// A step is over; its files were read.
#[derive(Message)]
#[rtype(result = "()")]
pub(in crate::actors) struct StepDone {
    pub(in crate::actors) call: CallId,
    pub(in crate::actors) end: ProcessEnd,
    pub(in crate::actors) shell: Option<String>,
    pub(in crate::actors) outputs: Option<FileContent>,
    pub(in crate::actors) exports: Option<FileContent>,
}

impl Handler<StepDone> for JobActor {
    type Result = ();

    fn handle(&mut self, done: StepDone, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::step_done");
        self.step = None;
        let StepDone { call, end, shell, outputs, exports } = done;
        self.handle_event(&Event::Exited { call, end, shell, outputs, exports }, ctx);
    }
}

impl JobActor {
    /// Removes the job's own temporary folder, at its end. There may be much in it: other jobs do not wait.
    pub(super) fn remove_tmp(&self) -> impl Future<Output = ()> + use<> {
        let (folder, view) = (self.folder.clone(), Arc::clone(&self.view));
        let removed = blocking(move || {
            if let Err(error) = folder.remove_dir("tmp") {
                tracing::warn!(%error, job = %view.id, "files of steps were not removed");
            }
        });
        async move {
            if let Err(error) = removed.await {
                tracing::error!(%error, "the removal of files of steps broke off");
            }
        }
    }
}

//! Performs the effects of a job's machine: one after another, in the order given.
//!
//! Effects for the keeper are numbered (`op`). A replayed job counts the same way and skips the effects that an earlier
//! daemon has performed.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};

use super::handled_event::again_panic;
use super::{JobActor, deliver};
use crate::actors::redact::{MaskedResult, Redactor};
use crate::actors::step::{Over, StepActor, StepTask};
use crate::actors::trace_sink::{Append, AppendNews, Flush, TraceSink};
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::{Effect, Program, Spawn};
use crate::job::event::{CallId, Event, FileContent, ProcessEnd};
use crate::keeper::link::LinkError;
use crate::keeper::protocol::Request;
use crate::model::{FinishedProcess, LogChannel, Outcome, StepResult, StepStatus};
use crate::store::Removed;
use crate::threads::{self, Work};

/// Attempts of an ending job to store results that the disk refuses …
const LAST_TRIES: u32 = 5;

/// … and the pause between two attempts.
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// Largest environment and script, in bytes, that the actors' thread itself prepares.
const SMALL_ENVIRONMENT: usize = 256 << 10;

/// Largest result, in bytes, that the actors' thread itself masks and encodes.
const SMALL_RESULT: usize = 64 << 10;

impl JobActor {
    /// Performs queued effects until one must be awaited.
    pub(super) fn drain(&mut self, ctx: &mut Context<Self>) {
        while self.awaited == 0
            && let Some(effect) = self.queue.pop_front()
        {
            self.perform(effect, ctx);
        }
        if self.queue.is_empty() {
            // A step may run for hours. Even a small idle buffer is a tenth of the memory of its job.
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
                    tracing::warn!(error = %Chain(&error), job = %self.view.id, "files of a function were not made");
                }
            }
            Effect::Fetch { call, reference, inside, environment } => {
                if !self.performed.fetched.contains(&call) {
                    let (fetcher, job) = (Arc::clone(&self.context.fetcher), self.key());
                    let found = async move { fetcher.find(job, *reference, inside, environment).await };
                    self.fetch(call, found, ctx);
                }
            }
            Effect::Spawn(spawn) => self.spawn(spawn, ctx),
            Effect::Stop { grace } => self.link.tell_short(Request::Stop { key: self.key(), grace }),
            Effect::News(news) => self.news(news, ctx),
            Effect::Emit(result) => {
                self.view.update(|state| state.current.end());
                // Results that an earlier daemon stored are counted already.
                if self.emits() {
                    self.store(result, ctx);
                }
            }
            Effect::Finish { outcome, root, lines } => self.finish(outcome, root, lines, ctx),
        }
    }

    /// Returns the number of the next effect for the keeper, or `None` if an earlier daemon has performed it.
    pub(super) fn next_op(&mut self) -> Option<u32> {
        self.op += 1;
        (self.op > self.performed.last_op).then_some(self.op)
    }

    /// Awaits `work` before the next effect.
    pub(super) fn pause<T: 'static>(
        &mut self,
        ctx: &mut Context<Self>,
        work: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
    ) {
        self.awaited += 1;
        ctx.spawn(work.into_actor(self).map(move |done, job, ctx| {
            job.awaited -= 1;
            then(job, done, ctx);
            if job.awaited == 0 && !job.keeper_was_lost(ctx) {
                job.drain(ctx);
            }
        }));
    }

    fn add_phrases(&mut self, phrases: Vec<Vec<u8>>, ctx: &mut Context<Self>) {
        let op = self.next_op();
        if let Some((_, message)) = self.performed.unmasked.take_if(|(op, _)| *op == self.op) {
            return self.end_unmasked(message, ctx);
        }
        if self.redactor.adds_at_once(&phrases) {
            return match self.redactor.add(&phrases) {
                Ok(()) => self.tell_phrases(op, phrases, ctx),
                Err(error) => self.cannot_mask(&error, ctx),
            };
        }
        self.is_large = true;
        let mut redactor = self.redactor.clone();
        let added = threads::run(Work::Jobs, move || {
            let added = redactor.add(&phrases);
            (redactor, phrases, added)
        });
        self.pause(ctx, added, move |job, done, ctx| match done {
            Ok((redactor, phrases, Ok(()))) => {
                job.redactor = redactor;
                job.tell_phrases(op, phrases, ctx);
            }
            Ok((.., Err(error))) => job.cannot_mask(&error, ctx),
            Err(error) => job.cannot_mask(&error, ctx),
        });
    }

    fn tell_phrases(&mut self, op: Option<u32>, phrases: Vec<Vec<u8>>, ctx: &mut Context<Self>) {
        let Some(op) = op else { return };
        let (link, key) = (self.link.clone(), self.key());
        // The next process starts after the keeper's answer (masking.md §7).
        self.pause(
            ctx,
            async move { link.ask(Request::Phrases { key, op, phrases }).await },
            |job, done, ctx| match done {
                // If the keeper is gone, no process runs and the job is interrupted.
                Ok(_) | Err(LinkError::Gone) => {}
                Err(error) => job.cannot_mask(&error, ctx),
            },
        );
    }

    /// Ends the job: masking would be incomplete, so no process may start and no output may leave. The event is
    /// recorded, so that no later daemon goes on here.
    fn cannot_mask(&mut self, error: &(dyn std::error::Error + 'static), ctx: &mut Context<Self>) {
        let message = format!("a value marked sensitive cannot be masked: {}", Chain(error));
        tracing::error!(message, job = %self.view.id, "the job is ended");
        let op = self.op;
        // The machine may be away. Perform no effect before it has handled this.
        self.awaited += 1;
        self.with_machine(ctx, move |job, ctx| {
            job.awaited -= 1;
            job.record(Event::Unmasked { op, message: message.clone() });
            job.end_unmasked(message, ctx);
        });
    }

    fn end_unmasked(&mut self, message: String, ctx: &mut Context<Self>) {
        self.queue.clear();
        if let Some(machine) = &mut self.machine {
            drop(
                machine
                    .handle(&Event::Unmasked { op: self.op, message: message.clone() }, clock::boot_micros()),
            );
        }
        let root = StepResult { status: StepStatus::Failure, ..StepResult::default() };
        let lines = vec![(LogChannel::Err, format!("job failed: {message}"))];
        self.finish(Outcome::failed(message), Box::new(root), lines, ctx);
    }

    fn spawn(&mut self, spawn: Box<Spawn>, ctx: &mut Context<Self>) {
        let op = self.next_op();
        if self.performed.exited.contains(&spawn.call) {
            return;
        }
        let is_small = op.is_none() || given_bytes(&spawn) <= SMALL_ENVIRONMENT;
        let call = spawn.call;
        let task = StepTask {
            job: ctx.address(),
            link: self.link.clone(),
            key: self.key(),
            tag: self.tag,
            socket: self.context.socket.clone(),
            folder: self.folder.clone(),
            daemon_path: self.context.daemon_path.clone(),
            spawn,
            limits: self.shell.limits,
            op,
            watch_unfinished: self.view.log.is_unfinished_watched(),
        };
        if is_small {
            return self.launch(call, StepActor::prepare(task));
        }
        self.is_large = true;
        let prepared = threads::run(Work::Files, move || StepActor::prepare(task));
        self.pause(ctx, prepared, move |job, prepared, _| {
            job.launch(call, prepared.unwrap_or_else(|error| again_panic(error)));
        });
    }

    fn launch(&mut self, call: CallId, step: StepActor) {
        let step = step.start();
        if let Some(at) = self.performed.over.iter().position(|over| over.step == call) {
            deliver(&step, Over(self.performed.over.swap_remove(at)));
        }
        self.step = Some((call, step));
    }

    /// Counts a message of FollowSteps. `false` if an earlier daemon has stored it.
    pub(super) fn emits(&mut self) -> bool {
        self.emitted += 1;
        self.emitted > self.performed.stored
    }

    fn news(&mut self, news: Box<StepResult>, ctx: &mut Context<Self>) {
        let is_new = self.emits();
        if !is_new && !self.redactor.is_ready() {
            // Masking with many secrets takes too long for a line in Status.
            return;
        }
        let encode = self.encode;
        let masked = self.masked(true, move |redactor| redactor.news(*news, encode));
        let sink = self.trace_sink.clone();
        let stored = async move {
            let (news, current) = masked.await;
            let stored = if is_new { sink.send(AppendNews(news)).await } else { Ok(Ok(())) };
            (stored, current)
        };
        self.pause(ctx, stored, |job, (stored, current), ctx| {
            job.view.update(|state| state.current = current);
            match stored {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = %Chain(&error), job = %job.view.id, "news of a step are not stored yet");
                }
                Err(_) => job.sink_broke(ctx),
            }
        });
    }

    /// Stores a result. Followers see it before the job's next effect.
    pub(super) fn store(&mut self, result: Box<StepResult>, ctx: &mut Context<Self>) {
        let (sink, encoded) = (self.trace_sink.clone(), self.encoded(*result));
        let stored = async move {
            let result = encoded.await;
            sink.send(Append(result)).await
        };
        self.pause(ctx, stored, |job, stored, ctx| {
            match stored {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = %Chain(&error), job = %job.view.id, "a step's result is not stored yet");
                }
                Err(_) => job.sink_broke(ctx),
            }
            job.view.update(|state| state.steps_done += 1);
        });
    }

    /// Restarts the sink of step results after a defect and fails the job, so that no result is missing unnoticed.
    fn sink_broke(&mut self, ctx: &mut Context<Self>) {
        tracing::error!(job = %self.view.id, "a defect ended the sink of this job's step results; the job is ended too");
        self.trace_sink = TraceSink::new(Arc::clone(&self.view.trace), self.folder.clone()).start();
        let message = "a defect ended the part of the daemon that keeps step results".into();
        self.handle_event(Event::Broken { message }, ctx);
    }

    fn finish(
        &mut self,
        outcome: Outcome,
        root: Box<StepResult>,
        lines: Vec<(LogChannel, String)>,
        ctx: &mut Context<Self>,
    ) {
        self.ending = Some(outcome);
        self.stop_fetching(ctx);
        if self.emitted >= self.performed.stored {
            self.root = Some(root);
        }
        if let Some(op) = self.next_op() {
            let leftover_grace = self.context.config().leftover_grace;
            let close = |lines| Request::Close { key: self.key(), op, leftover_grace, lines };
            if let Err(error) = self.link.tell(close(lines)) {
                self.link.tell_short(close(vec![(LogChannel::Err, left_out(&error))]));
            }
        }
        if let Some(closed) = self.performed.closed.take() {
            self.end(closed, ctx);
        }
    }

    /// Stores the job's own result and all results that the disk has refused so far. Awaits `room` before it tries
    /// again. `false` if the disk still refuses.
    pub(super) fn store_root<R: Future<Output = ()>>(
        &mut self,
        root: StepResult,
        room: R,
    ) -> impl Future<Output = bool> + use<R> {
        let (sink, encoded) = (self.trace_sink.clone(), self.encoded(root));
        // A replacement, in case a defect has ended the sink.
        let next = TraceSink::new(Arc::clone(&self.view.trace), self.folder.clone());
        async move {
            let root = encoded.await;
            let (sink, mut is_stored) = if let Ok(stored) = sink.send(Append(root.clone())).await {
                (sink, stored.is_ok())
            } else {
                let sink = next.start();
                let stored = sink.send(Append(root)).await;
                (sink, stored.is_ok_and(|stored| stored.is_ok()))
            };
            if !is_stored {
                room.await;
            }
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

fn given_bytes(spawn: &Spawn) -> usize {
    let text = match &spawn.program {
        Program::Script(text) => text,
        Program::ScriptFile(file) | Program::LegacyScript(file) => &file.text,
        Program::Builtin(program) => &program.inputs,
        Program::Command(_) => "",
    };
    let env = spawn.env.iter().map(|(name, value)| name.len() + value.len());
    text.len() + env.sum::<usize>()
}

/// Log line that replaces lines which cannot be sent to the keeper.
fn left_out(error: &LinkError) -> String {
    format!("lines of the log are left out: {}", Chain(error))
}

/// Reports that a step is over and its files are read.
#[derive(Message)]
#[rtype(result = "()")]
pub(in crate::actors) struct StepDone {
    pub(in crate::actors) call: CallId,
    pub(in crate::actors) end: ProcessEnd,
    pub(in crate::actors) shell: Option<String>,
    pub(in crate::actors) outputs: Option<FileContent>,
    pub(in crate::actors) exports: Option<FileContent>,
    pub(in crate::actors) ran: Option<FinishedProcess>,
}

impl Handler<StepDone> for JobActor {
    type Result = ();

    fn handle(&mut self, done: StepDone, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::step_done");
        self.step = None;
        let StepDone { call, end, shell, outputs, exports, ran } = done;
        self.handle_event(Event::Exited { call, end, shell, outputs, exports, ran }, ctx);
    }
}

impl JobActor {
    /// Masks and encodes a result for storage.
    pub(super) fn encoded(&mut self, result: StepResult) -> impl Future<Output = MaskedResult> + use<> {
        let encode = self.encode;
        let is_small = result.take_from(SMALL_RESULT).is_some();
        self.masked(is_small, move |redactor| redactor.result(result, encode))
    }

    /// Masks the message of an outcome, then shortens it to one line of at most `most` bytes.
    pub(super) fn masked_line(
        &mut self,
        outcome: Outcome,
        most: usize,
    ) -> impl Future<Output = String> + use<> {
        self.masked(outcome.message.len() <= SMALL_RESULT, move |redactor| {
            redactor.mask(&outcome.message).line_of(most, outcome.tells_exit_status())
        })
    }

    /// Runs `mask`, on another thread unless the text is small.
    fn masked<T: Send + 'static, F: FnOnce(&mut Redactor) -> T + Send + 'static>(
        &mut self,
        is_small: bool,
        mask: F,
    ) -> impl Future<Output = T> + use<T, F> {
        let masked = if is_small && self.redactor.is_ready() {
            Ok(mask(&mut self.redactor))
        } else {
            self.is_large = true;
            let mut redactor = self.redactor.clone();
            Err(threads::run(Work::Jobs, move || mask(&mut redactor)))
        };
        async move {
            match masked {
                Ok(masked) => masked,
                Err(elsewhere) => elsewhere.await.unwrap_or_else(|error| again_panic(error)),
            }
        }
    }

    /// Moves the job's own temporary folder out of the way, at the job's end. It may hold many files, so the caller
    /// deletes it in the background.
    pub(super) fn remove_tmp(&self) -> Option<Removed> {
        let removed = self.folder.set_dir_gone("tmp");
        removed.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), job = %self.view.id, "files of steps were not removed");
            None
        })
    }
}

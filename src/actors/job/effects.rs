//! Performs the actions of a job's driver: one after another, in the order given.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};

use super::driver::{Action, CloseRequest, EndedStep};
use super::handled_event::again_panic;
use super::{JobActor, deliver};
use crate::actors::redact::{MaskedResult, Redactor};
use crate::actors::step::{Over, StepActor, StepTask};
use crate::actors::trace_sink::{Append, AppendNews, Flush, TraceSink};
use crate::actors::view::CurrentStep;
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::{Program, Spawn};
use crate::job::event::{CallId, Event};
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{KeeperError, Request};
use crate::model::{LogChannel, Outcome, StepResult};
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
    /// Performs actions until one must be awaited.
    pub(super) fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some(action) = self.driver.next_action() {
            self.perform(action, ctx);
        }
    }

    fn perform(&mut self, action: Action, ctx: &mut Context<Self>) {
        match action {
            Action::Line { op, kind, text } => {
                let line = |text| Request::Line { key: self.key(), op, kind, text };
                if let Err(error) = self.link.tell(line(text)) {
                    self.link.tell_short(line(left_out(&error)));
                }
            }
            Action::AddPhrases { op, phrases } => self.add_phrases(op, phrases, ctx),
            Action::MakeFiles(files) => {
                if let Err(error) = crate::actors::step::make_files(&self.folder, &files) {
                    tracing::warn!(error = %Chain(&error), job = %self.view.id, "files of a function were not made");
                }
            }
            Action::RemoveFiles(call) => self.remove_files_of(call),
            Action::Fetch { call, reference, inside, environment } => {
                let (fetcher, job) = (Arc::clone(&self.context.fetcher), self.key());
                let found = async move { fetcher.find(job, *reference, inside, environment).await };
                self.fetch(call, found, ctx);
            }
            Action::Spawn { op, spawn } => self.spawn(op, spawn, ctx),
            Action::Stop { grace } => self.link.tell_short(Request::Stop { key: self.key(), grace }),
            Action::News { news, is_new } => self.news(news, is_new, ctx),
            Action::StepEnded(result) => {
                self.view.update(|state| state.current.end());
                if let Some(result) = result {
                    self.store(result, ctx);
                }
            }
            Action::Finish(close) => self.finish(close, ctx),
        }
    }

    /// Removes the files of an invocation once its record is in the keeper's socket. Without that record, a later
    /// daemon would have to read the files again.
    fn remove_files_of(&self, call: CallId) {
        let (recorded, folder) = (self.link.sent(), self.folder.clone());
        actix::spawn(async move {
            if recorded.await.is_ok()
                && let Err(error) = folder.remove_step_files(call)
            {
                tracing::debug!(error = %Chain(&error), "files of a step stay until the job's end");
            }
        });
    }

    /// Awaits `work` before the next action.
    pub(super) fn pause<T: 'static>(
        &mut self,
        ctx: &mut Context<Self>,
        work: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
    ) {
        self.driver.begin_await();
        ctx.spawn(work.into_actor(self).map(move |done, job, ctx| {
            job.driver.end_await();
            then(job, done, ctx);
            if job.driver.take_deferred_loss() && job.link.is_over() {
                job.keeper_lost(ctx);
            } else {
                job.drain(ctx);
            }
        }));
    }

    fn add_phrases(&mut self, op: Option<u32>, phrases: Vec<Vec<u8>>, ctx: &mut Context<Self>) {
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
                // If the keeper is gone or has not taken the job, no process runs.
                Ok(_) | Err(LinkError::Gone | LinkError::Refused(KeeperError::UnknownJob)) => {}
                Err(error) => job.cannot_mask(&error, ctx),
            },
        );
    }

    /// Ends the job: masking would be incomplete, so no process may start and no output may leave.
    fn cannot_mask(&mut self, error: &(dyn std::error::Error + 'static), ctx: &mut Context<Self>) {
        let message = format!("a value marked sensitive cannot be masked: {}", Chain(error));
        tracing::error!(message, job = %self.view.id, "the job is ended");
        if let Some(frame) = self.driver.cannot_mask(message, clock::boot_micros()) {
            self.send_unmasked(frame);
            self.drain(ctx);
        }
    }

    fn spawn(&mut self, op: Option<u32>, spawn: Box<Spawn>, ctx: &mut Context<Self>) {
        let (call, runs) = (spawn.call, op.is_none());
        let is_small = runs || is_small(&spawn);
        self.is_large |= !is_small;
        let task = self.task(op, spawn, ctx);
        if !runs && !task.is_at_hand() {
            return self.spawn_after_looks(task, ctx);
        }
        if is_small {
            return self.launch(call, StepActor::prepare(task));
        }
        let prepared = threads::run(Work::Files, move || StepActor::prepare(task));
        self.pause(ctx, prepared, move |job, prepared, _| {
            job.launch(call, prepared.unwrap_or_else(|error| again_panic(error)));
        });
    }

    /// Starts a process whose program or working directory may be on a file system that does not answer. A cancel or
    /// the keeper's death ends the wait for that.
    fn spawn_after_looks(&mut self, task: StepTask, ctx: &mut Context<Self>) {
        let (call, is_given_up) = (task.spawn.call, Arc::new(AtomicBool::new(false)));
        let given_up = self.task(task.op, Box::new(task.spawn.without_content()), ctx);
        let task = StepTask { given_up: Some(Arc::clone(&is_given_up)), ..task };
        let prepared = threads::run(Work::Looks, move || StepActor::prepare_after_looks(task));
        let given_up_at = Arc::clone(&self.look_ends).notified_owned();
        let prepared = async move {
            tokio::select! {
                prepared = prepared => prepared.unwrap_or_else(|error| again_panic(error)),
                () = given_up_at => {
                    is_given_up.store(true, Ordering::Release);
                    None
                }
            }
        };
        self.pause(ctx, prepared, move |job, prepared, _| {
            let step = prepared.unwrap_or_else(|| StepActor::give_up(given_up));
            job.launch(call, step);
        });
    }

    /// Collects everything that the start of a process needs.
    fn task(&self, op: Option<u32>, spawn: Box<Spawn>, ctx: &Context<Self>) -> StepTask {
        StepTask {
            job: ctx.address(),
            link: self.link.clone(),
            key: self.key(),
            tag: self.tag,
            socket: self.context.socket.clone(),
            folder: self.folder.clone(),
            daemon_path: self.context.daemon_path.clone(),
            closes: spawn.ends_job.then(|| self.context.config().leftover_grace),
            spawn,
            limits: Arc::clone(&self.shell.limits),
            op,
            watch_unfinished: self.view.log.is_unfinished_watched(),
            given_up: None,
        }
    }

    /// Starts the actor of a process.
    fn launch(&mut self, call: CallId, mut step: StepActor) {
        step.send();
        let step = step.start();
        if let Some(over) = self.driver.launched(call) {
            deliver(&step, Over(over));
        }
        self.step = Some(step);
    }

    fn news(&mut self, news: Box<StepResult>, is_new: bool, ctx: &mut Context<Self>) {
        if !is_new && !self.redactor.is_ready() {
            // Masking with many secrets takes too long for a line in Status.
            return;
        }
        let encode = self.encode;
        if self.redactor.is_ready() {
            let (news, current) = self.redactor.news(*news, encode);
            return self.show_news(is_new.then_some(news), current);
        }
        let masked = self.masked(true, move |redactor| redactor.news(*news, encode));
        self.pause(ctx, masked, move |job, (news, current), _| {
            job.show_news(is_new.then_some(news), current);
        });
    }

    fn show_news(&mut self, news: Option<MaskedResult>, current: CurrentStep) {
        self.view.update(|state| state.current = current);
        if let Some(news) = news {
            // Do not wait for an answer: the sink stores the next result after this one and logs its own failures.
            deliver(&self.trace_sink, AppendNews(news));
        }
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

    fn finish(&mut self, close: Option<CloseRequest>, ctx: &mut Context<Self>) {
        self.stop_fetching(ctx);
        if let Some(CloseRequest { op, lines }) = close {
            let leftover_grace = self.context.config().leftover_grace;
            let close = |lines| Request::Close { key: self.key(), op, leftover_grace, lines };
            if let Err(error) = self.link.tell(close(lines)) {
                self.link.tell_short(close(vec![(LogChannel::Err, left_out(&error))]));
            }
        }
        if let Some(job) = self.driver.take_reported_close() {
            self.end(job, ctx);
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

/// True if the actors' thread itself prepares this start.
fn is_small(spawn: &Spawn) -> bool {
    given_bytes(spawn) <= SMALL_ENVIRONMENT
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
pub(in crate::actors) struct StepDone(pub(in crate::actors) EndedStep);

impl Handler<StepDone> for JobActor {
    type Result = ();

    fn handle(&mut self, StepDone(step): StepDone, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::step_done");
        let event = self.driver.step_done(step);
        if !self.driver.is_watching() {
            self.step = None;
        }
        self.handle_event(event, ctx);
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
        let removed = self.folder.set_dir_gone(c"tmp");
        removed.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), job = %self.view.id, "files of steps were not removed");
            None
        })
    }
}

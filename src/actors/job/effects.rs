//! Performs the actions of a job's driver: one after another, in the order given.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};
use tokio::sync::Notify;

use super::driver::{Action, CloseRequest, EndedRoot};
use super::handled_event::again_panic;
use super::{JobActor, deliver};
use crate::actors::messages::{Append, Ended, Flush, StepDone, ToJob};
use crate::actors::redact::{MaskedResult, Redactor};
use crate::actors::step::{StepActor, StepTask};
use crate::actors::trace_sink::TraceSink;
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::{Program, Spawn};
use crate::job::event::{Event, ProcessNumber};
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{KeeperError, Request};
use crate::log::words::DaemonLine;
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
pub(super) const SMALL_RESULT: usize = 64 << 10;

impl JobActor {
    /// Performs actions until one must be awaited.
    pub(super) fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some(action) = self.driver.next_action() {
            self.perform(action, ctx);
        }
        if self.driver.is_settled() {
            self.view.trace.settled(|process| !self.driver.is_watching(process));
        }
    }

    fn perform(&mut self, action: Action, ctx: &mut Context<Self>) {
        match action {
            Action::Line { op, kind, text } => {
                let line = |(kind, text)| Request::Line { key: self.key(), op, kind, text };
                if let Err(error) = self.link.tell(line((kind, text))) {
                    self.link.tell_short(line(left_out(kind, &error)));
                }
            }
            Action::AddPhrases { op, phrases } => self.add_phrases(op, phrases, ctx),
            Action::MakeFiles(files) => {
                if let Err(error) = crate::actors::step::make_files(&self.folder, &files) {
                    tracing::warn!(error = %Chain(&error), job = %self.view.id, "files of a function were not made");
                }
            }
            Action::RemoveFiles(process) => self.remove_files_of(process),
            Action::Fetch { process, reference, inside, environment } => {
                let (fetcher, job) = (Arc::clone(&self.context.fetcher), self.key());
                let retried = Self::on_retry(process, ctx);
                let found = async move { fetcher.find(job, *reference, inside, environment, &retried).await };
                self.fetch(process, found, ctx);
            }
            Action::StopFetch(process) => self.stop_fetch(process, ctx),
            Action::Spawn { is_asked, spawn } => self.spawn(is_asked, spawn, ctx),
            Action::Stop { process, grace } => self.stop(process, grace),
            Action::ShowProcesses { attempt, processes } => {
                self.link.tell_short(Request::ShowProcesses { key: self.key(), attempt, processes });
            }
            Action::Clear { call, processes } => {
                let grace = self.context.config().leftover_grace;
                self.link.tell_short(Request::Clear { key: self.key(), call, processes, grace });
            }
            Action::Wake { timer, at } => {
                let after = Duration::from_micros(at.saturating_sub(clock::boot_micros()));
                ctx.run_later(after, move |job, ctx| {
                    if let Some(event) = job.driver.due(timer) {
                        job.handle_event(event, ctx);
                    }
                });
            }
            Action::Note(noted) => self.note(noted, ctx),
            Action::Finish(close) => self.finish(close, ctx),
        }
    }

    /// Stops a process, or gives up its start.
    fn stop(&self, process: ProcessNumber, grace: Duration) {
        match self.starting.get(&process) {
            Some(given_up) => given_up.give_up(),
            None => self.link.tell_short(Request::Stop { key: self.key(), process, grace }),
        }
    }

    /// Removes the files of an attempt once its record is in the keeper's socket. Without that record, a later
    /// daemon would have to read the files again.
    fn remove_files_of(&self, process: ProcessNumber) {
        let (recorded, folder) = (self.link.sent(), self.folder.clone());
        actix::spawn(async move {
            if recorded.await.is_ok()
                && let Err(error) = folder.remove_step_files(process)
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

    fn spawn(&mut self, is_asked: bool, spawn: Box<Spawn>, ctx: &mut Context<Self>) {
        let process = spawn.process;
        let is_small = is_asked || is_small(&spawn);
        self.is_large |= !is_small;
        let task = self.task(is_asked, spawn, ctx);
        let is_at_hand = is_asked || task.is_at_hand();
        if is_small && is_at_hand {
            return self.launch(process, StepActor::prepare(task));
        }
        self.spawn_later(task, is_at_hand, ctx);
    }

    /// Prepares a start on another thread, because it takes long, or because the program or the working directory may be on
    /// a file system that does not answer. A stop of the step or the keeper's death ends the wait. Other steps go on.
    fn spawn_later(&mut self, task: StepTask, is_at_hand: bool, ctx: &mut Context<Self>) {
        let (process, given_up) = (task.spawn.process, GivenUp::default());
        let without_content = Box::new(task.spawn.without_content());
        let refused = self.task(task.is_asked, without_content, ctx);
        let task = StepTask { given_up: Some(Arc::clone(&given_up.flag)), ..task };
        let prepared = if is_at_hand {
            threads::run(Work::Files, move || Some(StepActor::prepare(task)))
        } else {
            threads::run(Work::Lookups, move || StepActor::prepare_after_lookups(task))
        };
        let ends = Arc::clone(&given_up.notify).notified_owned();
        self.starting.insert(process, given_up);
        let prepared = async move {
            tokio::select! {
                prepared = prepared => prepared.unwrap_or_else(|error| again_panic(error)),
                () = ends => None,
            }
        };
        ctx.spawn(prepared.into_actor(self).map(move |prepared, job, _| {
            job.starting.remove(&process);
            let step = prepared.unwrap_or_else(|| StepActor::give_up(refused));
            job.launch(process, step);
        }));
    }

    /// Ends the wait for all starts that other threads prepare.
    pub(super) fn give_up_starts(&self) {
        self.starting.values().for_each(GivenUp::give_up);
    }

    /// Collects everything that the start of a process needs.
    fn task(&self, is_asked: bool, spawn: Box<Spawn>, ctx: &Context<Self>) -> StepTask {
        StepTask {
            job: ToJob::new(&ctx.address()),
            link: self.link.clone(),
            key: self.key(),
            tag: self.tag,
            socket: self.context.socket.clone(),
            folder: self.folder.clone(),
            daemon_path: self.context.daemon_path.clone(),
            closes: spawn.ends_job.then(|| self.context.config().leftover_grace),
            spawn,
            limits: Arc::clone(&self.spec.limits),
            is_asked,
            watch_unfinished: self.view.log.is_unfinished_watched(),
            given_up: None,
        }
    }

    /// Starts the actor of a process.
    fn launch(&mut self, process: ProcessNumber, mut step: StepActor) {
        step.send();
        let step = step.start().recipient();
        if let Some(ended) = self.driver.launched(process) {
            deliver(&step, Ended(ended));
        }
        self.steps.insert(process, step);
    }

    /// Stores a result. Followers see it before the job's next effect.
    pub(super) fn store(&mut self, result: Box<StepResult>, ctx: &mut Context<Self>) {
        let (sink, encoded) = (self.trace_sink.clone(), self.encoded(*result));
        let stored = async move {
            let result = encoded.await;
            sink.send(Append(vec![result])).await
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
        self.give_up_starts();
        if let Some(CloseRequest { op, lines }) = close {
            let leftover_grace = self.context.config().leftover_grace;
            let close = |lines| Request::Close { key: self.key(), op, leftover_grace, lines };
            if let Err(error) = self.link.tell(close(lines)) {
                self.link.tell_short(close(vec![left_out(LogChannel::Err, &error)]));
            }
        }
        if let Some(job) = self.driver.take_reported_close() {
            self.end(job, ctx);
        }
    }

    /// Stores the end of the job's own result, and all that the disk has refused so far. Awaits `room` before it tries again.
    /// `false` if the disk still refuses.
    pub(super) fn store_root<R: Future<Output = ()>>(
        &mut self,
        root: EndedRoot,
        room: R,
    ) -> impl Future<Output = bool> + use<R> {
        let EndedRoot { event, result } = root;
        let event = event.map(|note| self.last_event(*note));
        let (sink, result) = (self.trace_sink.clone(), result.map(|root| self.encoded(*root)));
        // A replacement, in case a defect has ended the sink.
        let next = TraceSink::new(Arc::clone(&self.view.trace), self.folder.clone());
        async move {
            let Some(result) = result else { return true };
            let mut last = Vec::new();
            if let Some(event) = event {
                last.push(event.await);
            }
            last.push(result.await);
            let (sink, mut is_stored) = if let Ok(stored) = sink.send(Append(last.clone())).await {
                (sink, stored.is_ok())
            } else {
                let sink = next.start();
                let stored = sink.send(Append(last)).await;
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

/// Tells a start that another thread prepares that nobody waits for it any more.
#[derive(Default)]
pub(super) struct GivenUp {
    /// Looked at between the steps of the preparation.
    flag: Arc<AtomicBool>,
    /// Ends the wait at once.
    notify: Arc<Notify>,
}

impl GivenUp {
    fn give_up(&self) {
        self.flag.store(true, Ordering::Release);
        self.notify.notify_one();
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

/// Returns the log line that replaces lines of `channel` which cannot be sent to the keeper.
fn left_out(channel: LogChannel, error: &LinkError) -> (LogChannel, String) {
    DaemonLine::LinesLeftOut { channel, cause: &Chain(error).to_string() }.to_parts()
}

impl Handler<StepDone> for JobActor {
    type Result = ();

    fn handle(&mut self, StepDone(step): StepDone, ctx: &mut Self::Context) {
        failpoint::hit("actors::job::step_done");
        self.steps.remove(&step.process);
        let event = self.driver.step_done(step);
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
    pub(super) fn masked<T: Send + 'static, F: FnOnce(&mut Redactor) -> T + Send + 'static>(
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

//! Handling of events by the job's machine. If that takes long, machine and event move to another thread and come back
//! with the effects. Further events wait meanwhile, so events are handled and recorded in the order in which they came.

use std::panic::resume_unwind;

use actix::Context;
use tokio::task::JoinError;

use super::JobActor;
use crate::clock;
use crate::error::Chain;
use crate::job::effect::Effect;
use crate::job::event::Event;
use crate::job::machine::Machine;
use crate::job::record::Recorder;
use crate::keeper::link::KeeperFrame;
use crate::keeper::protocol::Request;
use crate::model::JobKey;
use crate::threads::{self, Work};

/// Deferred work that needs the machine.
pub(super) type Later = Box<dyn FnOnce(&mut JobActor, &mut Context<JobActor>)>;

/// Result of handling an event.
struct HandledEvent {
    /// Frame that records the event, for the keeper.
    frame: Option<KeeperFrame>,
    effects: Vec<Effect>,
    /// Failures to record, each with its reason.
    errors: Vec<String>,
}

/// Records an event, then handles it. An event that cannot be recorded would be missing from every replay, so the job
/// fails instead.
fn record_and_handle(
    machine: &mut Machine,
    recorder: &mut Recorder,
    key: JobKey,
    event: Event,
    at: u64,
) -> HandledEvent {
    let mut errors = Vec::new();
    let (event, frame) = match framed(recorder, key, machine.read_files(event), at) {
        Ok((event, frame)) => (event, Some(frame)),
        Err(reason) => {
            errors.push(format!("an event was not recorded: {reason}"));
            let broken = Event::Broken { message: format!("what happened cannot be recorded: {reason}") };
            let frame = framed(recorder, key, broken.clone(), at).map(|(_, frame)| frame).map_err(|reason| {
                errors.push(format!("the end for want of it was not recorded: {reason}"));
            });
            (broken, frame.ok())
        }
    };
    HandledEvent { frame, effects: machine.handle(&event, at), errors }
}

/// Returns the event in its recorded form and the frame that records it.
fn framed(
    recorder: &mut Recorder,
    key: JobKey,
    event: Event,
    at: u64,
) -> Result<(Event, KeeperFrame), String> {
    let (event, bytes) = recorder.encode(event, at).map_err(|error| Chain(&error).to_string())?;
    let (seq, len) = (recorder.count(), bytes.len());
    let frame = KeeperFrame::of(Request::Record { key, seq, event: bytes });
    let frame = frame.map_err(|error| Chain(&error).to_string())?;
    recorder.recorded(&event, len);
    Ok((event, frame))
}

/// Re-raises a panic of another thread in this actor, so that the supervisor ends the job.
pub(super) fn again_panic(error: JoinError) -> ! {
    resume_unwind(error.try_into_panic().unwrap_or_else(|error| Box::new(error)))
}

impl JobActor {
    /// Records an event and performs its effects.
    pub(super) fn handle_event(&mut self, event: Event, ctx: &mut Context<Self>) {
        let (key, at) = (self.key(), clock::boot_micros());
        match self.machine.take() {
            None => self.later.push_back(Box::new(move |job, ctx| job.handle_event(event, ctx))),
            Some(mut machine) if machine.is_small(&event) => {
                let handled = record_and_handle(&mut machine, &mut self.recorder, key, event, at);
                self.machine = Some(machine);
                self.perform_handled(handled, ctx);
            }
            Some(mut machine) => {
                self.is_large = true;
                let mut recorder = std::mem::take(&mut self.recorder);
                let handling = threads::run(Work::Jobs, move || {
                    let handled = record_and_handle(&mut machine, &mut recorder, key, event, at);
                    (machine, recorder, handled)
                });
                self.pause(ctx, handling, |job, done, ctx| {
                    let (machine, recorder, handled) = done.unwrap_or_else(|error| again_panic(error));
                    (job.machine, job.recorder) = (Some(machine), recorder);
                    job.perform_handled(handled, ctx);
                    job.catch_up(ctx);
                });
            }
        }
    }

    /// Does `work` as soon as the machine is here.
    pub(super) fn with_machine(
        &mut self,
        ctx: &mut Context<Self>,
        work: impl FnOnce(&mut Self, &mut Context<Self>) + 'static,
    ) {
        if self.machine.is_some() {
            work(self, ctx);
        } else {
            self.later.push_back(Box::new(work));
        }
    }

    /// Records an event that the machine does not handle.
    pub(super) fn record(&mut self, event: Event) {
        let key = self.key();
        match framed(&mut self.recorder, key, event, clock::boot_micros()) {
            Ok((_, frame)) => self.link.send(frame),
            Err(reason) => tracing::error!(reason, job = %self.view.id, "an event was not recorded"),
        }
    }

    fn perform_handled(&mut self, handled: HandledEvent, ctx: &mut Context<Self>) {
        let HandledEvent { frame, effects, errors } = handled;
        for error in errors {
            tracing::error!(job = %self.view.id, "{error}");
        }
        if let Some(frame) = frame {
            self.link.send(frame);
        }
        self.queue.extend(effects);
        self.drain(ctx);
    }

    /// Does deferred work until the machine is away again.
    fn catch_up(&mut self, ctx: &mut Context<Self>) {
        while self.machine.is_some()
            && let Some(work) = self.later.pop_front()
        {
            work(self, ctx);
        }
    }
}

//! Hands events to the driver. If handling one takes long, the machine and the event move to another thread.

use std::panic::resume_unwind;

use actix::Context;
use tokio::task::JoinError;

use super::JobActor;
use super::driver::{DeferredInput, EventReaction, Reaction, RecordToSend};
use crate::clock;
use crate::job::event::Event;
use crate::keeper::link::KeeperFrame;
use crate::threads::{self, Work};

/// Re-raises a panic of another thread in this actor, so that the supervisor ends the job.
pub(super) fn again_panic(error: JoinError) -> ! {
    resume_unwind(error.try_into_panic().unwrap_or_else(|error| Box::new(error)))
}

impl JobActor {
    /// Performs the reaction to an input that can end the job.
    pub(super) fn react(&mut self, reaction: Reaction, ctx: &mut Context<Self>) {
        match reaction {
            Reaction::Nothing => {}
            Reaction::Handle(event) => self.handle_event(*event, ctx),
            Reaction::Interrupt => self.interrupt(ctx),
        }
    }

    /// Records an event and performs what follows from it.
    pub(super) fn handle_event(&mut self, event: Event, ctx: &mut Context<Self>) {
        let at = clock::boot_micros();
        match self.driver.event(event, at) {
            EventReaction::Deferred => {}
            EventReaction::Handled(record) => {
                self.send_record(record);
                self.drain(ctx);
            }
            EventReaction::Elsewhere(mut machine, event) => {
                self.is_large = true;
                let handling = threads::run(Work::Jobs, move || {
                    let handled = machine.handle(event, at);
                    (machine, handled)
                });
                self.pause(ctx, handling, |job, done, ctx| {
                    let (machine, handled) = done.unwrap_or_else(|error| again_panic(error));
                    let record = job.driver.came_back(*machine, handled);
                    job.send_record(record);
                    job.drain(ctx);
                    job.catch_up(ctx);
                });
            }
        }
    }

    pub(super) fn send_record(&self, record: RecordToSend) {
        let RecordToSend { frame, may_wait, errors } = record;
        for error in errors {
            tracing::error!(job = %self.view.id, "{error}");
        }
        match frame {
            Some(frame) if may_wait => self.link.send_later(frame),
            Some(frame) => self.link.send(frame),
            None => {}
        }
    }

    /// Sends the record of an event that ends the job because a value cannot be masked.
    pub(super) fn send_unmasked(&self, frame: Result<KeeperFrame, String>) {
        match frame {
            Ok(frame) => self.link.send(frame),
            Err(reason) => tracing::error!(reason, job = %self.view.id, "an event was not recorded"),
        }
    }

    /// Handles the inputs that waited for the machine, until the machine is away again.
    fn catch_up(&mut self, ctx: &mut Context<Self>) {
        while let Some(input) = self.driver.next_deferred() {
            match input {
                DeferredInput::Event(event) => self.handle_event(event, ctx),
                DeferredInput::Unmasked { op, message } => {
                    let frame = self.driver.end_unmasked(op, message, clock::boot_micros());
                    self.send_unmasked(frame);
                    self.drain(ctx);
                }
                DeferredInput::CollectResults => self.collect_results(ctx),
            }
        }
    }
}

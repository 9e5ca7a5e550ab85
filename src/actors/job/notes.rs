//! Events of steps on their way to followers: placed in the log, masked, shown and stored (service.md §3.3).

use std::future::Future;

use actix::Context;

use super::current::StepChange;
use super::driver::{EventPlace, Noted};
use super::effects::SMALL_RESULT;
use super::{JobActor, deliver};
use crate::actors::messages::AppendEvent;
use crate::actors::redact::MaskedResult;
use crate::actors::stored::StepEvent;
use crate::job::effect::StepNote;
use crate::keeper::protocol::{Reply, Request};

impl JobActor {
    /// Shows what has happened to a step, and stores it. The keeper is asked for its place first if only it can know that.
    pub(super) fn note(&mut self, noted: Noted, ctx: &mut Context<Self>) {
        let op = match noted.place {
            EventPlace::Ask(op) if noted.is_new => op,
            EventPlace::Ask(_) => return self.note_at(noted, None, ctx),
            EventPlace::Known(place) => return self.note_at(noted, Some(place), ctx),
        };
        self.view.trace.expect_next(&self.view.log);
        let (link, key) = (self.link.clone(), self.key());
        let asked = async move { link.ask(Request::Place { key, op }).await };
        self.pause(ctx, asked, |job, reply, ctx| {
            // Without a keeper, nothing more comes into the log.
            let place = if let Ok(Reply::Length(place)) = reply { Some(place) } else { None };
            job.note_at(noted, place, ctx);
        });
    }

    fn note_at(&mut self, noted: Noted, place: Option<u64>, ctx: &mut Context<Self>) {
        let Noted { note, is_new, result, .. } = noted;
        let StepNote { call, parent, is_member, slot, result: own, .. } = *note;
        let change = StepChange { call, parent, is_member, outcome: own.outcome, facts: own.facts.clone() };
        let log_bytes = if is_new { self.view.trace.place(&self.view.log, place) } else { 0 };
        let event = StepEvent { call, parent, is_member, slot, log_bytes, result: own };
        let encode = self.encode;
        let is_small = event.result.take_from(SMALL_RESULT).is_some();
        if is_small && self.redactor.is_ready() {
            let (event, name) = self.redactor.event(event, encode);
            self.show_note(change, name, is_new.then_some(event));
            if let Some(result) = result {
                self.store(result, ctx);
            }
            return;
        }
        let masked = self.masked(is_small, move |redactor| redactor.event(event, encode));
        self.pause(ctx, masked, move |job, (event, name), ctx| {
            job.show_note(change, name, is_new.then_some(event));
            if let Some(result) = result {
                job.store(result, ctx);
            }
        });
    }

    /// `name` is the masked name of the step.
    fn show_note(&mut self, change: StepChange, name: String, event: Option<MaskedResult>) {
        let current = self.open.take(change, name);
        self.view.update(|state| state.current = current);
        if let Some(event) = event {
            // Do not wait for an answer: the sink stores the next result after this one and logs its own failures.
            deliver(&self.trace_sink, AppendEvent(event));
        }
    }

    /// Masks and encodes an event at the job's end.
    pub(super) fn last_event(&mut self, note: StepNote) -> impl Future<Output = MaskedResult> + use<> {
        let StepNote { call, parent, is_member, slot, place, result } = note;
        let log_bytes = self.view.trace.place(&self.view.log, place);
        let event = StepEvent { call, parent, is_member, slot, log_bytes, result };
        let (encode, is_small) = (self.encode, event.result.take_from(SMALL_RESULT).is_some());
        self.masked(is_small, move |redactor| redactor.event(event, encode).0)
    }
}

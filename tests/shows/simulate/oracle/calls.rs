//! Checks the answers to Run, Finish and Cancel.

use super::{Asked, END_TIME, Oracle};
use crate::simulate::world::words;
use step_runner::actors::view::JobStatus;
use step_runner::model::{JobState, Reason, Refusal};

impl Oracle {
    pub(crate) fn run_asked(&mut self, id: u64) -> Asked {
        self.running_calls += 1;
        let now = self.now();
        let runs = self.asked_runs.entry(id).or_default();
        if runs.count == 0 {
            runs.since = now;
        }
        runs.count += 1;
        Asked { at: self.now(), life: None, epoch: self.epoch }
    }

    pub(crate) fn run_answered(
        &mut self,
        asked: Asked,
        id: u64,
        content: u64,
        answer: &Result<(), Refusal>,
        there: Option<&JobStatus>,
    ) {
        self.note(format!("Run job-{id} {content}: {}", words(answer)));
        self.running_calls = self.running_calls.saturating_sub(1);
        if let Some(runs) = self.asked_runs.get_mut(&id) {
            runs.count = runs.count.saturating_sub(1);
        }
        match answer {
            Ok(()) => {
                let finished = self.finish_at.get(&id).is_some_and(|at| *at >= asked.at);
                let late =
                    self.lives.iter().any(|((name, _), life)| *name == format!("job-{id}") && life.gone);
                let is_unseen = self.finished_unseen.contains(&id);
                if there.is_none() && !finished && !late && !is_unseen {
                    self.wrong(format!("Run of job-{id} is answered and there is no job"));
                }
            }
            Err(refusal) => {
                let passing = [Reason::QueueFull, Reason::KeeperUnavailable, Reason::DeadlineExceeded];
                let passing = passing.contains(&refusal.reason)
                    || self.armed_now && matches!(refusal.reason, Reason::ShuttingDown | Reason::Internal);
                if !passing {
                    self.wrong(format!("Run of job-{id} is refused: {refusal}"));
                }
            }
        }
    }

    pub(crate) fn finish_asked(&mut self, id: u64, there: Option<&JobStatus>) -> Asked {
        self.note(format!("Finish job-{id} is asked for"));
        let now = self.now();
        self.finish_at.insert(id, now);
        if self.asked_runs.get(&id).is_some_and(|runs| runs.count > 0) {
            self.finished_unseen.insert(id);
        }
        *self.finishing.entry(id).or_default() += 1;
        let name = format!("job-{id}");
        // A Run in progress is ordered before this Finish, so its job is finished too.
        for (_, life) in self.lives.iter_mut().filter(|((known, _), life)| *known == name && !life.gone) {
            life.finish_asked = true;
        }
        Asked { at: now, life: there.map(|status| status.registered), epoch: self.epoch }
    }

    pub(crate) fn finish_answered(
        &mut self,
        asked: Asked,
        id: u64,
        answer: &Result<(), Refusal>,
        there: Option<&JobStatus>,
    ) {
        self.note(format!("Finish job-{id}: {}", words(answer)));
        if let Some(count) = self.finishing.get_mut(&id) {
            *count = count.saturating_sub(1);
        }
        if let Err(refusal) = answer
            && !(self.armed_now && refusal.reason == Reason::ShuttingDown)
        {
            self.wrong(format!("Finish of job-{id} is refused: {refusal}"));
        }
        if answer.is_err() {
            return;
        }
        if there.is_some_and(|status| Some(status.registered) == asked.life) {
            self.wrong(format!("Finish of job-{id} is answered and the job is there"));
        }
        let took = self.now().saturating_sub(asked.at);
        if took > END_TIME && asked.epoch == self.epoch {
            self.wrong(format!("Finish of job-{id} took {took:?}"));
        }
    }

    pub(crate) fn cancel_asked(&mut self, id: u64, before: Option<&JobStatus>) {
        self.note(format!("Cancel job-{id} is asked for"));
        let Some(status) = before else { return };
        if let Some(life) = self.lives.get_mut(&(format!("job-{id}"), status.registered)) {
            life.cancel_asked = true;
        }
    }

    pub(crate) fn cancel_answered(
        &mut self,
        id: u64,
        before: Option<&JobStatus>,
        answer: &Result<(), Refusal>,
        after: Option<&JobStatus>,
    ) {
        self.note(format!("Cancel job-{id}: {}", words(answer)));
        match answer {
            Ok(()) if before.is_none() => self.wrong(format!("Cancel of unknown job-{id} succeeds")),
            Ok(()) => {}
            Err(refusal) if before.is_none() && refusal.reason == Reason::UnknownJob => {}
            Err(refusal) if self.armed_now && refusal.reason == Reason::ShuttingDown => {}
            Err(refusal) => self.wrong(format!("Cancel of job-{id} is refused: {refusal}")),
        }
        let (Ok(()), Some(before), Some(after)) = (answer, before, after) else { return };
        let waits = after.start_time.is_none() && before.registered == after.registered;
        if waits && let Some(life) = self.lives.get_mut(&(format!("job-{id}"), after.registered)) {
            life.cancelled_waiting |=
                life.ended.is_none() && !matches!(after.state, JobState::Ended(_)) && !life.armed;
        }
    }
}

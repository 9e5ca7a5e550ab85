//! Start and end times of steps, and their news.
//!
//! Times of events count from the host's boot. The start of the job ties them to the wall clock once, so setting the
//! wall clock changes no duration. Replayed events carry the time at which they were handled, so every daemon reports
//! the same times.

use step_runner_lang::ast::{Body, Step};
use step_runner_model::{FinishedProcess, StepFacts, StepInfo, StepResult, StepStatus, StepUsage};

use crate::job::effect::Effect;
use crate::plan::library::Loaded;

use super::Machine;

/// Times of the event that is being handled.
#[derive(Default)]
pub(super) struct Timeline {
    /// Microseconds since the epoch and since boot when the job started.
    start: Option<(i64, u64)>,
    /// Time at which the event is handled, since boot. Steps that it starts start now.
    now: u64,
    /// Time of the end that the event reports. Steps that it ends ended then.
    ended: u64,
    /// Start of the latest step.
    begun: u64,
    /// Length of the log at the end of the latest process.
    log: u64,
}

impl Timeline {
    /// Starts the handling of an event at `now`, in microseconds since boot.
    pub(super) fn at(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.ended = self.now;
    }

    pub(super) fn start(&mut self, wall: i64) {
        self.start = Some((wall, self.now));
    }

    pub(super) fn begin(&mut self) {
        self.begun = self.now;
    }

    pub(super) fn ran(&mut self, ran: Option<&FinishedProcess>) {
        if let Some(ran) = ran {
            self.ended = ran.ended.clamp(self.begun, self.now);
            self.log = self.log.max(ran.log_len);
        }
    }

    /// Converts a time since boot to microseconds since the epoch.
    fn wall(&self, boot: u64) -> Option<i64> {
        let (wall, started) = self.start?;
        Some(wall.saturating_add_unsigned(boot.saturating_sub(started)))
    }
}

impl Machine {
    /// Facts of a function that begins. `step` is the calling step in the innermost frame, `None` for the root.
    pub(super) fn facts(&self, loaded: &Loaded, step: Option<&Step>) -> StepFacts {
        let caller = self.frames.last().zip(step);
        let place = caller.map(|(caller, step)| format!("{}:{}", caller.loaded.function.file, step.at.line));
        StepFacts {
            start: self.times.wall(self.times.begun),
            number: caller.map_or(0, |(caller, _)| caller.next as u32),
            total: caller.and_then(|(caller, _)| own_steps(&caller.loaded)).unwrap_or_default(),
            steps: own_steps(loaded),
            place: place.unwrap_or_default(),
            log_start: Some(self.times.log),
            ..StepFacts::default()
        }
    }

    /// Adds the end time to the result of a step.
    pub(super) fn note_end(&self, result: &mut StepResult) {
        let facts = &mut result.facts;
        if facts.start.is_some() && facts.end.is_none() {
            facts.end = self.times.wall(self.times.ended);
            facts.log_end = Some(self.times.log);
        }
    }

    pub(super) fn tell_start(&mut self, step: Option<&StepInfo>, facts: &StepFacts) {
        let news = StepResult { status: StepStatus::Running, ..brief(step, facts) };
        self.tell(news);
    }

    pub(super) fn tell_end(&mut self, result: &StepResult) {
        let news = StepResult {
            status: result.status,
            exec: result.exec.clone(),
            ..brief(result.step.as_ref(), &result.facts)
        };
        self.tell(news);
    }

    /// Wraps news of a step in its callers and emits them.
    fn tell(&mut self, news: StepResult) {
        let callers = self.frames.iter().skip(1).rev();
        let news = callers.fold(news, |inner, caller| StepResult {
            status: StepStatus::Running,
            sub_steps: vec![inner],
            ..brief(caller.step.as_deref(), &caller.facts)
        });
        self.push(Effect::News(Box::new(news)));
    }
}

/// Returns a result with only name, place and times of a step.
fn brief(step: Option<&StepInfo>, facts: &StepFacts) -> StepResult {
    let step = step.map(|step| StepInfo { name: step.name.clone(), ..StepInfo::default() });
    StepResult { step, facts: facts.clone(), ..StepResult::default() }
}

fn own_steps(loaded: &Loaded) -> Option<u32> {
    match &loaded.function.definition.body {
        Body::Run(run) => Some(run.steps.len() as u32),
        Body::Exec(_) => None,
    }
}

pub(super) fn used_by(steps: &[StepResult]) -> Option<StepUsage> {
    steps.iter().filter_map(|step| step.facts.usage).reduce(StepUsage::and)
}

//! A keeper, a disk and daemons that can be killed, around the driver of one job. The keeper checks what it is asked.

mod keeper;

use std::collections::BTreeMap;

use super::fixtures::{AT, ended, key, machine, spec, step_ended, storage_error};
use crate::actors::job::driver::{
    Action, CancelAsk, CloseRequest, ClosedJob, Driver, EndedRoot, EventPlace, EventReaction, KeeperLoss,
    NextAttempt, PerformedEffects, Reaction, RecordToSend, RecordedMachine, Reports, ResumedState,
    WaitingRequests,
};
use crate::actors::messages::{NotRegistered, RegisteredRequest};
use crate::job::effect::StepNote;
use crate::job::event::{Event, Fetched, ProcessNumber};
use crate::job::machine::Machine;
use crate::job::record;
use crate::job::replay::Replayed;
use crate::keeper::protocol::{Closed, Request, StepEnded};
use crate::model::{CancelCause, Outcome, StepResult};

/// A function that a fetch finds. Its steps return nothing.
const FUNCTION: &str = "{}\n---\nrun:\n  - {name: x, script: x}\n  - {name: y, script: y}\n";

fn function() -> Fetched {
    let (dir, path) = ("/job/f".to_owned(), "/job/f/func.yml".to_owned());
    Fetched { dir, path, text: FUNCTION.into(), tree: None, version: None }
}

/// The keeper's part of the job.
#[derive(Default)]
struct Keeper {
    /// Events after the request.
    record: Vec<Vec<u8>>,
    last_op: u32,
    places: Vec<(u32, u64)>,
    /// Running processes; true for one whose success closes the job.
    running: BTreeMap<ProcessNumber, bool>,
    ended: Vec<StepEnded>,
    closed: Option<Closed>,
}

/// Everything that remains of a job.
#[derive(Default, PartialEq)]
pub(super) struct Story {
    /// Requests with a number, in the order in which the keeper performed them.
    pub(super) requests: Vec<String>,
    /// What is stored of steps.
    pub(super) stored: Vec<Stored>,
    /// Published ends.
    pub(super) ends: Vec<Outcome>,
}

/// Something stored of a step.
#[derive(Clone, PartialEq)]
pub(super) enum Stored {
    Event(StepNote),
    Result(StepResult),
}

/// Something that happens to a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    Begin,
    Cancel(CancelCause, Option<u64>),
    /// The answer to what the job waits for comes.
    Answer,
    /// The running process ends, whatever else there is to do.
    Exit,
    Defect,
    StorageLost,
    KeeperDies,
    /// An answer about the next keeper of a waiting job.
    Registered(Option<NotRegistered>),
    /// The daemon is killed after this many further sends to the keeper or writes to the disk.
    DaemonDies(u8),
}

pub(super) struct Stage {
    steps: &'static str,
    /// The request of a job that waits for its slot.
    request: Option<RegisteredRequest>,
    /// Exit codes of the processes by number; further ones exit with 0.
    codes: Vec<u8>,
    keeper: Option<Keeper>,
    pub(super) story: Story,
    pub(super) wrongs: Vec<String>,
    pub(super) driver: Driver,
    fetching: Option<ProcessNumber>,
    /// A process whose end the step's actor has been told.
    ended: Option<StepEnded>,
    is_storing: bool,
    /// The job is closed and its end is to be stored.
    end: Option<Outcome>,
    is_collected: bool,
    /// True once the job has begun: then the journal says so.
    has_begun: bool,
    /// Sends and writes until the daemon dies.
    budget: usize,
}

impl Stage {
    pub(super) fn new(steps: &'static str, waits: bool, codes: &[u8]) -> Self {
        Self {
            steps,
            request: waits.then(RegisteredRequest::default),
            codes: codes.to_vec(),
            keeper: Some(Keeper::default()),
            story: Story::default(),
            wrongs: Vec::new(),
            driver: Driver::new(machine(steps), waits.then(RegisteredRequest::default)),
            fetching: None,
            ended: None,
            is_storing: false,
            end: None,
            is_collected: false,
            has_begun: false,
            budget: usize::MAX,
        }
    }

    fn is_gone(&self) -> bool {
        self.keeper.is_none()
    }

    pub(super) fn is_over(&self) -> bool {
        !self.story.ends.is_empty()
    }

    fn check(&mut self, is_right: bool, what: &str) {
        if !is_right {
            self.wrongs.push(what.to_owned());
        }
    }

    /// True if the daemon will be killed.
    pub(super) const fn is_doomed(&self) -> bool {
        self.budget < usize::MAX
    }

    /// False once the daemon is dead: then it sends and writes nothing.
    fn lives(&mut self) -> bool {
        let lives = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        lives
    }

    /// Makes what happens happen, and starts the next daemon if that killed this one.
    pub(super) fn play(&mut self, happening: Happening) {
        if self.is_over() {
            return;
        }
        match happening {
            Happening::DaemonDies(after) => self.budget = self.budget.min(usize::from(after)),
            Happening::Begin => self.begin(),
            Happening::Cancel(cause, limit) => {
                let grace_limit = limit.map(std::time::Duration::from_secs);
                self.cancel(CancelAsk { cause, grace_limit, force: false });
            }
            Happening::Answer => self.answer(),
            Happening::Exit => drop(self.exit()),
            Happening::Defect => {
                let reaction = self.driver.defect("a defect".into(), self.is_gone());
                self.take(reaction);
            }
            Happening::StorageLost => {
                let reaction = self.driver.storage_lost(storage_error(), self.is_gone());
                self.take(reaction);
            }
            Happening::KeeperDies => {
                self.keeper = None;
                if !self.driver.defer_keeper_loss() {
                    self.keeper_lost();
                }
            }
            Happening::Registered(answer) => self.registered(answer),
        }
        if self.budget == 0 && !self.is_over() {
            self.next_daemon();
        }
    }

    fn begin(&mut self) {
        let was_begun = self.has_begun;
        if self.driver.begin(self.is_gone()) {
            self.check(
                !was_begun || self.keeper.as_ref().is_none_or(|keeper| keeper.record.is_empty()),
                "begun twice",
            );
            self.has_begun = true;
            self.event(Event::Admitted { at: 0 });
        }
    }

    fn cancel(&mut self, ask: CancelAsk) {
        let reaction = self.driver.cancel(ask, self.is_gone()).reaction;
        self.take(reaction);
    }

    fn take(&mut self, reaction: Reaction) {
        match reaction {
            Reaction::Nothing => {}
            Reaction::Handle(event) => self.event(*event),
            Reaction::Interrupt => self.collect(),
        }
    }

    fn keeper_lost(&mut self) {
        match self.driver.keeper_lost() {
            KeeperLoss::Nothing => {
                self.check(self.end.is_some() || self.is_collected, "a death without effect");
            }
            KeeperLoss::RegisterAgain(_) => {
                self.check(!self.has_begun, "a begun job goes to the next keeper");
            }
            KeeperLoss::Interrupt => self.collect(),
        }
    }

    fn registered(&mut self, answer: Option<NotRegistered>) {
        if !self.is_gone() {
            return;
        }
        if let Some(reason) = answer {
            if self.driver.not_registered(reason) == NextAttempt::Interrupt {
                self.collect();
            }
            return;
        }
        let Some(WaitingRequests { begin, cancel, defect }) = self.driver.registered_again() else { return };
        self.keeper = Some(Keeper::default());
        if let Some(ask) = cancel {
            self.cancel(ask);
        }
        if let Some(message) = defect {
            let reaction = self.driver.defect(message, false);
            self.take(reaction);
        }
        if begin {
            self.begin();
        }
    }

    /// Answers the first thing that the job waits for.
    fn answer(&mut self) {
        if self.is_storing {
            self.is_storing = false;
            self.driver.end_await();
            if self.driver.take_deferred_loss() && self.is_gone() {
                self.keeper_lost();
            } else {
                self.drain();
            }
        } else if let Some(outcome) = self.end.take() {
            if self.lives() {
                let is_due = self.driver.publish();
                self.check(is_due, "the end is not due");
                self.story.ends.push(outcome);
            }
        } else if let Some(process) = self.fetching.take() {
            self.event(Event::Fetched { process, result: Ok(function()) });
        } else if let Some(report) = self.ended.take() {
            let event = self.driver.step_done(ended(&report));
            self.event(event);
        } else if !self.exit()
            && let Some(closed) = self.keeper.as_ref().and_then(|keeper| keeper.closed.clone())
            && let Some(job) = self.driver.closed(closed)
        {
            self.closed(job);
        }
    }

    fn event(&mut self, event: Event) {
        match self.driver.event(event, AT) {
            EventReaction::Deferred => self.check(false, "the machine is away"),
            EventReaction::Handled(record) => self.send(record),
            EventReaction::Elsewhere(mut machine, event) => {
                let handled = machine.handle(event, AT);
                let record = self.driver.came_back(*machine, handled);
                self.send(record);
            }
        }
        self.drain();
    }

    fn send(&mut self, record: RecordToSend) {
        let frame = record.frame.unwrap();
        if !self.lives() {
            return;
        }
        let Some(keeper) = &mut self.keeper else { return };
        let Some(Request::Record { seq, event, .. }) = frame.request() else { panic!("no record") };
        let is_next = seq as usize == keeper.record.len() + 1;
        keeper.record.push(event);
        self.check(is_next, "the record has a hole");
    }

    fn store(&mut self, stored: Stored) {
        if self.lives() {
            self.story.stored.push(stored);
        }
    }

    fn store_root(&mut self, root: EndedRoot) {
        if let Some(event) = root.event {
            self.store(Stored::Event(*event));
        }
        if let Some(result) = root.result {
            self.store(Stored::Result(*result));
        }
    }

    fn drain(&mut self) {
        while self.budget > 0
            && let Some(action) = self.driver.next_action()
        {
            let is_early = self.end.is_none() && !self.is_collected && !self.is_storing;
            self.check(is_early, "an action after the close or during an await");
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Line { op, text, .. } => drop(self.ask(op, text)),
            Action::AddPhrases { op, .. } => {
                if let Some(op) = op {
                    self.ask(op, "phrases".into());
                }
            }
            Action::MakeFiles(_) | Action::RemoveFiles(_) | Action::StopFetch(_) | Action::Wake { .. } => {}
            Action::Stop { .. } | Action::Clear { .. } | Action::ShowProcesses { .. } => drop(self.lives()),
            Action::Fetch { process, .. } => {
                let is_known = self.recorded().any(|event| match event {
                    Event::Fetched { process: fetched, .. }
                    | Event::FetchedAgain { process: fetched, .. } => fetched == process,
                    _ => false,
                });
                self.check(!is_known, "fetched again");
                self.fetching = Some(process);
            }
            Action::Spawn { is_asked, spawn } => {
                let is_known = self.recorded().any(|event| match event {
                    Event::Exited { process, .. } | Event::Returned { process, .. } => {
                        process == spawn.process
                    }
                    _ => false,
                });
                self.check(!is_known, "an ended process has an actor");
                if !is_asked && self.lives() {
                    let request = format!("spawn {} {}", spawn.process, spawn.name);
                    if let Some(keeper) = &mut self.keeper {
                        keeper.running.insert(spawn.process, spawn.ends_job);
                        self.story.requests.push(request);
                    }
                }
                self.ended = self.driver.launched(spawn.process);
            }
            Action::Note(noted) => {
                if let EventPlace::Ask(op) = noted.place
                    && let Some(keeper) = self.ask(op, "place".into())
                {
                    keeper.places.push((op, 0));
                }
                if noted.is_new {
                    self.store(Stored::Event(*noted.note));
                }
                if let Some(result) = noted.result {
                    self.store(Stored::Result(*result));
                    self.driver.begin_await();
                    self.is_storing = true;
                }
            }
            Action::Finish(close) => {
                self.fetching = None;
                if let Some(close) = close {
                    self.close(&close);
                }
                if let Some(job) = self.driver.take_reported_close() {
                    self.closed(job);
                }
            }
        }
    }

    fn closed(&mut self, job: ClosedJob) {
        let is_first = self.end.is_none() && !self.is_collected;
        self.check(is_first, "closed twice");
        self.store_root(job.root);
        self.end = Some(match self.driver.take_storage_loss() {
            Some(lost) => Outcome::failed(lost.to_string()),
            None => job.outcome,
        });
    }

    fn collect(&mut self) {
        let is_first = self.end.is_none() && !self.is_collected;
        self.check(is_first, "interrupted twice or after the close");
        let is_early = !self.driver.publish();
        self.check(is_early, "published before the results are collected");
        let job = self.driver.collect_results(self.has_begun, AT, 0).unwrap();
        self.is_collected = true;
        for noted in job.notes {
            if noted.is_new {
                self.store(Stored::Event(*noted.note));
            }
            if let Some(result) = noted.result {
                self.store(Stored::Result(*result));
            }
        }
        self.store_root(job.root);
        self.end = Some(job.outcome);
    }

    /// Starts the next daemon after a kill of the last one.
    fn next_daemon(&mut self) {
        self.budget = usize::MAX;
        let steps = self.steps;
        (self.fetching, self.ended, self.is_storing, self.end) = (None, None, false, None);
        let Some(keeper) = &self.keeper else {
            // Without a keeper the next daemon ends the job (docs/spec/service.md §6.4).
            return self.story.ends.push(Outcome::interrupted("the host died"));
        };
        let replayed = Replayed::new(Machine::new(&spec(steps)).unwrap());
        let replayed = replayed.play(keeper.record.iter().map(Vec::as_slice)).unwrap();
        let resumed = ResumedState {
            effects: replayed.effects,
            performed: PerformedEffects {
                last_op: keeper.last_op,
                places: keeper.places.iter().copied().collect(),
                stored: u32::try_from(self.story.stored.len()).unwrap(),
                fetched: replayed.fetched,
                exited: replayed.exited,
                asked: keeper
                    .ended
                    .iter()
                    .map(|ended| ended.process)
                    .chain(keeper.running.keys().copied())
                    .collect(),
                unmasked: replayed.unmasked,
            },
            reports: Reports { ended: keeper.ended.clone(), closed: keeper.closed.clone().map(Box::new) },
            is_cancelled: replayed.is_cancelled,
        };
        let waits_with = self.request.clone().filter(|_| !self.has_begun && keeper.record.is_empty());
        let machine = RecordedMachine::new(key(), replayed.machine, replayed.recorder);
        self.driver = Driver::resume(machine, waits_with, resumed);
        self.drain();
        // A begun job without a record of it begins again (docs/spec/service.md §6.4).
        if self.has_begun {
            self.begin();
        }
    }

    /// Lets the job go on until it is published.
    pub(super) fn end(&mut self) {
        self.budget = usize::MAX;
        for _ in 0..1_000 {
            if self.is_over() {
                return self.check_end();
            }
            self.registered(None);
            self.begin();
            self.answer();
        }
        self.check(false, "the job has no end");
    }

    fn check_end(&mut self) {
        let is_alone = self.story.ends.len() == 1;
        self.check(is_alone, "more than one end");
        let is_nothing_left = self.driver.next_action().is_none() && self.driver.next_deferred().is_none();
        self.check(is_nothing_left, "something is left to do");
        let is_root = |stored: &&Stored| matches!(stored, Stored::Result(result) if result.step.is_none());
        let has_few_roots = self.story.stored.iter().filter(is_root).count() <= 1;
        self.check(has_few_roots, "more than one result of the job");
    }

    /// Returns the recorded events after the request.
    fn recorded(&self) -> impl Iterator<Item = Event> {
        let record = self.keeper.iter().flat_map(|keeper| &keeper.record);
        record.map(|event| record::decode(event).unwrap().0)
    }

    /// Number of recorded requests to end.
    pub(super) fn cancels(&self) -> usize {
        self.recorded().filter(|event| matches!(event, Event::CancelAsked { .. })).count()
    }
}

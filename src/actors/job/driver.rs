//! All decisions about one job, as a value: each input gives the actor something to do.
//!
//! ```text
//!  Begin, CancelAsk, reports of the keeper, … ──► Driver ──► Action, Reaction, … ──► JobActor: keeper, step, sinks, timers
//!                                                   ▲                               │
//!                                                   └── answers, ends of awaits ◄───┘
//!
//!  Waiting ──begin, cancel, defect──▶ Running ──Finish──▶ Ending ──log closed──▶ Closed ──end stored──▶ Published
//!     │                                  │                   │                     ▲
//!     └─no keeper can be had─────────────┴─keeper died───────┴─────────────────────┘
//! ```
//!
//! The driver owns the job's phase, the job's machine with the encoder of its record, the queue of effects, and the
//! numbers of the keeper's requests and of the step results. It starts nothing, sends nothing, writes nothing and reads
//! no clock (`tests/layering.rs`); a time is a parameter.
//!
//! - [`Driver`] is one job, and its phase says what can still happen to it (`phase`);
//! - `events` hands events to the machine, here or on another thread; `actions` turns effects into [`Action`]s;
//! - `numbering` skips what an earlier daemon has performed;
//! - `waiting` is a job without a slot; `ending` is the end of a job.

mod actions;
mod ending;
mod events;
mod numbering;
mod phase;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeSet, VecDeque};

pub(super) use actions::{Action, CloseRequest, Noted};
pub(super) use ending::{ClosedJob, EndedRoot, InterruptedJob, end_at_loss, outcome_at_close};
pub(super) use events::{DeferredInput, EventReaction, RecordToSend, RecordedMachine};
pub(super) use numbering::EventPlace;
pub(in crate::actors) use numbering::PerformedEffects;
pub(super) use waiting::{NextAttempt, WaitingRequests};

use crate::actors::messages::{CancelAsk, NotRegistered, RegisteredRequest};
use crate::actors::sync_group::NotSynced;
use crate::job::effect::Effect;
use crate::job::event::{Event, ProcessNumber, TimerId};
use crate::job::results::ResultTree;
use crate::keeper::protocol::{Closed, StepEnded};
use numbering::Numbering;
use phase::{Asked, Phase, Running};
use waiting::Waiting;

/// The decisions about one job; see the module.
pub(super) struct Driver {
    phase: Phase,
    /// `None` while another thread handles an event that takes long.
    machine: Option<RecordedMachine>,
    /// Inputs that wait until the machine is back.
    deferred: VecDeque<DeferredInput>,
    /// Effects to perform, in order.
    queue: VecDeque<Effect>,
    /// Stops of running processes, behind the trees that show these. They wait for nothing: a slow disk must not hold them
    /// up.
    urgent: VecDeque<Action>,
    /// Number of awaits under way. The next effect is performed when it is 0.
    awaits: usize,
    /// True if the keeper died during an await.
    is_loss_deferred: bool,
    numbering: Numbering,
    reports: Reports,
    /// Results of the steps so far.
    tree: ResultTree,
    /// Processes that steps' actors watch.
    processes: BTreeSet<ProcessNumber>,
    /// Processes that had an actor.
    launched: BTreeSet<ProcessNumber>,
    /// Set if the job's data may not be on the disk.
    storage_loss: Option<NotSynced>,
}

/// Reports of the keeper that came before the job performed the effects they belong to.
#[derive(Default)]
pub(in crate::actors) struct Reports {
    /// Ends of processes.
    pub(in crate::actors) ended: Vec<StepEnded>,
    /// The end of the job.
    pub(in crate::actors) closed: Option<Box<Closed>>,
}

/// State, besides the machine, of a job that ran on without a daemon.
pub(in crate::actors) struct ResumedState {
    /// Effects of the whole record, in order.
    pub(in crate::actors) effects: VecDeque<Effect>,
    /// Effects that earlier daemons performed.
    pub(in crate::actors) performed: PerformedEffects,
    /// Reports of the keeper so far.
    pub(in crate::actors) reports: Reports,
    /// True if the record has a cancel.
    pub(in crate::actors) is_cancelled: bool,
}

/// Next act of the actor after an input that can end the job.
#[derive(PartialEq)]
pub(super) enum Reaction {
    /// None: the input has no effect any more, or the driver keeps it until a keeper holds the job.
    Nothing,
    /// Give this event to [`Driver::event`].
    Handle(Box<Event>),
    /// End the job without a keeper ([`Driver::collect_results`]).
    Interrupt,
}

/// Next act of the actor after a cancel.
#[derive(PartialEq)]
pub(super) struct CancelReaction {
    /// True if the cancel is to be journalled and shown.
    pub(super) is_accepted: bool,
    /// Next act of the actor.
    pub(super) reaction: Reaction,
}

/// Next act of the actor after the keeper's death.
pub(super) enum KeeperLoss {
    /// None: the job's log is closed.
    Nothing,
    /// Hand the job to the next keeper: no step of it has run.
    RegisterAgain(RegisteredRequest),
    /// End the job without a keeper ([`Driver::collect_results`]).
    Interrupt,
}

impl Driver {
    /// Creates the driver of a new job. It waits for its slot if `waits_with` has its request.
    pub(super) fn new(machine: RecordedMachine, waits_with: Option<RegisteredRequest>) -> Self {
        let phase = match waits_with {
            Some(request) => Phase::Waiting(Box::new(Waiting::new(request))),
            None => Phase::Running(Running::default()),
        };
        Self {
            phase,
            machine: Some(machine),
            deferred: VecDeque::new(),
            queue: VecDeque::new(),
            awaits: 0,
            is_loss_deferred: false,
            numbering: Numbering::default(),
            reports: Reports::default(),
            urgent: VecDeque::new(),
            tree: ResultTree::default(),
            processes: BTreeSet::new(),
            launched: BTreeSet::new(),
            storage_loss: None,
        }
    }

    /// Creates the driver of a job that ran on without a daemon (docs/spec/service.md §6.4).
    pub(super) fn resume(
        machine: RecordedMachine,
        waits_with: Option<RegisteredRequest>,
        resumed: ResumedState,
    ) -> Self {
        let ResumedState { effects, performed, reports, is_cancelled } = resumed;
        let mut driver = Self::new(machine, waits_with);
        if is_cancelled {
            driver.phase = Phase::Running(Running { asked: Asked::CANCEL, last_step: None });
        }
        Self { queue: effects, numbering: Numbering::behind(performed), reports, ..driver }
    }

    /// Takes the job's slot. True if the job must begin now. False if it has begun, is cancelled, or no keeper holds
    /// it. In the last case it begins once a keeper does.
    pub(super) fn begin(&mut self, is_keeper_gone: bool) -> bool {
        let is_deferred = match &mut self.phase {
            Phase::Waiting(waiting) => waiting.defer_begin(is_keeper_gone),
            Phase::Running(_) => false,
            Phase::Ending(_) | Phase::Closed(_) | Phase::Published => return false,
        };
        // With only the request in the record and no event under way, nothing has happened to the job.
        let begins = !is_deferred && self.machine.as_ref().is_some_and(RecordedMachine::is_new);
        if begins {
            self.start_running();
        }
        begins
    }

    /// Takes a request to end the job. After the first one, only those are passed on that can end it sooner, each kind once:
    /// a repeated request must not grow the record.
    pub(super) fn cancel(&mut self, ask: CancelAsk, is_keeper_gone: bool) -> CancelReaction {
        if let Phase::Waiting(waiting) = &mut self.phase {
            if let Some(is_first) = waiting.defer_cancel(ask, is_keeper_gone) {
                return CancelReaction { is_accepted: is_first, reaction: self.end_without_keeper() };
            }
            self.start_running();
        }
        let Phase::Running(running) = &mut self.phase else {
            return CancelReaction { is_accepted: self.phase.defer_cancel(ask), reaction: Reaction::Nothing };
        };
        if !running.asked.add(ask) {
            return CancelReaction { is_accepted: false, reaction: Reaction::Nothing };
        }
        let CancelAsk { cause, grace_limit, force } = ask;
        CancelReaction {
            is_accepted: true,
            reaction: Reaction::Handle(Box::new(Event::CancelAsked { cause, grace_limit, force })),
        }
    }

    /// Ends the job after a defect of the daemon. If the job's last step has succeeded and so closed the job, the end
    /// is known and in the log, and the job succeeds.
    pub(super) fn defect(&mut self, message: String, is_keeper_gone: bool) -> Reaction {
        let message = match &mut self.phase {
            Phase::Waiting(waiting) => match waiting.defer_defect(message, is_keeper_gone) {
                Some(message) => message,
                None => return self.end_without_keeper(),
            },
            Phase::Running(_) | Phase::Ending(_) => message,
            Phase::Closed(_) | Phase::Published => return Reaction::Nothing,
        };
        self.start_running();
        let event = match self.phase.last_step() {
            Some((process, status, ran)) => Event::returned_nothing(process, status, None, Some(ran)),
            None => Event::Broken { message },
        };
        Reaction::Handle(Box::new(event))
    }

    /// Notes that the job's data may not be on the disk. Fails the job unless its end is decided: that end then becomes
    /// a failure ([`Self::take_storage_loss`]).
    pub(super) fn storage_lost(&mut self, error: NotSynced, is_keeper_gone: bool) -> Reaction {
        let message = error.to_string();
        let is_first = self.storage_loss.replace(error).is_none();
        match &self.phase {
            Phase::Waiting(_) if is_first => self.defect(message, is_keeper_gone),
            Phase::Running(_) if is_first => Reaction::Handle(Box::new(Event::Broken { message })),
            _ => Reaction::Nothing,
        }
    }

    /// Returns the loss of storage that turns the job's end into a failure, once.
    pub(super) fn take_storage_loss(&mut self) -> Option<NotSynced> {
        self.storage_loss.take()
    }

    /// Counts an await. The next action waits for its end.
    pub(super) const fn begin_await(&mut self) {
        self.awaits += 1;
    }

    /// Counts the end of an await.
    pub(super) const fn end_await(&mut self) {
        self.awaits -= 1;
    }

    /// Defers the keeper's death to the end of the awaits under way. False if there is none. An await ends without a
    /// keeper, too, and a result that is being stored is stored first.
    pub(super) const fn defer_keeper_loss(&mut self) -> bool {
        let is_awaiting = self.awaits > 0;
        self.is_loss_deferred |= is_awaiting;
        is_awaiting
    }

    /// True once, after the last await during which the keeper died.
    pub(super) const fn take_deferred_loss(&mut self) -> bool {
        let is_due = self.awaits == 0 && self.is_loss_deferred;
        self.is_loss_deferred &= !is_due;
        is_due
    }

    /// Handles the keeper's death (docs/spec/service.md §6.4): a waiting job goes to the next keeper, a begun one is
    /// interrupted, and one whose log is closed has ended by itself.
    pub(super) fn keeper_lost(&mut self) -> KeeperLoss {
        match &mut self.phase {
            Phase::Waiting(waiting) => KeeperLoss::RegisterAgain(waiting.lose_keeper()),
            Phase::Running(_) | Phase::Ending(_) => {
                self.interrupt();
                KeeperLoss::Interrupt
            }
            Phase::Closed(_) | Phase::Published => KeeperLoss::Nothing,
        }
    }

    /// Takes the answer that no keeper holds the waiting job.
    pub(super) fn not_registered(&mut self, reason: NotRegistered) -> NextAttempt {
        let Phase::Waiting(waiting) = &mut self.phase else { return NextAttempt::Nothing };
        let next = waiting.next_attempt(reason);
        if next == NextAttempt::Interrupt {
            self.interrupt();
        }
        next
    }

    /// Takes the answer that a keeper holds the waiting job again. Returns the requests that have waited for it; `None`
    /// if the job does not wait any more.
    pub(super) fn registered_again(&mut self) -> Option<WaitingRequests> {
        let Phase::Waiting(waiting) = &mut self.phase else { return None };
        Some(waiting.registered_again())
    }

    /// Ends the job now if it should end and no keeper is available. While an attempt is under way, its answer
    /// decides.
    fn end_without_keeper(&mut self) -> Reaction {
        match &self.phase {
            Phase::Waiting(waiting) if waiting.is_paused() => {
                self.interrupt();
                Reaction::Interrupt
            }
            _ => Reaction::Nothing,
        }
    }

    /// Takes the keeper's report of a process. Returns it if it must go to the step's actor now.
    pub(super) fn step_ended(&mut self, ended: StepEnded) -> Option<StepEnded> {
        if self.processes.contains(&ended.process) {
            self.phase.note_last_step(&ended);
            return Some(ended);
        }
        if !self.launched.contains(&ended.process) {
            // The replay has not reached this start yet, because the disk refuses an earlier result.
            self.phase.note_last_step(&ended);
            self.reports.ended.push(ended);
        }
        None
    }

    /// Notes that a step's actor is there for this process. Returns the report of its end if that came earlier.
    pub(super) fn launched(&mut self, process: ProcessNumber) -> Option<StepEnded> {
        let at = self.reports.ended.iter().position(|ended| ended.process == process)?;
        let ended = self.reports.ended.swap_remove(at);
        self.phase.note_last_step(&ended);
        Some(ended)
    }

    /// Returns the event for a timer whose time has come. `None` if nothing waits for it any more.
    pub(super) fn due(&self, timer: TimerId) -> Option<Event> {
        // While the machine is away, nobody knows. It ignores a timer that it does not await.
        let is_awaited = self.machine.as_ref().is_none_or(|machine| machine.awaits(timer));
        (is_awaited && self.phase.is_running()).then_some(Event::Due { timer })
    }

    /// True if all that has happened is handled: nothing of it is left to be shown.
    pub(super) fn is_settled(&self) -> bool {
        self.machine.is_some() && self.queue.is_empty() && self.awaits == 0
    }

    /// Leaves the phase `Waiting`.
    fn start_running(&mut self) {
        if matches!(self.phase, Phase::Waiting(_)) {
            self.phase = Phase::Running(Running::default());
        }
    }
}

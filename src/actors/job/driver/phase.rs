//! The phases of a job. Each phase holds only the state that can still matter in it.

use super::waiting::{Waiting, WaitingRequests};
use super::{CancelAsk, StepEnded};
use crate::job::event::ProcessNumber;
use crate::keeper::protocol::StepEnd;
use crate::model::{CancelCause, ExitStatus, FinishedProcess, Outcome, StepResult};

/// Phase of a job's life. A job passes the phases in the order of the variants and can skip some.
pub(super) enum Phase {
    /// It waits for its slot. No step of it has run, so it survives its keeper.
    Waiting(Box<Waiting>),
    /// It has its slot, or is ended before it got one. Its effects are performed.
    Running(Running),
    /// Its end is decided. The keeper ends its processes and closes its log.
    Ending(Ending),
    /// No process of it is left and its log is complete. No effect is performed any more.
    Closed(AfterClose),
    /// Status shows its end.
    Published,
}

/// State of a job whose effects are performed.
#[derive(Default)]
pub(super) struct Running {
    /// The requests to end it so far.
    pub(super) asked: Asked,
    /// The step whose success closes the job ([`StepEnded::closes`]).
    pub(super) last_step: Option<Box<LastStep>>,
}

/// Kinds of requests to end a job that have come, one flag for each.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Asked(u8);

impl Asked {
    /// Any request, such as a cancel.
    pub(super) const CANCEL: Self = Self(1);
    /// A stop of the daemon.
    const SHUTDOWN: u8 = 2;
    /// One without cleanup.
    const WITHOUT_CLEANUP: u8 = 4;
    /// One that ends the job at once: no other ends it sooner.
    const AT_ONCE: u8 = Self::CANCEL.0 | Self::SHUTDOWN | Self::WITHOUT_CLEANUP | 8;

    /// Takes a request. False if those before have asked for as much.
    pub(super) fn add(&mut self, ask: CancelAsk) -> bool {
        let before = *self;
        self.0 |= Self::CANCEL.0
            | match ask.cause {
                _ if ask.force => Self::AT_ONCE,
                CancelCause::Finish if before != Self::default() => Self::AT_ONCE,
                CancelCause::Finish => Self::WITHOUT_CLEANUP,
                CancelCause::Shutdown => Self::SHUTDOWN,
                _ => 0,
            };
        *self != before
    }
}

/// The step with which the keeper closes a job.
pub(super) struct LastStep {
    process: ProcessNumber,
    /// `None` for a process that did not start.
    status: Option<ExitStatus>,
    ran: FinishedProcess,
}

/// A decided end.
pub(super) struct Ending {
    /// End of the job. Its message is not masked yet.
    pub(super) outcome: Outcome,
    /// The job's own result, without those of its steps.
    pub(super) root: Box<StepResult>,
    /// Number of failures that were allowed.
    pub(super) allowed_failures: u32,
}

/// Work that is left once the log is closed.
pub(super) enum AfterClose {
    /// The keeper died: collect the results that are left.
    Collect(Box<Interrupted>),
    /// Store results and end, then publish.
    Store,
}

/// State of a job whose keeper died.
pub(super) struct Interrupted {
    /// Its end, if that was decided.
    pub(super) ending: Option<Ending>,
    /// Requests to a job that waited for its slot; `None` for one that had begun.
    pub(super) requests: Option<WaitingRequests>,
}

impl Phase {
    /// Keeps a cancel for a job that ends while no keeper holds it. True if it is the first one.
    pub(super) fn defer_cancel(&mut self, ask: CancelAsk) -> bool {
        match self {
            Self::Closed(AfterClose::Collect(interrupted)) => {
                interrupted.requests.as_mut().is_some_and(|requests| requests.cancel.replace(ask).is_none())
            }
            _ => false,
        }
    }

    /// Notes the step with which the keeper closes the job.
    pub(super) fn note_last_step(&mut self, ended: &StepEnded) {
        let Self::Running(running) = self else { return };
        if ended.closes {
            let status = match ended.end {
                StepEnd::Exited(status) => Some(status),
                StepEnd::NotStarted { .. } => None,
            };
            running.last_step = Some(Box::new(LastStep { process: ended.process, status, ran: ended.ran }));
        }
    }

    /// Returns the step that has succeeded and so closed the job.
    pub(super) fn last_step(&self) -> Option<(ProcessNumber, ExitStatus, FinishedProcess)> {
        let Self::Running(running) = self else { return None };
        let LastStep { process, status, ran } = running.last_step.as_deref()?;
        Some((*process, (*status)?, *ran))
    }

    /// True if the keeper closes the job without being asked.
    pub(super) const fn is_closed_by_step(&self) -> bool {
        matches!(self, Self::Running(Running { last_step: Some(_), .. }))
    }

    /// True while effects are performed.
    pub(super) const fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}

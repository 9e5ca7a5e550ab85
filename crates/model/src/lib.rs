//! Types shared by every layer: ids, states, exit statuses, limits, results. Plain data and small pure functions on it.
//!
//! Beside them, [`error`] has the exit codes and shows an error with its causes. This crate may name no other crate of
//! the project, no clock, no file and no runtime.

pub mod error;
mod exit;
pub mod exit_code;
mod id;
mod limits;
mod number;
mod outcome;
mod process;
mod recent;
mod refusal;
mod result;
pub mod text;
mod variable;

pub use exit::ExitStatus;
pub use id::{InvalidId, JobId, JobKey};
pub use limits::{LimitName, ResourceLimits, Shortage, Unenforceable};
pub use number::{CallId, ProcessNumber};
pub use outcome::{CancelCause, EndClass, JobState, LogChannel, Outcome};
pub use process::ProcessInfo;
pub use recent::Recent;
pub use refusal::{Reason, Refusal, Violation};
pub use result::{
    ExecResult, FinishedProcess, ReferenceInfo, StepFacts, StepInfo, StepOutcome, StepResult, StepStatus,
    StepUsage,
};
pub use variable::{Variable, escape};

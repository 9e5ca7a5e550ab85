//! Words every layer shares: ids, states, exit statuses, results. No behaviour beyond parsing and printing.

mod exit;
mod id;
mod limits;
mod outcome;
mod process;
mod refusal;
mod result;
mod variable;

pub use exit::ExitStatus;
pub use id::{InvalidId, JobId, JobKey};
pub use limits::{LimitName, Limits, Shortage, Unenforceable};
pub use outcome::{CancelCause, EndClass, JobState, Kind, Outcome};
pub use process::ProcessInfo;
pub use refusal::{Reason, Refusal};
pub use result::{ExecResult, ReferenceInfo, StepInfo, StepResult, StepStatus};
pub use variable::Variable;

//! The keeper's decisions, as a value: requests, events and the current time become a list of actions.
//!
//! ```text
//!  request, event, now ──► Core ──► Action, Action, … ──► runtime: processes, pipes, log files, connection
//!                           ▲                                │
//!                           └──── answers, as events ◄───────┘
//! ```
//!
//! The core owns what is decided about jobs: their records, which requests were done, the stages of their steps, the
//! end of a job with the ladder of signals, the gate while phrases are prepared, and what the daemon is told in which
//! order. It holds no descriptor, opens no path, starts no thread and reads no clock (`tests/layering.rs`); a timer is
//! an [`Instant`](std::time::Instant) that [`Core::next_timer`] returns. So `tests/shows/simulate` runs it on virtual time
//! with processes of its own.
//!
//! - [`Core`] (`state`) is all jobs; `requests` performs what the daemon asks for; `record` holds a job's events;
//! - [`Job`] is one job, with rooms for its `steps`, for `stopping` single ones and for its end (`closing`); `process` is
//!   the process of a step, `gate` lets requests wait, and `ending` is the ladder;
//! - [`Action`] and [`Event`] are the border to the runtime, [`Body`] what the runtime keeps beside each job.

mod action;
mod ending;
mod event;
mod gate;
mod job;
mod process;
mod record;
mod requests;
mod state;

pub use action::{
    Action, ClearReason, EmptyCheck, FinishStep, JobAction, NotStarted, ReplyTo, Serial, StartFailure,
};
pub(crate) use ending::{FIRST_PAUSE, LAST_PAUSE};
pub use event::{Event, LogView};
pub use job::Job;
pub use state::{Body, Core, Registered};

#[cfg(test)]
mod tests;

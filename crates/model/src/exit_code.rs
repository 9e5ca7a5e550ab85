//! Exit codes of jobs and steps that do not come from a process (service.md §3.5, flow.md §4.2).

/// A job failed without an exit code: a load error, a process that could not start, a defect.
pub const FAILED: i32 = -1;

/// A client, the queue or the stop of the daemon ended the job.
pub const CANCELLED: i32 = -2;

/// A time limit ended the job.
pub const TIME_LIMIT: i32 = -3;

/// The processes that ran the job are gone, or no daemon came back.
pub const INTERRUPTED: i32 = -4;

/// The `timeout` of a step has passed, whatever ended its process.
pub const STEP_TIMED_OUT: i32 = 124;

//! Beginnings of the daemon's own lines that readers know (logs.md §2).

/// Of the line that announces a step.
pub const STEP_START: &[u8] = b"Running step name=";

/// Of the last line of a job that did not succeed: why it ended.
pub const ENDS: [&[u8]; 4] =
    [b"job failed: ", b"job cancelled: ", b"job ended by time limit: ", b"job interrupted: "];

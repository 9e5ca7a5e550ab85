//! End of a process.

use std::fmt;

use serde::{Deserialize, Serialize};

/// End of a step's process (service.md §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// Exit code 0–255.
    Code(u8),
    /// Killed by this signal.
    Signal(u8),
}

impl ExitStatus {
    /// True for exit code 0.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// Returns the code that a job reports: the exit code itself, or 128 + signal (service.md §3.5).
    pub const fn job_code(self) -> i32 {
        match self {
            Self::Code(code) => code as i32,
            Self::Signal(signal) => 128 + signal as i32,
        }
    }
}

/// Prints the end of a message: `exit status 3`, `signal: killed` (language.md §14.3, §14.4).
impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "signal: {name}"),
                None => write!(f, "signal: {signal}"),
            },
        }
    }
}

/// Returns the signal's name in the words of the operating system's own messages, in lower case.
const fn signal_name(signal: u8) -> Option<&'static str> {
    Some(match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        24 => "cpu time limit exceeded",
        25 => "file size limit exceeded",
        31 => "bad system call",
        _ => return None,
    })
}

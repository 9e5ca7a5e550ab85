//! Processes of the operating system, as tests see them.

use std::ffi::OsString;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wait_for;
use rustix::process::{Pid, Signal};

pub(crate) fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).ok();
}

/// True if the process exists and is no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Returns the result of `read`, called while the process `pid` does nothing. The process has then done all it can
/// without input from others.
pub(crate) fn at_rest<T>(pid: i32, mut read: impl FnMut() -> T) -> T {
    wait_for(&format!("process {pid} to rest"), || {
        let before = asleep(pid)?;
        let value = read();
        (asleep(pid)? == before).then_some(value)
    })
}

/// Returns how often each thread has run, or `None` if one does not sleep. If two calls return the same, no thread has
/// run between the end of the first call and the begin of the second.
fn asleep(pid: i32) -> Option<Vec<(OsString, u64)>> {
    let look = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let fields = || status.lines().filter_map(|line| line.split_once(":\t"));
        let sleeps = fields().any(|(key, value)| key == "State" && value.starts_with('S'));
        let runs = fields().filter(|(key, _)| key.ends_with("ctxt_switches"));
        let runs = runs.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
        sleeps.then(|| (thread.file_name(), runs))
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().map(look).collect()
}

/// A `sleep` of a unique length that outlasts every test, so that its processes can be found.
#[derive(Clone, Copy)]
pub(crate) struct OwnSleep(u64);

impl OwnSleep {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Self((u64::from(std::process::id()) + 1_000) * 1_000 + number)
    }

    /// Returns its living processes.
    pub(crate) fn processes(self) -> Vec<i32> {
        processes_with(&format!("sleep\0{}\0", self.0))
    }
}

/// Formats the command.
impl fmt::Display for OwnSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sleep {}", self.0)
    }
}

/// Returns the processes whose command line contains `mark`. Its words end with NUL.
pub(crate) fn processes_with(mark: &str) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_alive(*pid) && command.windows(mark.len()).any(|part| part == mark.as_bytes())
        })
        .collect()
}

//! Processes, as seen in `/proc`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Returns living processes (no zombies) whose environment has the entry `NAME=VALUE`.
pub(crate) fn with_environment(entry: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|e| e == entry.as_bytes()))
    };
    all().filter(has).filter(|&pid| lives(pid)).collect()
}

/// Returns living processes with an argument that contains `part`.
pub(crate) fn with_argument(part: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| {
            words.split(|&byte| byte == 0).any(|word| String::from_utf8_lossy(word).contains(part))
        })
    };
    all().filter(has).filter(|&pid| pid != std::process::id() && lives(pid)).collect()
}

/// Returns the living descendants of a process.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let parents: Vec<_> = all().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.into_iter().skip(1).filter(|&pid| lives(pid)).collect()
}

fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// True if the process exists and is no zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Describes processes by pid and arguments, for messages.
pub(crate) fn describe(pids: &[u32]) -> String {
    let words = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!(
            "{pid} [{}]",
            String::from_utf8_lossy(&line).replace('\0', " ").chars().take(80).collect::<String>()
        )
    };
    pids.iter().map(words).collect::<Vec<_>>().join(", ")
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It can have ended by itself.
        rustix::process::kill_process(pid, signal).ok();
    }
}

/// Reports that `proof` cannot count the descriptors of daemon and keeper, if this user cannot read them.
pub(crate) fn say_if_uncounted(proof: &str, pid: u32) {
    if fs::read_dir(format!("/proc/{pid}/fd")).is_err() {
        crate::parts::skipped(&format!("{proof}: descriptors"), "root");
    }
}

/// Numbers of resources that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
}

impl Holdings {
    pub(crate) fn of(pid: u32) -> Self {
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
        Self { threads: count("task"), descriptors: count("fd") }
    }

    pub(crate) fn is_at_most(self, other: Self) -> bool {
        self.threads <= other.threads && self.descriptors <= other.descriptors
    }
}

/// Returns RSS and PSS in KiB. Only root can read both of the daemon; others read a less exact RSS.
pub(crate) fn memory(pid: u32) -> (u64, u64) {
    let rollup = field(pid, "smaps_rollup", "Rss:").zip(field(pid, "smaps_rollup", "Pss:"));
    rollup.unwrap_or_else(|| (field(pid, "status", "VmRSS:").unwrap_or(0), 0))
}

/// Returns a number from a file of `/proc/PID`.
fn field(pid: u32, file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Returns the peak resident memory in KiB.
pub(crate) fn peak_memory(pid: u32) -> u64 {
    field(pid, "status", "VmHWM:").unwrap_or(0)
}

/// Returns the resident memory of mapped files in KiB: the program's own pages, mostly.
pub(crate) fn file_memory(pid: u32) -> u64 {
    field(pid, "status", "RssFile:").unwrap_or(0)
}

/// Returns the processor time in kernel clock ticks.
pub(crate) fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Polls until `holds` or the limit is over. Returns how long it took.
pub(crate) fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> Option<Duration> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(start.elapsed())
}

/// Returns all paths below `folder`.
pub(crate) fn tree(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(tree(&entry.path()));
        }
    }
    found
}

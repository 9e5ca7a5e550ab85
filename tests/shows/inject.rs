//! Injects one fault at one system call: strace kills a process before its Nth call of a kind, or makes that call fail.
//!
//! The process under test keeps its parent and its pid (`-DDD`). Programs that it executes are not traced (`-b
//! execve`). So a fault hits the daemon or the keeper, and their children only up to `execve`. strace counts the calls
//! of each thread.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// System calls with effects that others see: on files, processes, connections.
const CALLS: &[&str] = &[
    "write",
    "pwrite64",
    "writev",
    "sendto",
    "sendmsg",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "openat",
    "connect",
    "accept4",
    "clone",
    "clone3",
    "vfork",
    "execve",
];

/// System calls that write to files. A socket cannot lose bytes silently.
const WRITES: &[&str] = &["write", "pwrite64"];

/// Effect of the fault on the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The process is killed before the call has an effect.
    Kill,
    /// The call has no effect and fails with this error.
    Error(&'static str),
    /// The call has no effect, but returns that it wrote one byte, as a device does that loses data.
    Lie,
}

impl Fault {
    /// All faults except the kill.
    pub(crate) const ERRORS: [Self; 7] = [
        Self::Error("ENOSPC"),
        Self::Error("EDQUOT"),
        Self::Error("EIO"),
        Self::Error("EINTR"),
        Self::Error("EMFILE"),
        Self::Error("ENOMEM"),
        Self::Lie,
    ];
}

/// A fault at a call.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Injection {
    pub(crate) call: &'static str,
    /// Number of the call, from 1.
    pub(crate) when: u32,
    pub(crate) fault: Fault,
}

impl Injection {
    /// True if this fault is possible for this call.
    pub(crate) fn is_possible(&self) -> bool {
        self.fault != Fault::Lie || WRITES.contains(&self.call)
    }
}

/// Formats the injection in strace's syntax.
impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, when, fault } = self;
        match fault {
            Fault::Kill => write!(f, "{call}:signal=KILL:when={when}"),
            Fault::Error(name) => write!(f, "{call}:error={name}:when={when}"),
            Fault::Lie => write!(f, "{call}:retval=1:when={when}"),
        }
    }
}

impl Injection {
    /// True if all repetitions fail too, because each child process meets the fault at its own first call.
    pub(crate) fn is_for_good(&self) -> bool {
        self.call == "execve"
    }
}

/// True if strace is installed and permitted.
pub(crate) fn is_possible() -> bool {
    let mut command = Command::new("strace");
    command.args([
        "-D",
        "-f",
        "-b",
        "execve",
        "-o",
        "/dev/null",
        "-e",
        "inject=mkdir:error=EIO:when=1",
        "true",
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the start of a command line that traces a program into the file `trace`, with or without a fault.
pub(crate) fn tracer(trace: &Path, injection: Option<&Injection>) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["strace", "-DDD", "-f", "-b", "execve", "-o"].map(Into::into).into();
    words.push(trace.into());
    words.extend(["-e".into(), format!("trace={}", CALLS.join(",")).into()]);
    if let Some(injection) = injection {
        words.extend(["-e".into(), format!("inject={injection}").into()]);
    }
    words
}

/// Returns the calls of a trace. A list's length is the largest number of calls by one thread; entry N holds the
/// arguments of an Nth call.
pub(crate) fn calls(trace: &Path) -> BTreeMap<&'static str, Vec<String>> {
    let mut calls = BTreeMap::<_, Vec<String>>::new();
    let mut counts = BTreeMap::<(String, &str), usize>::new();
    for line in fs::read_to_string(trace).unwrap_or_default().lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let Some((name, arguments)) = rest.trim_start().split_once('(') else { continue };
        let Some(call) = CALLS.iter().copied().find(|call| *call == name) else { continue };
        // The first `execve` starts the program itself. The injection does not count it.
        if call == "execve" && counts.is_empty() {
            continue;
        }
        let count = counts.entry((pid.to_owned(), call)).or_default();
        *count += 1;
        let seen = calls.entry(call).or_default();
        if *count > seen.len() {
            seen.push(arguments.to_owned());
        }
    }
    calls
}

/// True if the loader of shared libraries makes the call, before the program's first instruction.
pub(crate) fn is_loader(arguments: &str) -> bool {
    arguments.contains("\"/etc/ld.so") || arguments.contains(".so.") || arguments.contains(".so\"")
}

/// Arguments of a write that wakes an event loop of the same process. A real kernel never fails this call.
pub(crate) const WAKE_UP: &str = r#", "\1\0\0\0\0\0\0\0", 8)"#;

/// True if the fault met a call whose arguments contain `part`.
pub(crate) fn has_met(trace: &Path, part: &str) -> bool {
    let text = fs::read_to_string(trace).unwrap_or_default();
    text.lines().any(|line| line.contains("(INJECTED)") && line.contains(part))
}

/// Returns the trace line of the call that the fault met.
pub(crate) fn met(trace: &Path) -> Option<String> {
    let text = fs::read_to_string(trace).unwrap_or_default();
    text.lines().find(|line| line.contains("(INJECTED)")).map(str::to_owned)
}

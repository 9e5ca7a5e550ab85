//! Old container engines: their filters (seccomp) refuse calls that they do not know with EPERM instead of ENOSYS.

use std::process::{Command, Output, Stdio};

use super::{program, stderr, stdout};
use crate::support::parts;

/// Calls that are younger than filters in use, or that filters have left out.
const FILTERED: [&str; 17] = [
    "close_range",
    "copy_file_range",
    "epoll_pwait2",
    "faccessat2",
    "fallocate",
    "getrandom",
    "getxattr",
    "inotify_init1",
    "memfd_create",
    "openat2",
    "pidfd_open",
    "pidfd_send_signal",
    "preadv2",
    "renameat2",
    "rseq",
    "statx",
    "syncfs",
];

/// True if this machine can make calls fail. Only root can trace a daemon, because it closes its memory to its own user.
fn can_filter(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        parts::skipped(test, "root");
        return false;
    }
    let traces =
        Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !traces.is_ok_and(|status| status.success()) {
        parts::skipped(test, "strace");
        return false;
    }
    true
}

/// Runs the program in `folder` while each `call` of it and of its children fails with `errno`.
fn run_without(call: &str, errno: &str, folder: &std::path::Path, words: &[&str]) -> Output {
    let plain = program(words);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    traced
        .args(["-e", &format!("inject={call}:error={errno}")])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    traced.current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn folder_with_a_job() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.yml"), "- {name: a, script: echo hi}\n").unwrap();
    folder
}

#[test]
fn bug_old_engines_answer_eperm() {
    if !can_filter("bug_old_engines_answer_eperm") {
        return;
    }
    let folder = folder_with_a_job();
    for call in FILTERED {
        for errno in ["EPERM", "ENOSYS"] {
            let output = run_without(call, errno, folder.path(), &["run", "job.yml"]);
            assert!(output.status.success(), "{call} {errno}: {}", stderr(&output));
            assert_eq!(stdout(&output), "hi\n", "{call} {errno}");
        }
    }
}

/// The C library starts threads by `clone3`, and takes EPERM for an answer. So nothing can run, but that is told.
#[test]
fn a_refused_start_of_a_thread_is_a_message() {
    if !can_filter("a_refused_start_of_a_thread_is_a_message") {
        return;
    }
    let folder = folder_with_a_job();
    let socket = folder.path().join("s.sock");
    let serve = ["serve", "--max-lifetime", "1ms", "--socket", socket.to_str().unwrap()];
    for words in [&["run", "job.yml"][..], &["status", "--socket", "/no/such/socket"], &serve] {
        let output = run_without("clone3", "EPERM", folder.path(), words);
        let said = stderr(&output);
        assert!(!said.contains("panic") && !said.contains("internal error"), "{words:?}: {said}");
        // The static program needs no clone3.
        if said.contains("cannot start a thread") {
            assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
            assert!(said.contains("seccomp") && said.contains("update the container engine"), "{said}");
        }
    }
}

//! A daemon under test with its own folder, and a client that speaks plain gRPC to it, without retries.
//!
//! Nothing here sleeps for a fixed time. Everything waits for a state, at most for [`PATIENCE`].

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(unused_imports, reason = "as above")]
#![allow(clippy::allow_attributes, reason = "as above: `expect` would fail in a program that uses all")]
#![expect(clippy::print_stderr, reason = "says what a daemon said")]

pub(crate) mod client;
pub(crate) mod daemon;
pub(crate) mod frames;
pub(crate) mod logs;
pub(crate) mod parts;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod registry;
pub(crate) mod user;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use client::{Client, Follow};
pub(crate) use daemon::{Daemon, Setup};
pub(crate) use process::{OwnSleep, at_rest, is_alive, kill, processes_with};
use step_runner::pb::details;
use step_runner::pb::v1::{RunRequest, State, Status};
use tonic::Code;

/// Longest wait for anything. It is never needed, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// Bound for things that must not wait for something else. In these tests that something takes ten minutes.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Calls `state` repeatedly until it returns a value.
pub(crate) fn wait_for<T>(what: &str, mut state: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = state() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Like [`wait_for`] for a condition, inside a runtime.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the result of `work`, which must come within [`PATIENCE`].
pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// True if the tests run as root. Otherwise reports `test` as skipped.
pub(crate) fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        parts::skipped(test, "root");
    }
    root
}

/// Returns the sorted names in a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// Returns every file below `folder` with its content, for comparison. Files that vanish meanwhile are left out.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in there(std::fs::read_dir(&folder)).into_iter().flatten().flatten() {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(path.clone());
                all.insert(path, Vec::new());
            } else if !kind.is_file() {
                all.insert(path, Vec::new());
            } else if let Some(content) = there(std::fs::read(&path)) {
                all.insert(path, content);
            }
        }
    }
    all
}

/// Returns `None` if the file is gone.
fn there<T>(found: std::io::Result<T>) -> Option<T> {
    match found {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        found => Some(found.unwrap()),
    }
}

/// Returns a request with these steps.
pub(crate) fn request(id: &str, steps: &str) -> RunRequest {
    RunRequest { id: id.to_owned(), steps: steps.to_owned(), ..RunRequest::default() }
}

/// Returns a list with one script step.
pub(crate) fn script(text: &str) -> String {
    scripts(&[("s", text)])
}

/// Returns steps with several scripts, each with its name.
pub(crate) fn scripts(scripts: &[(&str, &str)]) -> String {
    let steps: Vec<_> =
        scripts.iter().map(|(name, text)| serde_json::json!({"name": name, "script": text})).collect();
    serde_json::to_string(&steps).unwrap()
}

/// Returns steps with one function that runs `command` without a shell.
pub(crate) fn exec(daemon: &Daemon, name: &str, command: &[&str]) -> String {
    let folder = daemon.file(name);
    std::fs::create_dir_all(&folder).unwrap();
    let definition = serde_json::json!({"exec": {"command": command}});
    std::fs::write(folder.join("func.yml"), format!("spec: {{}}\n---\n{definition}\n")).unwrap();
    serde_json::json!([{"name": name, "func": folder}]).to_string()
}

/// Asserts that a call was refused with this code and reason. Returns the text after the reason.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, tonic::Status>, code: Code, reason: &str) -> String {
    let Err(status) = result else { panic!("not refused, expected {reason}") };
    let info = details::info(&status);
    assert_eq!(info.map(|info| info.reason).as_deref(), Some(reason), "{status:?}");
    let text = status.message().strip_prefix(reason).and_then(|text| text.strip_prefix(": "));
    match text {
        Some(text) if status.code() == code => text.to_owned(),
        _ => panic!("expected {code:?} {reason}, got {:?} {}", status.code(), status.message()),
    }
}

/// Returns the numbers from 1 to `last`, each on a line with `after` behind it.
pub(crate) fn numbered(last: u32, after: &str) -> String {
    let mut lines = String::new();
    for number in 1..=last {
        lines.push_str(&number.to_string());
        lines.push_str(after);
        lines.push('\n');
    }
    lines
}

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

pub(crate) fn state(status: &Status) -> State {
    status.state()
}

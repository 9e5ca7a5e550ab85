//! Tests of the state folder, each in a folder of its own.

#[cfg(feature = "failpoints")] // which brings the recorder of files
mod crashes;
mod file_vars;
mod journal_model;
#[cfg(feature = "failpoints")]
mod power;
mod recovery;
mod removal;
mod socket;
mod state_dir;
mod steps;

use tempfile::TempDir;

use super::*;
use step_runner_core::request::RequestOrigin;
use step_runner_log::journal::event::{End, Event};
use step_runner_model::{EndClass, JobId, Outcome, ProcessInfo};

const BOOT: &str = "11111111-2222-3333-4444-555555555555";

fn daemon() -> ProcessInfo {
    ProcessInfo { boot_id: BOOT.to_owned(), pid: std::process::id(), start_time: 1 }
}

/// A promise that was made to a client and must hold after a crash.
#[cfg(feature = "failpoints")]
#[derive(Clone, Debug)]
enum Promise {
    /// Run was answered.
    Registered,
    /// This number of bytes of the log was sent.
    Log(usize),
    /// This number of step results was sent.
    Steps(usize),
    /// Status showed this end.
    Ended(End),
    /// Finish was answered.
    Removed,
}

fn temp() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(temp: &TempDir) -> StateDir {
    StateDir::open(&temp.path().join("state"), &daemon()).unwrap()
}

fn record(id: &str) -> JobRecord {
    JobRecord {
        id: id.to_owned(),
        registered_boot: None,
        registered: 5,
        origin: RequestOrigin::V1,
        work_dir: "/w".to_owned(),
        files: Vec::new(),
        made_directory: None,
        tag: "0".repeat(32),
        boot_id: BOOT.to_owned(),
        digest: None,
        limits: RecordedLimits::default(),
    }
}

fn folder(state: &StateDir, id: &str) -> JobFolder {
    state.folder(JobId::parse(id).unwrap().key())
}

fn create(state: &StateDir, id: &str) -> JobFolder {
    let folder = folder(state, id);
    folder.make().unwrap();
    folder.write_record(&record(id)).unwrap();
    folder
}

fn delete(removed: Result<Option<Removed>, StoreError>) {
    if let Some(removed) = removed.unwrap() {
        removed.delete().unwrap();
    }
}

fn end() -> End {
    End { steps_done: 1, ..End::new(Outcome::success(), 9, 7, 3) }
}

/// True if the death of its keeper or host ended the job.
fn is_interrupted(end: &End) -> bool {
    end.outcome.class == EndClass::Interrupted
}

fn scan_one(state: &StateDir) -> Option<Found> {
    let mut found = state.scan().unwrap();
    assert!(found.len() <= 1, "{found:?}");
    found.pop()
}

fn job(found: Option<Found>) -> ScannedJob {
    match found {
        Some(Found::Job(job)) => *job,
        other => panic!("{other:?}"),
    }
}

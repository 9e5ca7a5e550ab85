//! Opens a state folder whose files hold arbitrary bytes. The daemon's start does not fail because of them, and after
//! recovery every remaining job has an end.

#![no_main]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use step_runner::journal::event::Event;
use step_runner::journal::{append_record, encode};
use step_runner::model::{JobId, ProcessInfo};
use step_runner::request::RequestOrigin;
use step_runner::store::{Found, JobRecord, OpenError, RecordedLimits, StateDir, close_interrupted};

/// Returns the content for a file: none, the valid content, the valid content truncated, overwritten in part or
/// extended, or arbitrary bytes.
fn content(good: Vec<u8>, choice: u8, at: u16, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut content = good;
    let at = usize::from(at) % (content.len() + 1);
    match choice % 6 {
        0 => return None,
        1 => {}
        2 => content.truncate(at),
        3 => content.splice(at..(at + bytes.len()).min(content.len()), bytes.iter().copied()).for_each(drop),
        4 => content.extend_from_slice(bytes),
        _ => content = bytes.to_vec(),
    }
    Some(content)
}

fn record(id: &str) -> JobRecord {
    JobRecord {
        id: id.to_owned(),
        registered: 5,
        registered_boot: None,
        origin: RequestOrigin::V1,
        work_dir: "/w".to_owned(),
        files: Vec::new(),
        made_directory: None,
        tag: "0".repeat(32),
        boot_id: String::new(),
        digest: None,
        limits: RecordedLimits::default(),
    }
}

fn write(folder: &Path, name: &str, content: Option<Vec<u8>>) {
    if let Some(content) = content {
        fs::write(folder.join(name), content).expect("a file");
    }
}

fuzz_target!(|input: [(u8, u16, Vec<u8>); 5]| {
    let path = std::env::temp_dir().join(format!("step-runner-fuzz-recover-{}", std::process::id()));
    fs::remove_dir_all(&path).ok();
    let key = JobId::parse("1").expect("an id").key();
    let folder = path.join(format!("jobs/{key}"));
    fs::create_dir_all(&folder).expect("a folder");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a private folder");

    let journal = [
        Event::Started { at: 1, boot: None },
        Event::StepStarted { process: 1, pgid: 2, pid: 2, start_time: 3 },
    ];
    let mut steps = Vec::new();
    append_record(b"result", &mut steps).expect("short enough");
    let good = [
        encode(&record("1")).expect("a record"),
        journal.iter().flat_map(|event| encode(event).expect("an event")).collect(),
        b"2026-01-01T00:00:00.000000Z 01O one\n".to_vec(),
        steps,
    ];
    for ((name, good), (choice, at, bytes)) in
        ["job.json", "journal", "log", "steps"].iter().zip(good).zip(&input)
    {
        write(&folder, name, content(good, *choice, *at, bytes));
    }
    let (choice, at, bytes) = &input[4];
    write(&path, "daemon.json", content(br#"{"format":1}"#.to_vec(), *choice, *at, bytes));

    let daemon = ProcessInfo { boot_id: String::new(), pid: 1, start_time: 1 };
    // A format number above ours means a newer version. That is the only reason to refuse the start.
    if let Err(error) = StateDir::open(&path, &daemon).map(|state| recover(&state)) {
        assert!(matches!(error, OpenError::NewerFormat { .. }), "{error}");
    }
});

fn recover(state: &StateDir) {
    for found in state.scan().expect("a folder that can be read") {
        match found {
            Found::Job(job) if job.journal.end.is_none() => {
                let end = close_interrupted(&job, "fuzzed", None, 7, 7).expect("a file that can be written");
                let log = job.folder.open_log(Some(end.log_inode)).expect("a log");
                assert_eq!(log.length().expect("a length"), end.log_len);
            }
            Found::Job(job) => drop(job.folder.read_steps()),
            Found::Unreadable { folder, .. } => {
                folder.set_aside().expect("a folder that can be renamed");
                let aside = state.set_aside_keys().expect("a folder that can be read");
                assert!(aside.contains(&folder.key()));
            }
            Found::Gone(removed) => removed.delete().expect("a folder that can be deleted"),
            Found::Orphan { name, .. } => {
                let removed = state.remove_orphan(&name).expect("a folder that can be renamed");
                removed.expect("it was there").delete().expect("a folder that can be deleted");
            }
        }
    }
    for found in state.scan().expect("a folder that can be read") {
        assert!(matches!(found, Found::Job(job) if job.journal.end.is_some()), "something is left to do");
    }
}

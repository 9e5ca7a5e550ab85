//! Logs that another process has changed (faults.md row 85), and lines that have no line feed yet.

use std::io::Write;
use std::path::Path;

use step_runner::keeper::protocol::{FromKeeper, Request};

use crate::keeper::support::{Client, Keeper, exited};

fn append(log: &Path, bytes: &[u8]) {
    std::fs::File::options().append(true).open(log).unwrap().write_all(bytes).unwrap();
}

#[test]
fn fault_85_what_a_step_appends_to_its_log_is_no_part_of_it() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("appends");
    let log = job.folder.join("log");
    let ended = job.run(&mut keeper.client, &format!("echo one; seq 1 1000 >> {}", log.display()));
    assert_eq!(ended.end, exited(0));
    assert_eq!(job.run(&mut keeper.client, "echo two").end, exited(0));
    append(&log, b"2026-01-02T03:04:05.000006Z 01O forged\n");
    let closed = job.close(&mut keeper.client);
    let lines = job.lines();
    assert_eq!(lines[..2], ["01O one", "01O two"]);
    assert_eq!(lines.len(), 3, "{lines:?}");
    let warning = &lines[2];
    assert!(warning.starts_with("00E warning: ") && warning.contains("another process"), "{warning}");
    assert_eq!(closed.log_len, job.log().len() as u64);
    assert!(!closed.log_damaged);
    keeper.client.event(|event| match event {
        FromKeeper::Notice(text) if text.contains("another process wrote") => Some(()),
        _ => None,
    });
    keeper.end();
}

#[test]
fn fault_85_a_log_that_was_cut_stays_shorter_than_what_was_told() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("cut");
    job.run(&mut keeper.client, "seq 1 100");
    let log = std::fs::File::options().write(true).open(job.folder.join("log")).unwrap();
    log.set_len(64).unwrap();
    job.run(&mut keeper.client, "seq 1 100");
    let closed = job.close(&mut keeper.client);
    let written = job.log();
    assert!((written.len() as u64) < closed.log_len);
    assert!(!written.contains(&0), "there is no hole");
    keeper.end();
}

#[test]
fn fault_85_a_job_that_is_held_anew_has_the_log_that_was_told() {
    let mut keeper = Keeper::start("auto");
    let job = keeper.register("first");
    keeper.client.ask(Request::Drop { key: job.key }).unwrap();
    let entry = b"2026-01-02T03:04:05.000006Z 00O told\n";
    append(&job.folder.join("log"), entry);
    append(&job.folder.join("log"), b"foreign");
    let again = keeper.register_with_log("first", entry.len() as u64);
    keeper.client.tell(Request::Close {
        key: again.key,
        op: 1,
        leftover_grace: std::time::Duration::ZERO,
        lines: Vec::new(),
    });
    keeper.client.closed(again.key);
    let lines = again.lines();
    assert_eq!(lines[0], "00O told");
    assert!(lines[1].contains("7 bytes that another process wrote"), "{lines:?}");
    keeper.end();
}

/// Returns the text of the next report of an unfinished line. Empty if the line has ended.
fn unfinished(client: &mut Client) -> String {
    client.event(|event| match event {
        FromKeeper::Unfinished { entry, .. } => {
            Some(String::from_utf8(entry.0.get(32..).unwrap_or_default().to_vec()).unwrap())
        }
        _ => None,
    })
}

#[test]
fn lines_without_an_end_are_told_to_a_daemon_that_asks() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("grows");
    let go = keeper.dir.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&go).status().unwrap().success());
    let wait = format!("cat {}", go.display());
    let first = job.spawn(&mut keeper.client, &format!("printf one; {wait}; echo; printf two >&2; {wait}"));
    keeper.client.ask(Request::WatchUnfinished { key: job.key }).unwrap();
    assert_eq!(unfinished(&mut keeper.client), "one");
    // A new daemon has to ask for the reports again.
    keeper.client.hang_up();
    keeper.reconnect(crate::keeper::support::settings());
    keeper.client.ask(Request::WatchUnfinished { key: job.key }).unwrap();
    assert_eq!(unfinished(&mut keeper.client), "one");
    std::fs::write(&go, "").unwrap();
    assert_eq!(unfinished(&mut keeper.client), "");
    assert_eq!(unfinished(&mut keeper.client), "two");
    std::fs::write(&go, "").unwrap();
    keeper.client.step_ended(job.key, first);
    assert_eq!(unfinished(&mut keeper.client), "", "the end of the step ends its lines");
    // The reports also cover later steps of the job.
    let last = job.spawn(&mut keeper.client, &format!("printf three; {wait}"));
    assert_eq!(unfinished(&mut keeper.client), "three");
    std::fs::write(&go, "").unwrap();
    keeper.client.step_ended(job.key, last);
    job.close(&mut keeper.client);
    keeper.end();
}

#[test]
fn lines_without_an_end_that_the_log_would_not_have_are_not_told() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register_with("limited", |asked| asked.log_limit = 8192);
    keeper.client.ask(Request::WatchUnfinished { key: job.key }).unwrap();
    let go = keeper.dir.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&go).status().unwrap().success());
    // The step sleeps ten times as long as a report takes.
    let script = format!("printf seen; cat {}; seq 1 3000; printf unseen; sleep 1", go.display());
    let process = job.spawn(&mut keeper.client, &script);
    assert_eq!(unfinished(&mut keeper.client), "seen");
    std::fs::write(&go, "").unwrap();
    keeper.client.step_ended(job.key, process);
    job.close(&mut keeper.client);
    let mut told = Vec::new();
    while let Some(text) = keeper.client.heard(|event| match event {
        FromKeeper::Unfinished { entry, .. } => Some(String::from_utf8_lossy(&entry.0).into_owned()),
        _ => None,
    }) {
        told.push(text);
    }
    assert!(!told.iter().any(|text| text.contains("unseen")), "{told:?}");
    keeper.end();
}

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use step_runner_model::{CancelCause, EndClass, ExitStatus};

const NOW: i64 = 1_000_000;

#[test]
fn jobs_are_found_as_they_were() {
    let temp = temp();
    let state = open(&temp);
    let started = create(&state, "1");
    let step = Event::StepStarted { process: 1, pgid: 10, pid: 10, start_time: 99 };
    started.append_all(&[Event::Started { at: 3, boot: None }, step]).unwrap();
    started.append(&Event::Cancel { cause: CancelCause::Runaway }).unwrap();
    drop((state, started));

    let state = open(&temp);
    let job = job(scan_one(&state));
    assert_eq!(job.record, record("1"));
    assert_eq!((job.journal.started, job.journal.cancel), (Some(3), Some(CancelCause::Runaway)));
    assert_eq!(job.journal.end, None);
    let left = crate::scan::Leftover { process: 1, pgid: 10, pid: 10, start_time: 99, ended: false };
    assert_eq!(job.leftovers(BOOT), [left]);
    assert!(job.leftovers("another boot").is_empty());
    job.folder.append(&Event::StepEnded { process: 1, status: Some(ExitStatus::Signal(9)) }).unwrap();
    job.folder.append(&Event::Ended(end())).unwrap();
    let journal = job.folder.read_journal().unwrap();
    assert!(journal.processes[0].ended);
    assert_eq!(journal.end, Some(end()));
}

#[test]
fn fault_44_damaged_huge_and_foreign_things_are_reported_and_the_others_served() {
    let temp = temp();
    let state = open(&temp);
    let jobs = state.path().join("jobs");
    create(&state, "good");
    let bad =
        |id: &str, name: &str, content: &[u8]| fs::write(create(&state, id).path(name), content).unwrap();
    bad("empty", "job.json", b"");
    bad("foreign", "job.json", &step_runner_log::journal::encode(&record("other")).unwrap());
    bad("journal", "journal", b"{\"crc32\":\"00000000\",\"event\":{}}\n");
    bad("garbage", "journal", b"\n");
    bad("torn", "journal", b"half a line");
    let sparse = create(&state, "sparse").path("job.json");
    fs::OpenOptions::new().write(true).open(sparse).unwrap().set_len(4 << 30).unwrap();
    let fifo = create(&state, "fifo").path("journal");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let link = create(&state, "link").path("journal");
    symlink("/etc/passwd", link).unwrap();
    fs::create_dir(folder(&state, "no-record").path("")).unwrap();
    fs::create_dir(jobs.join("nobody")).unwrap();
    fs::write(jobs.join("0".repeat(32)), "a file").unwrap();
    fs::create_dir_all(jobs.join(".gone-1/work/deep")).unwrap();

    let mut unreadable = Vec::new();
    let (mut served, mut orphans) = (Vec::new(), 0);
    for found in state.scan().unwrap() {
        match found {
            Found::Job(job) => served.push(job.record.id),
            Found::Unreadable { folder, reason } => {
                folder.set_aside().unwrap();
                assert!(state.set_aside_keys().unwrap().contains(&folder.key()));
                unreadable.push(reason);
            }
            Found::Gone(removed) => {
                assert!(jobs.join(".gone-1/work/deep").exists(), "deleted while callers wait");
                removed.delete().unwrap();
            }
            Found::Orphan { name, .. } => {
                orphans += 1;
                delete(state.remove_orphan(&name));
            }
        }
    }
    served.sort();
    assert_eq!(served, ["good", "torn"]);
    assert_eq!(unreadable.len(), 7, "{unreadable:#?}");
    assert_eq!(orphans, 3);
    assert!(!jobs.join(".gone-1").exists());
    assert_eq!(state.scan().unwrap().len(), 2);
    let aside = folder(&state, "sparse");
    let taken = aside.remove_set_aside().unwrap().unwrap();
    assert!(!state.set_aside_keys().unwrap().contains(&aside.key()), "its id is free before it is deleted");
    taken.delete().unwrap();
    assert!(aside.remove_set_aside().unwrap().is_none());
}

#[test]
fn fault_44_damaged_job_is_written_anew_behind_its_last_good_event() {
    let temp = temp();
    let state = open(&temp);
    let damaged = create(&state, "1");
    damaged.append(&Event::Started { at: 4, boot: None }).unwrap();
    let mut journal = fs::read(damaged.path("journal")).unwrap();
    journal.extend_from_slice(b"not a record\nnor this\n");
    fs::write(damaged.path("journal"), journal).unwrap();
    fs::write(damaged.path("job.json"), "{").unwrap();
    assert!(matches!(scan_one(&state), Some(Found::Unreadable { .. })));
    damaged.renew(&record("1")).unwrap();
    assert_eq!(damaged.read_job().unwrap().journal.started, Some(4));
    damaged.append(&Event::Ended(end())).unwrap();
    assert_eq!(job(scan_one(&state)).journal.end, Some(end()));
}

#[test]
fn folders_without_a_registered_job_are_orphans_with_their_last_change() {
    let temp = temp();
    let state = open(&temp);
    let known = create(&state, "1");
    fs::create_dir(folder(&state, "2").path("")).unwrap();
    let orphans = state.orphans(|key| key == known.key()).unwrap();
    let [(name, changed)] = orphans.as_slice() else { panic!("{orphans:?}") };
    let age = step_runner_system::clock::now().duration_since(*changed).unwrap();
    assert!(age.as_secs() < 3_600);
    delete(state.remove_orphan(name));
    assert!(known.path("").exists() && !folder(&state, "2").path("").exists());
    assert_eq!(state.set_aside_keys().unwrap(), []);
    known.set_aside().unwrap();
    assert_eq!(state.set_aside_keys().unwrap(), [known.key()]);
}

#[test]
fn removal_begun_is_gone_with_the_next_scan() {
    let temp = temp();
    let state = open(&temp);
    let begun = create(&state, "1");
    begun.append(&Event::Removing).unwrap();
    // A name that is taken must not block the removal.
    let taken = state.path().join(format!("jobs/.gone-{}-{}-0", begun.key(), std::process::id()));
    fs::create_dir_all(taken.join("work")).unwrap();
    let found = state.scan().unwrap();
    assert!(found.iter().all(|found| matches!(found, Found::Gone { .. })), "{found:?}");
    assert_eq!(found.len(), 2);
    assert!(!begun.path("").exists());
}

#[test]
fn the_spare_folders_of_an_earlier_version_are_removed_by_the_next_start() {
    let temp = temp();
    drop(open(&temp));
    let spare = temp.path().join("state/spare");
    for folder in ["1", "2"] {
        fs::create_dir_all(spare.join(folder)).unwrap();
        fs::write(spare.join(folder).join("log.spare"), "").unwrap();
    }
    let state = open(&temp);
    match scan_one(&state) {
        Some(Found::Gone(removed)) => removed.delete().unwrap(),
        other => panic!("{other:?}"),
    }
    assert!(!spare.exists() && scan_one(&state).is_none());
}

fn log_of(folder: &JobFolder) -> String {
    fs::read_to_string(folder.path("log")).unwrap()
}

const LAST: &str = "1970-01-01T00:00:01.000000Z 00E job interrupted: the host died\n";

#[test]
fn interrupted_job_is_closed_with_one_last_line_and_an_end() {
    let entry = "2026-01-01T00:00:00.000000Z 01O half";
    let of_step = LAST.replace("00E", "01E");
    for (before, after) in [
        (None, LAST.to_owned()),
        (Some(""), LAST.to_owned()),
        (Some(entry), format!("{entry}\n{LAST}")),
        (Some(&*format!("{entry}\n")), format!("{entry}\n{LAST}")),
        // A step printed our words.
        (Some(&*of_step), format!("{of_step}{LAST}")),
        // The recovery itself crashed after its last line.
        (Some(LAST), LAST.to_owned()),
    ] {
        let temp = temp();
        let state = open(&temp);
        let died = create(&state, "1");
        died.append(&Event::Started { at: 1, boot: None }).unwrap();
        died.append_step(b"result").unwrap();
        if let Some(before) = before {
            fs::write(died.path("log"), before).unwrap();
        }
        let mut journal = fs::OpenOptions::new().append(true).open(died.path("journal")).unwrap();
        std::io::Write::write_all(&mut journal, b"{\"crc32\":\"half").unwrap();

        let end = close_interrupted(&job(scan_one(&state)), "the host died", None, NOW, 0).unwrap();
        assert_eq!(log_of(&died), after);
        assert_eq!((end.log_len, end.steps_done), (after.len() as u64, 1));
        assert_eq!(
            (end.outcome.class, end.outcome.exit_code, end.end_time),
            (EndClass::Interrupted, -4, NOW)
        );
        let found = job(scan_one(&state));
        assert_eq!((found.journal.end, found.journal.torn), (Some(end.clone()), None));
        assert_eq!(died.open_log(Some(end.log_inode)).unwrap().length().unwrap(), end.log_len);
    }
}

#[test]
fn fault_29_log_that_was_replaced_removed_or_cut_is_never_served_as_the_jobs() {
    let temp = temp();
    let state = open(&temp);
    let served = create(&state, "1");
    fs::write(served.path("log"), "0123456789").unwrap();
    let log = served.open_log(None).unwrap();
    assert_eq!(log.read_piece(4, 10, 64).unwrap(), b"456789");
    assert_eq!(log.read_piece(10, 10, 64).unwrap(), b"");

    fs::OpenOptions::new().write(true).open(served.path("log")).unwrap().set_len(5).unwrap();
    let error = log.read_piece(0, 10, 64).unwrap_err();
    assert!(matches!(error, LogLost::Cut { actual: 5, expected: 10 }), "{error}");
    fs::rename(served.path("log"), served.path("moved")).unwrap();
    assert!(matches!(served.open_log(Some(log.inode())), Err(LogLost::Removed)));
    fs::write(served.path("log"), "another").unwrap();
    assert!(matches!(served.open_log(Some(log.inode())), Err(LogLost::Replaced)));
    fs::remove_file(served.path("log")).unwrap();
    symlink("/etc/passwd", served.path("log")).unwrap();
    assert!(served.open_log(None).is_err());
}

#[test]
fn fault_85_what_follows_the_told_length_is_kept_only_as_whole_entries() {
    const ENTRY: &str = "2026-01-02T03:04:05.000006Z 01O text\n";
    let (torn, _) = ENTRY.split_at(34);
    let nul = ENTRY.replace("text", "t\0xt");
    // Bytes after the reported length, and how many of them are kept.
    for (behind, kept) in [
        (String::new(), 0),
        (ENTRY.repeat(2), 2 * ENTRY.len()),
        (nul.clone(), nul.len()),
        (torn.to_owned(), torn.len()),
        (format!("{ENTRY}foreign\n"), ENTRY.len()),
        (format!("foreign {ENTRY}"), 0),
        ("foreign".to_owned(), 0),
    ] {
        let temp = temp();
        let state = open(&temp);
        let died = create(&state, "died");
        fs::write(died.path("log"), format!("{ENTRY}{behind}")).unwrap();
        let told = Some(ENTRY.len() as u64);
        close_interrupted(&job(scan_one(&state)), "its keeper died", told, NOW, 0).unwrap();
        let log = fs::read_to_string(died.path("log")).unwrap();
        let (ours, rest) = log.split_at(ENTRY.len() + kept);
        assert_eq!(ours, [ENTRY, behind.split_at(kept).0].concat());
        let rest = rest.trim_start_matches('\n');
        assert_eq!(rest.lines().count(), 1, "{behind:?}: {rest}");
        let removed = behind.len() - kept;
        assert_eq!(
            rest.contains(&format!("{removed} bytes that another process wrote")),
            removed > 0,
            "{rest}"
        );
    }
}

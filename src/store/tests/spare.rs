//! Folders that are used again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;

/// A change of a folder, given the paths of its files, with a place for other files.
type Change = fn(&dyn Fn(&str) -> PathBuf, &TempDir);

/// Makes a plain folder with something in each file, as a job leaves it.
fn used(state: &StateDir, id: &str) -> JobFolder {
    let folder = create(state, id);
    files::open_write(&folder.shared.jobs, folder.inside("log").as_str())
        .and_then(|log| files::write_all(log, b"a line\n"))
        .unwrap();
    folder.append_step(b"result").unwrap();
    folder.append(&Event::Ended(end())).unwrap();
    folder
}

/// Begins to remove a plain folder as Finish does.
fn begin(folder: &JobFolder) -> Removed {
    assert!(folder.make_plain());
    folder.begin_reuse().unwrap().unwrap()
}

/// Removes a job as Finish does. True if its folder was kept as a spare one.
fn remove(folder: &JobFolder) -> bool {
    let begun = if folder.make_plain() { folder.begin_reuse() } else { folder.begin_removal() };
    let removed = begun.unwrap().unwrap();
    let is_kept = removed.keep_as_spare();
    if !is_kept {
        removed.delete().unwrap();
    }
    is_kept
}

fn names(state: &StateDir, directory: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(state.path().join(directory)) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Inodes of a job's files, in the order of their names.
fn inodes(folder: &JobFolder) -> Vec<u64> {
    let inode =
        |name: &&str| files::stat_at(&folder.shared.jobs, folder.inside(name).as_str()).unwrap().st_ino;
    ["job.json", "journal", "log", "steps"].iter().map(inode).collect()
}

/// A state folder with spare folders, or `None` on a file system that has no leases.
fn state() -> Option<(TempDir, StateDir)> {
    let temp = temp();
    let state = open(&temp);
    state.shared.spare.want();
    if remove(&used(&state, "probe")) {
        drop(state);
        let state = open(&temp);
        state.shared.spare.want();
        state.scan().unwrap().into_iter().for_each(|found| {
            if let Found::Gone(removed) = found {
                removed.delete().unwrap();
            }
        });
        return Some((temp, state));
    }
    eprintln!("skipped: no leases on the file system of {}", temp.path().display());
    None
}

#[test]
fn a_later_job_has_the_inodes_of_a_removed_one_and_nothing_of_its_contents() {
    let Some((_temp, state)) = state() else { return };
    let first = used(&state, "1");
    first.make_dir("work").unwrap();
    let before = inodes(&first);
    assert!(remove(&first));
    assert_eq!((names(&state, "jobs"), names(&state, "spare")), (vec![], vec!["1".to_owned()]));

    let second = folder(&state, "2");
    second.make().unwrap();
    assert_eq!(names(&state, "spare"), [""; 0]);
    assert!(matches!(scan_one(&state), Some(Found::Orphan { .. })), "no Run was accepted yet");
    second.write_record(&record("2")).unwrap();
    let job = job(scan_one(&state));
    assert_eq!((&job.record, &job.journal), (&record("2"), &Journal::default()));
    assert!(!job.was_held(), "no keeper has taken it yet");
    assert_eq!(second.read_steps().unwrap(), Steps::default());

    files::use_spare(&second.shared.jobs, &second.inside("log")).unwrap();
    assert_eq!(fs::read(second.path("log")).unwrap(), b"");
    second.append_step(b"other").unwrap();
    second.append(&Event::Removing).unwrap();
    assert_eq!(inodes(&second), before);
    assert_eq!(second.step_records(), [b"other"]);
}

#[test]
fn a_folder_with_anything_but_short_files_of_ours_is_no_spare_one() {
    let Some((temp, state)) = state() else { return };
    let changes: [(&str, Change); 9] = [
        ("a directory", |at, _| fs::create_dir(at("tmp")).unwrap()),
        ("files of its steps", |at, _| {
            fs::create_dir(at("work")).unwrap();
            fs::write(at("work").join("file"), "").unwrap();
        }),
        ("a foreign file", |at, _| fs::write(at("foreign"), "").unwrap()),
        ("a long log", |at, _| fs::write(at("log"), vec![b'x'; 300 << 10]).unwrap()),
        ("a file with another name", |at, temp| fs::hard_link(at("log"), temp.path().join("name")).unwrap()),
        ("a link", |at, temp| {
            fs::write(temp.path().join("victim"), "stays").unwrap();
            fs::remove_file(at("steps")).unwrap();
            symlink(temp.path().join("victim"), at("steps")).unwrap();
        }),
        ("a file that others can read", |at, _| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            fs::set_permissions(at("journal"), mode).unwrap();
        }),
        ("a folder that others can enter", |at, _| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
            fs::set_permissions(at("log").parent().unwrap(), mode).unwrap();
        }),
        ("a log that is a directory", |at, _| {
            fs::remove_file(at("log")).unwrap();
            fs::create_dir(at("log")).unwrap();
        }),
    ];
    for (what, change) in changes {
        let folder = used(&state, "1");
        change(&|name| folder.path(name), &temp);
        assert!(!remove(&folder), "{what}");
        assert_eq!((names(&state, "jobs"), names(&state, "spare")), (vec![], vec![]), "{what}");
    }
    assert_eq!(fs::read_to_string(temp.path().join("victim")).unwrap(), "stays");
    assert_eq!(fs::read_to_string(temp.path().join("name")).unwrap(), "a line\n");
}

#[test]
fn where_new_files_cost_less_a_plain_folder_leaves_nothing_behind() {
    let temp = match tempfile::tempdir_in("/dev/shm") {
        Ok(temp) if !files::avoids_used_inodes(files::open_dir(files::CWD, temp.path()).unwrap()) => temp,
        _ => return eprintln!("skipped: no memory file system at /dev/shm"),
    };
    let state = open(&temp);
    let folder = used(&state, "1");
    let removed = begin(&folder);
    assert_eq!((names(&state, "jobs"), names(&state, "spare")), (vec![], vec!["1".to_owned()]));
    assert!(!removed.keep_as_spare());
    assert!(removed.delete_if_small());
    assert_eq!(names(&state, "spare"), [""; 0]);
    assert!(folder.begin_reuse().unwrap().is_none(), "it is gone already");
}

#[test]
fn a_plain_folder_that_has_got_another_file_meanwhile_is_deleted_too() {
    let temp = temp();
    let state = open(&temp);
    let folder = used(&state, "1");
    let removed = begin(&folder);
    fs::write(state.path().join("spare/1/foreign"), "").unwrap();
    assert!(removed.delete_if_small());
    assert_eq!(names(&state, "spare"), [""; 0]);
}

#[test]
fn a_link_in_the_place_of_their_directory_leads_nowhere() {
    let Some((temp, state)) = state() else { return };
    assert!(remove(&used(&state, "1")));
    let victim = temp.path().join("victim");
    for number in 1..4 {
        fs::create_dir_all(victim.join(number.to_string())).unwrap();
        fs::write(victim.join(number.to_string()).join("job.json"), "stays").unwrap();
    }
    fs::rename(state.path().join("spare"), state.path().join("moved")).unwrap();
    symlink(&victim, state.path().join("spare")).unwrap();
    for id in ["2", "3"] {
        remove(&used(&state, id));
    }
    state.close_spare_folders();
    let victims: Vec<_> =
        (1..4).map(|number| fs::read(victim.join(number.to_string()).join("job.json")).unwrap()).collect();
    assert_eq!(victims, [b"stays"; 3]);
}

#[test]
fn a_folder_that_cannot_move_there_is_among_the_jobs() {
    let Some((_temp, state)) = state() else { return };
    state.close_spare_folders();
    let folder = used(&state, "1");
    let removed = begin(&folder);
    assert!(!removed.is_among_spare(), "the caller must delete it before it answers");
    removed.delete().unwrap();
    assert_eq!(names(&state, "jobs"), [""; 0]);
}

#[test]
fn a_daemon_that_stops_deletes_what_it_could_not_delete_before() {
    let temp = temp();
    let state = open(&temp);
    let folder = used(&state, "1");
    drop(begin(&folder));
    state.close_spare_folders();
    assert!(!state.path().join("spare").exists());
}

#[test]
fn what_somebody_still_reads_or_writes_is_not_emptied() {
    let Some((_temp, state)) = state() else { return };
    for name in ["log", "steps", "journal", "job.json"] {
        let folder = used(&state, "1");
        let content = fs::read(folder.path(name)).unwrap();
        let mut reader = fs::File::open(folder.path(name)).unwrap();
        assert!(!remove(&folder), "{name}");
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
        assert!(read.starts_with(&content), "{name}");
    }
    let folder = used(&state, "1");
    let writer = files::open_append(&folder.shared.jobs, folder.inside("journal").as_str()).unwrap();
    assert!(!remove(&folder), "a writer has the journal open");
    drop(writer);
    assert!(remove(&used(&state, "1")));
}

#[test]
fn a_full_disk_costs_the_spare_folders_first() {
    let Some((_temp, state)) = state() else { return };
    assert!(!state.delete_spare_folders());
    assert!(remove(&used(&state, "1")));
    let tries = std::cell::Cell::new(0);
    let work = || {
        tries.set(tries.get() + 1);
        if names(&state, "spare").is_empty() {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
    };
    state.with_reserve(work).unwrap();
    assert_eq!((tries.get(), state.path().join("reserve").exists()), (2, true));
    assert!(remove(&used(&state, "2")));
    state.close_spare_folders();
    assert!(!state.path().join("spare").exists());
    assert!(!remove(&used(&state, "3")), "the daemon ends");
    create(&state, "4");
}

#[test]
fn the_next_daemon_trusts_no_spare_folder() {
    let Some((temp, state)) = state() else { return };
    assert!(remove(&used(&state, "1")));
    fs::write(state.path().join("spare/1/journal"), "of a stranger").unwrap();
    drop(state);
    let state = open(&temp);
    assert!(matches!(scan_one(&state), Some(Found::Gone(_))));
    let next = create(&state, "2");
    assert!(!next.path("journal").exists());
}

#[test]
fn a_spare_folder_that_was_tampered_with_harms_no_record() {
    let Some((_temp, state)) = state() else { return };
    assert!(remove(&used(&state, "1")));
    fs::write(state.path().join("spare/1/job.json.spare"), "of a stranger").unwrap();
    let next = create(&state, "2");
    assert_eq!(next.read_job().unwrap().record, record("2"));
    assert!(remove(&used(&state, "3")));
    fs::remove_dir_all(state.path().join("spare")).unwrap();
    create(&state, "4");
}

#[test]
fn a_name_that_is_taken_costs_no_spare_folder() {
    let Some((_temp, state)) = state() else { return };
    let taken = create(&state, "taken");
    assert!(remove(&used(&state, "1")));
    assert_eq!(taken.make().unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(names(&state, "spare"), ["1"]);
    create(&state, "2");
    assert_eq!(names(&state, "spare"), [""; 0]);
}

#[test]
fn there_are_never_more_than_1024_spare_folders() {
    let Some((_temp, state)) = state() else { return };
    let jobs: Vec<_> = (0..1_030).map(|number| used(&state, &number.to_string())).collect();
    let (first, others) = jobs.split_at(500);
    assert!(first.iter().all(remove));
    // All of these are on their way at a time.
    let removed: Vec<_> = others.iter().map(begin).collect();
    let left: Vec<_> = removed.into_iter().filter(|removed| !removed.keep_as_spare()).collect();
    assert_eq!(left.len(), 6);
    assert!(left.iter().all(Removed::delete_if_small));
    assert_eq!((names(&state, "spare").len(), names(&state, "jobs").len()), (1_024, 0));
}

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::*;

#[test]
fn fault_70_removal_deletes_everything_inside_and_nothing_a_link_points_to() {
    let temp = temp();
    let state = open(&temp);
    let victim = temp.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "stays").unwrap();
    let removed = create(&state, "1");
    let work = removed.make_dir("work").unwrap();
    symlink(&victim, work.join("link")).unwrap();
    fs::hard_link(victim.join("file"), work.join("hard")).unwrap();
    fs::create_dir_all(work.join("a/b")).unwrap();
    fs::write(work.join("a/b/file"), "x").unwrap();
    fs::write(work.join(".1"), "a name like ours").unwrap();
    fs::create_dir_all(work.join("a/.2/x")).unwrap();
    for closed in ["a/b", "a", ""] {
        fs::set_permissions(work.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
    }
    delete(removed.begin_removal());
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "stays");
    assert_eq!(fs::read_dir(state.path().join("jobs")).unwrap().count(), 0);
    delete(removed.begin_removal());
    create(&state, "1");
}

#[test]
fn depth_costs_neither_stack_nor_descriptors() {
    let temp = temp();
    let state = open(&temp);
    let deep = create(&state, "1");
    let mut at = rustix::fs::open(
        deep.make_dir("work").unwrap(),
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for _ in 0..5_000 {
        files::make_dir(&at, "d").unwrap();
        at = files::open_dir(&at, "d").unwrap();
    }
    drop(at);
    delete(deep.begin_removal());
    assert_eq!(fs::read_dir(state.path().join("jobs")).unwrap().count(), 0);
}

#[test]
fn folder_is_made_once() {
    let temp = temp();
    let state = open(&temp);
    let once = create(&state, "1");
    let error = once.make().unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AlreadyExists);
    assert!(once.path("job.json").exists(), "the first one's record stays");
}

#[test]
fn record_is_replaced_whole_also_over_a_left_over_temporary_file() {
    let temp = temp();
    let state = open(&temp);
    let kept = create(&state, "1");
    fs::write(kept.path("job.json.tmp"), "of a crash").unwrap();
    let changed = JobRecord { work_dir: "/other".to_owned(), ..record("1") };
    kept.write_record(&changed).unwrap();
    state.sync_all().unwrap();
    assert_eq!(job(scan_one(&state)).record, changed);
    assert!(!kept.path("job.json.tmp").exists());
}

#[test]
fn what_could_not_be_set_aside_is_removed_where_it_is_and_nothing_is_made_for_it() {
    let temp = temp();
    let state = open(&temp);
    let damaged = create(&state, "1");
    delete(damaged.remove_set_aside());
    assert!(!damaged.path("").exists());
    assert!(damaged.remove_set_aside().unwrap().is_none());
    assert!(!state.path().join("broken").exists());
    create(&state, "1").set_aside().unwrap();
    delete(damaged.remove_set_aside());
    assert!(state.set_aside_keys().unwrap().is_empty());
}

/// Makes `tmp/2` of a job with the files of a step, and a folder of others that looks the same.
fn with_step_files(state: &StateDir, temp: &TempDir) -> (JobFolder, PathBuf) {
    let folder = create(state, "1");
    let victim = temp.path().join("victim");
    for at in [folder.path("tmp"), victim.join("tmp")] {
        fs::create_dir_all(at.join("2")).unwrap();
        fs::write(at.join("2/export"), "secret").unwrap();
    }
    (folder, victim)
}

#[test]
fn fault_73_files_of_a_step_are_removed_and_nothing_that_a_link_in_their_place_leads_to() {
    let temp = temp();
    let state = open(&temp);
    let (folder, victim) = with_step_files(&state, &temp);
    folder.remove_step_files(2).unwrap();
    assert!(!folder.path("tmp/2").exists() && folder.path("tmp").exists());
    folder.remove_step_files(2).unwrap();

    symlink(victim.join("tmp/2"), folder.path("tmp/2")).unwrap();
    folder.remove_step_files(2).unwrap_err();
    fs::remove_file(folder.path("tmp/2")).unwrap();
    fs::remove_dir(folder.path("tmp")).unwrap();
    symlink(victim.join("tmp"), folder.path("tmp")).unwrap();
    folder.remove_step_files(2).unwrap_err();
    fs::rename(folder.path(""), temp.path().join("moved")).unwrap();
    symlink(&victim, folder.path("").to_str().unwrap().trim_end_matches('/')).unwrap();
    folder.remove_step_files(2).unwrap_err();
    folder.set_dir_gone(c"tmp").unwrap_err();
    assert_eq!(fs::read(victim.join("tmp/2/export")).unwrap(), b"secret");
}

#[test]
fn fault_38_what_a_step_returns_is_removed_though_it_has_put_much_beside_it() {
    let temp = temp();
    let (folder, _) = with_step_files(&open(&temp), &temp);
    fs::write(folder.path("tmp/2/export"), vec![b'x'; 2 << 20]).unwrap();
    for number in 0..200 {
        fs::write(folder.path(&format!("tmp/2/{number}")), "").unwrap();
    }
    folder.remove_step_files(2).unwrap();
    assert!(!folder.path("tmp/2/export").exists());
}

#[test]
fn fault_38_files_of_steps_go_though_a_step_has_made_their_folder_read_only() {
    let temp = temp();
    let (folder, _) = with_step_files(&open(&temp), &temp);
    fs::set_permissions(folder.path("tmp"), fs::Permissions::from_mode(0o555)).unwrap();
    // Of this thread alone. A user without rights has none to give up.
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    std::thread::scope(|scope| {
        let ordinary = scope.spawn(|| {
            rustix::thread::set_capabilities(None, sets).unwrap();
            folder.set_dir_gone(c"tmp").unwrap().unwrap().delete().unwrap();
        });
        ordinary.join().unwrap();
    });
    assert!(!folder.path("tmp").exists());
}

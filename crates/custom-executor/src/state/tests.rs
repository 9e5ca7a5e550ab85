//! Tests of the state folder. No test names a folder for removal that is not below its own.

use super::*;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

/// Returns a folder, and the state of an attempt somewhere below it.
fn scene() -> (tempfile::TempDir, AttemptFolder) {
    scene_in("root/custom")
}

fn scene_in(root: &str) -> (tempfile::TempDir, AttemptFolder) {
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity::new(Path::new("/t/custom-executor1"), "7");
    let mut state = AttemptFolder::new(&folder.path().join(root), &identity);
    state.short_root = folder.path().to_owned();
    (folder, state)
}

fn meta() -> Meta {
    let runner = Some(ProcessInfo { boot_id: "b".into(), pid: 7, start_time: 8 });
    let owner = Owner { runner, private_dir: "/t/custom-executor1".into() };
    Meta { version: "1".into(), address: "unix:/t/s".into(), prefix: "p-".into(), private: true, owner }
}

/// Makes a folder with a file beside the state, which nothing may touch.
fn bystander(folder: &Path) -> PathBuf {
    let bystander = folder.join("bystander");
    fs::create_dir(&bystander).unwrap();
    fs::set_permissions(&bystander, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(bystander.join("file"), "kept").unwrap();
    bystander
}

#[track_caller]
fn is_untouched(bystander: &Path) {
    assert_eq!(fs::read_to_string(bystander.join("file")).unwrap(), "kept");
    assert_eq!(fs::read_dir(bystander).unwrap().count(), 1);
}

#[test]
fn a_folder_keeps_what_the_calls_know() {
    let (_folder, state) = scene();
    assert!(!state.exists());
    state.add_job("lost").unwrap();
    let lock = state.lock().unwrap();
    state.make().unwrap();
    assert_eq!(fs::metadata(state.path()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(state.meta(), None);
    state.write_meta(&meta()).unwrap();
    assert_eq!(state.meta(), Some(meta()));
    state.add_job("one").unwrap();
    state.add_job("two").unwrap();
    assert!(state.jobs().iter().eq(["one", "two"]));
    state.drop_job("one").unwrap();
    assert!(state.jobs().iter().eq(["two"]), "a stage that is gone from the daemon");
    state.close().unwrap();
    assert!(state.is_closed());
    state.make().unwrap();
    assert!(!state.is_closed() && state.jobs().len() == 1, "prepared again");
    state.make().unwrap();
    assert!(state.is_left());
    state.remove().unwrap();
    state.remove().unwrap();
    assert!(state.is_left(), "the lock");
    lock.remove().unwrap();
    assert!(!state.is_left());
    assert_eq!(fs::read_dir(state.path().parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn foreign_folders_are_refused_with_the_reason() {
    let (folder, state) = scene();
    drop(state.lock().unwrap());
    let refusal = || state.make().unwrap_err().to_string();
    symlink(folder.path(), state.path()).unwrap();
    assert!(refusal().contains("symbolic link"), "{}", refusal());
    fs::remove_file(state.path()).unwrap();
    fs::write(state.path(), "").unwrap();
    assert!(refusal().contains("no folder"), "{}", refusal());
    fs::remove_file(state.path()).unwrap();
    fs::create_dir(state.path()).unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o750)).unwrap();
    assert!(
        refusal().contains("mode 750") && refusal().contains(state.path().to_str().unwrap()),
        "{}",
        refusal()
    );
}

#[test]
fn a_root_that_others_can_write_is_refused() {
    let (_folder, state) = scene();
    let root = state.path().parent().unwrap();
    fs::create_dir_all(root).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(state.lock().unwrap_err().to_string().contains("mode 777"));
    fs::set_permissions(root, fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(root.parent().unwrap(), fs::Permissions::from_mode(0o770)).unwrap();
    assert!(state.lock().unwrap_err().to_string().contains("mode 770"));
}

#[test]
fn a_lock_whose_file_was_removed_locks_nothing() {
    let (_folder, state) = scene();
    let first = state.lock().unwrap();
    let waiting = std::thread::spawn({
        let state = state.clone();
        move || state.lock().unwrap()
    });
    first.remove().unwrap();
    let second = waiting.join().unwrap();
    assert!(second.is_in_place());
}

#[test]
fn other_attempts_are_found_by_any_of_their_names() {
    let (_folder, state) = scene();
    let lock = state.lock().unwrap();
    state.make().unwrap();
    let root = state.root().to_owned();
    for name in ["b", "c~gone", "d~lock", "b~lock", ".", "e~other", "f g"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let nonces: Vec<_> = state.others().iter().map(|other| other.nonce().to_owned()).collect();
    assert_eq!(nonces, ["b", "c", "d"]);
    assert!(state.is_bare() && state.unused_for().unwrap() < Duration::from_hours(1));
    state.write_meta(&meta()).unwrap();
    assert!(!state.is_bare());
    state.forget_owner().unwrap();
    state.forget_owner().unwrap();
    assert!(state.is_bare() && state.meta().is_none());
    lock.remove().unwrap();
}

#[test]
fn a_long_log_keeps_its_newest_lines() {
    let (_folder, state) = scene();
    drop(state.lock().unwrap());
    state.make().unwrap();
    let mut log = state.open_log().unwrap();
    for number in 0..200_000 {
        writeln!(log, "line {number}").unwrap();
    }
    state.trim_log();
    writeln!(log, "the last").unwrap();
    assert!(log.metadata().unwrap().len() <= MAX_LOG);
    assert_eq!(state.log_tail(2), ["line 199999", "the last"]);
}

#[test]
fn a_socket_with_a_long_path_moves_and_is_removed() {
    let (folder, state) = scene_in(&"x".repeat(90));
    drop(state.lock().unwrap());
    state.make().unwrap();
    let socket = state.socket();
    assert!(socket.as_os_str().len() <= MAX_SOCKET_PATH && !socket.starts_with(state.path()));
    state.remove_socket_folder().unwrap();
    state.make_place_for_socket().unwrap();
    state.make_place_for_socket().unwrap();
    fs::write(&socket, "").unwrap();
    state.remove().unwrap();
    assert!(!socket.parent().unwrap().exists());

    // A link that somebody else has put there in time is neither used nor removed.
    let bystander = bystander(folder.path());
    fs::write(bystander.join("s"), "kept").unwrap();
    symlink(&bystander, socket.parent().unwrap()).unwrap();
    assert!(state.make_place_for_socket().unwrap_err().to_string().contains("symbolic link"));
    assert!(state.remove().unwrap_err().to_string().contains("symbolic link"));
    assert!(bystander.join("s").exists());
}

#[test]
fn a_folder_that_we_have_not_made_is_neither_used_nor_removed() {
    let (folder, _) = scene();
    let victim = bystander(folder.path());
    // The root and the attempt's name point straight at it.
    let state = AttemptFolder::new(folder.path(), &Identity::new(Path::new("/t/bystander"), "7"));
    assert_eq!(state.path(), victim);
    let lock = state.lock().unwrap();
    for refusal in [state.make(), state.check()] {
        assert!(refusal.unwrap_err().to_string().contains("not ours"));
    }
    state.remove().unwrap_err();
    is_untouched(&victim);
    lock.remove().unwrap();
    // A link or a file in its place is safe, too.
    fs::rename(&victim, folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), &victim).unwrap();
    state.remove().unwrap_err();
    is_untouched(&folder.path().join("elsewhere"));
    fs::remove_file(&victim).unwrap();
    fs::write(&victim, "kept").unwrap();
    state.remove().unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
}

#[test]
fn whatever_files_in_the_folder_say_only_the_folder_is_removed() {
    let (folder, state) = scene();
    drop(state.lock().unwrap());
    let bystander = bystander(folder.path());
    let place = bystander.to_str().unwrap();
    for text in [
        String::new(),
        format!(
            r#"{{"version":"1","address":"unix:{place}/s","prefix":"","private":true,
                "owner":{{"runner":null,"private_dir":"{place}"}}}}"#
        ),
        format!(
            r#"{{"version":"1","address":"unix:{place}/s","prefix":"","socket":"{place}/s","private":false,
                "owner":{{"runner":{{"boot_id":"","pid":0,"start_time":0}},"private_dir":"{place}"}}}}"#
        ),
    ] {
        state.make().unwrap();
        fs::write(state.path().join(META), text).unwrap();
        fs::write(state.path().join(JOBS), format!("../bystander\n{place}\n")).unwrap();
        symlink(&bystander, state.path().join("d")).unwrap();
        fs::create_dir_all(state.path().join("bin/deep")).unwrap();
        symlink(&bystander, state.path().join("bin/deep/link")).unwrap();
        assert!(state.socket().starts_with(state.path()));
        state.remove().unwrap();
        assert!(!state.exists());
        is_untouched(&bystander);
    }
}

#[test]
fn links_in_the_folder_are_not_written_through() {
    let (folder, state) = scene();
    drop(state.lock().unwrap());
    state.make().unwrap();
    let bystander = bystander(folder.path());
    let file = bystander.join("file");
    let names = [META, "meta.json.tmp", JOBS, LOG, DAEMON_STATE, BIN];
    for name in names {
        let target = if [DAEMON_STATE, BIN].contains(&name) { &bystander } else { &file };
        symlink(target, state.path().join(name)).unwrap();
    }
    state.add_job("id").unwrap_err();
    state.open_log().unwrap_err();
    state.make_bin().unwrap_err();
    state.trim_log();
    assert_eq!(state.meta(), None);
    assert!(state.jobs().is_empty() && state.log_tail(9).is_empty());
    // The file is replaced, whatever its name meant.
    state.write_meta(&meta()).unwrap();
    assert_eq!(state.meta(), Some(meta()));
    is_untouched(&bystander);
    fs::remove_file(state.path().join(MARKER)).unwrap();
    symlink(&file, state.path().join(MARKER)).unwrap();
    state.make().unwrap_err();
    state.remove().unwrap_err();
    is_untouched(&bystander);
}

#[test]
fn a_removal_that_was_interrupted_is_gone_on_with() {
    let (_folder, state) = scene();
    drop(state.lock().unwrap());
    state.make().unwrap();
    fs::write(state.path().join(LOG), "").unwrap();
    let gone = state.root.join(state.gone());
    fs::rename(state.path(), &gone).unwrap();
    fs::remove_file(gone.join(MARKER)).unwrap();
    assert!(state.is_left() && !state.exists());
    state.remove().unwrap();
    assert!(!gone.exists());
    // As after a death between the folder and its marker.
    fs::create_dir(state.path()).unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).unwrap();
    state.remove().unwrap();
    assert!(!state.exists());
}

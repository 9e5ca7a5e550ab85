use std::fs::Permissions;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::*;

#[test]
fn fault_28_half_a_record_is_taken_back() {
    // In a process of its own: the limit on the size of files applies to all threads.
    if std::env::var_os("HALF_A_RECORD").is_none() {
        let test = std::env::current_exe().unwrap();
        let name = "files::tests::fault_28_half_a_record_is_taken_back";
        let mut command = std::process::Command::new(test);
        command.args(["--exact", name]).env("HALF_A_RECORD", "1").stdout(std::process::Stdio::null());
        assert!(command.status().unwrap().success());
        return;
    }
    step_runner_process::ignore_file_size_signal();
    let path = tempfile::NamedTempFile::new().unwrap();
    let open = || std::fs::File::options().append(true).custom_flags(libc::O_CLOEXEC).open(&path).unwrap();
    append(open(), b"whole\n").unwrap();
    let all = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(8), ..all }).unwrap();
    append(open(), b"does not fit\n").unwrap_err();
    setrlimit(Resource::Fsize, all).unwrap();
    append(open(), b"next\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\nnext\n");
}

/// Build tools make such trees: a cache of Go modules, for example, is read-only.
#[test]
fn a_tree_that_its_owner_may_not_write_to_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = std::fs::File::open(&folder).unwrap();
    let tree = folder.path().join("tree");
    for mode in [0o500, 0o400, 0o300, 0o000] {
        let directories = [tree.join("one/two/three"), tree.join("one/two"), tree.join("one"), tree.clone()];
        std::fs::create_dir_all(&directories[0]).unwrap();
        std::fs::create_dir(tree.join("one/empty")).unwrap();
        for directory in &directories {
            std::fs::write(directory.join("file"), "").unwrap();
            std::fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        }
        // Of this thread alone. A user without rights has none to give up.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        std::thread::scope(|scope| {
            let ordinary = scope.spawn(|| {
                rustix::thread::set_capabilities(None, sets).unwrap();
                remove_tree(&dir, c"tree").unwrap_or_else(|error| panic!("{mode:o}: {error}"));
            });
            ordinary.join().unwrap();
        });
        assert!(!tree.exists(), "{mode:o}");
    }
}

#[test]
fn a_tree_of_a_few_small_files_is_removed_and_a_larger_one_is_left_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let dir = std::fs::File::open(&folder).unwrap();
    let tree = folder.path().join("tree");
    let file = |path: &str, len: u64| {
        let path = tree.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(path).unwrap().set_len(len).unwrap();
    };
    assert_eq!(remove_small_tree(&dir, c"tree").unwrap(), Some(()));
    file("0/output", 100);
    file("1/export", 1 << 20);
    assert_eq!(remove_small_tree(&dir, c"tree").unwrap(), Some(()));
    assert!(!tree.exists());
    file("0/output", (1 << 20) + 1);
    assert_eq!(remove_small_tree(&dir, c"tree").unwrap(), None);
    assert!(tree.join("0/output").exists());
    (0..64).for_each(|n| file(&format!("{n}/output"), 0));
    assert_eq!(remove_small_tree(&dir, c"tree").unwrap(), None);
    remove_tree(&dir, c"tree").unwrap();
    assert!(!tree.exists());
}

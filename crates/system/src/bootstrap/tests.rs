use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use super::*;

/// Mode, change time and inode of everything below `folder`.
fn state(folder: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, u64)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let found = std::fs::symlink_metadata(&path).unwrap();
            if found.is_dir() {
                folders.push(path.clone());
            }
            all.insert(path, (found.mode(), found.ctime(), found.ctime_nsec(), found.ino()));
        }
    }
    all
}

struct Scene {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, vec![7; 3 * CHUNK + 1]).unwrap();
        std::fs::create_dir(folder.path().join("root")).unwrap();
        Self { folder, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn install(&self, to: &str) -> Result<(), BootstrapError> {
        install_from(&self.program, &self.path(to), &self.path("root"))
    }
}

#[test]
fn forms_of_the_destination() {
    let folder = tempfile::tempdir().unwrap();
    let name = |path: &str, form| destination(&folder.path().join(path), form);
    let in_folder = |path: &str| folder.path().join(path);
    std::fs::create_dir(folder.path().join("there")).unwrap();
    assert_eq!(name("new", Form::Folder), in_folder("new/step-runner"));
    assert_eq!(name("there", Form::Folder), in_folder("there/step-runner"));
    assert_eq!(name("new", Form::FileOrFolder), in_folder("new"));
    assert_eq!(name("new/", Form::FileOrFolder), in_folder("new/step-runner"));
    assert_eq!(name("there", Form::FileOrFolder), in_folder("there/step-runner"));
}

#[test]
fn what_belongs_to_the_program_comes_along_with_links_and_permissions() {
    let scene = Scene::new();
    std::fs::write(scene.path("root/ca-certs.pem"), "certificates").unwrap();
    std::fs::create_dir_all(scene.path("root/git/bin")).unwrap();
    std::fs::write(scene.path("root/git/bin/git"), "git").unwrap();
    std::fs::set_permissions(scene.path("root/git/bin/git"), Permissions::from_mode(0o555)).unwrap();
    symlink("bin/git", scene.path("root/git/link")).unwrap();
    scene.install("a/b/helper").unwrap();
    let read = |name: &str| std::fs::read_to_string(scene.path(name)).unwrap();
    assert_eq!(read("a/b/ca-certs.pem"), "certificates");
    assert_eq!(read("a/b/git/link"), "git");
    let mode = |name: &str| std::fs::symlink_metadata(scene.path(name)).unwrap().mode() & PERMISSIONS;
    assert_eq!(mode("a/b/git/bin/git"), 0o555);
    assert!(std::fs::symlink_metadata(scene.path("a/b/git/link")).unwrap().is_symlink());
    for folder in ["a", "a/b"] {
        assert_eq!(mode(folder), MODE);
    }
    assert_eq!(mode("a/b/helper"), MODE);
    // A second copy writes nothing.
    let before = state(&scene.path("a"));
    scene.install("a/b/helper").unwrap();
    assert_eq!(state(&scene.path("a")), before);
    // After a change the new content replaces the old completely.
    std::fs::remove_file(scene.path("root/git/link")).unwrap();
    std::fs::write(scene.path("root/git/new"), "new").unwrap();
    std::fs::write(scene.path("root/ca-certs.pem"), "others").unwrap();
    scene.install("a/b/helper").unwrap();
    assert_eq!(read("a/b/git/new"), "new");
    assert!(!scene.path("a/b/git/link").exists());
    assert_eq!(read("a/b/ca-certs.pem"), "others");
    assert_eq!(std::fs::read_dir(scene.path("a/b")).unwrap().count(), 3);
}

#[test]
fn a_copy_that_differs_only_in_its_middle_or_its_permissions_is_replaced() {
    let scene = Scene::new();
    scene.install("copy").unwrap();
    let mut other = vec![7; 3 * CHUNK + 1];
    other[CHUNK + 5] = 8;
    std::fs::write(scene.path("copy"), other).unwrap();
    scene.install("copy").unwrap();
    assert_eq!(std::fs::read(scene.path("copy")).unwrap(), std::fs::read(&scene.program).unwrap());
    std::fs::set_permissions(scene.path("copy"), Permissions::from_mode(0o644)).unwrap();
    scene.install("copy").unwrap();
    assert_eq!(std::fs::metadata(scene.path("copy")).unwrap().mode() & PERMISSIONS, MODE);
}

#[test]
fn a_link_is_replaced_and_not_followed() {
    let scene = Scene::new();
    std::fs::write(scene.path("victim"), "mine").unwrap();
    symlink("victim", scene.path("copy")).unwrap();
    scene.install("copy").unwrap();
    assert_eq!(std::fs::read_to_string(scene.path("victim")).unwrap(), "mine");
    assert!(std::fs::symlink_metadata(scene.path("copy")).unwrap().is_file());
}

#[test]
fn the_root_of_the_image_may_be_the_destination() {
    let scene = Scene::new();
    std::fs::write(scene.path("root/ca-certs.pem"), "certificates").unwrap();
    std::fs::create_dir(scene.path("root/git")).unwrap();
    let before = state(&scene.path("root"));
    scene.install("root/helper").unwrap();
    let mut after = state(&scene.path("root"));
    assert!(after.remove(&scene.path("root/helper")).is_some());
    assert_eq!(after, before);
}

#[test]
fn what_is_in_the_way_is_named_and_kept() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("folder")).unwrap();
    std::fs::write(scene.path("file"), "x").unwrap();
    std::fs::create_dir_all(scene.path("root/git")).unwrap();
    std::fs::create_dir(scene.path("here")).unwrap();
    std::fs::write(scene.path("here/git"), "x").unwrap();
    let before = state(scene.folder.path());
    for (to, named) in [("folder", "folder"), ("file/below/x", "file is no folder")] {
        let error = scene.install(to).unwrap_err().to_string();
        assert!(error.contains(&*scene.path(named).to_string_lossy()), "{error}");
    }
    assert_eq!(state(scene.folder.path()), before);
    let error = scene.install("here/copy").unwrap_err().to_string();
    assert!(error.contains("here/git is no folder"), "{error}");
}

//! `bootstrap` and `steps bootstrap`, with the real program (connectors.md §2.3).

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::programs::change_program;
use crate::support::{Client, Setup, is_root, names, parts};

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &[&str], to: &str) -> Output {
        // Not `join`: the path given can end in a slash, which `join` would change.
        let to = format!("{}/{to}", self.0.path().display());
        Command::new(PROGRAM).args(words).arg(to).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn copied(&self, words: &[&str], to: &str, file: &str) {
        let output = self.run(words, to);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
        let copy = std::fs::metadata(self.path(file)).unwrap();
        assert_eq!((copy.mode() & 0o7777, copy.len()), (0o755, std::fs::metadata(PROGRAM).unwrap().len()));
    }

    /// Asserts exit code 1, one line that names `path`, and that nothing was left behind.
    #[track_caller]
    fn refused(&self, words: &[&str], to: &str, path: &Path) {
        let before = crate::support::tree(self.0.path());
        let output = self.run(words, to);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(path.to_str().unwrap()) && said.lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
        assert!(crate::support::tree(self.0.path()) == before, "something was left behind");
    }
}

const PLAIN: [&str; 1] = ["bootstrap"];
const STEPS: [&str; 2] = ["steps", "bootstrap"];

#[test]
fn each_form_puts_the_file_where_it_says() {
    let scene = Scene::new();
    scene.copied(&PLAIN, "a/folder", "a/folder/step-runner");
    scene.copied(&STEPS, "b/file", "b/file");
    scene.copied(&STEPS, "c/folder/", "c/folder/step-runner");
    scene.copied(&STEPS, "c/folder", "c/folder/step-runner");
    for folder in ["a", "a/folder", "b", "c", "c/folder"] {
        assert_eq!(std::fs::metadata(scene.path(folder)).unwrap().mode() & 0o7777, 0o755, "{folder}");
    }
    assert_eq!(names(&scene.path("c/folder")), ["step-runner"]);
    let works = Command::new(scene.path("b/file")).arg("--version").output().unwrap();
    assert!(works.status.success(), "{works:?}");
}

#[test]
fn permissions_do_not_hang_on_the_callers_mask() {
    let scene = Scene::new();
    let to = scene.path("new/folder");
    let text = format!("umask 077; exec {PROGRAM} bootstrap {}", to.display());
    assert!(Command::new("sh").args(["-c", &text]).status().unwrap().success());
    for path in ["new", "new/folder", "new/folder/step-runner"] {
        assert_eq!(std::fs::metadata(scene.path(path)).unwrap().mode() & 0o7777, 0o755, "{path}");
    }
}

#[test]
fn what_is_there_already_is_not_written_again() {
    let scene = Scene::new();
    scene.copied(&STEPS, "file", "file");
    let facts = |path: &str| {
        let found = std::fs::metadata(scene.path(path)).unwrap();
        (found.ino(), found.ctime(), found.ctime_nsec(), found.mtime_nsec())
    };
    let before = (facts("file"), facts("."));
    scene.copied(&STEPS, "file", "file");
    assert_eq!((facts("file"), facts(".")), before);
    std::fs::write(scene.path("file"), "something else").unwrap();
    scene.copied(&STEPS, "file", "file");
    assert_ne!(facts("file").0, before.0.0);
}

#[tokio::test]
async fn a_copy_that_runs_is_replaced_and_runs_on() {
    let scene = Scene::new();
    scene.copied(&PLAIN, "bin", "bin/step-runner");
    let copy = scene.path("bin/step-runner");
    // Now it has to be replaced.
    change_program(&copy);
    let daemon = Setup::new().program(&copy).start();
    scene.copied(&PLAIN, "bin", "bin/step-runner");
    let client: Client = daemon.client().await;
    client.run("1", "echo on").await;
    client.ended("1").await;
    assert_eq!(client.output("1").await, "on\n");
    // The copy copies itself onto itself.
    let again = Command::new(&copy).arg("bootstrap").arg(scene.path("bin")).status().unwrap();
    assert!(again.success());
    assert_eq!(names(&scene.path("bin")), ["step-runner"]);
}

#[test]
fn copies_that_are_made_at_the_same_time_are_whole() {
    let scene = Scene::new();
    let copies: Vec<_> = (0..8)
        .map(|_| Command::new(PROGRAM).arg("bootstrap").arg(scene.path("x/y")).spawn().unwrap())
        .collect();
    for mut copy in copies {
        assert!(copy.wait().unwrap().success());
    }
    assert_eq!(names(&scene.path("x/y")), ["step-runner"]);
    scene.copied(&PLAIN, "x/y", "x/y/step-runner");
}

#[test]
fn what_is_in_the_way_is_named_and_nothing_is_left_behind() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.path("here/step-runner/full")).unwrap();
    std::fs::write(scene.path("file"), "mine").unwrap();
    scene.refused(&PLAIN, "here", &scene.path("here/step-runner"));
    scene.refused(&STEPS, "here", &scene.path("here/step-runner"));
    scene.refused(&PLAIN, "file", &scene.path("file"));
    scene.refused(&STEPS, "file/below", &scene.path("file"));
    scene.refused(&STEPS, "file/", &scene.path("file"));
    scene.refused(&PLAIN, "file/a/b", &scene.path("file"));
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    const TEST: &str = "a_place_that_cannot_be_written_is_named";
    if !is_root(TEST) {
        // Permissions keep everybody but root from writing.
        let scene = Scene::new();
        std::fs::create_dir(scene.path("locked")).unwrap();
        std::fs::set_permissions(scene.path("locked"), PermissionsExt::from_mode(0o555)).unwrap();
        return scene.refused(&PLAIN, "locked", &scene.path("locked"));
    }
    if !parts::has_namespaces(TEST) {
        return;
    }
    let mounted = |options: &str| {
        let scene = Scene::new();
        std::fs::create_dir(scene.path("disk")).unwrap();
        let to = scene.path("disk");
        let text = format!(
            "mount -t tmpfs -o {options} none {to} || exit 99; mkdir {to}/in 2>/dev/null; \
             {PROGRAM} bootstrap {to}/in; code=$?; ls -A {to} {to}/in 2>/dev/null; exit $code",
            to = to.display()
        );
        let mut command = Command::new("unshare");
        let output = command.args(["--mount", "sh", "-c", &text]).output();
        (scene, output.ok().filter(|output| output.status.code() != Some(99)))
    };
    for options in ["ro", "size=64k"] {
        let (scene, output) = mounted(options);
        let Some(output) = output else { return parts::skipped(TEST, "permission to mount") };
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains(scene.path("disk/in").to_str().unwrap()) && said.lines().count() == 1,
            "{said}"
        );
        assert!(
            !String::from_utf8(output.stdout).unwrap().contains(".step-runner-"),
            "half a copy is left behind"
        );
    }
}

#[test]
fn a_destination_must_be_named() {
    for words in [&PLAIN[..], &STEPS] {
        let output = Command::new(PROGRAM).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let output = Command::new(PROGRAM).args(words).arg("").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

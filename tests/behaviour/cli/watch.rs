//! `run --watch`: a job runs again when a file changes.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{PATIENCE, wait_for};

/// A watch in a folder of its own.
struct Watch {
    folder: tempfile::TempDir,
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    fn start(script: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("job.yml"), format!("[{{name: a, script: '{script}'}}]")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self::in_folder(folder)
    }

    /// Watches a folder that has its files.
    fn in_folder(folder: tempfile::TempDir) -> Self {
        if folder.path().join(".gitignore").exists() {
            let mut git = std::process::Command::new("git");
            assert!(git.args(["init", "-q"]).current_dir(folder.path()).status().unwrap().success());
        }
        let mut child = super::ends::hearing_hangups(&super::program(&["run", "job.yml", "--watch"]))
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let other = sender.clone();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| drop(other.send(line)));
        });
        Self { folder, child, lines }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the lines up to one that contains `part`.
    #[track_caller]
    fn until(&self, part: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            seen.push(line.unwrap_or_else(|_| panic!("{part:?} does not come after {seen:#?}")));
            if seen.last().unwrap().contains(part) {
                return seen;
            }
        }
    }

    /// Interrupts the watch and returns its exit code.
    fn interrupted(mut self) -> Option<i32> {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Only a test that has failed left it running.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_change_runs_the_job_again_and_what_a_run_makes_does_not() {
    let watch = Watch::start("cat data; date +%s%N > product; exit 3", &[("data", "one\n")]);
    watch.until("one");
    watch.until("waiting for a change");
    write(&watch.path("product"), "not a change");
    write(&watch.path("data"), "two\n");
    let seen = watch.until("two");
    assert!(seen.iter().any(|line| line.contains("data has changed")), "{seen:#?}");
    let seen = watch.until("waiting for a change");
    assert!(!seen.iter().any(|line| line.contains("product has changed")), "{seen:#?}");
    assert_eq!(watch.interrupted(), Some(3));
}

#[test]
fn a_run_under_way_is_cancelled_first_and_leaves_no_process() {
    let script = "cat data; echo $$ > shell.$(cat data); trap \"echo tidied; exit 1\" TERM; while :; do sleep 0.05; done";
    let watch = Watch::start(script, &[("data", "one\n")]);
    // The file is empty for a moment before it has the shell's number.
    let shell = |name: &str| {
        let file = watch.path(&format!("shell.{name}"));
        wait_for("a shell", || std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')))
    };
    watch.until("one");
    let one = shell("one");
    write(&watch.path("data"), "two\n");
    let seen = watch.until("two");
    assert!(seen.iter().any(|line| line.contains("tidied")), "{seen:#?}");
    let two = shell("two");
    assert_eq!(watch.interrupted(), Some(130));
    for shell in [one, two] {
        assert!(!Path::new("/proc").join(shell.trim()).exists(), "{shell}");
    }
}

#[test]
fn what_git_ignores_does_not_count() {
    if std::process::Command::new("git").arg("--version").output().is_err() {
        return crate::support::parts::skipped("what_git_ignores_does_not_count", "git");
    }
    let watch = Watch::start("cat data", &[("data", "one\n"), ("out", ""), (".gitignore", "out\n")]);
    watch.until("waiting for a change");
    write(&watch.path("out"), "a new state");
    write(&watch.path("data"), "two\n");
    let seen = watch.until("two");
    assert!(!seen.iter().any(|line| line.contains("out has changed")), "{seen:#?}");
    watch.until("waiting for a change");
    assert_eq!(watch.interrupted(), Some(0));
}

#[test]
fn a_document_from_stdin_cannot_be_watched() {
    let output = super::run(&["run", "-", "--watch"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(super::stderr(&output).contains("--watch needs a file"), "{}", super::stderr(&output));
}

#[test]
fn a_watch_that_ends_in_whatever_way_ends_its_run_with_its_cleanup() {
    const TEST: &str = "a_watch_that_ends_in_whatever_way_ends_its_run_with_its_cleanup";
    if !crate::support::parts::has_program(TEST, "git") {
        return;
    }
    for (signal, code) in [(Signal::HUP, Some(129)), (Signal::KILL, None)] {
        let folder = tempfile::tempdir().unwrap();
        let steps =
            "[{name: a, script: 'echo begun; sleep 600'}, {name: z, when: always, script: 'touch cleaned'}]";
        std::fs::write(folder.path().join("job.yml"), steps).unwrap();
        std::fs::write(folder.path().join(".gitignore"), "cleaned\n").unwrap();
        let mut watch = Watch::in_folder(folder);
        watch.until("begun");
        let pid = Pid::from_raw(watch.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert_eq!(watch.child.wait().unwrap().code(), code);
        // The run holds the other ends of the pipes: their end is its own.
        while watch.lines.recv_timeout(PATIENCE).is_ok() {}
        assert!(watch.path("cleaned").exists(), "{signal:?}");
    }
}

#[test]
fn a_watch_whose_output_nobody_reads_ends() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.yml"), "[{name: a, script: 'cat data'}]").unwrap();
    std::fs::write(folder.path().join("data"), "one\n").unwrap();
    let mut watch = super::program(&["run", "job.yml", "--watch"]);
    let mut child =
        watch.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line.contains("waiting for a change")));
    drop(child.stdout.take());
    std::fs::write(folder.path().join("data"), "two\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

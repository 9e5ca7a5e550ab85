//! Jobs of CI files, run by the program (ci.md §4).
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod artifacts;
mod beside_runner;
#[path = "../fake_gitlab/mod.rs"]
mod fake_gitlab;
#[path = "../gitlab_runner/runner.rs"]
mod gitlab_runner;
mod golden;
#[path = "../support/parts.rs"]
mod parts;
mod peer;
mod people;
mod variables;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A project in a folder of its own, and the folders of its user.
struct Scene {
    folder: tempfile::TempDir,
}

/// What a command has printed.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The lines of the steps, without the commands that `script_legacy` prints before them.
    fn lines(&self) -> Vec<&str> {
        self.stdout.lines().filter(|line| !line.starts_with("\u{1b}[32;1m$ ")).collect()
    }

    #[track_caller]
    fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn says(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "{part:?} is not in\n{}", self.stderr);
        self
    }

    #[track_caller]
    fn says_not(self, part: &str) -> Self {
        assert!(!self.stderr.contains(part), "{part:?} is in\n{}", self.stderr);
        self
    }
}

/// Returns false, and reports the test of this thread as skipped, without git.
fn has_git() -> bool {
    parts::has_program(std::thread::current().name().unwrap_or_default(), "git")
}

impl Scene {
    /// A project without git.
    fn plain(files: &[(&str, &str)]) -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(scene.path("home")).unwrap();
        fs::create_dir_all(scene.path("project")).unwrap();
        for (path, text) in files {
            scene.write(path, text);
        }
        scene
    }

    /// A project with one commit on `main`. Without git there is none, and the test is skipped.
    fn new(files: &[(&str, &str)]) -> Option<Self> {
        has_git().then(|| {
            let scene = Self::plain(files);
            scene.commit("main", "First");
            scene
        })
    }

    fn commit(&self, branch: &str, message: &str) {
        self.git(&["init", "-q", "-b", branch]);
        self.git(&["add", "-A"]);
        self.git(&["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-q", "-m", message]);
    }

    fn git(&self, words: &[&str]) {
        self.git_says(words);
    }

    /// Runs git and returns what it prints.
    fn git_says(&self, words: &[&str]) -> String {
        let git = Command::new("git").args(words).current_dir(self.path("project")).output().unwrap();
        assert!(git.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&git.stderr));
        String::from_utf8_lossy(&git.stdout).trim().to_owned()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// Writes a file of the project.
    fn write(&self, path: &str, text: &str) {
        let path = self.path("project").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path("project").join(path)).ok()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(words).args(["--color", "never"]).current_dir(self.path("project")).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["STEP_RUNNER_", "CI", "XDG_", "GIT_"].iter().any(|start| name.starts_with(start)) {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.path("home"));
        command
    }

    fn step_runner(&self, words: &[&str]) -> Ran {
        Ran::of(&self.command(words).output().unwrap())
    }

    /// Runs a job.
    fn job(&self, name: &str, more: &[&str]) -> Ran {
        self.step_runner(&[&["run", "--job", name], more].concat())
    }
}

/// Copies a folder with all below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

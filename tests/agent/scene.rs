//! An agent with its folder, and the server that it works for.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;

use crate::fake_gitlab::{FakeGitlab, RUNNER};
use crate::support::{is_alive, kill, processes_with, wait_for};

/// A folder with an agent's configuration and state, and its server. What the agent has started ends with this value.
pub(crate) struct Scene {
    pub(crate) gitlab: FakeGitlab,
    folder: tempfile::TempDir,
    agent: Option<Child>,
}

impl Scene {
    /// Makes a configuration with one entry, and no agent yet.
    pub(crate) fn new() -> Self {
        Self::with("", "")
    }

    /// Makes a configuration with these lines for all entries, and for the one entry.
    pub(crate) fn with(top: &str, entry: &str) -> Self {
        let gitlab = FakeGitlab::start();
        let scene = Self::bare(gitlab);
        let url = scene.gitlab.url();
        scene.configure(&format!(
            "check_interval = 1\n{top}\n[[runners]]\nname = \"shell\"\nid = 11\nurl = \"{url}\"\ntoken = \"{RUNNER}\"\n{entry}\n"
        ));
        scene
    }

    /// Makes a folder without a configuration.
    pub(crate) fn bare(gitlab: FakeGitlab) -> Self {
        Self { gitlab, folder: tempfile::tempdir().unwrap(), agent: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.path("agent.toml"), text).unwrap();
    }

    /// Returns the configuration as it is.
    pub(crate) fn config(&self) -> String {
        fs::read_to_string(self.path("agent.toml")).unwrap_or_default()
    }

    /// Takes over the `config.toml` of a GitLab Runner. `SERVER` and `TOKEN` in it are those of the double.
    pub(crate) fn import(&self, text: &str) {
        let theirs = self.path("config.toml");
        fs::write(&theirs, text.replace("SERVER", &self.gitlab.url()).replace("TOKEN", RUNNER)).unwrap();
        let output = self.run(&["register", "--import", &theirs.display().to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns a command of the program that uses this folder.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        // In a container only a static program runs.
        let program = std::env::var_os("STEP_RUNNER_BIN");
        let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_step-runner").into()));
        command.args(words).stdin(Stdio::null());
        command.env("STEP_RUNNER_AGENT_CONFIG", self.path("agent.toml"));
        command.env("STEP_RUNNER_AGENT_STATE_DIR", self.path("state"));
        for name in ["CI_SERVER_TOKEN", "CI_SERVER_URL", "REGISTRATION_TOKEN", "CI"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Starts the agent.
    pub(crate) fn start(&mut self) {
        self.start_with(|_| {});
    }

    /// Starts the agent with changes of its command.
    pub(crate) fn start_with(&mut self, change: impl FnOnce(&mut Command)) {
        assert!(self.agent.is_none());
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path("agent.log")).unwrap();
        let mut command = self.command(&["agent"]);
        change(&mut command);
        self.agent = Some(command.stderr(log).spawn().unwrap());
    }

    /// Kills the agent, as a crash would.
    pub(crate) fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Kills the agent's own daemon, as a crash would. Its keeper and the jobs live on.
    pub(crate) fn kill_daemon(&self) {
        let socket = self.path("state/daemon/s.sock").display().to_string();
        let daemons = processes_with(&format!("serve\0--socket\0{socket}\0"));
        assert_eq!(daemons.len(), 1);
        kill(daemons[0], Signal::KILL);
        wait_for("the daemon's end", || (!is_alive(daemons[0])).then_some(()));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.agent.as_ref().unwrap().id() as i32, signal);
    }

    /// Waits for the agent's end. Returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut agent = self.agent.take().unwrap();
        wait_for("the agent's end", || agent.try_wait().unwrap()).code()
    }

    /// Returns what the agent has said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// Returns the folders of records.
    pub(crate) fn records(&self) -> Vec<String> {
        crate::support::names(&self.path("state/jobs"))
    }

    /// Waits until the server has a trace of the job with `part`.
    pub(crate) fn wait_until_printed(&self, job: u64, part: &str) {
        self.gitlab.wait_for(part, |world| world.jobs[&job].text().contains(part).then_some(()));
    }

    /// Waits until no record is left.
    pub(crate) fn wait_until_closed(&self) {
        wait_for("the end of all records", || self.records().is_empty().then_some(()));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.kill().ok();
            agent.wait().ok();
        }
        if std::thread::panicking() {
            let daemon = fs::read_to_string(self.path("state/daemon/log")).unwrap_or_default();
            let shown = format!("the agent said:\n{}\nits daemon said:\n{daemon}\n", self.said());
            std::io::Write::write_all(&mut std::io::stderr(), shown.as_bytes()).ok();
        }
        // Daemon and keeper of this folder, and the processes of their jobs.
        let mark = self.path("state/daemon").display().to_string();
        wait_for("the end of the daemon", || {
            let left = processes_with(&mark);
            for pid in &left {
                kill(*pid, Signal::KILL);
            }
            left.is_empty().then_some(())
        });
    }
}

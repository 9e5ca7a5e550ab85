//! An agent of its own folder that works for a double of GitLab. It can be killed and started again, as a unit would.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::daemon::{PATIENCE, Scene};
use crate::fake_gitlab::{FakeGitlab, RUNNER};
use crate::proc;
use crate::verdict::Check;

/// Bytes at the end of a log that a miss shows.
const SHOWN: usize = 4_000;

/// A folder with an agent's configuration and state, and the server that it works for.
pub(crate) struct Site {
    pub(crate) scene: Scene,
    pub(crate) gitlab: FakeGitlab,
}

impl Site {
    /// Makes a configuration with one entry, for this many jobs at once.
    pub(crate) fn new(name: &str, concurrent: u64) -> Self {
        let site = Self { scene: Scene::new(name), gitlab: FakeGitlab::start() };
        let entry = format!(
            "concurrent = {concurrent}\ncheck_interval = 1\n\
             [[runners]]\nname = \"proof\"\nid = 11\nurl = \"{}\"\ntoken = \"{RUNNER}\"\n",
            site.gitlab.url()
        );
        let path = site.scene.path("agent.toml");
        fs::write(&path, entry).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        site
    }

    /// Returns a path in the state of the agent.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.scene.path("agent").join(name)
    }

    /// Starts the agent. It does not wait until it is ready.
    pub(crate) fn start(&self) -> Agent {
        let log = File::options().append(true).create(true).open(self.scene.path("agent.log")).unwrap();
        let from = log.metadata().unwrap().len() as usize;
        let mut command = self.scene.command(&["agent", "--config"]);
        command.arg(self.scene.path("agent.toml")).arg("--state-dir").arg(self.state(""));
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Agent { child, log: self.scene.path("agent.log"), from }
    }

    /// Returns the pid of the agent's own daemon, if it runs.
    pub(crate) fn daemon(&self) -> Option<u32> {
        self.pid("daemon.json", " serve ")
    }

    /// Returns the pid of that daemon's keeper, if it runs.
    pub(crate) fn keeper(&self) -> Option<u32> {
        self.pid("keeper.json", " keeper ")
    }

    /// Reads a pid from a file of the daemon's state. A number that another process has by now is none.
    fn pid(&self, file: &str, word: &str) -> Option<u32> {
        let text = fs::read_to_string(self.state("daemon/state").join(file)).ok()?;
        let pid = u32::try_from(serde_json::from_str::<Value>(&text).ok()?["pid"].as_u64()?).ok()?;
        (proc::lives(pid) && proc::describe(&[pid]).contains(word)).then_some(pid)
    }

    /// Returns the names of the agent's records.
    pub(crate) fn records(&self) -> Vec<String> {
        let found = fs::read_dir(self.state("jobs")).into_iter().flatten().flatten();
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Ends the agent's own daemon, and checks that nothing is left of it, of the agent and of their jobs.
    pub(crate) fn check_end(&self) -> Check {
        if let Some(daemon) = self.daemon() {
            proc::kill(daemon, Signal::TERM);
        }
        if proc::wait_until(PATIENCE, || proc::with_environment(&self.scene.tag).is_empty()).is_none() {
            let left = proc::describe(&proc::with_environment(&self.scene.tag));
            return Err(format!("processes are left: {left}"));
        }
        for folder in [self.state("jobs"), self.state("daemon/state/jobs"), self.state("daemon/state/broken")]
        {
            let files = proc::tree(&folder);
            if !files.is_empty() {
                return Err(format!("files are left: {files:?}"));
            }
        }
        Ok(())
    }

    /// Returns the ends of the logs of agent and daemon, for a miss.
    pub(crate) fn last_words(&self) -> String {
        let (agent, daemon) = (end_of(&self.scene.path("agent.log")), end_of(&self.state("daemon/log")));
        format!("the agent said:\n{agent}\nits daemon said:\n{daemon}")
    }
}

/// Returns the end of a log, for a miss.
pub(crate) fn end_of(log: &PathBuf) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SHOWN)..]).into_owned()
}

/// A running agent.
pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
    /// Offset in the log at which its part begins.
    from: usize,
}

impl Agent {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what it has said.
    pub(crate) fn said(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.from..).unwrap_or_default()).into_owned()
    }

    /// Kills it with SIGKILL. That it had ended by itself is a miss.
    pub(crate) fn kill(mut self) -> Check {
        if let Some(status) = self.child.try_wait().unwrap() {
            return Err(format!("the agent had ended by itself with {status}: {}", self.said()));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Ok(())
    }

    /// Sends a signal and waits for its end.
    pub(crate) fn end(mut self, signal: Signal) -> Check<ExitStatus> {
        proc::kill(self.pid(), signal);
        let mut status = None;
        proc::wait_until(PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.ok_or_else(|| format!("the agent did not end within {PATIENCE:?} of {signal:?}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

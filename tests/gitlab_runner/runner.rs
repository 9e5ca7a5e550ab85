//! A real GitLab Runner with the shell executor, which takes jobs from the double of GitLab.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::fake_gitlab::clients::Client;
use crate::fake_gitlab::{FakeGitlab, RUNNER};

/// Names the program. `scripts/agent-compare`, `scripts/agent-load` and `scripts/ci-runner` set it.
const PROGRAM: &str = "STEP_RUNNER_TEST_GITLAB_RUNNER";

/// Time for a Runner to end its job when it is asked to end.
const GRACE: Duration = Duration::from_secs(30);

/// Returns the program, if a script has named one.
pub(crate) fn program() -> Option<PathBuf> {
    std::env::var_os(PROGRAM).map(PathBuf::from)
}

/// Gives a command the environment that both programs of a comparison have, and nothing else.
pub(crate) fn environment<'c>(command: &'c mut Command, folder: &Path) -> &'c mut Command {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("HOME", folder.join("home")).env("TMPDIR", folder.join("tmp"))
}

/// Makes the folders that both programs of a comparison have.
pub(crate) fn make_folders(folder: &Path) {
    for name in ["home", "tmp", "builds", "cache"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
}

/// A running Runner. It ends with this value, and its job does.
pub(crate) struct Runner {
    pub(crate) process: Child,
    folder: PathBuf,
}

impl Runner {
    /// Starts a Runner whose jobs are those of the server. The server takes it for one from then on. It has `concurrent` jobs
    /// at once, and asks for `rate` a second: a Runner asks for one job a second with each of its entries.
    pub(crate) fn start(
        program: &Path,
        folder: &Path,
        gitlab: &FakeGitlab,
        concurrent: u64,
        rate: usize,
    ) -> Self {
        gitlab.change(|world| world.client = Client::Runner);
        make_folders(folder);
        let (path, url) = (folder.display(), gitlab.url());
        let entry = format!(
            "[[runners]]\nname = \"shell\"\nurl = \"{url}\"\ntoken = \"{RUNNER}\"\nexecutor = \"shell\"\n\
            shell = \"bash\"\nbuilds_dir = \"{path}/builds\"\ncache_dir = \"{path}/cache\"\n"
        );
        let entries = entry.repeat(rate);
        let config = format!("concurrent = {concurrent}\ncheck_interval = 1\n{entries}");
        fs::write(folder.join("config.toml"), config).unwrap();
        let mut command = Command::new(program);
        environment(&mut command, folder).args(["run", "--config"]).arg(folder.join("config.toml"));
        let log = fs::File::create(folder.join("runner.log")).unwrap();
        command.current_dir(folder).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { process: command.spawn().unwrap(), folder: folder.to_owned() }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let start = Instant::now();
        rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM).ok();
        while self.process.try_wait().is_ok_and(|status| status.is_none()) && start.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.process.kill().ok();
        self.process.wait().ok();
        if std::thread::panicking() {
            let said = fs::read(self.folder.join("runner.log")).unwrap_or_default();
            std::io::Write::write_all(&mut std::io::stderr(), &said).ok();
        }
    }
}

//! A daemon with its own folder that can be killed and started again.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::proc;
use crate::verdict::Check;

/// Longest wait for a start or end of a daemon. It is never needed, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

const MARKER: &str = "step-runner is listening on socket ";

/// Returns the path of the program under test.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("STEP_RUNNER_BIN")
        .map_or_else(|| env!("CARGO_BIN_EXE_step-runner").into(), PathBuf::from)
}

/// A folder with the socket, the state, and the files of a proof's jobs.
pub(crate) struct Scene {
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
    /// A variable in the environment of the daemon and of all processes of its jobs.
    pub(crate) tag: String,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(&format!("sr-{name}-")).tempdir().unwrap();
        let path = folder.path().to_owned();
        let tag = format!("SHOWS_SCENE={:x}", crate::random::fresh() << 32 | u64::from(std::process::id()));
        for name in ["work", "ran", "tmp"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        Self { folder: Some(folder), path, tag }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("s.sock")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Returns a command that runs the program with this scene's environment. Variables of ours that could affect it
    /// are removed.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.command_by(&[], words)
    }

    /// Like [`Self::command`], with `tracer` in front.
    pub(crate) fn command_by(&self, tracer: &[OsString], words: &[&str]) -> Command {
        let (name, value) = self.tag.split_once('=').unwrap();
        let program = program();
        let mut command = match tracer.split_first() {
            None => Command::new(program),
            Some((tracer, its_words)) => {
                let mut command = Command::new(tracer);
                command.args(its_words).arg(program);
                command
            }
        };
        let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("STEP_RUNNER_"));
        for (name, _) in ours {
            command.env_remove(name);
        }
        command.args(words).env(name, value).env("TMPDIR", self.path("tmp")).stdin(Stdio::null());
        command.env("RUST_BACKTRACE", "0");
        command
    }

    /// Returns the keeper's pid from `keeper.json`, if there is one.
    pub(crate) fn keeper(&self) -> Option<u32> {
        let text = fs::read_to_string(self.state().join("keeper.json")).ok()?;
        let json: serde_json::Value = serde_json::from_str(&text).ok()?;
        u32::try_from(json["pid"].as_u64()?).ok()
    }

    /// Checks that nothing of any job is left: no process, no record, no temporary file.
    pub(crate) fn check_empty(&self) -> Check {
        let left = |pids: &[u32]| pids.is_empty();
        proc::wait_until(PATIENCE, || left(&proc::with_environment(&self.tag)));
        let processes = proc::with_environment(&self.tag);
        if !processes.is_empty() {
            return Err(format!("processes left: {}", proc::describe(&processes)));
        }
        for folder in ["state/jobs", "state/broken", "tmp"] {
            let files = proc::tree(&self.path(folder));
            if !files.is_empty() {
                return Err(format!("files left: {files:?}"));
            }
        }
        let state: Vec<_> = proc::tree(&self.state())
            .into_iter()
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                !["lock", "daemon.json", "keeper.lock", "jobs", "broken", "reserve"].contains(&name.as_str())
            })
            .collect();
        if state.is_empty() { Ok(()) } else { Err(format!("files left in the state folder: {state:?}")) }
    }

    /// Keeps the folder for later inspection.
    pub(crate) fn keep(&mut self) {
        if let Some(folder) = self.folder.take() {
            eprintln!("kept: {}", folder.keep().display());
        }
    }
}

/// Kills all processes of the scene, in case a proof ends early.
impl Drop for Scene {
    fn drop(&mut self) {
        let keepers = proc::with_argument(&self.state().to_string_lossy());
        for pid in keepers.into_iter().filter(|pid| proc::describe(&[*pid]).contains("keeper")) {
            proc::kill(pid, Signal::KILL);
        }
        for pid in proc::with_environment(&self.tag) {
            proc::kill(pid, Signal::KILL);
        }
    }
}

/// A running daemon.
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
    /// Offset in the log file at which its part begins.
    from: u64,
}

impl Daemon {
    /// Starts it without waiting until it serves.
    pub(crate) fn spawn(scene: &Scene) -> Self {
        Self::spawn_by(scene, &[], &[])
    }

    /// Like [`Self::spawn`], with `tracer` in front.
    pub(crate) fn spawn_traced(scene: &Scene, tracer: &[OsString]) -> Self {
        Self::spawn_by(scene, tracer, &[])
    }

    /// Like [`Self::spawn`], with more options of `serve`.
    pub(crate) fn spawn_with(scene: &Scene, options: &[&str]) -> Self {
        Self::spawn_by(scene, &[], options)
    }

    fn spawn_by(scene: &Scene, tracer: &[OsString], options: &[&str]) -> Self {
        let log = scene.path("daemon.log");
        let file = File::options().append(true).create(true).open(&log).unwrap();
        let from = file.metadata().unwrap().len();
        let socket = scene.socket();
        let state = scene.state();
        let child = scene
            .command_by(tracer, &["serve", "--socket"])
            .arg(&socket)
            .arg("--state-dir")
            .arg(&state)
            .args(options)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log, from }
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(scene: &Scene) -> Check<Self> {
        Self::start_with(scene, &[])
    }

    /// Like [`Self::start`], with more options of `serve`.
    pub(crate) fn start_with(scene: &Scene, options: &[&str]) -> Check<Self> {
        let mut daemon = Self::spawn_by(scene, &[], options);
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Waits for the ready marker. Returns how long that took.
    pub(crate) fn wait_ready(&mut self) -> Check<Duration> {
        let start = Instant::now();
        loop {
            if self.is_ready() {
                return Ok(start.elapsed());
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                return Err(format!("the daemon ended at its start with {status}: {}", self.said()));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("the daemon does not serve after {PATIENCE:?}: {}", self.said()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// True if it has printed the ready marker.
    pub(crate) fn is_ready(&self) -> bool {
        self.said().contains(MARKER)
    }

    /// Returns its log.
    pub(crate) fn said(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.from as usize..).unwrap_or_default()).into_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and reaps it.
    pub(crate) fn kill(mut self) -> Check {
        if let Some(status) = self.child.try_wait().unwrap() {
            return Err(format!("the daemon had ended by itself with {status}: {}", tail(&self.said())));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Ok(())
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(&mut self) -> Check<ExitStatus> {
        proc::kill(self.pid(), Signal::TERM);
        let mut status = None;
        proc::wait_until(PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        if let Some(status) = status {
            return Ok(status);
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Err(format!("the daemon did not end within {PATIENCE:?} of SIGTERM"))
    }
}

/// Kills the daemon only. The keeper belongs to the scene, because it outlives a killed daemon.
impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Stops the daemon with SIGTERM and checks that nothing is left of it and its jobs.
pub(crate) fn check_stop(scene: &Scene, mut daemon: Daemon) -> Check {
    let keeper = scene.keeper();
    let keeper_had_died = keeper.is_some_and(|pid| !proc::lives(pid));
    let status = daemon.stop()?;
    if !status.success() {
        return Err(format!("the daemon ended with {status} after SIGTERM"));
    }
    if let Some(keeper) = keeper
        && proc::wait_until(PATIENCE, || !proc::lives(keeper)).is_none()
    {
        return Err(format!("the keeper {keeper} outlived the graceful stop"));
    }
    if scene.socket().exists() {
        return Err("the socket file was left".into());
    }
    if keeper_had_died {
        // A killed keeper cannot remove these files. The next keeper replaces them.
        for name in ["keeper.json", "keeper.sock"] {
            fs::remove_file(scene.state().join(name)).ok();
        }
    }
    scene.check_empty()
}

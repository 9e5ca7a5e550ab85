//! A daemon under test, with its own folder.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use super::client::Client;
use super::process::{is_alive, kill};
use super::{PATIENCE, names, wait_for};
use rustix::process::Signal;
use step_runner::model::JobId;

/// Settings for starting a daemon under test.
pub(crate) struct Setup {
    pub(crate) options: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Program and arguments to put before the daemon's command line, such as `setpriv`.
    pub(crate) wrapper: Vec<String>,
    pub(crate) program: PathBuf,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self {
            options: Vec::new(),
            env: Vec::new(),
            wrapper: Vec::new(),
            program: env!("CARGO_BIN_EXE_step-runner").into(),
        }
    }

    pub(crate) fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}={value}"));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn wrapper(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Runs this copy of the program.
    pub(crate) fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Starts the daemon on a new folder.
    pub(crate) fn start(self) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let mut daemon = self.start_in(&path);
        daemon.dir = Some(dir);
        daemon
    }

    /// Starts the daemon on the caller's folder `dir`.
    pub(crate) fn start_in(self, dir: &Path) -> Daemon {
        let socket = dir.join("s.sock");
        let running = Running::start(&self, &socket).unwrap_or_else(|said| panic!("no daemon: {said}"));
        Daemon { setup: self, running: Some(running), path: dir.to_owned(), socket, dir: None }
    }

    fn command(&self, socket: &Path) -> Command {
        let binary = &self.program;
        let mut command = match self.wrapper.split_first() {
            None => Command::new(binary),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(binary);
                command
            }
        };
        command.arg("serve").arg("--socket").arg(socket).args(&self.options);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs a daemon that must refuse to start. Returns its output.
    pub(crate) fn refused(self, socket: &Path) -> Output {
        self.command(socket).output().unwrap()
    }
}

struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Running {
    /// Starts the daemon and waits for its ready marker. The error is its stderr.
    fn start(setup: &Setup, socket: &Path) -> Result<Self, String> {
        let mut child = setup.command(socket).spawn().unwrap();
        let said = Arc::<Mutex<String>>::default();
        let (ready, marker) = mpsc::channel();
        let heard = Arc::clone(&said);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        // The thread ends when the daemon and its keeper have closed their ends of the pipe.
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).into_owned();
                heard.lock().unwrap().push_str(&text);
                if text.starts_with("step-runner is listening on socket ") {
                    ready.send(()).ok();
                }
                line.clear();
            }
        });
        if marker.recv_timeout(PATIENCE).is_ok() {
            return Ok(Self { child, said });
        }
        child.kill().ok();
        child.wait().ok();
        Err(said.lock().unwrap().clone())
    }
}

/// A running daemon. Dropped, it is killed with all its processes.
pub(crate) struct Daemon {
    setup: Setup,
    running: Option<Running>,
    pub(crate) path: PathBuf,
    pub(crate) socket: PathBuf,
    dir: Option<tempfile::TempDir>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Setup::new().start()
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path.join("s.sock.state")
    }

    /// Returns the folder of the job `id`.
    pub(crate) fn folder(&self, id: &str) -> PathBuf {
        self.state_dir().join(format!("jobs/{}", JobId::parse(id).unwrap().key()))
    }

    /// Returns the names of the folders of all jobs.
    pub(crate) fn folders(&self) -> Vec<String> {
        names(&self.state_dir().join("jobs"))
    }

    /// Returns a path that steps can use.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.running.as_ref().unwrap().child.id() as i32
    }

    pub(crate) fn keeper_pid(&self) -> Option<i32> {
        keeper_pid(&self.state_dir())
    }

    /// Returns the daemon's stderr so far.
    pub(crate) fn said(&self) -> String {
        self.running.as_ref().unwrap().said.lock().unwrap().clone()
    }

    /// Kills the daemon, as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let mut running = self.running.take().unwrap();
        running.child.kill().unwrap();
        running.child.wait().unwrap();
    }

    /// Starts the daemon again on the same folder.
    pub(crate) fn restart(&mut self) {
        assert!(self.running.is_none());
        let running = Running::start(&self.setup, &self.socket);
        self.running = Some(running.unwrap_or_else(|said| panic!("no daemon: {said}")));
    }

    /// Starts the daemon again with other options.
    pub(crate) fn restart_with(&mut self, setup: Setup) {
        self.setup = setup;
        self.restart();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for the daemon to end. Returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut running = self.running.take().unwrap();
        wait_for("the daemon's end", || running.child.try_wait().unwrap()).code()
    }

    /// Ends the daemon with SIGTERM.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.wait(), Some(0));
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.socket).await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(running) = &self.running
        {
            eprintln!("the daemon said:\n{}", running.said.lock().unwrap());
        }
        let keeper = keeper_pid(&self.state_dir());
        if let Some(mut running) = self.running.take() {
            running.child.kill().ok();
            running.child.wait().ok();
        }
        if let Some(keeper) = keeper {
            kill(keeper, Signal::KILL);
            wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
        }
    }
}

fn keeper_pid(state_dir: &Path) -> Option<i32> {
    let json = std::fs::read(state_dir.join("keeper.json")).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&json).ok()?;
    let pid = find_pid(&json)?;
    // The pid can belong to another process by now.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    command.windows(6).any(|word| word == b"keeper").then_some(pid)
}

fn find_pid(json: &serde_json::Value) -> Option<i32> {
    match json {
        serde_json::Value::Object(object) => match object.get("pid") {
            Some(pid) => pid.as_i64().map(|pid| pid as i32),
            None => object.values().find_map(find_pid),
        },
        _ => None,
    }
}

//! A daemon under test on a folder of its own, and a client that speaks plain gRPC to it: no retries, no comfort.
//!
//! Nothing here waits for a time to pass: everything waits for a state, at most [`PATIENCE`].

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::allow_attributes, reason = "as above: `expect` would fail in a program that uses all")]
#![expect(clippy::print_stderr, reason = "says why a test was skipped, and what a daemon said")]

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal};
use step_runner::model::JobId;
use step_runner::pb::v1::step_runner_client::StepRunnerClient;
use step_runner::pb::v1::{self, RunRequest, State, Status};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

pub(crate) mod frames;
pub(crate) mod logs;
pub(crate) mod parts;
pub(crate) mod registry;

/// Nothing takes so long, however loaded the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Asks `state` again and again until it gives something.
pub(crate) fn wait_for<T>(what: &str, mut state: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = state() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As [`wait_for`] for a condition, inside a runtime.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What `work` gives, within [`PATIENCE`].
pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// Whether the tests run as root; else says that `test` is skipped.
pub(crate) fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("{test}: skipped: not root");
    }
    root
}

/// How a daemon under test is started.
pub(crate) struct Setup {
    pub(crate) options: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Program and arguments in front of the daemon's, such as `setpriv`.
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

    /// A copy of the program.
    pub(crate) fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Starts it on a new folder.
    pub(crate) fn start(self) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let mut daemon = self.start_in(&path);
        daemon.dir = Some(dir);
        daemon
    }

    /// Starts it on the folder `dir`, which is the caller's.
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

    /// Starts a daemon that is expected to refuse: how it ended.
    pub(crate) fn refused(self, socket: &Path) -> Output {
        self.command(socket).output().unwrap()
    }
}

struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Running {
    /// Starts the daemon and waits for its ready marker; what it said if it ended before.
    fn start(setup: &Setup, socket: &Path) -> Result<Self, String> {
        let mut child = setup.command(socket).spawn().unwrap();
        let said = Arc::<Mutex<String>>::default();
        let (ready, marker) = mpsc::channel();
        let heard = Arc::clone(&said);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        // Ends when the daemon and its keeper have closed their ends.
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

/// A running daemon. Dropped, it is killed with everything it started.
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

    /// Folder of the job `id`.
    pub(crate) fn folder(&self, id: &str) -> PathBuf {
        self.state_dir().join(format!("jobs/{}", JobId::parse(id).unwrap().key()))
    }

    /// Names of the folders of jobs.
    pub(crate) fn folders(&self) -> Vec<String> {
        names(&self.state_dir().join("jobs"))
    }

    /// A path for the use of steps.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.running.as_ref().unwrap().child.id() as i32
    }

    pub(crate) fn keeper_pid(&self) -> Option<i32> {
        keeper_pid(&self.state_dir())
    }

    /// What the operator was told.
    pub(crate) fn said(&self) -> String {
        self.running.as_ref().unwrap().said.lock().unwrap().clone()
    }

    /// Kills the daemon as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let mut running = self.running.take().unwrap();
        running.child.kill().unwrap();
        running.child.wait().unwrap();
    }

    /// Starts it again on the same folder.
    pub(crate) fn restart(&mut self) {
        assert!(self.running.is_none());
        let running = Running::start(&self.setup, &self.socket);
        self.running = Some(running.unwrap_or_else(|said| panic!("no daemon: {said}")));
    }

    /// The same with other options.
    pub(crate) fn restart_with(&mut self, setup: Setup) {
        self.setup = setup;
        self.restart();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Its exit code after it was told to end.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut running = self.running.take().unwrap();
        wait_for("the daemon's end", || running.child.try_wait().unwrap()).code()
    }

    /// Ends it gently.
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
    // Its number may be another's by now.
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

pub(crate) fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).ok();
}

/// The process exists and is no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Processes whose command line holds `mark`.
pub(crate) fn processes_with(mark: &str) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_alive(*pid) && command.windows(mark.len()).any(|part| part == mark.as_bytes())
        })
        .collect()
}

/// Sorted names in a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// Every file below `folder` with its content: what must not change.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(path.clone());
                all.insert(path, Vec::new());
            } else {
                let content = if kind.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
                all.insert(path, content);
            }
        }
    }
    all
}

/// A request with these steps.
pub(crate) fn request(id: &str, steps: &str) -> RunRequest {
    RunRequest { id: id.to_owned(), steps: steps.to_owned(), ..RunRequest::default() }
}

/// Steps with one script.
pub(crate) fn script(text: &str) -> String {
    scripts(&[("s", text)])
}

/// Steps with several scripts, each with its name.
pub(crate) fn scripts(scripts: &[(&str, &str)]) -> String {
    let steps: Vec<_> =
        scripts.iter().map(|(name, text)| serde_json::json!({"name": name, "script": text})).collect();
    serde_json::to_string(&steps).unwrap()
}

/// Steps with one function that runs `command` itself, without a shell.
pub(crate) fn exec(daemon: &Daemon, name: &str, command: &[&str]) -> String {
    let folder = daemon.file(name);
    std::fs::create_dir_all(&folder).unwrap();
    let definition = serde_json::json!({"exec": {"command": command}});
    std::fs::write(folder.join("func.yml"), format!("spec: {{}}\n---\n{definition}\n")).unwrap();
    serde_json::json!([{"name": name, "func": folder}]).to_string()
}

/// Asserts that a call was refused with this code and reason; the text after the reason.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, tonic::Status>, code: Code, reason: &str) -> String {
    let Err(status) = result else { panic!("not refused, expected {reason}") };
    let text = status.message().strip_prefix(reason).and_then(|text| text.strip_prefix(": "));
    match text {
        Some(text) if status.code() == code => text.to_owned(),
        _ => panic!("expected {code:?} {reason}, got {:?} {}", status.code(), status.message()),
    }
}

/// A plain client on a connection of its own.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) calls: StepRunnerClient<Channel>,
    pub(crate) channel: Channel,
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Self {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://any.example");
        let channel = endpoint.connect_with_connector(connector).await.unwrap();
        let calls = StepRunnerClient::new(channel.clone()).max_decoding_message_size(64 << 20);
        Self { calls, channel }
    }

    pub(crate) async fn try_run(&self, request: RunRequest) -> Result<(), tonic::Status> {
        patiently("Run", self.calls.clone().run(request)).await.map(drop)
    }

    /// Runs one script.
    pub(crate) async fn run(&self, id: &str, text: &str) {
        self.run_steps(id, &script(text)).await;
    }

    pub(crate) async fn run_steps(&self, id: &str, steps: &str) {
        self.try_run(request(id, steps)).await.unwrap();
    }

    pub(crate) async fn try_status(&self, id: &str) -> Result<Status, tonic::Status> {
        let request = v1::StatusRequest { id: id.to_owned() };
        let response = patiently("Status", self.calls.clone().status(request)).await?.into_inner();
        assert_eq!(response.jobs.len(), 1);
        Ok(response.jobs[0].clone())
    }

    pub(crate) async fn status(&self, id: &str) -> Status {
        self.try_status(id).await.unwrap()
    }

    /// All jobs.
    pub(crate) async fn jobs(&self) -> Vec<Status> {
        let request = v1::StatusRequest { id: String::new() };
        patiently("Status", self.calls.clone().status(request)).await.unwrap().into_inner().jobs
    }

    pub(crate) async fn try_cancel(&self, id: &str) -> Result<(), tonic::Status> {
        let request = v1::CancelRequest { id: id.to_owned() };
        patiently("Cancel", self.calls.clone().cancel(request)).await.map(drop)
    }

    pub(crate) async fn cancel(&self, id: &str) {
        self.try_cancel(id).await.unwrap();
    }

    pub(crate) async fn try_finish(&self, id: &str) -> Result<(), tonic::Status> {
        let request = v1::FinishRequest { id: id.to_owned() };
        patiently("Finish", self.calls.clone().finish(request)).await.map(drop)
    }

    pub(crate) async fn finish(&self, id: &str) {
        self.try_finish(id).await.unwrap();
    }

    pub(crate) async fn try_follow(&self, id: &str, offset: i32) -> Result<Follow, tonic::Status> {
        let request = v1::FollowLogsRequest { id: id.to_owned(), offset };
        let stream = patiently("FollowLogs", self.calls.clone().follow_logs(request)).await?.into_inner();
        Ok(Follow { stream, bytes: Vec::new() })
    }

    pub(crate) async fn follow(&self, id: &str, offset: i32) -> Follow {
        self.try_follow(id, offset).await.unwrap()
    }

    /// The whole log, once the job has ended.
    pub(crate) async fn log(&self, id: &str) -> Vec<u8> {
        self.follow(id, 0).await.rest().await.unwrap()
    }

    /// What the log of a job holds now, which may run.
    pub(crate) async fn log_so_far(&self, id: &str) -> Vec<u8> {
        let len = self.status(id).await.log_bytes as usize;
        let mut follow = self.follow(id, 0).await;
        while follow.bytes.len() < len {
            follow.next().await.unwrap();
        }
        follow.bytes
    }

    /// What steps wrote to stdout.
    pub(crate) async fn output(&self, id: &str) -> String {
        String::from_utf8(logs::source(&self.log(id).await, "01O")).unwrap()
    }

    /// Follows the job to its end: what the end of the stream promises holds.
    pub(crate) async fn ended(&self, id: &str) -> Status {
        let log = self.log(id).await;
        let status = self.status(id).await;
        assert!(status.finished, "the stream ended before the job: {status:?}");
        assert_eq!(status.log_bytes, log.len() as i64);
        assert!(status.end_time.is_some());
        status
    }

    /// Runs the steps to their end.
    pub(crate) async fn run_to_end(&self, id: &str, steps: &str) -> Status {
        self.run_steps(id, steps).await;
        self.ended(id).await
    }

    /// Waits for a state of the job.
    pub(crate) async fn reaches(&self, id: &str, what: &str, reached: impl Fn(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            let status = self.status(id).await;
            if reached(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "waited too long until {what}: {status:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the job's log holds `text`.
    pub(crate) async fn prints(&self, id: &str, text: &str) {
        self.follow(id, 0).await.until(text).await;
    }

    pub(crate) async fn try_steps(&self, id: &str) -> Result<Vec<v1::StepResult>, tonic::Status> {
        let request = v1::FollowStepsRequest { id: id.to_owned() };
        let mut stream =
            patiently("FollowSteps", self.calls.clone().follow_steps(request)).await?.into_inner();
        let mut results = Vec::new();
        while let Some(message) = patiently("a step", stream.message()).await? {
            results.push(message.result.unwrap());
        }
        Ok(results)
    }

    /// All results of an ended job; the last is the root.
    pub(crate) async fn steps(&self, id: &str) -> Vec<v1::StepResult> {
        self.try_steps(id).await.unwrap()
    }
}

/// A follower of a log.
pub(crate) struct Follow {
    stream: Streaming<v1::FollowLogsResponse>,
    /// What it has received.
    pub(crate) bytes: Vec<u8>,
}

impl Follow {
    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<usize>, tonic::Status> {
        let Some(message) = patiently("a piece of the log", self.stream.message()).await? else {
            return Ok(None);
        };
        assert!(!message.data.is_empty(), "an empty message");
        assert!(message.data.len() <= 64 << 10, "a message of {} bytes", message.data.len());
        self.bytes.extend_from_slice(&message.data);
        Ok(Some(message.data.len()))
    }

    /// Reads on until the log holds `text`.
    pub(crate) async fn until(&mut self, text: &str) {
        while !contains(&self.bytes, text) {
            let more = self.next().await.unwrap();
            assert!(
                more.is_some(),
                "the log ended without {text:?}:\n{}",
                String::from_utf8_lossy(&self.bytes)
            );
        }
    }

    /// Everything to the end.
    pub(crate) async fn rest(mut self) -> Result<Vec<u8>, tonic::Status> {
        while self.next().await?.is_some() {}
        Ok(self.bytes)
    }
}

/// The numbers from 1 to `last`, each on a line with `after` behind it.
pub(crate) fn numbered(last: u32, after: &str) -> String {
    let mut lines = String::new();
    for number in 1..=last {
        lines.push_str(&number.to_string());
        lines.push_str(after);
        lines.push('\n');
    }
    lines
}

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

pub(crate) fn state(status: &Status) -> State {
    status.state()
}

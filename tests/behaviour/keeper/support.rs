//! A keeper process under test, and the daemon's side of its connection.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use step_runner::keeper::protocol::{
    Closed, FromKeeper, KeeperError, KeeperSettings, PROTOCOL_VERSION, RegisterJob, RegisteredJob, Reply,
    Request, SpawnStep, StepEnd, StepEnded, ToKeeper,
};
use step_runner::log::line::{Entry, Joiner};
use step_runner::model::{ExitStatus, JobId, JobKey, LogChannel, ResourceLimits};

/// Longest wait for an answer of the keeper. It is never needed, even on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Bound for things that must not wait for something else. In these tests that something takes ten minutes.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn settings() -> KeeperSettings {
    KeeperSettings {
        keeper_wait: Duration::from_mins(1),
        kill_wait: Duration::from_secs(2),
        cancel_grace: Duration::from_millis(100),
        leftover_keep: true,
        max_remembered: 10,
        remember_for: Duration::from_hours(1),
        remove_state: false,
    }
}

/// A keeper process with its state folder.
pub(crate) struct Keeper {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) process: Child,
    pub(crate) client: Client,
}

impl Keeper {
    pub(crate) fn start(cgroup: &str) -> Self {
        Self::start_with(cgroup, settings())
    }

    pub(crate) fn start_with(cgroup: &str, settings: KeeperSettings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_step-runner"))
            .args(["keeper", "--connection-fd", "0", "--cgroup", cgroup, "--state-dir"])
            .arg(dir.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        let client = Client::greet(ours, settings);
        Self { dir, process, client }
    }

    /// Connects as a second daemon.
    pub(crate) fn reconnect(&mut self, settings: KeeperSettings) {
        self.client = Client::greet(self.connect(), settings);
    }

    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("keeper.sock")).unwrap()
    }

    /// Gives the keeper a job without phrases.
    pub(crate) fn register(&mut self, name: &str) -> Job {
        self.register_with(name, |_| {})
    }

    pub(crate) fn register_with(&mut self, name: &str, change: impl FnOnce(&mut RegisterJob)) -> Job {
        let key = JobId::parse(name).unwrap().key();
        let folder = self.dir.path().join(format!("jobs/{key}"));
        std::fs::create_dir_all(&folder).unwrap();
        let mut asked = RegisterJob {
            key,
            tag: self.tag(key),
            record: b"first".to_vec(),
            brief: b"brief".to_vec(),
            phrases: Vec::new(),
            token_prefixes: Vec::new(),
            mask_forms: true,
            default_prefixes: true,
            log_len: 0,
            log_limit: 1 << 30,
            limits: ResourceLimits::default(),
            secret_files: Vec::new(),
        };
        change(&mut asked);
        let (tag, told) = (asked.tag, asked.log_len);
        let reply = self.client.ask(Request::Register(Box::new(asked))).unwrap();
        assert!(matches!(reply, Reply::Registered { log_len, .. } if log_len == told));
        Job { key, tag, folder, op: 0, process: 0 }
    }

    /// Returns the tag of a job. Jobs of other tests and left-over processes of an earlier run have other tags.
    fn tag(&self, key: JobKey) -> u128 {
        let folder = self.dir.path().metadata().unwrap().ino();
        u128::from_le_bytes(key.0) ^ u128::from(std::process::id()) ^ u128::from(folder) << 64
    }

    /// Gives the keeper a job again, with the log length that it has reported before.
    pub(crate) fn register_with_log(&mut self, name: &str, len: u64) -> Job {
        self.register_with(name, |asked| asked.log_len = len)
    }

    pub(crate) fn end(mut self) {
        self.client.tell(Request::Bye);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!self.dir.path().join("keeper.sock").exists());
        assert!(!self.dir.path().join("keeper.json").exists());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A job, as a daemon knows it.
pub(crate) struct Job {
    pub(crate) key: JobKey,
    pub(crate) tag: u128,
    pub(crate) folder: PathBuf,
    pub(crate) op: u32,
    pub(crate) process: u32,
}

impl Job {
    pub(crate) fn next_op(&mut self) -> u32 {
        self.op += 1;
        self.op
    }

    /// Returns a request to run `argv`.
    pub(crate) fn command(&mut self, argv: &[&str]) -> SpawnStep {
        self.process += 1;
        SpawnStep {
            key: self.key,
            process: self.process,
            slot: 1,
            name: format!("s{}", self.process),
            program: argv[0].into(),
            argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
            env: vec![
                b"PATH=/usr/local/bin:/usr/bin:/bin".to_vec(),
                format!("STEP_RUNNER_JOB={:032x}", self.tag).into_bytes(),
            ],
            work_dir: "/".into(),
            watch_unfinished: false,
            closes: None,
        }
    }

    pub(crate) fn spawn(&mut self, client: &mut Client, script: &str) -> u32 {
        let spawn = self.command(&["/bin/sh", "-c", script]);
        let process = spawn.process;
        client.tell(Request::Spawn(Box::new(spawn)));
        process
    }

    /// Runs a script to its end.
    pub(crate) fn run(&mut self, client: &mut Client, script: &str) -> StepEnded {
        let process = self.spawn(client, script);
        client.step_ended(self.key, process)
    }

    /// Runs a program to its end.
    pub(crate) fn run_command(&mut self, client: &mut Client, argv: &[&str]) -> StepEnd {
        let spawn = self.command(argv);
        let process = spawn.process;
        client.tell(Request::Spawn(Box::new(spawn)));
        client.step_ended(self.key, process).end
    }

    pub(crate) fn stop(&self, client: &mut Client, grace: Duration) {
        client.tell(Request::Stop { key: self.key, process: self.process, grace });
    }

    pub(crate) fn close(&mut self, client: &mut Client) -> Closed {
        self.close_with(client, Duration::from_secs(1), vec![])
    }

    pub(crate) fn close_with(
        &mut self,
        client: &mut Client,
        grace: Duration,
        lines: Vec<(LogChannel, String)>,
    ) -> Closed {
        let op = self.next_op();
        client.tell(Request::Close { key: self.key, op, leftover_grace: grace, lines });
        client.closed(self.key)
    }

    pub(crate) fn resume(&self, client: &mut Client) -> RegisteredJob {
        match client.ask(Request::Resume { key: self.key }).unwrap() {
            Reply::Resumed(registered) => *registered,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the events of the record, which is read in pieces.
    pub(crate) fn record(&self, client: &mut Client) -> Vec<Vec<u8>> {
        let len = self.resume(client).record_len;
        let mut stream = Vec::new();
        while (stream.len() as u64) < len {
            let offset = stream.len() as u64;
            match client.ask(Request::ReadRecord { key: self.key, offset }).unwrap() {
                Reply::Piece(piece) => stream.extend(piece.0),
                other => panic!("{other:?}"),
            }
        }
        let (mut events, mut rest) = (Vec::new(), stream.as_slice());
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (event, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            events.push(event.to_vec());
            rest = behind;
        }
        events
    }

    pub(crate) fn log(&self) -> Vec<u8> {
        std::fs::read(self.folder.join("log")).unwrap()
    }

    /// Returns the lines of the log without their times, each as `KIND text`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let log = self.log();
        let lines = log.split_inclusive(|&byte| byte == b'\n').map(|line| {
            assert!(Entry::parse(line).is_some(), "malformed: {:?}", String::from_utf8_lossy(line));
            String::from_utf8_lossy(&line[28..line.len() - 1]).into_owned()
        });
        lines.collect()
    }

    /// Returns the bytes that steps wrote to standard output.
    pub(crate) fn stdout(&self) -> Vec<u8> {
        let (log, mut joiner, mut out) = (self.log(), Joiner::new(), Vec::new());
        let mut give = |key: step_runner::log::line::SourceKey, bytes: &[u8]| {
            if key == Entry::parse(b"2021-01-01T00:00:00.000000Z 01O ").unwrap().key() {
                out.extend_from_slice(bytes);
            }
        };
        for line in log.split_inclusive(|&byte| byte == b'\n') {
            joiner.push(&Entry::parse(&line[..line.len() - 1]).unwrap(), &mut give);
        }
        joiner.finish(&mut give);
        out
    }

    /// Returns the processes with the job's tag in their environment.
    pub(crate) fn living(&self) -> Vec<u32> {
        let tag = format!("STEP_RUNNER_JOB={:032x}", self.tag);
        let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
            let environment = std::fs::read(entry.path().join("environ")).ok()?;
            environment.split(|&byte| byte == 0).any(|entry| entry == tag.as_bytes()).then_some(pid)
        });
        pids.collect()
    }
}

pub(crate) fn exited(code: u8) -> StepEnd {
    StepEnd::Exited(ExitStatus::Code(code))
}

pub(crate) fn signalled(signal: u8) -> StepEnd {
    StepEnd::Exited(ExitStatus::Signal(signal))
}

/// Waits until a step has made the file `path`.
pub(crate) fn wait_for_file(path: &Path) {
    wait_until(|| path.exists());
}

/// Waits until a condition outside the keeper holds.
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        std::thread::yield_now();
    }
}

/// The daemon's end of the connection.
pub(crate) struct Client {
    stream: UnixStream,
    next_id: u64,
    events: VecDeque<FromKeeper>,
    pub(crate) jobs: Vec<JobKey>,
    pub(crate) cgroup: Option<PathBuf>,
}

impl Client {
    pub(crate) fn greet(stream: UnixStream, settings: KeeperSettings) -> Self {
        let (mut client, hello) = Self::speaking(PROTOCOL_VERSION, stream, settings);
        match hello {
            Reply::Hello { version: PROTOCOL_VERSION, jobs, cgroup, .. } => {
                client.jobs = jobs;
                client.cgroup = cgroup;
            }
            other => panic!("{other:?}"),
        }
        client
    }

    /// Greets the keeper with protocol `version`. Returns the client and the answer.
    pub(crate) fn speaking(version: u32, stream: UnixStream, settings: KeeperSettings) -> (Self, Reply) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self { stream, next_id: 1, events: VecDeque::new(), jobs: vec![], cgroup: None };
        let hello = client.ask(Request::Hello { version, settings, digest_key: [7; 16] }).unwrap();
        (client, hello)
    }

    /// Closes the connection, as the death of the daemon would.
    pub(crate) fn hang_up(&self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    pub(crate) fn tell(&mut self, request: Request) {
        self.send(0, request);
    }

    pub(crate) fn ask(&mut self, request: Request) -> Result<Reply, KeeperError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(id, request);
        loop {
            match self.read().expect("the keeper closed the connection") {
                FromKeeper::Reply { id: replied, reply } => {
                    assert_eq!(replied, id);
                    return reply;
                }
                event => self.events.push_back(event),
            }
        }
    }

    fn send(&mut self, id: u64, request: Request) {
        let body = postcard::to_stdvec(&ToKeeper { id, request }).unwrap();
        self.stream.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
        self.stream.write_all(&body).unwrap();
    }

    /// Reads the next frame. Returns `None` at the end of the connection.
    pub(crate) fn read(&mut self) -> Option<FromKeeper> {
        let mut header = [0; 4];
        if let Err(error) = self.stream.read_exact(&mut header) {
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the keeper keeps silent");
            return None;
        }
        let mut body = vec![0; u32::from_le_bytes(header) as usize];
        self.stream.read_exact(&mut body).unwrap();
        Some(postcard::from_bytes(&body).unwrap())
    }

    /// Returns the first event for which `pick` returns a value. Other events are kept for later.
    pub(crate) fn event<T>(&mut self, mut pick: impl FnMut(&FromKeeper) -> Option<T>) -> T {
        if let Some(at) = self.events.iter().position(|event| pick(event).is_some()) {
            return pick(&self.events.remove(at).unwrap()).unwrap();
        }
        loop {
            let event = self.read().expect("the keeper closed the connection");
            if let Some(picked) = pick(&event) {
                return picked;
            }
            self.events.push_back(event);
        }
    }

    /// Like [`Self::event`], but looks only at events that were already received.
    pub(crate) fn heard<T>(&mut self, pick: impl Fn(&FromKeeper) -> Option<T>) -> Option<T> {
        let at = self.events.iter().position(|event| pick(event).is_some())?;
        pick(&self.events.remove(at)?)
    }

    pub(crate) fn step_ended(&mut self, of: JobKey, process: u32) -> StepEnded {
        self.event(|event| match event {
            FromKeeper::StepEnded { key, ended } if *key == of && ended.process == process => {
                Some(ended.clone())
            }
            _ => None,
        })
    }

    pub(crate) fn closed(&mut self, of: JobKey) -> Closed {
        self.event(|event| match event {
            FromKeeper::Closed { key, closed } if *key == of => Some(closed.clone()),
            _ => None,
        })
    }
}

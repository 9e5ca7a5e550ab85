//! A fake GitLab Runner. It calls the driver in the Custom executor's order and interprets exit codes by the executor's
//! rules (custom-executor.md §2). It only leaves out the pauses between attempts.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use rustix::process::{Pid, Signal};

use crate::support::{PATIENCE, processes_with, wait_for};

/// Exit codes that differ from those of today's Runners, so that the driver has to read them from the environment.
pub(crate) const BUILD_FAILURE: i32 = 31;
pub(crate) const SYSTEM_FAILURE: i32 = 32;

/// Number of attempts to prepare a job.
const ATTEMPTS: usize = 3;

/// The Runner's view of the end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Success,
    /// The build failed with this exit code.
    BuildFailure(i32),
    SystemFailure,
    /// The driver ended with an undefined code or by a signal.
    Unknown(ExitStatus),
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) seen: Seen,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Call {
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Asserts the Runner's view of this call.
    #[track_caller]
    pub(crate) fn is(self, seen: &Seen) -> Self {
        assert_eq!(self.seen, *seen, "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self
    }

    /// Asserts a system failure whose message has these parts. Each line of the driver must carry its mark.
    #[track_caller]
    pub(crate) fn fails_with(self, parts: &[&str]) -> Self {
        let call = self.is(&Seen::SystemFailure);
        let said = call.stderr();
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(said.lines().all(|line| line.starts_with("step-runner: ")), "{said}");
        call
    }
}

/// A call that is still running.
pub(crate) struct Running {
    child: Child,
    output: mpsc::Receiver<(bool, Vec<u8>)>,
    printed: Arc<AtomicBool>,
    code_file: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// True once the call itself has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the call has printed something: it follows the stage.
    pub(crate) fn wait_until_printed(&self) {
        wait_for("the first output", || self.printed.load(Ordering::Relaxed).then_some(()));
    }

    /// Sends a signal to the whole process group, as the Runner does.
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process_group(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Waits for the call to end. Both pipes must reach their ends, or a real Runner would wait for ever.
    pub(crate) fn end(mut self) -> Call {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (is_stdout, bytes) =
                self.output.recv_timeout(PATIENCE).expect("something holds the pipes of the driver open");
            *(if is_stdout { &mut stdout } else { &mut stderr }) = bytes;
        }
        let status = wait_for("the driver's end", || self.child.try_wait().unwrap());
        Call { seen: seen(status, &self.code_file), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn seen(status: ExitStatus, code_file: &Path) -> Seen {
    match status.code() {
        Some(0) => Seen::Success,
        Some(BUILD_FAILURE) => match std::fs::read_to_string(code_file) {
            Err(_) => Seen::BuildFailure(1),
            Ok(text) => match text.lines().next().unwrap_or_default().parse() {
                Ok(code) => Seen::BuildFailure(code),
                Err(_) => Seen::Unknown(ExitStatus::from_raw(0)),
            },
        },
        Some(SYSTEM_FAILURE) => Seen::SystemFailure,
        _ => Seen::Unknown(status),
    }
}

/// Result of a whole job.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) seen: Seen,
    /// Output of all calls, stdout and stderr apart.
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Calls in their order: `config`, `prepare`, `cleanup`, or the name of a stage.
    pub(crate) calls: Vec<String>,
}

/// A fake Runner with one job. Dropped, it kills all processes that are left.
pub(crate) struct Runner {
    folder: tempfile::TempDir,
    options: Vec<String>,
    env: BTreeMap<String, String>,
    /// Variables that `config` returned as `job_env`. Empty for a Runner that is too old to know them.
    job_env: BTreeMap<String, String>,
    pub(crate) knows_job_env: bool,
    attempts: usize,
    scripts: usize,
}

impl Runner {
    /// Makes a Runner that uses a private daemon.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut runner = Self {
            options: vec![format!("--state-dir={}/state", folder.path().display())],
            env: BTreeMap::from([
                ("PATH".into(), path),
                ("HOME".into(), folder.path().display().to_string()),
            ]),
            job_env: BTreeMap::new(),
            knows_job_env: true,
            attempts: 0,
            scripts: 0,
            folder,
        };
        let builds = runner.file("builds").display().to_string();
        for (name, value) in [
            ("CI_JOB_ID", "77"),
            ("CI_PROJECT_ID", "5"),
            ("CI_SERVER_URL", "https://gitlab.example.com"),
            ("CI_JOB_TIMEOUT", "3600"),
            ("CI_BUILDS_DIR", &builds),
        ] {
            runner = runner.variable(name, value);
        }
        runner.attempt();
        runner
    }

    /// Makes a Runner that uses the daemon on this socket.
    pub(crate) fn shared(socket: &Path) -> Self {
        Self::new().option(&format!("--address=unix:{}", socket.display()))
    }

    /// Sets another state root.
    pub(crate) fn root(mut self, root: &str) -> Self {
        self.options.remove(0);
        self.options.insert(0, format!("--state-dir={root}"));
        self
    }

    pub(crate) fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Sets a job variable.
    pub(crate) fn variable(self, name: &str, value: &str) -> Self {
        self.env(&format!("CUSTOM_ENV_{name}"), value)
    }

    /// Sets a variable of the Runner's own environment, which every call gets.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the driver's folder for this attempt.
    pub(crate) fn state(&self) -> PathBuf {
        self.file("state").join(self.tmpdir().file_name().unwrap())
    }

    pub(crate) fn tmpdir(&self) -> PathBuf {
        self.file(&format!("custom-executor{}", self.attempts))
    }

    pub(crate) fn code_file(&self) -> PathBuf {
        self.tmpdir().join("build_exit_code")
    }

    /// Returns the living process of this attempt whose command line has this word, if there is one.
    pub(crate) fn process(&self, word: &str) -> Option<i32> {
        let is_it = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).any(|found| found == word.as_bytes())
        };
        processes_with(self.state().join("d").to_str().unwrap()).into_iter().find(is_it)
    }

    pub(crate) fn daemon_pid(&self) -> i32 {
        wait_for("the private daemon", || self.process("serve"))
    }

    pub(crate) fn keeper_pid(&self) -> i32 {
        wait_for("the keeper", || self.process("keeper"))
    }

    /// Returns the processes whose command line names this Runner's folder.
    pub(crate) fn processes(&self) -> Vec<i32> {
        processes_with(self.folder.path().to_str().unwrap())
    }

    /// Asserts that no process and no state of the driver is left.
    #[track_caller]
    pub(crate) fn left_nothing(&self) {
        let start = std::time::Instant::now();
        while let Some(pid) = self.processes().first() {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "{} is left", String::from_utf8_lossy(&line));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let left = crate::support::names(&self.file("state"));
        assert!(left.is_empty(), "{left:?}");
    }

    /// Begins a new attempt with a new private directory.
    pub(crate) fn attempt(&mut self) {
        std::fs::remove_dir_all(self.tmpdir()).ok();
        self.attempts += 1;
        self.job_env.clear();
        std::fs::create_dir(self.tmpdir()).unwrap();
    }

    /// Returns a command as the Runner starts it, with these words after the options.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command
            .arg("custom-executor")
            .args(&self.options)
            .args(words)
            .env_clear()
            .env("TMPDIR", self.tmpdir())
            .env("BUILD_FAILURE_EXIT_CODE", BUILD_FAILURE.to_string())
            .env("SYSTEM_FAILURE_EXIT_CODE", SYSTEM_FAILURE.to_string())
            .env("BUILD_EXIT_CODE_FILE", self.code_file())
            .envs(&self.job_env)
            .envs(&self.env)
            .current_dir(self.tmpdir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }

    /// Returns the same command behind a shell that stands for the Runner and can be killed.
    pub(crate) fn command_of_another(&self, words: &[&str]) -> Command {
        let driver = self.command(words);
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" & wait", "sh"]).arg(driver.get_program()).args(driver.get_args());
        command.env_clear().envs(driver.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.tmpdir()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        command
    }

    pub(crate) fn start(&self, words: &[&str]) -> Running {
        self.started(&mut self.command(words))
    }

    pub(crate) fn started(&self, command: &mut Command) -> Running {
        let mut child = command.spawn().unwrap();
        let (send, output) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let printed = Arc::new(AtomicBool::new(false));
        let read = |is_stdout, mut pipe: Box<dyn Read + Send>| {
            let (send, printed) = (send.clone(), Arc::clone(&printed));
            std::thread::spawn(move || {
                let mut bytes = vec![0];
                let first = pipe.read(&mut bytes).unwrap();
                bytes.truncate(first);
                printed.fetch_or(is_stdout && first > 0, Ordering::Relaxed);
                pipe.read_to_end(&mut bytes).unwrap();
                send.send((is_stdout, bytes)).ok();
            });
        };
        read(true, Box::new(stdout));
        read(false, Box::new(stderr));
        Running { child, output, printed, code_file: self.code_file() }
    }

    pub(crate) fn call(&self, words: &[&str]) -> Call {
        self.start(words).end()
    }

    /// Calls `config` and keeps the variables that it returns.
    pub(crate) fn config(&mut self) -> Call {
        let call = self.call(&["config"]);
        if call.seen == Seen::Success && self.knows_job_env {
            let answer: serde_json::Value = serde_json::from_slice(&call.stdout).expect("JSON");
            for (name, value) in answer["job_env"].as_object().unwrap() {
                self.job_env.insert(name.clone(), value.as_str().unwrap().to_owned());
            }
        }
        call
    }

    /// Calls `config` and `prepare`, which must succeed.
    pub(crate) fn prepared(mut self) -> Self {
        self.config().is(&Seen::Success);
        self.call(&["prepare"]).is(&Seen::Success);
        self
    }

    /// Writes a new script, as the Runner does for each call.
    pub(crate) fn script(&mut self, content: &[u8]) -> PathBuf {
        self.scripts += 1;
        let folder = self.tmpdir().join(format!("script{}", self.scripts));
        std::fs::create_dir(&folder).unwrap();
        let script = folder.join("script");
        std::fs::write(&script, content).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
        script
    }

    pub(crate) fn start_stage(&mut self, name: &str, content: impl AsRef<[u8]>) -> Running {
        let script = self.script(content.as_ref());
        self.start(&["run", script.to_str().unwrap(), name])
    }

    pub(crate) fn stage(&mut self, name: &str, content: impl AsRef<[u8]>) -> Call {
        self.start_stage(name, content).end()
    }

    /// Plays a whole job with these scripts by stage, in the Runner's order.
    pub(crate) fn play(&mut self, scripts: &[(&str, &str)]) -> Played {
        let mut played =
            Played { seen: Seen::SystemFailure, stdout: Vec::new(), stderr: Vec::new(), calls: Vec::new() };
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.attempt();
            }
            played.seen = self.preparation(&mut played);
            match played.seen {
                Seen::Success => {
                    played.seen = self.stages(scripts, &mut played);
                    self.cleanup(&mut played);
                    break;
                }
                Seen::BuildFailure(_) => {
                    self.cleanup(&mut played);
                    break;
                }
                _ => self.cleanup(&mut played),
            }
        }
        played
    }

    fn preparation(&mut self, played: &mut Played) -> Seen {
        played.calls.push("config".into());
        let config = self.config();
        played.stderr.extend(config.stderr);
        if config.seen != Seen::Success {
            return config.seen;
        }
        played.calls.push("prepare".into());
        let prepare = self.call(&["prepare"]);
        played.stderr.extend(prepare.stderr);
        prepare.seen
    }

    /// Runs the stages in order. Which stages are skipped after a failure is the Runner's rule (custom-executor.md
    /// §2.4).
    fn stages(&mut self, scripts: &[(&str, &str)], played: &mut Played) -> Seen {
        let mut job = Seen::Success;
        for (name, script) in scripts {
            let failed = job != Seen::Success;
            let skipped = match *name {
                "after_script" | "cleanup_file_variables" => false,
                "archive_cache_on_failure" | "upload_artifacts_on_failure" => !failed,
                _ => failed,
            };
            if skipped {
                continue;
            }
            played.calls.push((*name).to_owned());
            let call = self.stage(name, script);
            played.stdout.extend(call.stdout);
            played.stderr.extend(call.stderr);
            if call.seen != Seen::Success && job == Seen::Success && *name != "after_script" {
                job = call.seen;
                if *name == "prepare_script" {
                    break;
                }
            }
        }
        job
    }

    fn cleanup(&self, played: &mut Played) {
        played.calls.push("cleanup".into());
        self.call(&["cleanup"]).is(&Seen::Success);
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A failed test can leave a daemon running.
        for pid in self.processes() {
            crate::support::kill(pid, Signal::KILL);
        }
    }
}

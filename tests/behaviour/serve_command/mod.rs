//! `serve` and `steps serve`, started as CI runners start them, with the real program (connectors.md §2, §2.1, §2.4).

mod operators_files;
mod sockets;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::support::{Client, is_alive, is_root, kill, parts, wait_for};
use base64::Engine as _;
use rustix::process::Signal;
use step_runner::pb::v1::State;

const MARKER: &str = "step-runner is listening on socket ";
const RECOVERY: &str = "_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV";

/// A folder for a daemon, and the program that runs it.
struct Scene {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), program: env!("CARGO_BIN_EXE_step-runner").into() }
    }

    /// Uses the program under another name.
    fn named(name: &str) -> Self {
        let scene = Self::new();
        let program = scene.path(name);
        // A link, because copying a debug build takes time.
        std::os::unix::fs::symlink(&scene.program, &program).unwrap();
        Self { program, ..scene }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("s.sock")
    }

    /// Returns a command without variables of ours that change where the daemon puts its files.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env("TMPDIR", self.folder.path()).env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, words: &[&str]) -> Serving {
        Serving(self.command(words).spawn().unwrap())
    }

    /// Starts `steps serve` with a socket and this command, and waits for the marker.
    fn steps_serve(&self, command: &[&str]) -> Serving {
        let socket = self.socket();
        let words = [&["steps", "serve", "--socket", socket.to_str().unwrap()], command].concat();
        let mut serving = self.start(&words);
        assert_eq!(serving.marked(), socket);
        serving
    }
}

/// A started daemon. Dropped, it is ended with its keeper.
struct Serving(Child);

impl Serving {
    /// Waits for the ready marker, which must be the first output. Returns the path in it.
    fn marked(&mut self) -> PathBuf {
        let mut said = Vec::new();
        let mut byte = [0];
        let stderr = self.0.stderr.as_mut().unwrap();
        while stderr.read(&mut byte).unwrap() > 0 && byte != *b"\n" {
            said.extend_from_slice(&byte);
        }
        let said = String::from_utf8(said).unwrap();
        said.strip_prefix(MARKER).unwrap_or_else(|| panic!("not the marker first: {said:?}")).into()
    }

    fn write(&mut self, text: &str) {
        self.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(self.0.id() as i32, signal);
    }

    /// Waits for the end. Returns the exit status and what followed the marker on stdout and stderr.
    fn ended(mut self) -> (ExitStatus, String, String) {
        let mut output = [String::new(), String::new()];
        let status = wait_for("its end", || self.0.try_wait().unwrap());
        self.0.stdout.take().unwrap().read_to_string(&mut output[0]).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut output[1]).unwrap();
        let [stdout, stderr] = output;
        (status, stdout, stderr)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            self.0.wait().ok();
        }
    }
}

#[test]
fn the_command_gets_the_whole_of_stdin_and_its_exit_code_is_the_daemons() {
    let scene = Scene::new();
    let mut serving = scene.steps_serve(&["sh", "-c", "cat; echo said >&2; exit 7"]);
    serving.write("first ");
    serving.write("and the rest");
    drop(serving.0.stdin.take());
    let (status, stdout, stderr) = serving.ended();
    assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(7), "first and the rest", "said\n"));
    assert!(!scene.socket().exists());
}

#[test]
fn options_behind_the_command_are_its_own_and_plain_serve_takes_it_behind_two_dashes() {
    for words in [&["steps", "serve"][..], &["serve", "--log-level", "error", "--"]] {
        let scene = Scene::new();
        let command = ["sh", "-c", "echo $0 $1; exit 0", "--socket", "-x"];
        let mut serving = scene.start(&[words, &command].concat());
        assert_eq!(serving.marked(), scene.path("step-runner.sock"));
        serving.write("x");
        let (status, stdout, stderr) = serving.ended();
        assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(0), "--socket -x\n", ""));
    }
}

#[test]
fn without_a_byte_on_stdin_the_command_is_not_started() {
    let scene = Scene::new();
    let trace = scene.path("trace");
    let mut serving = scene.steps_serve(&["touch", trace.to_str().unwrap()]);
    drop(serving.0.stdin.take());
    let (status, stdout, stderr) = serving.ended();
    assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(0), "", ""));
    assert!(!trace.exists());
}

#[test]
fn death_of_the_command_by_a_signal_is_told_as_shells_do() {
    let scene = Scene::new();
    let mut serving = scene.steps_serve(&["sh", "-c", "kill -USR1 $$"]);
    serving.write("x");
    assert_eq!(serving.ended().0.code(), Some(128 + 10));
}

#[test]
fn a_command_that_cannot_be_started_ends_the_daemon_with_its_name_told() {
    let scene = Scene::new();
    let mut serving = scene.steps_serve(&["/no/such/program"]);
    serving.write("x");
    let (status, stdout, stderr) = serving.ended();
    assert_eq!((status.code(), stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("/no/such/program"), "{stderr}");
}

#[test]
fn the_command_sees_the_socket_and_not_what_it_was_started_by() {
    let scene = Scene::new();
    let list = r#"["steps", "serve", "sh", "-c", "echo \"$STEP_RUNNER_SOCKET ${_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV-none}\""]"#;
    let recovery = base64::engine::general_purpose::STANDARD.encode(list);
    let mut serving = Serving(scene.command(&[]).env(RECOVERY, recovery).spawn().unwrap());
    let socket = serving.marked();
    assert_eq!(socket, scene.path("step-runner.sock"));
    serving.write("x");
    let (status, stdout, _) = serving.ended();
    assert_eq!((status.code(), stdout), (Some(0), format!("{} none\n", socket.display())));
}

#[test]
fn a_stop_asks_the_commands_whole_group_and_takes_its_exit_code() {
    for signal in [Signal::TERM, Signal::INT] {
        let scene = Scene::new();
        let text = "trap 'wait; echo parent; exit 9' TERM; \
                    sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.01; done' & wait; sleep 600";
        let mut serving = scene.steps_serve(&["sh", "-c", text]);
        serving.write("x");
        let mut ready = [0; 6];
        serving.0.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        serving.signal(signal);
        let (status, stdout, _) = serving.ended();
        assert_eq!((status.code(), stdout.as_str()), (Some(9), "child\nparent\n"));
        assert!(!scene.socket().exists());
    }
}

#[test]
fn a_command_that_does_not_want_to_end_is_killed() {
    let scene = Scene::new();
    let mut serving =
        scene.steps_serve(&["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"]);
    serving.write("x");
    serving.0.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    serving.signal(Signal::TERM);
    // The code of SIGKILL, which comes after five seconds.
    assert_eq!(serving.ended().0.code(), Some(128 + 9));
}

#[test]
fn nothing_is_said_but_the_marker_unless_something_is_wrong() {
    let scene = Scene::new();
    let serving = scene.steps_serve(&[]);
    serving.signal(Signal::TERM);
    let (status, stdout, stderr) = serving.ended();
    assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn a_warning_of_the_start_comes_behind_the_marker() {
    let scene = Scene::new();
    let mut command = scene.command(&["steps", "serve", "--socket", scene.socket().to_str().unwrap()]);
    let mut serving = Serving(command.env("STEP_RUNNER_MAX_RUNING", "4").spawn().unwrap());
    serving.marked();
    serving.signal(Signal::TERM);
    let (_, _, stderr) = serving.ended();
    assert!(stderr.contains("did you mean STEP_RUNNER_MAX_RUNNING?"), "{stderr}");
}

#[test]
fn the_marker_is_one_write() {
    const TEST: &str = "the_marker_is_one_write";
    // Only root can trace a daemon, because it closes its memory to its own user.
    if !is_root(TEST) {
        return;
    }
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return parts::skipped(TEST, "strace");
    }
    let scene = Scene::new();
    let trace = scene.path("trace");
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-s", "4096", "-e", "trace=write", "-e", "signal=none", "-o"])
        .arg(&trace)
        .arg(&scene.program);
    traced.args(["steps", "serve", "--max-lifetime", "1ms", "--socket"]).arg(scene.socket());
    let output = traced.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = std::fs::read_to_string(trace).unwrap();
    let said: Vec<&str> =
        trace.lines().filter(|line| line.contains("write(2,") || line.contains("write(1,")).collect();
    assert_eq!(said.len(), 1, "{trace}");
    assert!(said[0].contains(MARKER) && said[0].contains("\\n\""), "{said:?}");
}

#[tokio::test]
async fn the_daemon_ends_when_it_was_idle_and_not_before() {
    let scene = Scene::new();
    let mut serving = scene.start(&["steps", "serve", "--idle-timeout", "2s"]);
    let socket = serving.marked();
    let client = Client::connect(&socket).await;
    client.run("1", "sleep 3").await;
    drop(client.ended("1").await);
    // A job that was not finished keeps the daemon alive, since a client could still ask for it.
    client.finish("1").await;
    drop(client);
    // On another thread, because the connection is closed on this one.
    let ended = tokio::task::spawn_blocking(|| serving.ended());
    let (status, _, stderr) = ended.await.unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_daemon_ends_with_its_lifetime_and_its_command() {
    let scene = Scene::new();
    let mut serving = scene.start(&[
        "steps",
        "serve",
        "--max-lifetime",
        "300ms",
        "sh",
        "-c",
        "trap 'exit 4' TERM; while :; do sleep 0.01; done",
    ]);
    serving.marked();
    serving.write("x");
    let code = serving.ended().0.code();
    // Its shell can get the signal before it has set the trap.
    assert!(matches!(code, Some(0 | 4 | 143)), "{code:?}");
}

#[test]
fn what_cannot_be_served_is_told_with_its_place() {
    let scene = Scene::new();
    std::fs::write(scene.path("file"), "").unwrap();
    let long = scene.path(&"x".repeat(100));
    let (plain, below) = (scene.path("file"), scene.path("file/s.sock"));
    for (words, code, says) in [
        (vec!["steps", "serve", "--socket", long.to_str().unwrap()], 1, long.to_str().unwrap()),
        (
            vec!["steps", "serve", "--socket", below.to_str().unwrap()],
            1,
            scene.path("file").to_str().unwrap(),
        ),
        (vec!["serve", plain.to_str().unwrap()], 1, plain.to_str().unwrap()),
        (vec!["serve", "/tmp", "--socket", "/tmp/x"], 2, "--socket"),
        (vec!["steps", "serve", "--no-such-option"], 2, "--no-such-option"),
        (vec!["steps", "serve", "--idle-timeout", "soon"], 2, "idle-timeout"),
    ] {
        let (status, stdout, stderr) = scene.start(&words).ended();
        assert_eq!((status.code(), stdout.as_str()), (Some(code), ""), "{words:?}: {stderr}");
        assert!(stderr.contains(says), "{words:?}: {stderr}");
    }
}

#[tokio::test]
async fn two_daemons_of_one_user_serve_beside_each_other() {
    // Starts daemons as a runner does on one machine: each socket has its own folder, everything else is shared by the
    // user.
    let scene = Scene::new();
    let sockets = ["step-runner.a1b2c3d4", "step-runner.e5f6g7h8"].map(|name| {
        let folder = scene.path(name);
        std::fs::create_dir(&folder).unwrap();
        folder.join("step-runner.sock")
    });
    let [first, second] = sockets.clone().map(|socket| {
        let mut serving = scene.start(&["steps", "serve", "--socket", socket.to_str().unwrap()]);
        assert_eq!(serving.marked(), socket);
        serving
    });
    for (index, socket) in sockets.iter().enumerate() {
        let client = Client::connect(socket).await;
        // The same id is a different job on each daemon.
        client.run("1", &format!("echo daemon {index}")).await;
        client.ended("1").await;
        assert_eq!(client.output("1").await, format!("daemon {index}\n"));
    }
    // The end of one daemon does not end the other.
    let client = Client::connect(&sockets[1]).await;
    let go = scene.path("go");
    client.run("2", &format!("until [ -e {} ]; do sleep 0.02; done", go.display())).await;
    first.signal(Signal::TERM);
    assert!(first.ended().0.success());
    std::fs::write(go, "").unwrap();
    assert_eq!(client.ended("2").await.state(), State::Success);
    drop(second);
}

#[tokio::test]
async fn under_the_names_of_a_runner_the_whole_daemon_works() {
    for name in ["gitlab-runner-helper", "gitlab-runner"] {
        let scene = Scene::named(name);
        let _serving = scene.steps_serve(&[]);
        let client = Client::connect(&scene.socket()).await;
        client.run("1", "echo here").await;
        client.ended("1").await;
        assert_eq!(client.output("1").await, "here\n");
    }
}

#[test]
fn under_the_names_of_a_runner_only_its_words_are_known() {
    for name in ["gitlab-runner-helper", "gitlab-runner"] {
        let scene = Scene::named(name);
        for command in ["serve", "read-logs", "artifacts-uploader", "step", "--help"] {
            let (status, stdout, stderr) = scene.start(&[command, "x"]).ended();
            assert_eq!((status.code(), stdout.as_str()), (Some(1), ""));
            assert_eq!(stderr, format!("Command {command} not found\n"));
        }
        let (status, stdout, _) = scene.start(&["--version"]).ended();
        assert!(status.success());
        let field =
            |name: &str| stdout.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        assert_eq!(field("Version:").as_deref(), Some(env!("CARGO_PKG_VERSION")), "{stdout}");
        assert!(field("OS/Arch:").unwrap().starts_with("linux/"), "{stdout}");
        let (status, ..) = scene.start(&["steps", "nothing"]).ended();
        assert_eq!(status.code(), Some(2));
    }
}

#[test]
fn arguments_that_cannot_be_recovered_are_no_arguments() {
    let scene = Scene::new();
    for text in ["%%%", "e30=", "W10=", "WzFd", ""] {
        let serving = Serving(scene.command(&[]).env(RECOVERY, text).spawn().unwrap());
        let (status, stdout, stderr) = serving.ended();
        assert_eq!((status.code(), stdout.as_str()), (Some(2), ""), "{text}");
        assert!(stderr.contains("Usage:"), "{stderr}");
    }
}

/// Returns the pids of the process with the command line `sleep 61.5` and of its parent.
fn orphan() -> Option<(i32, i32)> {
    let is_sleep = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == b"sleep\x0061.5\0")
    };
    let pid = crate::support::processes_with("61.5").into_iter().find(is_sleep)?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some((pid, stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?))
}

#[test]
fn as_the_first_process_of_a_container_it_reaps_what_it_inherits() {
    const TEST: &str = "as_the_first_process_of_a_container_it_reaps_what_it_inherits";
    if !is_root(TEST) || !parts::has_namespaces(TEST) {
        return;
    }
    let scene = Scene::new();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(&scene.program);
    command.args(["steps", "serve", "--socket"]).arg(scene.socket());
    // The command leaves an orphan, and ends when its stdin is closed.
    command.args(["sh", "-c", "(sleep 61.5 &); cat > /dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut serving = Serving(command.spawn().unwrap());
    assert_eq!(serving.marked(), scene.socket());
    serving.write("x");
    let (pid, parent) = wait_for("the orphan", || orphan().filter(|(_, parent)| is_daemon(*parent)));
    kill(pid, Signal::KILL);
    wait_for("the orphan is reaped", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    assert!(is_alive(parent));
    drop(serving.0.stdin.take());
    assert_eq!(serving.ended().0.code(), Some(0));
}

fn is_daemon(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|words| words.windows(5).any(|word| word == b"serve"))
}

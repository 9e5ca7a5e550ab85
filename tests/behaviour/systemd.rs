//! The daemon under a service manager: passed sockets, readiness and watchdog messages (docs/operate/systemd.md).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use crate::support::parts::skipped;
use crate::support::{Client, PATIENCE, Setup, script, wait_for};
use rustix::process::{Pid, Signal};
use step_runner::pb::v1::State;

/// Starts the program as a service manager does: descriptor 3 is a copy of standard input, and the variables name this
/// process. `$1` is the number of descriptors; with two, both are the same.
const ACTIVATE: &str = r#"exec 3<&0 4<&0 </dev/null; [ "$1" = 1 ] && exec 4<&-; LISTEN_FDS=$1; shift
LISTEN_PID=${LISTEN_PID:-$$}; export LISTEN_PID LISTEN_FDS; exec "$@""#;

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that runs `serve` with `descriptor` passed `count` times.
    fn command(&self, descriptor: impl Into<OwnedFd>, count: &str) -> Command {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            ACTIVATE,
            "sh",
            count,
            env!("CARGO_BIN_EXE_step-runner"),
            "serve",
            "--state-dir",
        ]);
        command.arg(self.path("state")).args(["--keeper-wait", "0s"]).env_remove("STEP_RUNNER_SOCKET");
        command.stdin(descriptor.into()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn refused(&self, descriptor: impl Into<OwnedFd>, count: &str) -> String {
        let output: Output = self.command(descriptor, count).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1, "{said}");
        said
    }
}

/// A daemon whose stderr the test reads. Dropped, it is ended.
struct Service {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Service {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    /// Returns the first line, which is the ready marker.
    fn marker(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        wait_for("the daemon's end", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn a_passed_socket_is_served_and_left_to_who_made_it() {
    let scene = Scene::new();
    let path = scene.path("passed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mode = path.metadata().unwrap().permissions();
    // A client that connects before the daemon starts waits in the socket's queue.
    let early = UnixStream::connect(&path).unwrap();
    let mut service = Service::start(scene.command(listener.try_clone().unwrap(), "1"));
    assert_eq!(service.marker(), format!("step-runner is listening on socket {}\n", path.display()));
    let client = Client::connect(&path).await;
    client.run("1", "env; ls -l /proc/self/fd").await;
    assert_eq!(client.ended("1").await.state(), State::Success);
    let output = client.output("1").await;
    let of_the_manager = ["LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_"];
    assert!(!of_the_manager.iter().any(|name| output.contains(name)), "{output}");
    assert!(!output.contains("socket:"), "{output}");
    client.finish("1").await;
    // The daemon locks a passed socket like one of its own.
    let second = Setup::new().option("state-dir", scene.path("other").to_str().unwrap()).refused(&path);
    let said = String::from_utf8(second.stderr).unwrap();
    let pid = service.child.id();
    assert!(said.contains(&format!("already serving on {} (pid {pid})", path.display())), "{said}");
    drop((early, client));
    assert_eq!(service.stop(), Some(0));
    assert!(path.metadata().unwrap().file_type().is_socket());
    assert_eq!(path.metadata().unwrap().permissions(), mode);
    // A client that connects between two daemons is served by the second one. No client is refused in between.
    let between = UnixStream::connect(&path).unwrap();
    let mut next = Service::start(scene.command(listener, "1"));
    next.marker();
    drop(between);
    assert_eq!(next.stop(), Some(0));
}

#[test]
fn a_socket_passed_to_another_process_is_not_ours() {
    let scene = Scene::new();
    let listener = UnixListener::bind(scene.path("passed.sock")).unwrap();
    let own = scene.path("own.sock");
    let mut command = scene.command(listener, "1");
    command.arg("--socket").arg(&own).env("LISTEN_PID", "1");
    let mut service = Service::start(command);
    assert_eq!(service.marker(), format!("step-runner is listening on socket {}\n", own.display()));
    assert_eq!(service.stop(), Some(0));
    assert!(!own.exists());
}

#[test]
fn what_cannot_be_listened_on_is_named() {
    let scene = Scene::new();
    let path = scene.path("a.sock");
    let abstract_name = format!("step-runner-test-{}", std::process::id());
    let unnamed = UnixListener::bind_addr(&SocketAddr::from_abstract_name(abstract_name).unwrap()).unwrap();
    let cases: [(OwnedFd, &str); 5] = [
        (File::open("/dev/null").unwrap().into(), "no socket"),
        (TcpListener::bind("127.0.0.1:0").unwrap().into(), "a socket of another family"),
        (UnixDatagram::bind(&path).unwrap().into(), "a unix socket of another type"),
        (UnixStream::pair().unwrap().0.into(), "a socket that does not listen"),
        (unnamed.into(), "a socket without a path"),
    ];
    for (descriptor, what) in cases {
        let said = scene.refused(descriptor, "1");
        assert!(
            said.contains(&format!("descriptor 3, which is {what}, not")) && said.contains("ListenStream="),
            "{said}"
        );
    }
    let long = scene.path(&"x".repeat(60));
    std::fs::create_dir_all(&long).unwrap();
    let short = UnixListener::bind(scene.path("b.sock")).unwrap();
    for count in ["three", "-1", "99"] {
        let said = scene.refused(short.try_clone().unwrap(), count);
        assert!(said.contains("passed no usable descriptors (LISTEN_FDS)"), "{said}");
    }
}

#[test]
fn of_several_sockets_the_named_one_is_taken() {
    let scene = Scene::new();
    let listener = UnixListener::bind(scene.path("s.sock")).unwrap();
    for names in [None, Some("one:two"), Some("step-runner:step-runner")] {
        let mut command = scene.command(listener.try_clone().unwrap(), "2");
        let output = command.envs(names.map(|names| ("LISTEN_FDNAMES", names))).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("passed 2 descriptors") && said.contains("FileDescriptorName="), "{said}");
    }
    let mut command = scene.command(listener, "2");
    command.env("LISTEN_FDNAMES", "metrics:step-runner");
    let mut service = Service::start(command);
    assert!(service.marker().ends_with("s.sock\n"));
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn another_socket_cannot_be_named_beside_a_passed_one() {
    let scene = Scene::new();
    let path = scene.path("s.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut other = scene.command(listener.try_clone().unwrap(), "1");
    let output = other.arg("--socket").arg(scene.path("other.sock")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains("other.sock") && said.contains("s.sock"),
        "{said}"
    );
    let mut same = scene.command(listener, "1");
    same.arg("--socket").arg(&path);
    let mut service = Service::start(same);
    service.marker();
    assert_eq!(service.stop(), Some(0));
}

/// A fake service manager that receives messages.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, path }
    }

    fn hear(&self) -> String {
        let mut bytes = [0; 4_096];
        let length = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn hear_until(&self, part: &str) {
        while !self.hear().contains(part) {}
    }

    /// Discards all pending messages. Returns their number.
    fn forget(&self) -> usize {
        self.socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4_096];
        let mut forgotten = 0;
        while self.socket.recv(&mut bytes).is_ok() {
            forgotten += 1;
        }
        self.socket.set_nonblocking(false).unwrap();
        forgotten
    }
}

#[tokio::test]
async fn the_manager_hears_when_the_daemon_serves_what_it_does_and_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::new(folder.path());
    let setup =
        Setup::new().env("NOTIFY_SOCKET", manager.path.to_str().unwrap()).env("WATCHDOG_USEC", "20000");
    let mut daemon = setup.start();
    assert_eq!(manager.hear(), "READY=1\nSTATUS=jobs running: 0, waiting: 0\n");
    let client = daemon.client().await;
    client.run("1", "echo \"it runs, $NOTIFY_SOCKET\"; exec sleep 600").await;
    client.prints("1", "it runs, \n").await;
    manager.hear_until("STATUS=jobs running: 1, waiting: 0");
    drop(client);
    daemon.signal(Signal::TERM);
    manager.hear_until("STOPPING=1");
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn a_daemon_that_hangs_gives_no_sign_of_life() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::new(folder.path());
    let setup =
        Setup::new().env("NOTIFY_SOCKET", manager.path.to_str().unwrap()).env("WATCHDOG_USEC", "20000");
    let mut daemon = setup.start();
    for _ in 0..3 {
        manager.hear_until("WATCHDOG=1");
    }
    daemon.signal(Signal::STOP);
    let pid = daemon.pid();
    wait_for("the daemon to hang", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ").then_some(())
    });
    manager.forget();
    // Ten times the interval in which a running daemon sends messages.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(manager.forget(), 0);
    daemon.signal(Signal::CONT);
    manager.hear_until("WATCHDOG=1");
    daemon.stop();
}

#[test]
fn a_watchdog_for_another_process_and_none_get_no_signs() {
    for (name, value) in [("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "0"), ("WATCHDOG_USEC", "soon")] {
        let folder = tempfile::tempdir().unwrap();
        let manager = Manager::new(folder.path());
        let setup = Setup::new().env("NOTIFY_SOCKET", manager.path.to_str().unwrap());
        let mut daemon = setup.env("WATCHDOG_USEC", "1000").env(name, value).start();
        assert!(manager.hear().starts_with("READY=1\n"));
        daemon.signal(Signal::TERM);
        assert!(manager.hear().starts_with("STOPPING=1\n"), "a sign of life came");
        assert_eq!(daemon.wait(), Some(0));
    }
}

#[tokio::test]
async fn a_manager_that_does_not_read_and_one_that_is_gone_hold_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let deaf = Manager::new(folder.path());
    for path in [deaf.path.clone(), folder.path().join("nobody")] {
        let setup = Setup::new().env("NOTIFY_SOCKET", path.to_str().unwrap()).env("WATCHDOG_USEC", "100");
        let mut daemon = setup.start();
        let client = daemon.client().await;
        assert_eq!(client.run_to_end("1", &script("echo done")).await.state(), State::Success);
        drop(client);
        daemon.stop();
    }
}

/// Checks the units with this program in place of the installed one.
#[test]
fn the_units_are_as_the_manager_wants_them() {
    let test = "the_units_are_as_the_manager_wants_them";
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skipped(test, "systemd-analyze");
    }
    let folder = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd");
    let mut paths = Vec::new();
    for name in ["step-runner.socket", "step-runner.service", "step-runner-agent.service"] {
        let text = std::fs::read_to_string(units.join(name)).unwrap();
        let text = text.replace("/usr/local/bin/step-runner", env!("CARGO_BIN_EXE_step-runner"));
        std::fs::write(folder.path().join(name), text).unwrap();
        paths.push(folder.path().join(name));
    }
    let mut verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&paths)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    verify.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    // systemd-analyze also reports errors of other units on the machine.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("step-runner")).collect();
    assert!(verify.wait().unwrap().success() && ours.is_empty(), "{said}");
}

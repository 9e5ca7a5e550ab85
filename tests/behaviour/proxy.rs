//! Tests `step-runner proxy` against scripted sockets, with the real program (connectors.md §2.2).

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of all waits.
const BOUND: Duration = Duration::from_secs(20);

struct Scene {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        Self { _folder: folder, path }
    }

    fn listen(&self) -> UnixListener {
        UnixListener::bind(&self.path).unwrap()
    }

    /// Serves one connection with `script`.
    fn serve<T: Send + 'static>(
        &self,
        script: impl FnOnce(UnixStream) -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let listener = self.listen();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            let start = Instant::now();
            let connection = loop {
                match listener.accept() {
                    Ok((connection, _)) => break connection,
                    Err(error) => assert!(start.elapsed() < BOUND, "nobody connects: {error}"),
                }
                thread::sleep(Duration::from_millis(1));
            };
            connection.set_nonblocking(false).unwrap();
            script(connection)
        })
    }

    fn proxy(&self) -> Child {
        command(&self.path).spawn().unwrap()
    }
}

fn command(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(["proxy", "--socket"]).arg(socket);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of the program, within [`BOUND`].
fn wait(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > BOUND {
            child.kill().unwrap();
            panic!("the proxy hangs: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|position| (position.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

const SIZES: [usize; 3] = [0, 1, 3_000_000];

#[test]
fn fault_22_the_end_of_stdin_ends_only_the_sending_half_and_the_answer_still_comes() {
    for size in SIZES {
        let scene = Scene::new();
        let server = scene.serve(move |mut socket| {
            let mut request = Vec::new();
            socket.read_to_end(&mut request).unwrap();
            socket.write_all(&pattern(size)).unwrap();
            request
        });
        let mut child = scene.proxy();
        child.stdin.take().unwrap().write_all(b"question").unwrap();
        let mut answer = Vec::new();
        child.stdout.as_mut().unwrap().read_to_end(&mut answer).unwrap();
        let output = wait(child);
        assert_eq!(server.join().unwrap(), b"question");
        assert!(answer == pattern(size) && output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn fault_22_the_end_of_the_socket_ends_the_proxy_with_stdin_open() {
    for size in SIZES {
        let scene = Scene::new();
        let server = scene.serve(move |mut socket| socket.write_all(&pattern(size)).unwrap());
        let mut child = scene.proxy();
        let stdin = child.stdin.take();
        let mut answer = Vec::new();
        child.stdout.as_mut().unwrap().read_to_end(&mut answer).unwrap();
        let output = wait(child);
        server.join().unwrap();
        assert!(answer == pattern(size) && output.status.success(), "{output:?}");
        drop(stdin);
    }
}

#[test]
fn fault_22_a_daemon_that_ends_only_its_sending_half_ends_the_proxy_too() {
    let scene = Scene::new();
    let server = scene.serve(|socket| {
        socket.shutdown(Shutdown::Write).unwrap();
        socket
    });
    let mut child = scene.proxy();
    let stdin = child.stdin.take();
    assert!(wait(child).status.success());
    drop((stdin, server.join().unwrap()));
}

#[test]
fn fault_22_both_ends_at_once_deliver_everything() {
    for size in SIZES {
        let scene = Scene::new();
        let server = scene.serve(move |mut socket| {
            let mut writing = socket.try_clone().unwrap();
            let writer = thread::spawn(move || {
                writing.write_all(&pattern(size)).unwrap();
                writing.shutdown(Shutdown::Write).unwrap();
            });
            let mut request = Vec::new();
            socket.read_to_end(&mut request).unwrap();
            writer.join().unwrap();
            request
        });
        let mut child = scene.proxy();
        let mut stdin = child.stdin.take().unwrap();
        let mut answer = Vec::new();
        let writer = thread::spawn(move || drop(stdin.write_all(b"x")));
        child.stdout.as_mut().unwrap().read_to_end(&mut answer).unwrap();
        let output = wait(child);
        writer.join().unwrap();
        server.join().unwrap();
        assert!(answer == pattern(size) && output.status.success(), "{output:?}");
    }
}

#[test]
fn fault_22_sixty_four_mebibytes_each_way_pass_a_slow_reader_unchanged_in_little_memory() {
    const SIZE: usize = 64 << 20;
    let scene = Scene::new();
    let server = scene.serve(|mut socket| {
        let mut writing = socket.try_clone().unwrap();
        let writer = thread::spawn(move || writing.write_all(&pattern(SIZE)).unwrap());
        let mut request = Vec::new();
        socket.read_to_end(&mut request).unwrap();
        writer.join().unwrap();
        request == pattern(SIZE)
    });
    let mut child = scene.proxy();
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(&pattern(SIZE)).unwrap());
    let mut stdout = child.stdout.take().unwrap();
    let mut answer = Vec::with_capacity(SIZE);
    let mut buffer = vec![0; 1 << 20];
    let mut most = 0;
    loop {
        // Reads slowly, so that the pipe and the socket are full nearly all the time.
        thread::yield_now();
        let length = stdout.read(&mut buffer).unwrap();
        if length == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..length]);
        most = most.max(allocated(child.id()));
    }
    writer.join().unwrap();
    let output = wait(child);
    assert!(server.join().unwrap(), "the daemon got other bytes");
    assert!(answer == pattern(SIZE), "other bytes came back");
    assert!(output.status.success(), "{output:?}");
    assert!(most < 8 << 20, "{most} bytes in memory");
}

/// Returns the private memory of a process in bytes, without its program file. Returns 0 where the system does not
/// report it.
fn allocated(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok()).unwrap_or(0) * 1024
}

#[test]
fn fault_22_stdout_carries_the_socket_only_whatever_log_variables_say() {
    let scene = Scene::new();
    let server = scene.serve(|mut socket| socket.write_all(b"\0\xffbytes").unwrap());
    let child = command(&scene.path)
        .env("RUST_LOG", "trace")
        .env("RUST_BACKTRACE", "full")
        .env("CLICOLOR_FORCE", "1")
        .env("STEP_RUNNER_LOG_LEVEL", "trace")
        .env("STEP_RUNNER_VERBOSE", "3")
        .env("STEP_RUNNER_COLOR", "always")
        .spawn()
        .unwrap();
    let output = wait(child);
    server.join().unwrap();
    assert_eq!(output.stdout, b"\0\xffbytes");
    assert!(output.stderr.is_empty(), "{output:?}");
}

fn assert_one_line(output: &Output, start: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.starts_with(start) && stderr.ends_with('\n') && stderr.lines().count() == 1, "{stderr:?}");
}

#[test]
fn missing_stale_and_strange_sockets_are_one_line_and_code_1() {
    let scene = Scene::new();
    for leftover in [false, true] {
        if leftover {
            drop(scene.listen());
        }
        let output = wait(scene.proxy());
        assert_one_line(&output, &format!("step-runner proxy: connect {}: ", scene.path.display()));
        let remedy = format!("; start a daemon with `step-runner serve --socket {}`\n", scene.path.display());
        assert!(String::from_utf8_lossy(&output.stderr).ends_with(&remedy), "{output:?}");
    }
    std::fs::remove_file(&scene.path).unwrap();
    std::fs::write(&scene.path, "").unwrap();
    let file = format!("step-runner proxy: connect {}: the file there is not a socket", scene.path.display());
    // Nobody can come to listen there.
    assert_one_line(&wait(command(&scene.path).args(["--wait", "1h"]).spawn().unwrap()), &file);
    let long = format!("/tmp/{}", "x".repeat(100));
    assert_one_line(
        &wait(command(Path::new(&long)).spawn().unwrap()),
        "step-runner proxy: connect: the socket path",
    );
}

#[test]
fn a_daemon_that_comes_late_is_waited_for() {
    let scene = Scene::new();
    let child = command(&scene.path).args(["--wait", "20s"]).spawn().unwrap();
    let server = scene.serve(|mut socket| socket.write_all(b"here").unwrap());
    let output = wait(child);
    server.join().unwrap();
    assert_eq!(output.stdout, b"here");
}

#[test]
fn fault_22_a_reader_that_goes_away_is_code_1_without_a_word() {
    let scene = Scene::new();
    let server = scene.serve(|mut socket| while socket.write_all(&[0; 4096]).is_ok() {});
    let mut child = scene.proxy();
    let stdin = child.stdin.take();
    drop(child.stdout.take());
    let output = wait(child);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), b"".as_slice()));
    drop(stdin);
    server.join().unwrap();
}

#[test]
fn signals_close_both_sides_and_end_with_1() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
    {
        let scene = Scene::new();
        let server = scene.serve(|mut socket| {
            socket.write_all(b"!").unwrap();
            let mut rest = Vec::new();
            socket.read_to_end(&mut rest).unwrap();
        });
        let mut child = scene.proxy();
        let stdin = child.stdin.take();
        // Once a byte has come through, the proxy is running.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(wait(child).status.code(), Some(1));
        server.join().unwrap();
        drop(stdin);
    }
}

/// Takes half a minute, which is the proxy's own time limit.
#[test]
fn fault_91_a_proxy_whose_client_vanished_with_its_pipes_open_ends_after_the_daemon_has_ended_the_connection()
{
    let scene = Scene::new();
    // More than a pipe holds, and less than pipe, proxy and socket together.
    let server = scene.serve(|mut socket| socket.write_all(&vec![0; 200_000]).unwrap());
    let mut child = scene.proxy();
    // A dead container engine leaves both pipes open, and nobody reads, writes or closes them.
    let held = (child.stdin.take(), child.stdout.take());
    server.join().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > 6 * BOUND {
            child.kill().unwrap();
            panic!("the proxy lives on");
        }
        thread::sleep(Duration::from_millis(20));
    };
    drop(held);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert_eq!(
        said,
        "step-runner proxy: write stdout: nobody has read for 30 s since the daemon ended the connection\n"
    );
}

#[test]
fn a_non_blocking_stdin_is_no_error() {
    let scene = Scene::new();
    let server = scene.serve(|mut socket| {
        let mut request = Vec::new();
        socket.read_to_end(&mut request).unwrap();
        request
    });
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut command = command(&scene.path);
    let child = command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).spawn().unwrap();
    (&ours).write_all(b"late").unwrap();
    drop((ours, command));
    assert!(wait(child).status.success());
    assert_eq!(server.join().unwrap(), b"late");
}

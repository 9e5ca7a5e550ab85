//! `proxy [--mib N] [--parallel N] [--rounds N] [--untimed]`: tests the proxy between a client and a daemon. The other
//! side are sockets that echo or follow a script, and daemons that are killed (connectors.md §2.2; faults.md row 22).

mod ends;
mod far;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::arguments::Arguments;
use crate::daemon::{PATIENCE, Scene};
use crate::proc;
use crate::verdict::{Check, Misses, Shown};
use far::{Content, Far};

/// MiB in each direction.
const MIB: u64 = 1_024;
const SMALL_MIB: u64 = 8;
/// Number of concurrent proxies.
const PARALLEL: u64 = 200;
const SMALL_PARALLEL: u64 = 24;
const ROUNDS: u64 = 20;
const SMALL_ROUNDS: u64 = 1;
/// Peak memory that a proxy can have, its program included, in KiB (connectors.md §9).
const MEMORY: u64 = 16 << 10;
/// Most bytes that one of many concurrent proxies moves in each direction.
const SHARE: u64 = 1 << 20;
/// Number of bytes after which the slow reader pauses.
const SIP: u64 = 256 << 10;
const PAUSE: Duration = Duration::from_millis(1);
/// Time without progress of the writer after which the slow reader begins: all buffers between them are full.
const FULL: Duration = Duration::from_millis(100);

/// Variables that make programs write more to standard output and error. The proxy must ignore them.
const LOUD: &[(&str, &str)] = &[
    ("RUST_LOG", "trace"),
    ("RUST_BACKTRACE", "full"),
    ("CLICOLOR_FORCE", "1"),
    ("CI_DEBUG_TRACE", "true"),
    ("TRACE", "1"),
    ("DEBUG", "*"),
    ("LOG_LEVEL", "debug"),
    ("GRPC_TRACE", "all"),
    ("GRPC_VERBOSITY", "debug"),
    ("STEP_RUNNER_LOG_LEVEL", "trace"),
    ("STEP_RUNNER_LOG_FORMAT", "json"),
    ("STEP_RUNNER_VERBOSE", "3"),
    ("STEP_RUNNER_COLOR", "always"),
    ("STEP_RUNNER_PRINT_CONFIG", "true"),
];

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let default = |full, few| if small { few } else { full };
    let mib = arguments.number("mib", default(MIB, SMALL_MIB)).max(1);
    let parallel = arguments.number("parallel", default(PARALLEL, SMALL_PARALLEL)).max(1);
    let rounds = arguments.number("rounds", default(ROUNDS, SMALL_ROUNDS)).max(1);
    let seed = arguments.seed();
    println!("proxy: seed {seed}");
    let misses = Misses::default();
    let content = Arc::new(Content::new(seed));
    let mut figures = vec![format!("{mib} MiB each way")];
    for (name, far) in [("echo", Far::echo as Serve), ("two streams", Far::two_streams)] {
        match volume(name, far, &content, mib << 20) {
            Ok(memory) => figures.push(format!("{name}: {memory} KiB of memory")),
            Err(miss) => misses.add(format!("{name}: {miss}")),
        }
    }
    match many(&content, parallel, seed) {
        Ok(memory) => figures.push(format!("{parallel} at once: {memory} KiB each at most")),
        Err(miss) => misses.add(format!("{parallel} at once: {miss}")),
    }
    for _ in 0..rounds {
        misses.check("half-close", ends::matrix(&content));
        misses.check("a lost end", ends::lost(&content));
        misses.check("signals", ends::signals(&content));
        misses.check("stdout", ends::pure(&content));
    }
    figures.push(format!("4 orders of ends with 3 sizes, 3 signals in 2 states, each {rounds} times"));
    match ends::deaths(rounds, arguments.judges_time(small)) {
        Ok(longest) => {
            figures.push(format!("{longest:?} at most from the daemon's death to the proxy's end"));
        }
        Err(miss) => misses.add(format!("death of the daemon: {miss}")),
    }
    misses.verdict(figures.join("; "))
}

/// Starts a server that serves one connection.
type Serve = fn(&Path, &Arc<Content>, u64) -> Check<Far>;

/// A proxy and its streams. Dropped, it is killed.
struct Proxy {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

impl Proxy {
    fn start(socket: &Path) -> Check<Self> {
        Self::start_by(&mut command(socket))
    }

    fn start_by(command: &mut Command) -> Check<Self> {
        let mut child = command.spawn().map_err(|error| format!("cannot start a proxy: {error}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(Self { child, stdin, stdout })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn stdin(&mut self) -> Check<ChildStdin> {
        self.stdin.take().ok_or_else(|| "stdin is gone".to_owned())
    }

    fn stdout(&mut self) -> Check<ChildStdout> {
        self.stdout.take().ok_or_else(|| "stdout is gone".to_owned())
    }

    /// Waits for the proxy to end. Streams that were not taken stay open until then.
    fn end(mut self) -> Check<Output> {
        let held = self.stdin.take();
        let mut status = None;
        proc::wait_until(PATIENCE, || {
            status = self.child.try_wait().unwrap_or_default();
            status.is_some()
        });
        let status = status.ok_or_else(|| format!("it did not end within {PATIENCE:?}"))?;
        drop(held);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        far::read_all(self.stdout.take(), &mut stdout)?;
        far::read_all(self.child.stderr.take(), &mut stderr)?;
        Ok(Output { status, stdout, stderr })
    }

    /// Like [`Self::end`]. Asserts exit code 0 and no message.
    fn end_well(self) -> Check {
        expect(&self.end()?, 0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn expect(output: &Output, code: i32) -> Check {
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(code) || !output.stdout.is_empty() || !said.is_empty() {
        let bytes = output.stdout.len();
        return Err(format!(
            "{}, not {code}; {bytes} bytes too many on stdout; stderr: {said:?}",
            output.status
        ));
    }
    Ok(())
}

fn command(socket: &Path) -> Command {
    let mut command = Command::new(crate::daemon::program());
    command.args(["proxy", "--socket"]).arg(socket).envs(LOUD.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn scene() -> (Scene, PathBuf) {
    let scene = Scene::new("proxy");
    let socket = scene.path("far.sock");
    (scene, socket)
}

/// Moves `size` bytes in each direction past a slow reader. Returns the peak memory of the proxy.
fn volume(name: &str, serve: Serve, content: &Arc<Content>, size: u64) -> Check<u64> {
    let (_scene, socket) = scene();
    let far = serve(&socket, content, size)?;
    let mut proxy = Proxy::start(&socket)?;
    let (mut stdin, mut stdout) = (proxy.stdin()?, proxy.stdout()?);
    let sent = Arc::new(far::Progress::default());
    let writer = {
        let (content, sent) = (Arc::clone(content), Arc::clone(&sent));
        thread::spawn(move || content.send(size, &mut stdin, &sent).map(|()| stdin))
    };
    let stuck = sent.wait_until_full(size, FULL);
    let expected = if name == "echo" { content.as_ref() } else { content.other() };
    let received = expected.check(size, &mut stdout, |at| {
        if at % SIP < far::CHUNK as u64 {
            thread::sleep(PAUSE);
        }
    });
    received.map_err(|miss| format!("from the socket: {miss}"))?;
    let stdin =
        writer.join().map_err(|_| "the writer died")?.map_err(|miss| format!("to the socket: {miss}"))?;
    let memory = proc::peak_memory(proxy.pid());
    drop(stdin);
    proxy.stdout = Some(stdout);
    proxy.end_well()?;
    far.end()?;
    println!(
        "  {name}: the writer got {} KiB ahead of a reader that reads nothing; {memory} KiB of memory at most",
        stuck >> 10
    );
    // A program without optimisation needs more memory.
    if memory >= MEMORY && !cfg!(debug_assertions) {
        return Err(format!("{memory} KiB in memory, at most {MEMORY} are allowed"));
    }
    Ok(memory)
}

/// Runs many proxies on one socket that echoes, each with another size. Returns the largest peak memory of one.
fn many(content: &Arc<Content>, count: u64, seed: u64) -> Check<u64> {
    let (_scene, socket) = scene();
    let far = Far::echo_all(&socket, count)?;
    let random = crate::random::Random::new(seed);
    let mut proxies = Vec::new();
    for number in 0..count {
        proxies.push((Proxy::start(&socket)?, random.fork(number).below(SHARE)));
    }
    let threads: Vec<_> = proxies
        .into_iter()
        .map(|(proxy, size)| {
            let content = Arc::clone(content);
            thread::spawn(move || one_of_many(proxy, &content, size))
        })
        .collect();
    let mut most = 0;
    let mut first = Ok(());
    for thread in threads {
        match thread.join().map_err(|_| "a client died".to_owned()).flatten() {
            Ok(memory) => most = most.max(memory),
            Err(miss) => first = first.and(Err(miss)),
        }
    }
    first?;
    far.end()?;
    Ok(most)
}

fn one_of_many(mut proxy: Proxy, content: &Arc<Content>, size: u64) -> Check<u64> {
    let (mut stdin, mut stdout) = (proxy.stdin()?, proxy.stdout()?);
    let writer = {
        let content = Arc::clone(content);
        thread::spawn(move || {
            let sent = content.send(size, &mut stdin, &far::Progress::default());
            sent.and_then(|()| stdin.flush().map_err(|error| error.to_string())).map(|()| stdin)
        })
    };
    content.check(size, &mut stdout, |_| ())?;
    let stdin = writer.join().map_err(|_| "the writer died")??;
    let memory = proc::peak_memory(proxy.pid());
    drop(stdin);
    proxy.stdout = Some(stdout);
    proxy.end_well()?;
    Ok(memory)
}

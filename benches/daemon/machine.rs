//! Reference figures: the speed of the machine without step-runner.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use super::Failure;
use super::report::median;

/// Program that every measured job runs.
pub(crate) const PROGRAM: &str = "/bin/true";

/// First argument that makes this program act as the other end of an [`Echo`].
pub(crate) const ECHO_MODE: &str = "--echo";

fn spawn_and_wait() -> Result<(), Failure> {
    // Without hooks before exec the standard library uses `posix_spawn`, which is faster.
    Command::new(PROGRAM).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(())
}

/// Returns the number of processes per second that `threads` threads start and wait for.
pub(crate) fn spawns_per_second(threads: usize, count: usize) -> Result<f64, Failure> {
    let each = count / threads;
    let began = Instant::now();
    let workers: Vec<_> = (0..threads)
        .map(|_| std::thread::spawn(move || (0..each).try_for_each(|_| spawn_and_wait())))
        .collect();
    for worker in workers {
        worker.join().map_err(|_| "a thread died")??;
    }
    Ok((each * threads) as f64 / began.elapsed().as_secs_f64())
}

/// Returns the median time in microseconds, of `count`, to start a process and wait for it.
pub(crate) fn spawn_latency(count: usize) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        spawn_and_wait()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// A process that answers each byte with a byte. It measures the cost of one request between processes.
struct Echo {
    child: Child,
    socket: UnixStream,
}

impl Echo {
    fn start() -> Result<Self, Failure> {
        let (socket, other) = UnixStream::pair()?;
        let child = Command::new(std::env::current_exe()?)
            .arg(ECHO_MODE)
            .stdin(OwnedFd::from(other.try_clone()?))
            .stdout(OwnedFd::from(other))
            .spawn()?;
        Ok(Self { child, socket })
    }

    fn ask(&mut self) -> Result<(), Failure> {
        self.socket.write_all(&[0])?;
        Ok(self.socket.read_exact(&mut [0])?)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).ok();
        self.child.wait().ok();
    }
}

/// Acts as the other end of an [`Echo`].
pub(crate) fn echo() -> ExitCode {
    let (mut from, mut to, mut byte) = (std::io::stdin(), std::io::stdout(), [0]);
    while from.read_exact(&mut byte).is_ok() {
        if to.write_all(&byte).and_then(|()| to.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the median time in microseconds, of `count`, to spawn a process, wait for it, and ask another process. It is
/// the minimum cost of a further step if one process starts the steps and another decides.
pub(crate) fn spawn_and_ask_latency(count: usize) -> Result<f64, Failure> {
    let mut echo = Echo::start()?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        spawn_and_wait()?;
        echo.ask()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Returns the megabytes per second that `cat` copies through pipes.
pub(crate) fn pipe_speed(megabytes: usize) -> Result<f64, Failure> {
    let mut cat = Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut input, mut output) = (cat.stdin.take().ok_or("no pipe")?, cat.stdout.take().ok_or("no pipe")?);
    let began = Instant::now();
    let writer = std::thread::spawn(move || {
        let block = vec![b'x'; 64 << 10];
        (0..megabytes * 16).try_for_each(|_| std::io::Write::write_all(&mut input, &block))
    });
    let (mut buffer, mut total) = (vec![0; 64 << 10], 0);
    loop {
        match output.read(&mut buffer)? {
            0 => break,
            read => total += read,
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    writer.join().map_err(|_| "a thread died")??;
    cat.wait()?;
    Ok(total as f64 / 1e6 / seconds)
}

//! What the machine can do without us: the references.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::Failure;
use super::report::median;

/// The program of every job whose speed is measured.
pub(crate) const PROGRAM: &str = "/bin/true";

fn spawn_and_wait() -> Result<(), Failure> {
    // Without hooks before exec the standard library takes the fast path of `posix_spawn`.
    Command::new(PROGRAM).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(())
}

/// Processes a second that `threads` threads start and wait for.
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

/// Microseconds to start one process and wait for it, the median of `count`.
pub(crate) fn spawn_latency(count: usize) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        spawn_and_wait()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Megabytes a second that `cat` hands on through a pipe.
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

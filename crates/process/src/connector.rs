//! The program that connects a client with a daemon elsewhere: `ssh`, `docker exec`, `kubectl exec` (connectors.md §4).
//!
//! It has a process group of its own, so that a signal to ours does not cut the connection, and it dies with us. Each
//! program has a thread that starts it, keeps the end of its standard error, and reaps it. The kernel kills the program
//! if that thread ends.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use step_runner_model::ExitStatus;

use super::command::{LookupError, lookup};
use super::spawn::{SpawnError, Stage, StringArray};
use super::sys::{self, ChildPlan, ChildStack, CloneError, Inheritance};
use super::{children, group};

/// Bytes kept of the end of standard error (connectors.md §4).
const KEPT: usize = 32 << 10;

/// Time that the program has after the end of its input, and again after SIGTERM (connectors.md §4).
const GRACE: Duration = Duration::from_secs(2);

/// Failure to start the program of a connector.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program is not installed here.
    #[error("`{0}` is not installed here, or in no folder of PATH")]
    NotFound(String),
    /// The program cannot be run.
    #[error(transparent)]
    Unusable(#[from] LookupError),
    /// The system cannot start a process.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The system gives no pipe or thread.
    #[error("cannot prepare its start")]
    Prepare(#[from] io::Error),
}

/// A running connector. Dropping it ends the program, without waiting: after 2 s by SIGTERM, after 2 s more by SIGKILL.
/// Drop its input too, so that it ends by itself.
#[derive(Debug)]
pub struct Connector {
    stderr_tail: StderrTail,
    /// Closed by the drop; the thread sees that.
    _stop: OwnedFd,
}

/// Our ends of a connector's pipes, blocking.
#[derive(Debug)]
pub struct Streams {
    /// The program reads from it.
    pub stdin: OwnedFd,
    /// The program writes to it.
    pub stdout: OwnedFd,
}

impl Connector {
    /// Starts `words`. Calls `ended` with the exit status, if it is known, when the program has ended and the end of
    /// its standard error was kept.
    pub fn start(
        words: &[String],
        ended: impl FnOnce(Option<ExitStatus>) + Send + 'static,
    ) -> Result<(Self, Streams), StartError> {
        let name = words.first().map(String::as_str).unwrap_or_default();
        let path = std::env::var_os("PATH");
        let program = lookup(name, Path::new("."), path.as_deref(), None).map_err(|error| match error {
            LookupError::NotInPath(name) => StartError::NotFound(name),
            other => StartError::Unusable(other),
        })?;
        let program = CString::new(program.as_os_str().as_bytes()).map_err(|_| nul())?;
        let words = words.to_vec();
        let (its_stdin, stdin) = pipe()?;
        let (stdout, its_stdout) = pipe()?;
        let (stderr, its_stderr) = pipe()?;
        rustix::io::ioctl_fionbio(&stderr, true).map_err(io::Error::from)?;
        let (stopped, stop) = pipe()?;
        let stderr_tail = StderrTail::default();
        let (started, start) = mpsc::sync_channel(1);
        let kept = stderr_tail.clone();
        let run = move || {
            let result = spawn(&program, &words, [its_stdin, its_stdout, its_stderr]);
            match result {
                Ok((pid, pidfd)) => {
                    started.send(Ok(())).ok();
                    ended(ConnectorThread { pid, pidfd, stderr, stopped, stderr_tail: kept }.attend());
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        thread::Builder::new().name("connector".to_owned()).spawn(run)?;
        start.recv().map_err(io::Error::other)??;
        Ok((Self { stderr_tail, _stop: stop }, Streams { stdin, stdout }))
    }

    /// Returns what the program writes to standard error.
    pub fn stderr_tail(&self) -> StderrTail {
        self.stderr_tail.clone()
    }
}

/// The end of a program's standard error, available after the program's end too.
#[derive(Clone, Debug, Default)]
pub struct StderrTail(Arc<Mutex<Vec<u8>>>);

impl StderrTail {
    /// Returns at most the last 32 KiB so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().clone()
    }

    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock();
        kept.extend_from_slice(bytes);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
}

fn nul() -> SpawnError {
    SpawnError { stage: Stage::Arguments, errno: rustix::io::Errno::INVAL }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

fn spawn(
    program: &CString,
    words: &[String],
    [stdin, stdout, stderr]: [OwnedFd; 3],
) -> Result<(Pid, OwnedFd), SpawnError> {
    let argv = StringArray::new(words.iter().map(String::as_bytes))?;
    let env: Vec<_> =
        std::env::vars_os().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'=')).collect();
    let env = StringArray::new(env.iter().map(Vec::as_slice))?;
    let prepare = |error: io::Error| SpawnError::new(Stage::Fork, &error);
    let plan = ChildPlan {
        program,
        argv: argv.as_ptr(),
        envp: env.as_ptr(),
        work_dir: c".",
        stdin: stdin.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        first_left_out: None,
        cgroup: None,
        join: &[],
        limits: &[],
        inheritance: &Inheritance::read(),
    };
    let mut stack = ChildStack::new().map_err(prepare)?;
    let (pid, pidfd) =
        children::start_with(|| sys::clone_exec(&plan, &mut stack)).map_err(|error| match error {
            CloneError::Clone(error) => prepare(error),
            CloneError::Child(stage, error) => SpawnError::new(stage.into(), &error),
        })?;
    let pid = Pid::from_raw(pid).ok_or(SpawnError { stage: Stage::Fork, errno: rustix::io::Errno::SRCH })?;
    Ok((pid, pidfd))
}

/// State of the thread that lives as long as its program.
struct ConnectorThread {
    pid: Pid,
    pidfd: OwnedFd,
    stderr: OwnedFd,
    /// Hangs up when the program is to be ended.
    stopped: OwnedFd,
    stderr_tail: StderrTail,
}

/// The next measure against a program that does not end by itself, and its time.
#[derive(Clone, Copy)]
enum Next {
    Nothing,
    Terminate(Instant),
    Kill(Instant),
}

impl ConnectorThread {
    /// Waits for the end of the program. Returns its exit status, if it is known.
    fn attend(self) -> Option<ExitStatus> {
        let (mut stderr_open, mut next, mut stopping) = (true, Next::Nothing, false);
        loop {
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            if !stopping {
                fds.push(PollFd::new(&self.stopped, PollFlags::IN));
            }
            if stderr_open {
                fds.push(PollFd::new(&self.stderr, PollFlags::IN));
            }
            poll(&mut fds, next.timeout().as_ref()).ok();
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            let ended = ready.next() == Some(true);
            let stop = !stopping && ready.next() == Some(true);
            if stderr_open {
                stderr_open = self.keep();
            }
            if ended {
                return self.reap_program();
            }
            if stop {
                (stopping, next) = (true, Next::Terminate(Instant::now() + GRACE));
            }
            next = next.act(self.pid);
        }
    }

    /// Keeps the available bytes of standard error. False at its end.
    fn keep(&self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.stderr, &mut buffer) {
                Ok(0) => return false,
                Ok(length) => self.stderr_tail.add(buffer.get(..length).unwrap_or_default()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Reaps the program. First sends SIGTERM to its group, which must not hold the connection open.
    fn reap_program(self) -> Option<ExitStatus> {
        group::terminate(self.pid);
        let ended = group::reap(self.pidfd.as_fd());
        children::leave(self.pid.as_raw_nonzero().get() as u32);
        ended.map(|(status, _)| status)
    }
}

impl Next {
    fn timeout(self) -> Option<Timespec> {
        match self {
            Self::Nothing => None,
            Self::Terminate(at) | Self::Kill(at) => {
                Timespec::try_from(at.saturating_duration_since(Instant::now())).ok()
            }
        }
    }

    /// Takes the measure that is due against the group of `pid`, which has not been reaped.
    fn act(self, pid: Pid) -> Self {
        match self {
            Self::Terminate(at) if at <= Instant::now() => {
                group::terminate(pid);
                Self::Kill(Instant::now() + GRACE)
            }
            Self::Kill(at) if at <= Instant::now() => {
                group::kill(pid);
                Self::Nothing
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    type Ended = mpsc::Receiver<Option<ExitStatus>>;

    fn start(script: &str) -> (Connector, Streams, Ended) {
        let (tell, ended) = mpsc::channel();
        let words = ["sh", "-c", script].map(str::to_owned);
        let (connector, streams) =
            Connector::start(&words, move |status| tell.send(status).unwrap()).unwrap();
        (connector, streams, ended)
    }

    fn read(stdout: OwnedFd) -> String {
        let mut text = String::new();
        File::from(stdout).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn bytes_go_through_and_its_end_is_told_with_its_last_words() {
        let (connector, Streams { stdin, stdout }, ended) = start("cat; echo over >&2; exit 7");
        File::from(stdin).write_all(b"hello").unwrap();
        assert_eq!(read(stdout), "hello");
        assert_eq!(ended.recv().unwrap(), Some(ExitStatus::Code(7)));
        assert_eq!(connector.stderr_tail().bytes(), b"over\n");
    }

    #[test]
    fn standard_error_is_read_all_the_time_and_its_end_is_kept() {
        let (connector, streams, ended) = start(
            "i=0; while [ $i -lt 3000 ]; do echo \"line $i of what nobody asked for: 0123456789012345\" >&2; i=$((i+1)); done",
        );
        assert_eq!(ended.recv().unwrap(), Some(ExitStatus::Code(0)));
        let stderr_tail = connector.stderr_tail().bytes();
        assert_eq!(stderr_tail.len(), KEPT);
        assert!(stderr_tail.ends_with(b"line 2999 of what nobody asked for: 0123456789012345\n"));
        drop(streams);
    }

    #[test]
    fn it_has_a_group_of_its_own_and_ends_with_its_input() {
        let (connector, Streams { stdin, stdout }, ended) =
            start("ps -o pgid= -p $$ 2>/dev/null || cut -d' ' -f5 /proc/$$/stat; exec cat >/dev/null");
        let mut group = [0; 16];
        let length = File::from(stdout).read(&mut group).unwrap();
        let group: i32 = std::str::from_utf8(&group[..length]).unwrap().trim().parse().unwrap();
        assert_ne!(Pid::from_raw(group), Some(rustix::process::getpgrp()));
        drop((connector, stdin));
        assert_eq!(ended.recv().unwrap(), Some(ExitStatus::Code(0)));
    }

    #[test]
    fn one_that_ignores_the_end_of_its_input_and_sigterm_is_killed() {
        let (connector, streams, ended) = start("trap '' TERM; echo ready; while :; do sleep 1; done");
        let mut ready = [0; 6];
        File::from(streams.stdout).read_exact(&mut ready).unwrap();
        drop((connector, streams.stdin));
        assert_eq!(ended.recv().unwrap(), Some(ExitStatus::Signal(9)));
    }

    #[test]
    fn what_it_leaves_in_its_group_does_not_hold_the_line_open() {
        let (_connector, streams, ended) = start("sleep 1000 & echo $!");
        assert_eq!(ended.recv().unwrap(), Some(ExitStatus::Code(0)));
        assert!(!read(streams.stdout).is_empty());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let missing = Connector::start(&["no-such-program".to_owned()], |_| ()).unwrap_err();
        assert!(missing.to_string().contains("`no-such-program` is not installed"), "{missing}");
        let folder = Connector::start(&["/".to_owned()], |_| ()).unwrap_err();
        assert!(folder.to_string().contains("directory"), "{folder}");
    }
}

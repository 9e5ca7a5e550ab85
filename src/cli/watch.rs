//! `run --watch`: runs a job again whenever a file of its folder changes.
//!
//! Each run is a process of its own, with the words of this one but `--watch`: what a run holds ends with it. This module
//! decides when a run begins and ends, and knows nothing else of it.

mod changes;

use std::io;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal as Kind;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};

use self::changes::Changes;
use super::{CommandResult, Verbosity, states, terminal};
use crate::error::{Exit, Failure};
use crate::model::ExitStatus;
use crate::process::again::Again;
use crate::process::is_signal_ignored;

/// The option, which a run does not get.
const OPTION: &str = "--watch";

/// The variable that stands for it.
const VARIABLE: &str = "STEP_RUNNER_WATCH";

/// Number of runs in a row that one file has cut, after which the user is told what may be wrong.
const SUSPICIOUS: u32 = 3;

/// Runs the job of this command line until a signal comes, or nobody reads its output. Ends with the exit code of the last run.
pub(super) async fn watch(folders: &[PathBuf], verbosity: Verbosity) -> CommandResult {
    let mut signals = Signals::listen()?;
    let mut changes = Changes::of(folders)?;
    let say = |text: &str| {
        if !verbosity.quiet {
            terminal::say(&format!("step-runner: {text}"));
        }
    };
    let mut cut = (PathBuf::new(), 0);
    loop {
        let mut run = Run::start()?;
        changes.begin_run();
        let (code, mut changed) = tokio::select! {
            code = run.ended() => (code?, None),
            path = changes.next() => {
                let path = path?;
                say(&format!("{} has changed: ending this run", shown(&path)));
                run.process.signal(Kind::INT);
                tokio::select! {
                    code = run.ended() => (code?, Some(path)),
                    () = signals.next() => return run.end_with(&mut signals).await,
                }
            }
            () = signals.next() => return run.end_with(&mut signals).await,
        };
        if let Some(path) = &changed {
            warn_of_own_file(&mut cut, path, say);
        } else {
            cut.1 = 0;
        }
        changed = changes.end_run().await?.or(changed);
        if is_unread() {
            return Ok(code);
        }
        if changed.is_none() {
            say("waiting for a change; Ctrl-C ends");
            tokio::select! {
                path = changes.next() => say(&format!("{} has changed", shown(&path?))),
                () = signals.next() => return Ok(code),
            }
            if is_unread() {
                return Ok(code);
            }
        }
        changes.settle().await?;
    }
}

/// Tells the user if the same file has cut several runs in a row: the job may write it.
fn warn_of_own_file(cut: &mut (PathBuf, u32), path: &Path, say: impl Fn(&str)) {
    if cut.0 == path {
        cut.1 += 1;
    } else {
        *cut = (path.to_owned(), 1);
    }
    if cut.1 == SUSPICIOUS {
        say(&format!("if the job itself writes {}, name the file in .gitignore", shown(path)));
    }
}

fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let path = here.as_deref().and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path);
    states::printable(&path.display().to_string())
}

/// A run of the job.
struct Run {
    process: Again,
    end: JoinHandle<io::Result<ExitStatus>>,
}

impl Run {
    fn start() -> Result<Self, Failure> {
        let words = std::env::args_os().filter(|word| word != OPTION);
        // Of several of them a run takes only the first.
        let at_end = if is_signal_ignored(Kind::HUP) { Kind::TERM } else { Kind::HUP };
        let (process, end) = Again::start(words, VARIABLE.as_ref(), at_end).map_err(|error| {
            Failure::new(Exit::Failure, format!("cannot start a run of the job: {error}"))
        })?;
        Ok(Self { process, end: spawn_blocking(|| end.wait()) })
    }

    /// Waits for the end of the process. Returns its exit code.
    async fn ended(&mut self) -> CommandResult {
        let status = (&mut self.end).await.map_err(io::Error::other).flatten();
        match status {
            Ok(ExitStatus::Code(code)) => Ok(code),
            Ok(ExitStatus::Signal(_)) => Ok(Exit::Failure.code()),
            Err(error) => Err(Failure::new(Exit::Failure, format!("lost a run of the job: {error}"))),
        }
    }

    /// Ends the run because this command is to end. Further signals reach the run, too, and make it kill the job.
    async fn end_with(mut self, signals: &mut Signals) -> CommandResult {
        loop {
            // A terminal signals the whole group. A second signal would kill the job.
            if !(signals.last == Kind::INT && is_of_terminal()) {
                self.process.signal(signals.last);
            }
            tokio::select! {
                ended = self.ended() => return ended,
                () = signals.next() => {}
            }
        }
    }
}

/// True if the terminal sends Ctrl-C to this process and what it has started.
fn is_of_terminal() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| {
        rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}

/// True if nobody reads standard output any more.
fn is_unread() -> bool {
    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|found| found > 0) && polled[0].revents().contains(PollFlags::ERR)
}

/// The signals that end the command.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the caller ignores it.
    hang_up: Option<Signal>,
    last: Kind,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(Exit::Failure, error));
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let hang_up = (!is_signal_ignored(Kind::HUP)).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt, terminate, hang_up, last: Kind::INT })
    }

    async fn next(&mut self) {
        self.last = tokio::select! {
            _ = self.interrupt.recv() => Kind::INT,
            _ = self.terminate.recv() => Kind::TERM,
            () = hung_up(&mut self.hang_up) => Kind::HUP,
        };
    }
}

async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

//! `step-runner proxy`: bytes of stdin to the daemon's socket, bytes of the socket to stdout (connectors.md §2.2).
//!
//! stdout carries bytes of the socket and nothing else, ever; stderr gets at most one line, by the caller, from the
//! returned [`ProxyError`]. Two threads copy, each with one buffer, because stdin and stdout may be files, pipes or
//! terminals, shared with processes that expect them to block; the third waits for the end and for signals. When the
//! socket ends the process may exit at once, a thread that still reads stdin dies with it.

mod copy;

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::net::{Socket, SocketError};
use copy::{Moved, copy};

/// How long after the end of stdin nothing may move before the far side counts as hung (connectors.md §2.2).
const SILENCE_AFTER_INPUT: Duration = Duration::from_secs(30);

/// Time between two attempts to connect with `--wait` (connectors.md §2.2).
const CONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// Why the proxy ended without a clean end of the socket. Displays as `what: reason`.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Nobody listens there, or it is no socket.
    #[error("connect {path}: {source}")]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The socket is not trusted.
    #[error("connect: {0}")]
    Socket(#[from] SocketError),
    /// stdin cannot be read.
    #[error("read stdin: {0}")]
    Input(io::Error),
    /// The daemon's side broke.
    #[error("read {path}: {source}")]
    Read {
        /// Path of the socket.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// stdout cannot be written.
    #[error("write stdout: {0}")]
    Output(io::Error),
    /// Nothing moved for 30 s after the end of stdin.
    #[error("wait for the daemon: nothing came for {} s after the end of stdin", .0.as_secs())]
    Silence(Duration),
    /// SIGTERM, SIGINT or SIGHUP.
    #[error("stopped: by a signal")]
    Signal,
    /// A thread of this process could not start or died.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ProxyError {
    /// What a user can do about it. Behind the message, whose beginning clients read.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Connect { path, source }
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && !path.is_file() =>
            {
                Some(format!("start a daemon with `step-runner serve --socket {}`", path.display()))
            }
            Self::Connect { .. }
            | Self::Socket(_)
            | Self::Input(_)
            | Self::Read { .. }
            | Self::Output(_)
            | Self::Silence(_)
            | Self::Signal
            | Self::Internal(_) => None,
        }
    }

    /// Nobody is there to read a message, or whoever stopped us knows why: print nothing.
    pub fn is_silent(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Signal => true,
            _ => false,
        }
    }
}

/// What a copying thread reports.
enum Event {
    /// stdin has ended and the daemon was told so.
    InputEnded,
    /// stdin failed.
    InputFailed(io::Error),
    /// Nothing more will come from the daemon: everything is written.
    Ended(Result<(), ProxyError>),
}

/// Connects stdin and stdout to `socket` until the socket ends. A daemon that is not there yet is waited for at most
/// `wait`. `Ok` is the clean end of the socket; the process is meant to exit right after, whatever is returned.
pub fn run(socket: Socket, wait: Duration) -> Result<(), ProxyError> {
    let internal = |error: io::Error| ProxyError::Internal(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
    let (events, mut reports) = mpsc::unbounded_channel();
    let moved = Arc::new(Moved::default());
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(internal)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(internal)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(internal)?;
        let shared = Arc::clone(&moved);
        spawn("socket", move || {
            let ended = deliver(&socket, wait, &shared, &events);
            // Fails only when the main thread has ended by a signal.
            drop(events.send(Event::Ended(ended)));
        })?;
        tokio::select! {
            ended = supervise(&mut reports, &moved, SILENCE_AFTER_INPUT) => ended,
            _ = terminate.recv() => Err(ProxyError::Signal),
            _ = interrupt.recv() => Err(ProxyError::Signal),
            _ = hang_up.recv() => Err(ProxyError::Signal),
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ProxyError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| ProxyError::Internal(format!("cannot start a thread: {error}")))
}

/// Waits for the end, with a time limit only after the end of stdin, and only while nothing moves.
async fn supervise(
    reports: &mut mpsc::UnboundedReceiver<Event>,
    moved: &Moved,
    silence: Duration,
) -> Result<(), ProxyError> {
    let mut input_ended = false;
    loop {
        let before = moved.count();
        let event = if input_ended {
            match tokio::time::timeout(silence, reports.recv()).await {
                Ok(event) => event,
                Err(_) if moved.count() == before => return Err(ProxyError::Silence(silence)),
                Err(_) => continue,
            }
        } else {
            reports.recv().await
        };
        match event {
            Some(Event::Ended(result)) => return result,
            Some(Event::InputEnded) => input_ended = true,
            Some(Event::InputFailed(error)) => return Err(ProxyError::Input(error)),
            None => return Err(ProxyError::Internal("a copying thread died".to_owned())),
        }
    }
}

/// Connects, starts the other direction, and copies the socket to stdout until it ends.
fn deliver(
    socket: &Socket,
    wait: Duration,
    moved: &Arc<Moved>,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(), ProxyError> {
    let connection = connect(socket, wait)?;
    let write_side = connection.try_clone().map_err(|e| ProxyError::Internal(e.to_string()))?;
    let (shared, reports) = (Arc::clone(moved), events.clone());
    spawn("stdin", move || {
        // A socket that takes no more is not reported: what the daemon still has to say is delivered first.
        if let Some(event) = forward(&write_side, &shared) {
            drop(reports.send(event));
        }
    })?;
    copy(&connection, io::stdout(), moved).map_err(|fault| match fault {
        copy::Fault::Read(source) => ProxyError::Read { path: socket.path().to_owned(), source },
        copy::Fault::Write(source) => ProxyError::Output(source),
    })
}

/// Copies stdin to the socket, then ends the sending half only.
fn forward(socket: &UnixStream, moved: &Moved) -> Option<Event> {
    match copy(io::stdin(), socket, moved) {
        Ok(()) => {
            // Fails only when the socket has ended already, which the other thread sees.
            drop(socket.shutdown(Shutdown::Write));
            Some(Event::InputEnded)
        }
        Err(copy::Fault::Read(error)) => Some(Event::InputFailed(error)),
        Err(copy::Fault::Write(_)) => None,
    }
}

fn connect(socket: &Socket, wait: Duration) -> Result<UnixStream, ProxyError> {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket.path()) {
            Ok(connection) => {
                socket.check_peer(&connection)?;
                return Ok(connection);
            }
            Err(source) => {
                let absent =
                    matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
                if !absent || start.elapsed() >= wait {
                    return Err(ProxyError::Connect { path: socket.path().to_owned(), source });
                }
            }
        }
        thread::sleep(CONNECT_INTERVAL.min(wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervised(moved: &Moved, silence: Duration, events: Vec<Event>) -> Result<(), ProxyError> {
        let (sender, mut reports) = mpsc::unbounded_channel();
        for event in events {
            sender.send(event).ok().unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(supervise(&mut reports, moved, silence))
    }

    #[test]
    fn a_far_side_that_hangs_after_the_end_of_stdin_is_given_up() {
        let ended = supervised(&Moved::default(), Duration::from_millis(1), vec![Event::InputEnded]);
        assert!(matches!(ended, Err(ProxyError::Silence(_))));
    }

    #[test]
    fn the_end_of_the_socket_counts_with_stdin_open_or_ended() {
        let never = Duration::from_hours(1);
        supervised(&Moved::default(), never, vec![Event::Ended(Ok(()))]).unwrap();
        supervised(&Moved::default(), never, vec![Event::InputEnded, Event::Ended(Ok(()))]).unwrap();
    }

    #[test]
    fn only_an_absent_reader_and_a_signal_are_silent() {
        assert!(ProxyError::Output(io::ErrorKind::BrokenPipe.into()).is_silent());
        assert!(!ProxyError::Output(io::ErrorKind::StorageFull.into()).is_silent());
        assert!(!ProxyError::Silence(SILENCE_AFTER_INPUT).is_silent());
    }
}

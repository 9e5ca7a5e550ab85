//! `step-runner proxy`: copies stdin to the daemon's socket, and the socket to stdout (connectors.md §2.2).
//!
//! stdout carries bytes of the socket and nothing else. The caller prints at most one line to stderr, from the returned
//! [`ProxyError`]. Two threads copy, each with one buffer, because stdin and stdout may be files, pipes or terminals,
//! shared with processes that expect them to block. A third waits for the end and for signals. When the socket ends,
//! the process may exit at once; a thread that still reads stdin dies with it.
//!
//! A container engine that dies can leave stdin open and stdout unread for ever. The thread that writes stdout then
//! never sees the end of the socket, so a fourth one watches the socket for it.

mod copy;

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::net::{Socket, SocketError};
use copy::{Moved, copy};

/// Longest time without a byte moved after the end of stdin or of the daemon's side (connectors.md §2.2).
const SILENCE_AFTER_END: Duration = Duration::from_secs(30);

/// Time between two attempts to connect with `--wait` (connectors.md §2.2).
const CONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// End of the proxy without a clean end of the socket. Displays as `what: reason`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// Nobody listens there, or it is no socket.
    #[error("connect {path}: {source}")]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The kernel's error.
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
        /// The kernel's error.
        source: io::Error,
    },
    /// stdout cannot be written.
    #[error("write stdout: {0}")]
    Output(io::Error),
    /// Nothing moved for 30 s after the end of stdin.
    #[error("wait for the daemon: nothing came for {} s after the end of stdin", .0.as_secs())]
    Silence(Duration),
    /// Nothing was read from stdout for 30 s after the daemon had ended the connection.
    #[error("write stdout: nobody has read for {} s since the daemon ended the connection", .0.as_secs())]
    Unread(Duration),
    /// SIGTERM, SIGINT or SIGHUP.
    #[error("stopped: by a signal")]
    Signal,
    /// A thread of this process could not start or died.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ProxyError {
    /// Returns advice for the user. It follows the message, whose beginning clients read.
    pub(crate) fn remedy(&self) -> Option<String> {
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
            | Self::Unread(_)
            | Self::Signal
            | Self::Internal(_) => None,
        }
    }

    /// True if nothing should be printed: nobody is there to read it, or whoever stopped us knows why.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Signal => true,
            _ => false,
        }
    }
}

/// Report of a copying thread.
enum ProxyEvent {
    /// stdin has ended and the daemon was told so.
    InputEnded,
    InputFailed(io::Error),
    /// The daemon has ended the connection or its sending half: no more bytes will come.
    HungUp,
    /// Copying from the daemon has ended: everything is written, or it failed.
    Ended(Result<(), ProxyError>),
}

/// Connects stdin and stdout to `socket` until the socket ends. Waits at most `wait` for a daemon that is not there
/// yet. `Ok` is the clean end of the socket. In any case the process must exit right after.
pub(crate) fn run(socket: Socket, wait: Duration) -> Result<(), ProxyError> {
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
            // Fails only if a signal has ended the main thread.
            drop(events.send(ProxyEvent::Ended(ended)));
        })?;
        tokio::select! {
            ended = supervise(&mut reports, &moved, SILENCE_AFTER_END) => ended,
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

/// Waits for the end. Once one side has ended, gives up when nothing moves for `silence`.
async fn supervise(
    reports: &mut mpsc::UnboundedReceiver<ProxyEvent>,
    moved: &Moved,
    silence: Duration,
) -> Result<(), ProxyError> {
    let mut limited: Option<fn(Duration) -> ProxyError> = None;
    loop {
        let before = moved.count();
        let event = match limited {
            Some(over) => match tokio::time::timeout(silence, reports.recv()).await {
                Ok(event) => event,
                Err(_) if moved.count() == before => return Err(over(silence)),
                Err(_) => continue,
            },
            None => reports.recv().await,
        };
        match event {
            Some(ProxyEvent::Ended(result)) => return result,
            // After a hang-up, only stdout can stand still.
            Some(ProxyEvent::InputEnded) => limited = limited.or(Some(ProxyError::Silence)),
            Some(ProxyEvent::HungUp) => limited = Some(ProxyError::Unread),
            Some(ProxyEvent::InputFailed(error)) => return Err(ProxyError::Input(error)),
            None => return Err(ProxyError::Internal("a copying thread died".to_owned())),
        }
    }
}

/// Connects, and copies both ways until the socket ends.
fn deliver(
    socket: &Socket,
    wait: Duration,
    moved: &Arc<Moved>,
    events: &mpsc::UnboundedSender<ProxyEvent>,
) -> Result<(), ProxyError> {
    let connection = Arc::new(connect(socket, wait)?);
    relay(&connection, io::stdin(), io::stdout(), moved, events).map_err(|fault| match fault {
        RelayError::Read(source) => ProxyError::Read { path: socket.path().to_owned(), source },
        RelayError::Write(source) => ProxyError::Output(source),
        RelayError::Thread(error) => error,
    })
}

/// Failure of the daemon's direction.
enum RelayError {
    Read(io::Error),
    Write(io::Error),
    Thread(ProxyError),
}

/// Starts the other threads, and copies `connection` to `output` until it ends.
fn relay(
    connection: &Arc<UnixStream>,
    input: impl AsFd + Send + 'static,
    output: impl AsFd,
    moved: &Arc<Moved>,
    events: &mpsc::UnboundedSender<ProxyEvent>,
) -> Result<(), RelayError> {
    let (write_side, shared, reports) = (Arc::clone(connection), Arc::clone(moved), events.clone());
    spawn("stdin", move || {
        // Not reported if the socket takes no more: what the daemon still sends is delivered first.
        if let Some(event) = forward(input, &write_side, &shared) {
            drop(reports.send(event));
        }
    })
    .map_err(RelayError::Thread)?;
    let (watched, reports) = (Arc::clone(connection), events.clone());
    spawn("hang-up", move || {
        if copy::wait_for_hang_up(&*watched).is_ok() {
            drop(reports.send(ProxyEvent::HungUp));
        }
    })
    .map_err(RelayError::Thread)?;
    copy(&**connection, output, moved).map_err(|fault| match fault {
        copy::CopyError::Read(source) => RelayError::Read(source),
        copy::CopyError::Write(source) => RelayError::Write(source),
    })
}

/// Copies stdin to the socket, then ends the sending half only.
fn forward(input: impl AsFd, socket: &UnixStream, moved: &Moved) -> Option<ProxyEvent> {
    match copy(input, socket, moved) {
        Ok(()) => {
            // Fails only if the socket has ended, which the other thread sees.
            drop(socket.shutdown(Shutdown::Write));
            Some(ProxyEvent::InputEnded)
        }
        Err(copy::CopyError::Read(error)) => Some(ProxyEvent::InputFailed(error)),
        Err(copy::CopyError::Write(_)) => None,
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
            Err(_) if socket.is_other_file() => {
                let source = io::Error::other("the file there is not a socket");
                return Err(ProxyError::Connect { path: socket.path().to_owned(), source });
            }
            Err(source) => {
                let absent = matches!(
                    source.kind(),
                    // Reset: the daemon ended before it accepted the connection.
                    io::ErrorKind::NotFound
                        | io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::ConnectionReset
                );
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
    use std::io::Write as _;

    use super::*;

    fn supervised(moved: &Moved, silence: Duration, events: Vec<ProxyEvent>) -> Result<(), ProxyError> {
        let (sender, mut reports) = mpsc::unbounded_channel();
        for event in events {
            sender.send(event).ok().unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(supervise(&mut reports, moved, silence))
    }

    #[test]
    fn a_far_side_that_hangs_after_the_end_of_stdin_is_given_up() {
        let ended = supervised(&Moved::default(), Duration::from_millis(1), vec![ProxyEvent::InputEnded]);
        assert!(matches!(ended, Err(ProxyError::Silence(_))));
    }

    #[test]
    fn the_end_of_the_socket_counts_with_stdin_open_or_ended() {
        let never = Duration::from_hours(1);
        supervised(&Moved::default(), never, vec![ProxyEvent::Ended(Ok(()))]).unwrap();
        supervised(&Moved::default(), never, vec![ProxyEvent::InputEnded, ProxyEvent::Ended(Ok(()))])
            .unwrap();
    }

    #[test]
    fn only_an_absent_reader_and_a_signal_are_silent() {
        assert!(ProxyError::Output(io::ErrorKind::BrokenPipe.into()).is_silent());
        assert!(!ProxyError::Output(io::ErrorKind::StorageFull.into()).is_silent());
        assert!(!ProxyError::Silence(SILENCE_AFTER_END).is_silent());
    }

    /// The client vanished, but its remaining processes hold the pipes: nobody reads one, and nothing ends the other.
    #[test]
    fn fault_91_a_daemon_that_ends_the_connection_ends_the_proxy_though_nobody_reads_stdout() {
        for half in [false, true] {
            let (near, mut far) = UnixStream::pair().unwrap();
            let (stdin, _held) = io::pipe().unwrap();
            let (_unread, stdout) = io::pipe().unwrap();
            let moved = Arc::new(Moved::default());
            let (events, mut reports) = mpsc::unbounded_channel();
            let shared = Arc::clone(&moved);
            thread::spawn(move || {
                let ended = relay(&Arc::new(near), stdin, stdout, &shared, &events);
                drop(events.send(ProxyEvent::Ended(ended.map_err(|_| ProxyError::Signal))));
            });
            // More than the pipe takes.
            far.write_all(&vec![0; 100_000]).unwrap();
            let held = if half {
                far.shutdown(Shutdown::Write).unwrap();
                Some(far)
            } else {
                drop(far);
                None
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let ended = runtime.block_on(supervise(&mut reports, &moved, Duration::from_millis(20)));
            assert!(matches!(ended, Err(ProxyError::Unread(_))), "{ended:?}");
            drop(held);
        }
    }

    #[cfg(feature = "failpoints")] // which brings virtual time
    #[tokio::test(start_paused = true)]
    async fn fault_91_a_reader_that_is_slow_gets_everything_after_the_daemon_has_ended_the_connection() {
        let moved = Arc::new(Moved::default());
        let (sender, mut reports) = mpsc::unbounded_channel();
        sender.send(ProxyEvent::HungUp).ok().unwrap();
        let shared = Arc::clone(&moved);
        tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(SILENCE_AFTER_END * 9 / 10).await;
                shared.add(1);
            }
            sender.send(ProxyEvent::Ended(Ok(()))).ok();
        });
        supervise(&mut reports, &moved, SILENCE_AFTER_END).await.unwrap();
    }
}

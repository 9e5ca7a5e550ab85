//! Dials a daemon: opens one byte stream to it and starts HTTP/2 on top.
//!
//! The stream is a socket, or the pipes of a process connector (ssh, docker, kubectl, a command). A connection counts
//! once the far side begins to speak HTTP/2. An earlier end is a [`DialError`] by the table of connectors.md §5.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use step_runner_model::ExitStatus;
use step_runner_process::connector::{self, StartError, StderrTail};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::diagnosis::{Diagnosis, Meaning, Repeats, Seen};
use super::stream::{First, Stream, Transport};
use super::{Address, Connector, ConnectorKind};
use crate::net::{Socket, SocketError};

/// Time without a byte after which a ping is sent, while a call is open (connectors.md §6).
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Longest wait for the answer to a ping; then the connection is lost (connectors.md §6).
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Time within which the far side must begin with HTTP/2 (connectors.md §5).
const FIRST_BYTES: Duration = Duration::from_secs(15);

/// Time for a failed connector to exit, so that its exit code is known.
const END: Duration = Duration::from_secs(2);

/// Reasons why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No daemon listens there yet.
    #[error("no daemon listens on {path}")]
    NoDaemon {
        /// Path of the socket.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The file exists, but is no socket.
    #[error("the file there is not a socket")]
    NotASocket,
    /// The kernel refuses the connection.
    #[error("cannot connect to {path}")]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The socket is not trusted.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The program of the connector does not start.
    #[error("cannot start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// The reason.
        #[source]
        source: StartError,
    },
    /// The connector or the socket does not reach the daemon.
    #[error(transparent)]
    Connector(#[from] Diagnosis),
}

impl DialError {
    pub(super) fn repeats(&self) -> Repeats {
        match self {
            Self::Connector(diagnosis) => diagnosis.meaning().repeats(),
            // A lack of processes or descriptors is temporary.
            Self::NoDaemon { .. }
            | Self::Start { source: StartError::Spawn(_) | StartError::Prepare(_), .. } => {
                Repeats::UntilTheLimit
            }
            // A full queue of the listener, or a signal.
            Self::Connect { source, .. }
                if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                Repeats::UntilTheLimit
            }
            Self::NotASocket | Self::Socket(_) | Self::Connect { .. } | Self::Start { .. } => Repeats::Never,
        }
    }

    /// Returns the diagnosis of a connector.
    pub(crate) fn meaning(&self) -> Option<Meaning> {
        match self {
            Self::Connector(diagnosis) => Some(diagnosis.meaning()),
            _ => None,
        }
    }
}

/// A connection to a daemon.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) channel: Channel,
    /// Standard error of the connector; empty for a socket.
    pub(super) stderr_tail: StderrTail,
}

/// An open stream that may become a connection, with its source.
struct Opened {
    transport: Transport,
    name: String,
    kind: Option<ConnectorKind>,
    stderr_tail: StderrTail,
    /// Exit status of the connector's program.
    ended: Option<oneshot::Receiver<Option<ExitStatus>>>,
}

/// Connects within `patience`. The channel never reconnects by itself: its user must see the break, to go on at the
/// right offset.
pub(super) async fn dial(address: &Address, patience: Duration) -> Result<Dialed, DialError> {
    let Opened { transport, name, kind, stderr_tail, ended } = match address {
        Address::Unix(socket) => open_socket(socket).await?,
        Address::Process(connector) => start(connector)?,
    };
    let (stream, first) = Stream::new(transport);
    let mut stream = Some(TokioIo::new(stream));
    let connector = service_fn(move |_| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the line is over")) }
    });
    // The name is never resolved; the daemon accepts any authority (service.md §1).
    let endpoint = Endpoint::from_static("http://step-runner")
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let first_bytes = async {
        // If the handshake fails, the first bytes decide. They are reported at the latest when the stream is dropped.
        let channel = endpoint.connect_with_connector(connector).await.ok();
        (first.await.unwrap_or(First::Other(Vec::new())), channel)
    };
    let (silent, stdout) = match tokio::time::timeout(FIRST_BYTES.min(patience), first_bytes).await {
        Ok((First::Settings, Some(channel))) => return Ok(Dialed { channel, stderr_tail }),
        Ok((First::Settings, None)) => (false, Vec::new()),
        Ok((First::Other(bytes), _)) => (false, bytes),
        Err(_) => (true, Vec::new()),
    };
    let end = match ended {
        Some(ended) if !silent => tokio::time::timeout(END, ended).await.ok().and_then(Result::ok).flatten(),
        _ => None,
    };
    let seen = Seen { kind, end, stderr: &stderr_tail.bytes(), stdout: &stdout, silent };
    Err(Diagnosis::of(&name, &seen).into())
}

fn start(connector: &Connector) -> Result<Opened, DialError> {
    let name = connector.words().first().cloned().unwrap_or_default();
    let failed = |source: StartError| DialError::Start { program: name.clone(), source };
    let (tell, ended) = oneshot::channel();
    // Once the connection is made, nobody waits for the program's end.
    let on_end = move |status| {
        tell.send(status).ok();
    };
    let (running, streams) = connector::Connector::start(connector.words(), on_end).map_err(failed)?;
    let prepared = |error: io::Error| failed(StartError::Prepare(error));
    let stderr_tail = running.stderr_tail();
    let transport = Transport::Process {
        stdin: Some(pipe::Sender::from_owned_fd(streams.stdin).map_err(prepared)?),
        stdout: pipe::Receiver::from_owned_fd(streams.stdout).map_err(prepared)?,
        _connector: running,
    };
    Ok(Opened { transport, name, kind: Some(connector.kind()), stderr_tail, ended: Some(ended) })
}

async fn open_socket(socket: &Socket) -> Result<Opened, DialError> {
    let path = socket.path();
    let stream = UnixStream::connect(path).await.map_err(|source| refused(socket, source))?;
    socket.check_peer(&stream)?;
    let (transport, name) = (Transport::Socket(stream), socket.path().display().to_string());
    Ok(Opened { transport, name, kind: None, stderr_tail: StderrTail::default(), ended: None })
}

/// Translates the kernel's answer to a connection that it did not make.
fn refused(socket: &Socket, source: io::Error) -> DialError {
    let path = socket.path().to_owned();
    match source.kind() {
        // Connecting to a regular file is "refused" too.
        io::ErrorKind::ConnectionRefused if socket.is_other_file() => DialError::NotASocket,
        // Reset: the daemon ended before it accepted the connection.
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            DialError::NoDaemon { path, source }
        }
        _ => DialError::Connect { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_while_its_socket_is_connected_to_is_awaited_like_one_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = Socket::named(&path).unwrap();
        for gone in
            [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset]
        {
            assert_eq!(refused(&socket, gone.into()).repeats(), Repeats::UntilTheLimit, "{gone}");
        }
        assert_eq!(refused(&socket, io::ErrorKind::PermissionDenied.into()).repeats(), Repeats::Never);
        std::fs::write(&path, "").unwrap();
        assert!(matches!(refused(&socket, io::ErrorKind::ConnectionRefused.into()), DialError::NotASocket));
    }
}

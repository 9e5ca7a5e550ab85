//! Making a connection: one byte stream to the daemon, HTTP/2 on top of it.
//!
//! A process connector (ssh, docker, kubectl, a command) is one more arm of [`open`]: start the program, return its stdin
//! and stdout joined, and turn its end into a [`DialError`] by the table of connectors.md §5.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::Address;
use crate::net::{Socket, SocketError};

/// A ping after this long without a byte, while something is open (connectors.md §6).
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// No answer to a ping for this long: the line is lost (connectors.md §6).
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody listens there, yet.
    #[error("no daemon listens on {path}")]
    NoDaemon {
        /// Path of the socket.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// There is a file, but it is no socket.
    #[error("{0} is not a socket")]
    NotASocket(PathBuf),
    /// The kernel refuses.
    #[error("cannot connect to {path}")]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// The socket is not trusted.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The far side does not speak HTTP/2.
    #[error("cannot speak with the daemon")]
    Handshake(#[source] tonic::transport::Error),
}

impl DialError {
    /// Trying again cannot help (connectors.md §5).
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NoDaemon { .. } | Self::Handshake(_) => false,
            Self::NotASocket(_) | Self::Socket(_) => true,
            Self::Connect { source, .. } => !matches!(
                source.kind(),
                // A full queue of the listener, a signal.
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        }
    }
}

/// Connects. The channel works until its connection ends and never makes another one by itself: who uses it has to see
/// the break, to go on at the right offset.
pub(super) async fn dial(address: &Address) -> Result<Channel, DialError> {
    let mut stream = Some(TokioIo::new(open(address).await?));
    let connector = service_fn(move |_| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the line is over")) }
    });
    // The name is never resolved; the daemon accepts any authority (service.md §1).
    Endpoint::from_static("http://step-runner")
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .connect_with_connector(connector)
        .await
        .map_err(DialError::Handshake)
}

async fn open(address: &Address) -> Result<UnixStream, DialError> {
    match address {
        Address::Unix(socket) => open_socket(socket).await,
    }
}

async fn open_socket(socket: &Socket) -> Result<UnixStream, DialError> {
    let path = socket.path();
    let stream = UnixStream::connect(path).await.map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            // Connecting to a plain file is "refused" as well.
            io::ErrorKind::ConnectionRefused if is_other_file(socket) => DialError::NotASocket(path),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                DialError::NoDaemon { path, source }
            }
            _ => DialError::Connect { path, source },
        }
    })?;
    socket.check_peer(&stream)?;
    Ok(stream)
}

fn is_other_file(socket: &Socket) -> bool {
    std::fs::metadata(socket.path()).is_ok_and(|file| !file.file_type().is_socket())
}

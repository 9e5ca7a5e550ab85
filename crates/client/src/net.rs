//! Chooses the unix socket, and checks which user listens on it (connectors.md §2). Shared by daemon, proxy and client.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Environment variable that names the socket.
pub const SOCKET_VARIABLE: &str = "STEP_RUNNER_SOCKET";

/// Longest path of a socket in bytes. Beyond the kernels' own limits, 108 and 104 bytes with the final NUL, errors do
/// not name the path; CI runners assume 100 too (connectors.md §2).
pub const MAX_SOCKET_PATH: usize = 100;

/// File name of the default socket.
const FILE_NAME: &str = "step-runner.sock";

/// A socket and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    path: PathBuf,
    /// True for the default in a temporary folder, where anyone may have made a file.
    fallback: bool,
}

/// Reason not to use a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path is longer than [`MAX_SOCKET_PATH`].
    #[error(
        "the socket path {path} is {length} bytes long, at most {MAX_SOCKET_PATH} are allowed; name a shorter one with --socket"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The socket in a shared temporary folder belongs to somebody else.
    #[error("the socket {path} belongs to user {uid}; if you trust it, name it with --socket")]
    ForeignPeer {
        /// The path.
        path: PathBuf,
        /// User id of the process that listens there.
        uid: u32,
    },
    /// The kernel did not say who listens.
    #[error("cannot find out who listens on {path}")]
    UnknownPeer {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl Socket {
    /// Returns the socket at a `path` that somebody named, which is trusted ([`Self::check_peer`]).
    pub fn named(path: impl Into<PathBuf>) -> Result<Self, SocketError> {
        Self::checked(path.into(), false)
    }

    /// Returns the socket of `option`, else of `STEP_RUNNER_SOCKET`, else the default in `TMPDIR`, else in `/tmp`.
    /// `variable` looks up the environment. An empty value counts as unset.
    pub fn choose(
        option: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SocketError> {
        if let Some(path) = option.map(Path::to_owned).or_else(|| set(&variable, SOCKET_VARIABLE)) {
            return Self::named(path);
        }
        Self::checked(default_socket(variable), true)
    }

    fn checked(path: PathBuf, fallback: bool) -> Result<Self, SocketError> {
        let length = path.as_os_str().as_bytes().len();
        if length > MAX_SOCKET_PATH {
            return Err(SocketError::TooLong { path, length });
        }
        Ok(Self { path, fallback })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the file there is not a socket. The kernel refuses a connection to it as if nobody listened.
    pub fn is_other_file(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|file| !file.file_type().is_socket())
    }

    /// Refuses a connection to a default socket whose listener is neither root nor this process's own user: anyone can
    /// make a file in a shared temporary folder. A socket that was named is trusted.
    pub fn check_peer(&self, connection: impl AsFd) -> Result<(), SocketError> {
        if !self.fallback {
            return Ok(());
        }
        let uid = peer_uid(connection)
            .map_err(|source| SocketError::UnknownPeer { path: self.path.clone(), source })?;
        if uid == 0 || uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(SocketError::ForeignPeer { path: self.path.clone(), uid })
    }
}

/// Returns the directory for temporary files: `TMPDIR`, else `/tmp`. `variable` looks up the environment. An empty
/// value counts as unset.
pub fn temp_dir(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    set(variable, "TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Returns the path of the socket if none was named (connectors.md §2), in [`temp_dir`].
pub fn default_socket(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    temp_dir(variable).join(FILE_NAME)
}

fn set(variable: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// True if process `pid` listens at the other end, or if the kernel does not tell.
pub fn is_peer(connection: impl AsFd, pid: u32) -> bool {
    #[cfg(target_os = "linux")]
    if let Ok(peer) = rustix::net::sockopt::socket_peercred(connection) {
        return u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(pid);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (connection, pid);
    true
}

#[cfg(target_os = "linux")]
fn peer_uid(connection: impl AsFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(connection)?.uid.as_raw())
}

#[cfg(not(target_os = "linux"))]
fn peer_uid(_connection: impl AsFd) -> io::Result<u32> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this system does not tell; name the socket with --socket",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(option: Option<&str>, environment: &[(&str, &str)]) -> Result<Socket, SocketError> {
        let variable = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
        Socket::choose(option.map(Path::new), variable)
    }

    #[test]
    fn option_wins_over_variable_wins_over_temporary_folders() {
        let both = [(SOCKET_VARIABLE, "/v.sock"), ("TMPDIR", "/t")];
        assert_eq!(choose(Some("/o.sock"), &both).unwrap(), Socket::named("/o.sock").unwrap());
        assert_eq!(choose(None, &both).unwrap(), Socket::named("/v.sock").unwrap());
        let fallback = choose(None, &both[1..]).unwrap();
        assert_eq!(fallback.path(), Path::new("/t/step-runner.sock"));
        assert!(fallback.fallback);
        assert_eq!(choose(None, &[]).unwrap().path(), Path::new("/tmp/step-runner.sock"));
    }

    #[test]
    fn empty_variables_count_as_unset() {
        let socket = choose(None, &[(SOCKET_VARIABLE, ""), ("TMPDIR", "")]).unwrap();
        assert_eq!(socket.path(), Path::new("/tmp/step-runner.sock"));
    }

    #[test]
    fn a_path_of_101_bytes_is_refused_with_path_and_length() {
        let long = format!("/{}", "a".repeat(100));
        let message = choose(Some(&long), &[]).unwrap_err().to_string();
        assert!(message.contains(&long) && message.contains("101 bytes"), "{message}");
        assert!(choose(long.get(..100), &[]).is_ok());
    }

    #[test]
    fn own_peer_passes_on_a_default_socket() {
        let folder = tempfile::tempdir().unwrap();
        let socket = choose(None, &[("TMPDIR", folder.path().to_str().unwrap())]).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(socket.path()).unwrap();
        let connection = std::os::unix::net::UnixStream::connect(socket.path()).unwrap();
        socket.check_peer(&connection).unwrap();
        assert!(is_peer(&connection, std::process::id()));
        assert!(!is_peer(&connection, 1));
    }
}

//! Addresses of daemons (connectors.md §4). Pure: parses a text, or names the part that is wrong.

mod connector;
mod form;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::net::{Socket, SocketError};

pub use connector::{Connector, ConnectorKind};

/// Address of a daemon.
///
/// | text | how the daemon is reached |
/// |---|---|
/// | `unix:PATH`, `unix:///PATH`, a plain path | a socket of this machine |
/// | `ssh://[USER@]HOST[:PORT][/SOCKET]` | `ssh`, with the user's own configuration |
/// | `docker://CONTAINER[/SOCKET]`, `podman://…` | `docker exec`, `podman exec`; `?user=`, `?host=` |
/// | `kube://[CONTEXT@]NAMESPACE/POD[/CONTAINER]` | `kubectl exec`; `?socket=` |
/// | `cmd:WORDS` | any program that ends in a `step-runner proxy` |
///
/// All but the first and the last accept `?socket=PATH`, and `?command=PROGRAM%20WORDS` for the program to run there
/// instead of `step-runner`.
///
/// ```
/// use step_runner_client::Address;
///
/// let address: Address = "ssh://ci@build7:2222/run/step-runner.sock".parse()?;
/// assert_eq!(address.to_string(), "ssh://ci@build7:2222/run/step-runner.sock");
/// assert!("ssh://-oProxyCommand=x".parse::<Address>().is_err());
/// # Ok::<(), step_runner_client::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket of this machine.
    Unix(Socket),
    /// A daemon elsewhere, through a program.
    Process(Connector),
}

/// Reasons why a text is no address. Names the part, never shows a password.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The path is missing.
    #[error("the address names no path: write unix:PATH or a path")]
    Empty,
    /// The scheme is unknown.
    #[error("unknown scheme `{0}` of the address: use unix, ssh, docker, podman, kube or cmd")]
    UnknownScheme(String),
    /// A unix address has a host: `unix://HOST/PATH`.
    #[error("a unix address has no host: write unix:///PATH or unix:PATH")]
    HostInUnixAddress,
    /// A part that the scheme needs is missing.
    #[error("the address names no {part}: write {form}")]
    Missing {
        /// The part.
        part: &'static str,
        /// The form of such an address.
        form: &'static str,
    },
    /// A part is malformed.
    #[error("the {part} of the address {problem}: write {form}")]
    Malformed {
        /// The part.
        part: &'static str,
        /// The problem.
        problem: String,
        /// The form of such an address.
        form: &'static str,
    },
    /// The scheme does not know a key of the query.
    #[error("unknown key `{key}` in the query of the address: {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys that it knows.
        known: &'static str,
    },
    /// It holds a password, which does not belong on a command line.
    #[error("the address holds a password, which every process of this machine could read: use a key")]
    Password,
    /// The path cannot be that of a socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl Address {
    /// Returns the address of a daemon behind any program. `words` are split like a shell's quoted words, and run
    /// without one. The program must end in a `step-runner proxy`.
    ///
    /// ```
    /// use step_runner_client::Address;
    ///
    /// let address = Address::via("ssh build7 step-runner proxy")?;
    /// assert_eq!(address, "cmd:ssh build7 step-runner proxy".parse()?);
    /// # Ok::<(), step_runner_client::AddressError>(())
    /// ```
    pub fn via(words: &str) -> Result<Self, AddressError> {
        Connector::command(words).map(Self::Process)
    }

    /// True if the daemon sees the same files under the same names as this process (cli.md, "How FILE travels").
    pub fn shares_files(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match scheme(text) {
            None => unix(text),
            Some(("unix", rest)) => match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') || path.is_empty() => unix(path),
                Some(_) => Err(AddressError::HostInUnixAddress),
                None => unix(rest),
            },
            Some(("ssh", rest)) => Connector::ssh(rest).map(Self::Process),
            Some(("docker", rest)) => Connector::container(ConnectorKind::Docker, rest).map(Self::Process),
            Some(("podman", rest)) => Connector::container(ConnectorKind::Podman, rest).map(Self::Process),
            Some(("kube", rest)) => Connector::kube(rest).map(Self::Process),
            Some(("cmd", rest)) => Self::via(rest),
            Some((unknown, _)) => Err(AddressError::UnknownScheme(unknown.to_owned())),
        }
    }
}

fn unix(path: &str) -> Result<Address, AddressError> {
    if path.is_empty() {
        return Err(AddressError::Empty);
    }
    if path.contains('\0') {
        let problem = "holds a NUL byte".to_owned();
        return Err(AddressError::Malformed { part: "path", problem, form: "unix:PATH" });
    }
    Ok(Address::Unix(Socket::named(PathBuf::from(path))?))
}

/// Splits `scheme:rest`. A path has no scheme even if a later segment holds a colon.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let letter_first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic());
    (letter_first && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)))
        .then_some((scheme, rest))
}

/// Writes the address in a canonical form, which parses to the same address.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(socket) => {
                // After `unix:`, two slashes would begin a host.
                let path = socket.path();
                let host = if path.as_os_str().as_encoded_bytes().starts_with(b"//") { "//" } else { "" };
                write!(f, "unix:{host}{}", path.display())
            }
            Self::Process(connector) => connector.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;

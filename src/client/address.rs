//! Where a daemon is (connectors.md §4).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::net::{Socket, SocketError};

/// Schemes of addresses that name a program to run, in connectors.md §4. Each is to become a variant of [`Address`] with
/// a connector of its own in `client/dial.rs`.
const PROCESS_SCHEMES: [&str; 5] = ["ssh", "docker", "podman", "kube", "cmd"];

/// Address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket of this machine: `unix:PATH`, `unix:///PATH`, or a plain path.
    Unix(Socket),
}

/// Why a text is no address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Nothing where the path should be.
    #[error("the address names no path: write unix:PATH or a path")]
    Empty,
    /// A scheme nobody knows.
    #[error("unknown scheme `{0}` of the address: use unix:PATH or a path")]
    UnknownScheme(String),
    /// A scheme that this version does not speak.
    #[error("this version cannot connect by `{0}`: use unix:PATH or a path")]
    Unsupported(String),
    /// `unix://HOST/PATH`.
    #[error("a unix address has no host: write unix:///PATH or unix:PATH")]
    HostInUnixAddress,
    /// The path cannot be a socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl Address {
    /// True where the daemon sees the same files under the same names as this process (cli.md, "How FILE travels").
    pub fn shares_files(&self) -> bool {
        match self {
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let path = match scheme(text) {
            None => text,
            Some(("unix", rest)) => match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') || path.is_empty() => path,
                Some(_) => return Err(AddressError::HostInUnixAddress),
                None => rest,
            },
            Some((known, _)) if PROCESS_SCHEMES.contains(&known) => {
                return Err(AddressError::Unsupported(known.to_owned()));
            }
            Some((unknown, _)) => return Err(AddressError::UnknownScheme(unknown.to_owned())),
        };
        if path.is_empty() {
            return Err(AddressError::Empty);
        }
        Ok(Self::Unix(Socket::named(PathBuf::from(path))?))
    }
}

/// `scheme:rest`; a path with a colon in a later segment has none.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let letter_first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic());
    (letter_first && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)))
        .then_some((scheme, rest))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(socket) => write!(f, "unix:{}", socket.path().display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_forms_mean_the_same_path() {
        for text in ["unix:/run/s.sock", "unix:///run/s.sock", "/run/s.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), "unix:/run/s.sock", "{text}");
        }
        assert_eq!("./a:b".parse::<Address>().unwrap().to_string(), "unix:./a:b");
    }

    #[test]
    fn what_is_no_address_is_named() {
        for (text, part) in [
            ("", "no path"),
            ("unix:", "no path"),
            ("unix://host/s.sock", "no host"),
            ("gopher://x", "`gopher`"),
            ("ssh://host", "`ssh`"),
            ("docker://-evil", "`docker`"),
        ] {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}

//! Failed requests, in texts for people. They hold nothing that a server sent.

use std::error::Error;
use std::io;

use super::READ_TIMEOUT;
use super::tls::TlsFault;

/// Reasons for which there is no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// The host's name is not known.
    #[error("the name of the host cannot be resolved: check its spelling and this machine's DNS")]
    Name,
    /// Nobody listens.
    #[error("the connection was refused: check host and port")]
    Refused,
    /// No connection for another reason.
    #[error("no connection to the server: check the host, and the proxy variables where a proxy is needed")]
    NoConnection,
    /// The name of the proxy is not known. Holds the variable that names the proxy.
    #[error("the name of the proxy in {0} cannot be resolved: check its spelling and this machine's DNS")]
    ProxyName(&'static str),
    /// Nobody listens where the proxy should be. Holds the variable that names the proxy.
    #[error("the connection to the proxy in {0} was refused: check its host and port")]
    ProxyRefused(&'static str),
    /// No connection to the proxy, or the proxy made none to the server. Holds the variable that names the proxy.
    #[error("no connection through the proxy in {0}: check its address, and that it lets this host through")]
    Proxy(&'static str),
    /// TLS failed.
    #[error("{0}")]
    Tls(TlsFault),
    /// The connection ended while TLS was set up.
    #[error("{}", TlsFault::Other)]
    TlsCut,
    /// The server sent nothing for too long.
    #[error("the server sent nothing for {} s: try again later", READ_TIMEOUT.as_secs())]
    Silent,
    /// The connection ended in the middle.
    #[error("the connection broke in the middle of an answer: try again")]
    Cut,
}

impl RequestFault {
    /// Translates an error of the HTTP client. Does not show its text: it holds the URL, which may hold a secret.
    pub fn of(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            return if error.is_connect() { Self::NoConnection } else { Self::Silent };
        }
        if error.is_dns() {
            return Self::Name;
        }
        if let Some(tls) = find::<rustls::Error>(error) {
            return Self::Tls(TlsFault::of(tls));
        }
        if !error.is_connect() {
            return Self::Cut;
        }
        match find::<io::Error>(error).map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => Self::Refused,
            Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => Self::TlsCut,
            _ => Self::NoConnection,
        }
    }

    /// Names the proxy that the request went through by its variable: the server itself was never asked.
    pub(super) const fn through(self, variable: &'static str) -> Self {
        match self {
            Self::Name => Self::ProxyName(variable),
            Self::Refused => Self::ProxyRefused(variable),
            Self::NoConnection => Self::Proxy(variable),
            fault => fault,
        }
    }

    /// Translates an error that came while an answer was read.
    pub fn of_read(error: &io::Error) -> Self {
        let request = error.get_ref().and_then(|inner| inner.downcast_ref::<reqwest::Error>());
        let silent =
            error.kind() == io::ErrorKind::TimedOut || request.is_some_and(reqwest::Error::is_timeout);
        if silent { Self::Silent } else { Self::Cut }
    }

    /// True if the same request may succeed shortly after. A silent server has taken most of the time already.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Refused
                | Self::NoConnection
                | Self::ProxyRefused(_)
                | Self::Proxy(_)
                | Self::TlsCut
                | Self::Cut
        )
    }
}

/// Finds the first `E` among the causes of `error`. Looks into I/O errors too: their source skips the error they wrap.
pub(super) fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = wrapped.and_then(|wrapped| find(wrapped)) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

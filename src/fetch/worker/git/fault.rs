//! Faults of fetching from a repository, in texts for people: what happened and what to do. These texts hold nothing
//! that a server sent, and no secret.

use std::error::Error;
use std::io;

use reqwest::StatusCode;
use rustls::CertificateError;

use super::location::{Location, LocationError};
use crate::fetch::order::MAX_TREE_BYTES;
use crate::job::event::FetchFailure;
use crate::lang::diagnostic::Class;
use crate::web::{LEAST_RATE, READ_TIMEOUT, WebError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the name of the host cannot be resolved: check its spelling and this machine's DNS")]
    Name,
    #[error("the connection was refused: check host and port")]
    Refused,
    #[error("no connection to the server: check the host, and the proxy variables where a proxy is needed")]
    NoConnection,
    #[error(
        "the server's certificate was issued by an authority that is not known: if the server is to be trusted, set \
         SSL_CERT_FILE to a file with the authority's certificate"
    )]
    UnknownAuthority,
    #[error(
        "the server's certificate has expired or is not valid yet: check the server, and this machine's clock"
    )]
    CertificateTime,
    #[error("the server's certificate is for another host: check the host's name")]
    CertificateHost,
    #[error(
        "no TLS connection can be made: check that the server speaks HTTPS at this port, and its certificate"
    )]
    Tls,
    #[error(
        "credentials are missing or were refused: put them into the URL as https://USER:TOKEN@HOST/PATH or into \
         ~/.netrc, and check that they allow to read the repository"
    )]
    Credentials,
    #[error("the server knows no such repository, or not for these credentials: check the path")]
    NotFound,
    #[error("the server answered with status {}: this is a trouble of the server, try again later", .0.as_u16())]
    Server(StatusCode),
    #[error("the server answered with status {}, which is no answer of a Git server: check the URL", .0.as_u16())]
    Status(StatusCode),
    #[error("the answer is not Git's protocol over HTTP: check that the URL is that of a repository")]
    NotGit,
    #[error("the server sent nothing for {} s: try again later", READ_TIMEOUT.as_secs())]
    Silent,
    #[error("the server is too slow, it sends less than {LEAST_RATE} bytes a second: try again later")]
    Slow,
    #[error("the connection broke in the middle of an answer: try again")]
    Cut,
    #[error("the server redirects too often: use the URL at which the repository is")]
    Redirects,
    #[error(
        "the server redirects to a place that is no Git repository: it may ask to sign in there; check the URL"
    )]
    RedirectElsewhere,
    #[error(
        "the server redirects from https to http, which is not followed: use the URL at which the repository is"
    )]
    RedirectInsecure,
    #[error("the repository names its objects by SHA-256, which is not supported: use one with SHA-1")]
    Sha256,
    #[error("the server refused to send what it offers: try again later")]
    Withheld,
    #[error("what the server sent is damaged: try again, and check the repository with git fsck")]
    Damaged,
    #[error("it sends more than {} MiB: make the repository smaller, or use a tag or branch", MAX_TREE_BYTES >> 20)]
    TooLarge,
    #[error("what was received cannot be stored: {0}: check the space in the cache's file system")]
    Storage(io::ErrorKind),
}

impl Fault {
    /// Converts it to the failure that the worker reports.
    pub(super) fn at(self, location: &Location) -> FetchFailure {
        let class = if self == Self::TooLarge { Class::Limit } else { Class::Fetch };
        FetchFailure { class, message: format!("cannot fetch from {location}: {self}") }
    }

    /// Translates a failed request. The error itself is never shown: it holds the URL.
    pub(super) fn of_request(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            return if error.is_connect() { Self::NoConnection } else { Self::Silent };
        }
        if error.is_dns() {
            return Self::Name;
        }
        if let Some(tls) = find::<rustls::Error>(error) {
            return Self::of_tls(tls);
        }
        if !error.is_connect() {
            return Self::Cut;
        }
        match find::<io::Error>(error).map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => Self::Refused,
            Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => Self::Tls,
            _ => Self::NoConnection,
        }
    }

    fn of_tls(error: &rustls::Error) -> Self {
        use CertificateError::{
            Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
            NotValidYetContext, UnknownIssuer,
        };
        match error {
            rustls::Error::InvalidCertificate(UnknownIssuer) => Self::UnknownAuthority,
            rustls::Error::InvalidCertificate(
                Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
            ) => Self::CertificateTime,
            rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
                Self::CertificateHost
            }
            _ => Self::Tls,
        }
    }

    /// Translates a status other than success.
    pub(super) fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Credentials,
            StatusCode::NOT_FOUND | StatusCode::GONE => Self::NotFound,
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Self::Server(status)
            }
            status => Self::Status(status),
        }
    }

    /// Translates an error that came while an answer was read.
    pub(super) fn of_read(error: &io::Error) -> Self {
        let request = error.get_ref().and_then(|inner| inner.downcast_ref::<reqwest::Error>());
        let silent =
            error.kind() == io::ErrorKind::TimedOut || request.is_some_and(reqwest::Error::is_timeout);
        if silent { Self::Silent } else { Self::Cut }
    }
}

/// Finds the first `E` among the causes of `error`. Looks into I/O errors too: their source skips the error they wrap.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
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

pub(super) fn unknown(revision: &str, location: &Location) -> FetchFailure {
    failure(format!("cannot find revision {revision:?} in {location}"))
}

pub(super) fn ambiguous(revision: &str, location: &Location) -> FetchFailure {
    failure(format!(
        "revision {revision:?} in {location} is ambiguous: the hashes of several commits begin with it; write more \
         digits"
    ))
}

/// The revision is a tree, a file or a tag, not a commit.
pub(super) fn no_commit(revision: &str, location: &Location) -> FetchFailure {
    failure(format!("revision {revision:?} in {location} is no commit: use a tag, a branch or a commit hash"))
}

pub(super) fn wrong_url(error: LocationError) -> FetchFailure {
    failure(error.to_string())
}

pub(super) fn no_client(error: &WebError) -> FetchFailure {
    failure(error.to_string())
}

pub(super) fn failure(message: String) -> FetchFailure {
    FetchFailure { class: Class::Fetch, message }
}

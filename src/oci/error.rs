//! Errors of a registry, in words that say what to do. They hold no credential.

use std::error::Error;
use std::io;

use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};

use super::name::ImageName;
use crate::web::{LEAST_RATE, READ_TIMEOUT, WebError};

/// A failed action on an image.
#[derive(Debug, thiserror::Error)]
#[error("{image}: {problem}")]
pub struct OciError {
    /// `registry/repository:tag`.
    pub(crate) image: String,
    /// The problem.
    pub(crate) problem: Problem,
}

/// A problem: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// A part of the image's name is invalid.
    #[error("\"{text}\" is not a valid {what}: {remedy}")]
    Name {
        /// `registry`, `repository` or `tag`.
        what: &'static str,
        /// As given.
        text: String,
        /// The expected form.
        remedy: &'static str,
    },
    /// `DOCKER_AUTH_CONFIG` cannot be used.
    #[error("the value of DOCKER_AUTH_CONFIG cannot be used: {0}")]
    Credentials(String),
    /// Proxies or certificates cannot be used.
    #[error(transparent)]
    Web(#[from] WebError),
    /// No certificate is usable to check the registry's.
    #[error("none of the certificates of authorities can be used: check SSL_CERT_FILE and SSL_CERT_DIR")]
    NoCertificates,
    /// No connection.
    #[error("the registry cannot be reached ({0}): check its name, the network and the proxy variables")]
    Unreachable(String),
    /// TLS failed.
    #[error(
        "the registry's certificate or TLS is refused ({0}): name a file with its authority's certificate in SSL_CERT_FILE"
    )]
    Tls(String),
    /// The registry wants credentials, and there are none.
    #[error(
        "the registry asks for credentials, or there is no such repository: set DOCKER_AUTH_CONFIG with an entry for the registry or the repository"
    )]
    Unknown,
    /// The registry refuses the credentials.
    #[error(
        "the registry refuses the credentials of DOCKER_AUTH_CONFIG: check user, password and their rights on the repository"
    )]
    Denied,
    /// No such repository, tag or content.
    #[error("there is no such repository or tag: check the name, and that the image was published")]
    NotFound,
    /// Too many requests.
    #[error("the registry is asked too often (status 429): try again later, or with credentials")]
    Busy,
    /// The registry failed.
    #[error("the registry failed (status {0}): try again later")]
    Server(u16),
    /// The answer is not that of a registry.
    #[error("the answer is not a registry's ({0}): check that the address is that of a registry")]
    Nonsense(String),
    /// The registry sent or took nothing for too long.
    #[error("nothing came from the registry for {} s: try again later", READ_TIMEOUT.as_secs())]
    Silent,
    /// The registry sends almost nothing.
    #[error("the registry is too slow, it sends less than {LEAST_RATE} bytes a second: try again later")]
    Slow,
    /// The connection ended in the middle.
    #[error("the connection broke in the middle of an answer: try again")]
    Cut,
    /// The content does not match its digest.
    #[error(
        "what the registry sent does not have the digest {0} that it is named by: do not use this registry until its operator has found out why"
    )]
    Digest(String),
    /// Something exceeds a limit.
    #[error("its {0} is too large")]
    TooLarge(&'static str),
    /// No manifest for this machine.
    #[error(
        "there is no image for {wanted}; there is: {present}. Publish one for this platform or for generic"
    )]
    Platform {
        /// This machine.
        wanted: String,
        /// The platforms in the index.
        present: String,
    },
    /// The received data cannot be stored.
    #[error("what was received cannot be written: {0}")]
    Scratch(io::Error),
}

impl Problem {
    pub(super) fn of(self, image: &ImageName) -> OciError {
        OciError { image: image.to_string(), problem: self }
    }
}

/// True if the library says that access was not granted.
pub(super) fn is_denied(error: &OciDistributionError) -> bool {
    match error {
        OciDistributionError::UnauthorizedError { .. } => true,
        OciDistributionError::ServerError { code, .. } => matches!(code, 401 | 403),
        OciDistributionError::RegistryError { envelope, .. } => {
            let denied =
                |code: &OciErrorCode| matches!(code, OciErrorCode::Unauthorized | OciErrorCode::Denied);
            envelope.errors.iter().any(|error| denied(&error.code))
        }
        _ => false,
    }
}

/// Translates the library's error. `known` is true if we sent credentials.
pub(super) fn of_library(error: OciDistributionError, known: bool) -> Problem {
    let denied = || if known { Problem::Denied } else { Problem::Unknown };
    if is_denied(&error) {
        return denied();
    }
    match error {
        // The token server answers so.
        OciDistributionError::AuthenticationFailure(_) => denied(),
        OciDistributionError::RegistryError { envelope, .. } => {
            let code = envelope.errors.first().map(|error| &error.code);
            match code {
                Some(
                    OciErrorCode::ManifestUnknown
                    | OciErrorCode::NameUnknown
                    | OciErrorCode::BlobUnknown
                    | OciErrorCode::NotFound,
                ) => Problem::NotFound,
                Some(OciErrorCode::Toomanyrequests) => Problem::Busy,
                Some(code) => Problem::Nonsense(short(&format!("error {code:?}"))),
                None => Problem::Nonsense("an error without a code".into()),
            }
        }
        OciDistributionError::ServerError { code: 404, .. } => Problem::NotFound,
        OciDistributionError::ServerError { code: 429, .. } => Problem::Busy,
        OciDistributionError::ServerError { code: code @ 500.., .. } => Problem::Server(code),
        OciDistributionError::ServerError { code, .. } => Problem::Nonsense(format!("status {code}")),
        OciDistributionError::RequestError(error) => of_request(&error),
        OciDistributionError::DigestError(error) => of_digest(&error),
        OciDistributionError::IoError(error) => of_stream(error),
        other => Problem::Nonsense(short(&other.to_string())),
    }
}

/// Translates an error in the middle of a blob.
pub(super) fn of_stream(error: io::Error) -> Problem {
    let text = short(&error.to_string());
    let Some(inner) = error.into_inner() else { return Problem::Nonsense(text) };
    match inner.downcast::<reqwest::Error>() {
        Ok(error) => of_request(&error),
        Err(inner) => {
            inner.downcast::<DigestError>().map_or(Problem::Nonsense(text), |error| of_digest(&error))
        }
    }
}

fn of_digest(error: &DigestError) -> Problem {
    match error {
        DigestError::VerificationError { expected, .. } => Problem::Digest(short(expected)),
        other => Problem::Nonsense(short(&other.to_string())),
    }
}

/// Translates an error of the HTTP client. Does not show its text: it holds the URL, which may hold a token.
fn of_request(error: &reqwest::Error) -> Problem {
    if has_cause::<rustls::Error>(error) {
        return Problem::Tls(root_cause(error));
    }
    if error.is_connect() {
        return Problem::Unreachable(if error.is_timeout() { "timed out".into() } else { root_cause(error) });
    }
    if error.is_timeout() {
        return Problem::Silent;
    }
    if error.is_builder() || error.is_redirect() {
        return Problem::Nonsense("a redirection that leads nowhere".into());
    }
    Problem::Cut
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// True if an `E` is among the causes, also inside an I/O error.
fn has_cause<E: Error + 'static>(error: &reqwest::Error) -> bool {
    causes(error).any(|cause| {
        let carried = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(carried) = carried
            && carried.is::<E>()
        {
            return true;
        }
        cause.is::<E>()
    })
}

fn root_cause(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| "no reason given".to_owned(), |cause| short(&cause.to_string()))
}

/// Makes a text from outside safe to show: short and without control characters.
fn short(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars().take(LONGEST).collect::<String>().escape_debug().to_string()
}

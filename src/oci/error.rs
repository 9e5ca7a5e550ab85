//! What can go wrong with a registry, in words that say what to do. Nothing here holds a credential.

use std::error::Error;
use std::io;

use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};

use super::name::ImageName;
use crate::web::{LEAST_RATE, READ_TIMEOUT, WebError};

/// Something about an image failed.
#[derive(Debug, thiserror::Error)]
#[error("{image}: {problem}")]
pub struct OciError {
    /// `registry/repository:tag`.
    pub image: String,
    /// What.
    pub problem: Problem,
}

/// What failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A part of the image's name cannot be one.
    #[error("\"{text}\" is not a valid {what}: {remedy}")]
    Name {
        /// `registry`, `repository` or `tag`.
        what: &'static str,
        /// As given.
        text: String,
        /// What is expected.
        remedy: &'static str,
    },
    /// `DOCKER_AUTH_CONFIG` cannot be used.
    #[error("the value of DOCKER_AUTH_CONFIG cannot be used: {0}")]
    Credentials(String),
    /// Proxies or certificates cannot be used.
    #[error(transparent)]
    Web(#[from] WebError),
    /// There is nothing to check the registry's certificate with.
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
    /// The registry does not take the credentials.
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
    /// The answer is nothing that a registry says.
    #[error("the answer is not a registry's ({0}): check that the address is that of a registry")]
    Nonsense(String),
    /// The server stopped in the middle.
    #[error("nothing came from the registry for {} s: try again later", READ_TIMEOUT.as_secs())]
    Silent,
    /// The server sends next to nothing.
    #[error("the registry is too slow, it sends less than {LEAST_RATE} bytes a second: try again later")]
    Slow,
    /// The connection ended in the middle.
    #[error("the connection broke in the middle of an answer: try again")]
    Cut,
    /// A content is another than the one that was named.
    #[error(
        "what the registry sent does not have the digest {0} that it is named by: do not use this registry until its operator has found out why"
    )]
    Digest(String),
    /// More than a limit allows.
    #[error("its {0} is too large")]
    TooLarge(&'static str),
    /// No manifest for this machine.
    #[error(
        "there is no image for {wanted}; there is: {present}. Publish one for this platform or for generic"
    )]
    Platform {
        /// This machine.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// What came cannot be kept.
    #[error("what was received cannot be written: {0}")]
    Scratch(io::Error),
}

impl Problem {
    pub(super) fn of(self, image: &ImageName) -> OciError {
        OciError { image: image.to_string(), problem: self }
    }
}

/// Whether the library says that leave was not given.
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

/// What the library's error means; `known` says that credentials were shown.
pub(super) fn of_library(error: OciDistributionError, known: bool) -> Problem {
    let denied = || if known { Problem::Denied } else { Problem::Unknown };
    if is_denied(&error) {
        return denied();
    }
    match error {
        // Said by the token server.
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

/// What an error in the middle of a blob means.
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

/// What an error of the HTTP client means. Its own text is not used: it holds the address, which may hold a token.
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

/// Whether an error of type `E` is among the causes, also inside those that only carry another one.
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

/// The innermost reason.
fn root_cause(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| "no reason given".to_owned(), |cause| short(&cause.to_string()))
}

/// A text that came from outside: short, and nothing in it acts on a terminal.
fn short(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars().take(LONGEST).collect::<String>().escape_debug().to_string()
}

//! Errors of a registry, in words that say what to do. They hold no credential.

use std::io;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use step_runner_model::error::Chain;
use step_runner_web::fault::RequestFault;
use step_runner_web::redirect::RedirectFault;
use step_runner_web::tls::TlsFault;
use step_runner_web::{LEAST_RATE, READ_TIMEOUT, WebError, retry};

/// A failed action on an image.
#[derive(Debug, thiserror::Error)]
#[error("{image}: {}", Chain(problem))]
pub struct OciError {
    /// `registry/repository:tag`.
    pub image: String,
    /// The problem.
    pub problem: Problem,
}

/// A problem: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
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
    /// No connection.
    #[error("the registry cannot be reached: {0}")]
    Unreachable(RequestFault),
    /// TLS failed.
    #[error("the registry's certificate or TLS is refused: {0}")]
    Tls(TlsFault),
    /// The registry wants credentials, and there are none.
    #[error(
        "the registry asks for credentials, or there is no such repository: set DOCKER_AUTH_CONFIG with an entry for the registry, the repository or a group that it is in"
    )]
    Unknown,
    /// The registry refuses the credentials.
    #[error(
        "the registry refuses the credentials of DOCKER_AUTH_CONFIG: check user, password and their rights on the repository"
    )]
    Denied,
    /// Another server, to which the registry redirects, refuses. Holds its host and the status.
    #[error(
        "the registry redirects to {0}, which refuses the request (status {1}): no credentials are sent there, so name the registry that has the image, or ask its operator"
    )]
    Elsewhere(String, u16),
    /// No such repository or tag.
    #[error("there is no such repository or tag: check the name, and that the image was published")]
    NotFound,
    /// The image names a part that is not there. Holds its digest.
    #[error("the registry lacks {0}, a part of the image: publish the image again")]
    Missing(String),
    /// Too many requests. Holds the time for which the registry asks.
    #[error("the registry limits requests (status 429): try again later, or with credentials")]
    Busy(Option<Duration>),
    /// The registry failed. Holds the status, and the time for which the registry asks.
    #[error("the registry failed (status {0}): try again later")]
    Server(u16, Option<Duration>),
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

/// The part of a registry's error that is read.
#[derive(Deserialize)]
struct Envelope {
    errors: Vec<Coded>,
}

#[derive(Deserialize)]
struct Coded {
    code: String,
}

impl Problem {
    /// True if the same request may succeed shortly after.
    pub(super) const fn is_transient(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Server(..) | Self::Cut => true,
            Self::Unreachable(fault) => fault.is_transient(),
            _ => false,
        }
    }

    /// Adds to a failed request that it was for the part of an image with this digest.
    pub(super) fn of_part(self, digest: &str) -> Self {
        match self {
            Self::NotFound => Self::Missing(short(digest)),
            problem => problem,
        }
    }

    /// True if the published image is at fault: only another one helps.
    pub(crate) const fn is_of_image(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Digest(_) | Self::TooLarge(_) | Self::Platform { .. })
    }

    /// Returns the time for which the registry asks before the next request.
    pub(super) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy(asked) | Self::Server(_, asked) => *asked,
            _ => None,
        }
    }

    /// Translates an answer other than success. `asked` is the time for which it asks, `body` its text.
    pub(super) fn of_status(status: StatusCode, asked: Option<Duration>, body: &[u8]) -> Self {
        let envelope = serde_json::from_slice::<Envelope>(body);
        let code = envelope.ok().and_then(|envelope| Some(envelope.errors.into_iter().next()?.code));
        match (status, code.as_deref()) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Self::Denied,
            (StatusCode::NOT_FOUND, _) => Self::NotFound,
            (StatusCode::TOO_MANY_REQUESTS, _) => Self::Busy(asked),
            (status, _) if retry::is_transient(status) => Self::Server(status.as_u16(), asked),
            (_, Some(code)) => Self::Nonsense(format!("error {}", short(code))),
            (status, None) => Self::Nonsense(format!("status {}", status.as_u16())),
        }
    }

    /// Translates a request without a complete answer.
    pub(super) fn of_request(fault: RequestFault) -> Self {
        match fault {
            RequestFault::Tls(fault) => Self::Tls(fault),
            RequestFault::Silent => Self::Silent,
            RequestFault::Cut => Self::Cut,
            fault => Self::Unreachable(fault),
        }
    }

    /// Translates an answer that is not the JSON that was asked for, as `what` says.
    pub(super) fn no_json(what: &str, error: &serde_json::Error) -> Self {
        Self::Nonsense(format!("{what}: {}", short(&error.to_string())))
    }

    /// Translates a redirect that is not followed.
    pub(super) fn of_redirect(fault: RedirectFault) -> Self {
        let text = match fault {
            RedirectFault::Elsewhere => "a redirection that leads nowhere",
            RedirectFault::Insecure => "a redirection from https to http",
        };
        Self::Nonsense(text.into())
    }
}

/// Makes a text from outside safe to show: short and without control characters.
pub(crate) fn short(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars().take(LONGEST).collect::<String>().escape_debug().to_string()
}

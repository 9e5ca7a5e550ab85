//! Faults of fetching from a repository, in texts for people: what happened and what to do. These texts hold no secret.
//! They hold little of what a server sent: what Git's library quotes, cut and escaped, and the reason of a refusal.

use std::io;
use std::time::Duration;

use gix::bstr::{BStr, ByteSlice};
use reqwest::StatusCode;

use super::location::{Location, LocationError};
use crate::fetch::order::MAX_TREE_BYTES;
use crate::oci::short;
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;
use step_runner_model::error::Chain;
use step_runner_model::text;
use step_runner_web::fault::RequestFault;
use step_runner_web::redirect::RedirectFault;
use step_runner_web::{LEAST_RATE, WebError, retry};

/// Most characters of a server's own words that are kept, many more than are shown.
const LONGEST_ERR: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Request(RequestFault),
    #[error(
        "credentials are missing or were refused: put them into the URL as https://USER:TOKEN@HOST/PATH or into \
         ~/.netrc, and check that they allow to read the repository"
    )]
    Credentials,
    #[error("the server knows no such repository, or not for these credentials: check the path")]
    NotFound,
    #[error("the server failed with status {}: try again later", .0.as_u16())]
    Server(StatusCode, Option<Duration>),
    #[error("the server limits requests (status 429): try again later, or with credentials")]
    Busy(Option<Duration>),
    #[error("the server answered with status {}, which no Git server sends: check the URL", .0.as_u16())]
    Status(StatusCode),
    #[error("the server says: {0}")]
    Said(String),
    #[error("the answer is not Git's protocol over HTTP: check that the URL is that of a repository")]
    NotGit,
    #[error("Git's library does not take the repository's URL ({0}): write it as https://HOST/PATH")]
    Url(String),
    #[error("the server is too slow, it sends less than {LEAST_RATE} bytes a second: try again later")]
    Slow,
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
    #[error("what the server sent is damaged ({0}): try again, and check the repository with git fsck")]
    Damaged(String),
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

    /// The server refuses in words of its own. They may quote a secret, so they are masked before they are cut.
    pub(super) fn said(words: &BStr) -> Self {
        let words: String = words.to_str_lossy().trim().chars().take(LONGEST_ERR).collect();
        Self::Said(text::quote(&words).into_owned())
    }

    /// The objects of a pack, or the pack itself, cannot be read because of `error`.
    pub(super) fn damaged(error: &gix::Error) -> Self {
        Self::Damaged(causes(error))
    }

    /// Git's library refuses the repository's URL, which holds no login, because of `error`.
    pub(super) fn of_url(error: &gix::Error) -> Self {
        Self::Url(causes(error))
    }

    /// The connection ended in the middle of an answer.
    pub(super) const CUT: Self = Self::Request(RequestFault::Cut);

    /// Translates an error that came while an answer was read.
    pub(super) fn of_read(error: &io::Error) -> Self {
        Self::Request(RequestFault::of_read(error))
    }

    /// Translates a redirect that is not followed.
    pub(super) const fn of_redirect(fault: RedirectFault) -> Self {
        match fault {
            RedirectFault::Elsewhere => Self::RedirectElsewhere,
            RedirectFault::Insecure => Self::RedirectInsecure,
        }
    }

    /// Translates a status other than success. `asked` is the time for which the answer asks.
    pub(super) fn of_status(status: StatusCode, asked: Option<Duration>) -> Self {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Credentials,
            StatusCode::NOT_FOUND | StatusCode::GONE => Self::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Self::Busy(asked),
            status if retry::is_transient(status) => Self::Server(status, asked),
            status => Self::Status(status),
        }
    }

    /// True if the same command may succeed shortly after.
    pub(super) const fn is_transient(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Server(..) => true,
            Self::Request(fault) => fault.is_transient(),
            _ => false,
        }
    }

    /// Returns the time for which the server asks before the next request.
    pub(super) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy(asked) | Self::Server(_, asked) => *asked,
            _ => None,
        }
    }
}

/// Returns an error of Git's library and its causes. They may quote what a server sent.
fn causes(error: &gix::Error) -> String {
    short(&Chain(error).to_string())
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
    failure(Chain(&error).to_string())
}

pub(super) fn no_client(error: &WebError) -> FetchFailure {
    failure(Chain(error).to_string())
}

pub(super) fn failure(message: String) -> FetchFailure {
    FetchFailure { class: Class::Fetch, message }
}

//! Errors of calls.

use std::io;

use step_runner_model::JobId;
use step_runner_model::error::{Exit, Failure};
use tonic_types::ErrorInfo;

use super::{Address, AddressError, DialError};

/// Reasons why a call failed after all repeats. Never holds a value of the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No connection was made, permanently or within the limit.
    #[error("cannot reach the daemon at {address}")]
    Unreachable {
        /// Address of the daemon.
        address: Address,
        /// Error of the last attempt.
        #[source]
        source: DialError,
    },
    /// No answer came within the limit, because connections break or the daemon is stopping.
    #[error("no answer from the daemon at {address}: {message}")]
    NoAnswer {
        /// Address of the daemon.
        address: Address,
        /// Error of the last attempt.
        message: String,
    },
    /// The connection to a job broke and could not be restored. The job goes on.
    #[error("lost the connection to job {id} at {address}: {message}; the job goes on")]
    OutOfReach {
        /// The job.
        id: JobId,
        /// Address of its daemon.
        address: Address,
        /// Bytes of its log received so far, including those before the start.
        offset: u64,
        /// Error of the last attempt.
        message: String,
    },
    /// Refused permanently: the same request can never succeed.
    #[error("the daemon refused: {0}")]
    Refused(String),
    /// Another request has registered a job with this id before, so nothing was started.
    #[error("job {id} was started before, with other content: nothing is started")]
    OtherContent {
        /// The id.
        id: JobId,
    },
    /// Refused for now, even after all repeats.
    #[error("the daemon refused for now: {0}")]
    TryLater(String),
    /// The daemon does not know the job (any more), or has another log under this id.
    #[error("{}", loss.in_words(id))]
    Lost {
        /// The job.
        id: JobId,
        /// The reason.
        loss: Loss,
    },
    /// The caller's writer or callback for log or results failed. The job was stopped and removed.
    #[error("cannot hand on the output of job {id}")]
    Output {
        /// The job.
        id: JobId,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A defect of the daemon.
    #[error("the daemon failed by a defect: {0}")]
    Defect(String),
}

/// Reasons why a job is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// A client has finished it.
    Finished {
        /// Time, as the daemon wrote it.
        at: String,
    },
    /// No job has this id.
    Unknown,
    /// The requested offset is past the end of the log.
    PastEnd {
        /// The requested offset.
        offset: u64,
        /// Length of the log in bytes.
        end: u64,
    },
    /// Another reason, in the daemon's words.
    Other(String),
}

impl Loss {
    /// Reads the loss from the details of a refusal (docs/integrate/protocol.md, "Details").
    pub(super) fn new(info: Option<&ErrorInfo>, message: String) -> Self {
        let fact = |key: &str| info.and_then(|info| info.metadata.get(key)).map(String::as_str);
        let number = |key: &str| fact(key)?.parse().ok();
        match info.map(|info| info.reason.as_str()) {
            Some("unknown_job") => match fact("finished_at") {
                Some(at) => Self::Finished { at: at.to_owned() },
                None => Self::Unknown,
            },
            Some("offset_past_end") => match (number("offset"), number("log_bytes")) {
                (Some(offset), Some(end)) => Self::PastEnd { offset, end },
                _ => Self::Other(message),
            },
            _ => Self::Other(message),
        }
    }

    /// Describes the loss of the job `id`.
    fn in_words(&self, id: &JobId) -> String {
        match self {
            Self::Finished { at } => format!("job {id} was finished at {at}"),
            Self::Unknown => format!("no job {id} here"),
            Self::PastEnd { offset, end } => {
                format!("offset {offset} is past the end of the log of job {id} ({end} bytes)")
            }
            Self::Other(message) => format!("job {id} is lost: {message}"),
        }
    }
}

impl Error {
    /// True if no job has this id: the job was finished, or there never was one.
    pub const fn is_unknown_job(&self) -> bool {
        matches!(self, Self::Lost { loss: Loss::Unknown | Loss::Finished { .. }, .. })
    }

    /// True if the daemon remembers that the job was finished.
    pub const fn is_finished_job(&self) -> bool {
        matches!(self, Self::Lost { loss: Loss::Finished { .. }, .. })
    }

    /// Exit code of a command that ends with this error (cli.md, "Exit codes").
    pub fn exit(&self) -> Exit {
        match self {
            Self::Address(_) => Exit::Usage,
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::OutOfReach { .. } => Exit::Unreachable,
            Self::Refused(_) | Self::OtherContent { .. } => Exit::Refused,
            Self::TryLater(_) => Exit::TryLater,
            Self::Lost { .. } => Exit::Lost,
            Self::Output { .. } => Exit::Failure,
            Self::Defect(_) => Exit::Defect,
        }
    }

    /// Advice for the user.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Unreachable { source: DialError::NoDaemon { path, .. }, .. } => {
                format!(
                    "start a daemon with `step-runner serve --socket {}`, or name another with --address",
                    path.display()
                )
            }
            Self::Unreachable { source: DialError::Connect { source, .. }, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                "use the daemon's user, or have the daemon let yours in with its settings socket_mode and allow_uids"
                    .to_owned()
            }
            Self::Unreachable { source: DialError::NotASocket, .. } => {
                "name the daemon's socket with --socket or --address".to_owned()
            }
            Self::Unreachable { source: DialError::Connector(diagnosis), .. } => {
                return diagnosis.remedy().map(str::to_owned);
            }
            Self::OutOfReach { id, address, offset, .. } => {
                let address = address.to_string();
                let address = shell_words::quote(&address);
                let offset = if *offset == 0 { String::new() } else { format!(" --offset {offset}") };
                format!("take it up again with `step-runner follow --address {address} {id}{offset}`")
            }
            Self::Lost { loss: Loss::PastEnd { .. }, .. } => "leave out --offset to see all of it".to_owned(),
            Self::Lost { .. } => "list the jobs the daemon knows with `step-runner status`".to_owned(),
            Self::OtherContent { id } => {
                format!("choose another --id, or see what that job does with `step-runner follow {id}`")
            }
            Self::TryLater(_) => "try again later, or give --connect-timeout more time".to_owned(),
            Self::Defect(_) => "report it, with the daemon's own log".to_owned(),
            Self::Address(_)
            | Self::Unreachable { .. }
            | Self::NoAnswer { .. }
            | Self::Refused(_)
            | Self::Output { .. } => {
                return None;
            }
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (exit, remedy) = (error.exit(), error.remedy());
        let failure = Self::new(exit, error);
        match remedy {
            Some(remedy) => failure.with_remedy(remedy),
            None => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use step_runner_proto::details;

    use super::*;

    #[test]
    fn a_lost_job_is_told_in_words_and_other_words_are_quoted() {
        let lost = |reason: &str, facts: &[(&str, &str)], text: &str| {
            let facts = facts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let info = ErrorInfo::new(reason, details::DOMAIN, facts.collect::<HashMap<_, _>>());
            Error::Lost { id: JobId::parse("7").unwrap(), loss: Loss::new(Some(&info), text.to_owned()) }
        };
        let finished = lost("unknown_job", &[("finished_at", "T")], "x");
        assert_eq!(finished.to_string(), "job 7 was finished at T");
        assert!(finished.is_unknown_job() && finished.is_finished_job());
        let unknown = lost("unknown_job", &[("id", "7")], "x");
        assert_eq!(unknown.to_string(), "no job 7 here");
        assert!(unknown.is_unknown_job() && !unknown.is_finished_job());
        let past = lost("offset_past_end", &[("offset", "9"), ("log_bytes", "3")], "x");
        assert_eq!(past.to_string(), "offset 9 is past the end of the log of job 7 (3 bytes)");
        assert!(past.remedy().unwrap().contains("--offset"));
        let bare = lost("offset_past_end", &[], "offset_past_end: 9");
        assert_eq!(bare.to_string(), "job 7 is lost: offset_past_end: 9");
        let other = lost("data_loss", &[], "data_loss: cut");
        assert_eq!(other.to_string(), "job 7 is lost: data_loss: cut");
        assert!(!other.is_unknown_job());
    }
}

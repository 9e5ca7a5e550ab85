//! How a call can end without an answer.

use super::{Address, AddressError, DialError};
use crate::error::{Exit, Failure};
use crate::model::JobId;

/// Why a call has failed, after all repeats. Never holds a value of the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No connection, for good or for longer than the limit.
    #[error("cannot reach the daemon at {address}")]
    Unreachable {
        /// Where it was expected.
        address: Address,
        /// What the last attempt met.
        #[source]
        source: DialError,
    },
    /// Connections break before an answer comes, or the daemon is about to stop, for longer than the limit.
    #[error("no answer from the daemon at {address}: {message}")]
    NoAnswer {
        /// Where it is.
        address: Address,
        /// What the last attempt met.
        message: String,
    },
    /// The line to a job broke and could not be made anew. The job goes on.
    #[error("lost the line to job {id} at {address}, which goes on: {message}")]
    OutOfReach {
        /// The job.
        id: JobId,
        /// Where it runs.
        address: Address,
        /// What the last attempt met.
        message: String,
    },
    /// Refused for good: the same request will never succeed.
    #[error("the daemon refused: {0}")]
    Refused(String),
    /// Refused for now, and still after all repeats.
    #[error("the daemon refused for now: {0}")]
    TryLater(String),
    /// The daemon does not know the job (any more), or has another log under this id.
    #[error("job {id} is lost: {message}")]
    Lost {
        /// The job.
        id: JobId,
        /// What the daemon said.
        message: String,
    },
    /// What the caller gave to take the log or the results failed. The job was stopped and removed.
    #[error("cannot hand on the output of job {id}")]
    Output {
        /// The job.
        id: JobId,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A defect of the daemon.
    #[error("the daemon failed by a defect: {0}")]
    Defect(String),
}

impl Error {
    /// Exit code of a command that ends by this error (cli.md, "Exit codes").
    pub fn exit(&self) -> Exit {
        match self {
            Self::Address(_) => Exit::Usage,
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::OutOfReach { .. } => Exit::Unreachable,
            Self::Refused(_) => Exit::Refused,
            Self::TryLater(_) => Exit::TryLater,
            Self::Lost { .. } => Exit::Lost,
            Self::Output { .. } => Exit::Failure,
            Self::Defect(_) => Exit::Defect,
        }
    }

    /// What a user can do about it.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Unreachable { source: DialError::NoDaemon { path, .. }, .. } => {
                format!(
                    "start a daemon with `step-runner serve --socket {}`, or name another with --address",
                    path.display()
                )
            }
            Self::Unreachable { source: DialError::Connector(diagnosis), .. } => {
                return diagnosis.meaning().remedy().map(str::to_owned);
            }
            Self::OutOfReach { id, address, .. } => {
                let address = address.to_string();
                let address = shell_words::quote(&address);
                format!("take it up again with `step-runner follow --address {address} {id}`")
            }
            Self::Lost { .. } => "list the jobs the daemon knows with `step-runner status`".to_owned(),
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

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
        /// Bytes of its log that came, those before the start included.
        offset: u64,
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
    #[error("{}", lost(id, message))]
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

/// Beginnings of the daemon's messages (service.md §3.6) and what stands between them and what they tell.
const UNKNOWN: &str = "unknown_job: ";
const FINISHED: &str = "finished at ";
const PAST_END: &str = "offset_past_end: offset ";
const ITS_END: &str = " is past the log's end at ";

/// What it means that a job is lost. A daemon of other words is quoted.
fn lost(id: &JobId, message: &str) -> String {
    match message.strip_prefix(UNKNOWN).map(|text| text.strip_prefix(FINISHED)) {
        Some(Some(at)) => return format!("job {id} was finished at {at}"),
        Some(None) => return format!("no job {id} here"),
        None => {}
    }
    match past_end(message) {
        Some((offset, end)) => {
            format!("offset {offset} is past the end of the log of job {id} ({end} bytes)")
        }
        None => format!("job {id} is lost: {message}"),
    }
}

/// The offset that was asked for, and the end of the log.
fn past_end(message: &str) -> Option<(u64, u64)> {
    let (offset, rest) = message.strip_prefix(PAST_END)?.split_once(ITS_END)?;
    let end = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((offset.parse().ok()?, end.parse().ok()?))
}

impl Error {
    /// Whether no job has this id: the job was finished, or there never was one.
    pub fn is_unknown_job(&self) -> bool {
        matches!(self, Self::Lost { message, .. } if message.starts_with(UNKNOWN))
    }

    /// Whether the daemon remembers that the job was finished.
    pub fn is_finished_job(&self) -> bool {
        let Self::Lost { message, .. } = self else { return false };
        message.strip_prefix(UNKNOWN).is_some_and(|text| text.starts_with(FINISHED))
    }

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
            Self::OutOfReach { id, address, offset, .. } => {
                let address = address.to_string();
                let address = shell_words::quote(&address);
                let offset = if *offset == 0 { String::new() } else { format!(" --offset {offset}") };
                format!("take it up again with `step-runner follow --address {address} {id}{offset}`")
            }
            Self::Lost { message, .. } if past_end(message).is_some() => {
                "leave out --offset to see all of it".to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_job_is_told_in_words_and_other_words_are_quoted() {
        let error =
            |message: &str| Error::Lost { id: JobId::parse("7").unwrap(), message: message.to_owned() };
        for (message, said) in [
            ("unknown_job: finished at T", "job 7 was finished at T"),
            ("unknown_job: no job with this id is registered", "no job 7 here"),
            (
                "offset_past_end: offset 9 is past the log's end at 3: another log",
                "offset 9 is past the end of the log of job 7 (3 bytes)",
            ),
            ("offset_past_end: 9", "job 7 is lost: offset_past_end: 9"),
            ("data_loss: cut", "job 7 is lost: data_loss: cut"),
        ] {
            assert_eq!(error(message).to_string(), said);
        }
        assert!(error("unknown_job: no").is_unknown_job() && !error("data_loss: x").is_unknown_job());
        assert!(error("unknown_job: finished at T").is_finished_job());
        assert!(!error("unknown_job: no").is_finished_job());
    }
}

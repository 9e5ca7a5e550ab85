//! From refusals to gRPC statuses: the one table (service.md §3.6).

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::encode;
use crate::model::{Reason, Refusal};

/// Longest text in bytes: it travels in a header, percent-encoded, and clients take 16 KiB of headers.
const MAX_TEXT: usize = 4 << 10;

/// The code of a reason.
pub(crate) const fn code(reason: Reason) -> Code {
    match reason {
        Reason::InvalidId
        | Reason::MalformedSteps
        | Reason::JobAndEnv
        | Reason::InvalidVariable
        | Reason::InvalidPath
        | Reason::MalformedRequest
        | Reason::TooLarge
        | Reason::OffsetNegative => Code::InvalidArgument,
        Reason::OffsetPastEnd => Code::OutOfRange,
        Reason::UnknownJob => Code::NotFound,
        Reason::NotWritable | Reason::LimitUnavailable => Code::FailedPrecondition,
        Reason::QueueFull
        | Reason::TooManyJobs
        | Reason::TooManyFollowers
        | Reason::DiskFull
        | Reason::KeeperUnavailable => Code::ResourceExhausted,
        Reason::ShuttingDown => Code::Unavailable,
        Reason::Forbidden => Code::PermissionDenied,
        Reason::FollowersDropped => Code::Aborted,
        Reason::DataLoss => Code::DataLoss,
        Reason::DeadlineExceeded => Code::DeadlineExceeded,
        Reason::Internal => Code::Internal,
    }
}

/// `reason: text` with its code; for what may succeed later also `google.rpc.RetryInfo`.
pub(crate) fn status(refusal: &Refusal) -> Status {
    let code = code(refusal.reason);
    let mut text = refusal.to_string();
    encode::shorten(&mut text, MAX_TEXT);
    match refusal.retry_after {
        Some(delay) => {
            let details = ErrorDetails::with_retry_info(Some(delay));
            Status::with_error_details(code, text, details)
        }
        None => Status::new(code, text),
    }
}

/// What a caller is told of a panic: nothing of its text (faults.md row 59).
pub(super) fn defect() -> Refusal {
    Refusal::new(Reason::Internal, "a defect ended this call; the daemon's log says more")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn message_is_reason_and_text() {
        let status = status(&Refusal::new(Reason::UnknownJob, "no job has this id"));
        assert_eq!((status.code(), status.message()), (Code::NotFound, "unknown_job: no job has this id"));
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let status = status(&Refusal::new(Reason::MalformedSteps, "é".repeat(10_000)));
        assert!(status.message().len() <= MAX_TEXT);
        assert!(status.message().starts_with("malformed_steps: é") && status.message().ends_with("é…"));
    }

    #[test]
    fn what_may_succeed_later_says_when() {
        let status = status(&Refusal::for_now(Reason::DiskFull, "x", Duration::from_secs(2)));
        let info = status.get_details_retry_info().unwrap();
        assert_eq!(info.retry_delay, Some(Duration::from_secs(2)));
    }

    #[test]
    fn no_mistake_of_a_user_is_unknown_or_internal() {
        for reason in [Reason::MalformedSteps, Reason::TooLarge, Reason::DiskFull, Reason::UnknownJob] {
            assert!(!matches!(code(reason), Code::Unknown | Code::Internal));
        }
    }
}

//! Converts refusals to gRPC statuses, with the only table of codes (service.md §3.6).

use tonic::{Code, Status};
use tonic_types::FieldViolation;

use crate::model::{JobId, Reason, Refusal, Violation};
use crate::pb::details::{self, Details};

/// Returns the code of a reason.
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
        Reason::ShuttingDown | Reason::NotRemoved => Code::Unavailable,
        Reason::Forbidden => Code::PermissionDenied,
        Reason::FollowersDropped => Code::Aborted,
        Reason::DataLoss => Code::DataLoss,
        Reason::DeadlineExceeded => Code::DeadlineExceeded,
        Reason::Internal => Code::Internal,
    }
}

/// Makes the status of a refused call about the job `id`. The id may be any text.
pub(crate) fn of_job(id: &str, refusal: &Refusal) -> Status {
    let Refusal { reason, text, retry_after, facts, violations } = refusal;
    let id = JobId::parse(id).ok().map(|id| ("id".to_owned(), id.to_string()));
    let facts = facts.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    let violations = violations.iter().map(|Violation { field, class, description }| FieldViolation {
        reason: (*class).to_owned(),
        ..FieldViolation::new(field, description)
    });
    let details = Details {
        metadata: facts.chain(id).collect(),
        retry_after: *retry_after,
        violations: violations.collect(),
    };
    details::status(code(*reason), reason.word(), text, details)
}

/// Makes the status of a refused call that is not about a job.
pub(crate) fn status(refusal: &Refusal) -> Status {
    of_job("", refusal)
}

/// Refusal for a call that panicked. It has nothing of the panic's message (faults.md row 59).
pub(super) fn defect() -> Refusal {
    Refusal::new(Reason::Internal, "a defect ended this call; the daemon's log says more")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::StatusExt;

    use super::*;

    #[test]
    fn message_is_reason_and_text() {
        let status = status(&Refusal::new(Reason::UnknownJob, "no job has this id"));
        assert_eq!((status.code(), status.message()), (Code::NotFound, "unknown_job: no job has this id"));
    }

    #[test]
    fn details_say_reason_job_and_field_and_never_quote_what_is_no_id() {
        let refusal = Refusal::new(Reason::OffsetPastEnd, "x").about("offset").with_fact("log_bytes", "7");
        let info = of_job("42", &refusal).get_details_error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("offset_past_end", "step-runner"));
        let metadata = [("id", "42"), ("field", "offset"), ("log_bytes", "7")];
        assert_eq!(info.metadata, metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        let info = of_job("a secret", &Refusal::new(Reason::InvalidId, "x").about("id"));
        assert_eq!(info.get_details_error_info().unwrap().metadata, [("field".into(), "id".into())].into());
    }

    #[test]
    fn mistakes_in_a_request_are_field_violations() {
        let violation =
            Violation { field: "steps:3:7".into(), class: "undeclared", description: "no such input".into() };
        let refusal = Refusal { violations: vec![violation], ..Refusal::new(Reason::MalformedSteps, "x") };
        let request = status(&refusal).get_details_bad_request().unwrap();
        let [violation] = request.field_violations.as_slice() else { panic!("{request:?}") };
        assert_eq!(
            (violation.field.as_str(), violation.reason.as_str(), violation.description.as_str()),
            ("steps:3:7", "undeclared", "no such input")
        );
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

//! Details of refused calls: `google.rpc.ErrorInfo` and its companions, in the trailer `grpc-status-details-bin`. The
//! daemon writes them within the bounds of this module; the client reads them.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{BadRequest, ErrorDetail, ErrorInfo, FieldViolation, RetryInfo, StatusExt};

/// Domain of our reasons, to tell them from those of proxies and libraries.
pub const DOMAIN: &str = "step-runner";

/// Bytes for message and details together as sent: the message percent-encoded, the details in base64. Clients based on
/// the C core and on Java accept 8 KiB of headers by default; the remainder is for the other headers.
const ROOM: usize = 7_400;

/// Share of [`ROOM`] for the message, which is sent in `grpc-message` and in the details: clients compare them.
const TEXT_ROOM: usize = 4_400;

/// Maximum number of violations.
const MAX_VIOLATIONS: usize = 20;

/// Maximum length of one violation's description, in bytes.
const MAX_DESCRIPTION: usize = 400;

/// Marks the end of a shortened text.
const CUT: &str = "…";

/// Details of a refusal.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// `ErrorInfo.metadata`.
    pub metadata: HashMap<String, String>,
    /// Delay before the client may repeat the call: `RetryInfo`.
    pub retry_after: Option<Duration>,
    /// Mistakes in the request: `BadRequest`.
    pub violations: Vec<FieldViolation>,
}

/// Makes the status `reason: text` with details. Shortens the text, then drops violations, until the size fits.
pub fn status(code: Code, reason: &str, text: &str, details: Details) -> Status {
    let Details { metadata, retry_after, mut violations } = details;
    violations.truncate(MAX_VIOLATIONS);
    for violation in &mut violations {
        cut(&mut violation.description, MAX_DESCRIPTION, |_| 1);
    }
    let mut message = format!("{reason}: {text}");
    cut(&mut message, TEXT_ROOM, cost);
    let info = ErrorInfo::new(reason, DOMAIN, metadata);
    loop {
        let mut details = vec![ErrorDetail::from(info.clone())];
        details.extend(retry_after.map(|delay| RetryInfo::new(Some(delay)).into()));
        if !violations.is_empty() {
            details.push(BadRequest::new(violations.clone()).into());
        }
        let status = Status::with_error_details_vec(code, message.as_str(), details);
        if sent_len(&status) <= ROOM || violations.pop().is_none() {
            return status;
        }
    }
}

/// Returns the details of a refusal, or `None` if the daemon did not make this `status` (a proxy or library may have).
pub fn info(status: &Status) -> Option<ErrorInfo> {
    status.get_details_error_info().filter(|info| info.domain == DOMAIN)
}

/// Returns the size of message and details as sent, in bytes.
fn sent_len(status: &Status) -> usize {
    status.message().bytes().map(encoded_len).sum::<usize>() + status.details().len().div_ceil(3) * 4
}

/// Upper bound of the bytes that one byte of the message takes in `grpc-message`.
const fn encoded_len(byte: u8) -> usize {
    let encoded = !byte.is_ascii_graphic()
        || matches!(byte, b'"' | b'#' | b'%' | b'<' | b'>' | b'`' | b'?' | b'{' | b'}');
    if encoded { 3 } else { 1 }
}

/// Upper bound of the bytes that one byte of the message takes in `grpc-message` and the details together.
const fn cost(byte: u8) -> usize {
    encoded_len(byte) + 2
}

/// Shortens a text at a character boundary until its bytes cost at most `room`, and appends [`CUT`].
fn cut(text: &mut String, room: usize, cost: fn(u8) -> usize) {
    let price = |text: &str| text.bytes().map(cost).sum::<usize>();
    if price(text) <= room {
        return;
    }
    let mut left = room.saturating_sub(price(CUT));
    let end = text.bytes().position(|byte| match left.checked_sub(cost(byte)) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    });
    text.truncate(text.floor_char_boundary(end.unwrap_or(text.len())));
    text.push_str(CUT);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(count: usize, description: &str) -> Vec<FieldViolation> {
        (0..count).map(|n| FieldViolation::new(format!("steps:{n}:1"), description)).collect()
    }

    /// Size of the headers as sent, with the 32 bytes that HTTP/2 counts for each.
    fn header_list(status: &Status) -> usize {
        let headers = status.clone().into_http::<()>().into_parts().0.headers;
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
    }

    #[test]
    fn whatever_is_refused_fits_into_the_headers_that_clients_take() {
        for text in
            ["x".repeat(50_000), "a b".repeat(5_000), "字".repeat(9_000), "%\n".repeat(9_000), String::new()]
        {
            for list in [
                violations(0, ""),
                violations(20, &text),
                violations(20, "a short one"),
                violations(2_000, "x"),
            ] {
                let metadata =
                    [("id", 128), ("field", 64)].map(|(key, len)| (key.to_owned(), "x".repeat(len)));
                let details = Details { metadata: metadata.into(), violations: list, ..Details::default() };
                let status = status(Code::InvalidArgument, "malformed_steps", &text, details);
                assert!(header_list(&status) <= 8_000, "{}", header_list(&status));
                let info = info(&status).unwrap();
                assert_eq!((info.reason.as_str(), info.metadata["id"].len()), ("malformed_steps", 128));
                assert!(status.message().starts_with("malformed_steps: "));
            }
        }
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters_and_leaves_room_for_violations() {
        let details = Details { violations: violations(20, &"é".repeat(90)), ..Details::default() };
        let status = status(Code::InvalidArgument, "malformed_steps", &"é".repeat(10_000), details);
        assert!(status.message().ends_with("é…"), "{}", status.message());
        let kept = status.get_details_bad_request().unwrap().field_violations;
        assert!((5..20).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[0].description, "é".repeat(90));
    }

    #[test]
    fn message_and_details_say_the_same_as_clients_demand() {
        let status = status(Code::NotFound, "unknown_job", "no job has this id", Details::default());
        assert_eq!(status.message(), "unknown_job: no job has this id");
        let details: tonic_types::pb::Status = prost::Message::decode(status.details()).unwrap();
        assert_eq!((details.code, details.message.as_str()), (Code::NotFound as i32, status.message()));
    }

    #[test]
    fn details_of_another_domain_are_not_the_daemons() {
        let foreign = Status::with_error_details_vec(
            Code::Unavailable,
            "x",
            [ErrorInfo::new("unknown_job", "example.com", HashMap::new()).into()],
        );
        assert!(info(&foreign).is_none() && info(&Status::unavailable("unknown_job: x")).is_none());
    }
}

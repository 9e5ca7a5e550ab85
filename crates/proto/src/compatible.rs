//! The compatible service `proto` (service.md §4). Some field numbers of its messages are guesses; reading those fields
//! is lenient.

use bytes::Bytes;
use prost::{DecodeError, Message, Name};

use super::Decodable;
use messages::guesses;

use step_runner_model::error::Chain;

/// Messages of which every field number is certain.
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages/proto.rs"));

    /// Messages with guessed field numbers.
    pub mod guesses {
        include!(concat!(env!("OUT_DIR"), "/messages/proto.guesses.rs"));
    }
}

/// The service.
pub mod service {
    include!(concat!(env!("OUT_DIR"), "/service/proto.rs"));
}

/// Request to run a job. On the wire it is one message with the fields of both parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRequest {
    /// Fields with certain numbers.
    pub certain: messages::RunRequest,
    /// Fields with guessed numbers. A field of another type than guessed is left out.
    pub guessed: guesses::RunRequest,
}

impl Decodable for RunRequest {
    fn name() -> String {
        messages::RunRequest::full_name()
    }

    fn read(bytes: Bytes) -> Result<Self, DecodeError> {
        let certain = messages::RunRequest::decode(bytes.clone())?;
        let mut guessed = guesses::RunRequest::default();
        // Fields before the mismatch stay.
        if let Err(error) = guessed.merge(bytes) {
            tracing::debug!(error = %Chain(&error), "a field of RunRequest is not what its number was guessed to be; it is left out");
        }
        Ok(Self { certain, guessed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guessed_timeout(seconds: i64) -> guesses::RunRequest {
        let timeout = prost_types::Duration { seconds, nanos: 0 };
        guesses::RunRequest { timeout: Some(timeout), graceful_exit_timeout: None }
    }

    #[test]
    fn a_request_is_read_from_one_message() {
        let certain = messages::RunRequest { id: "42".into(), ..Default::default() };
        let bytes = [certain.encode_to_vec(), guessed_timeout(7).encode_to_vec()].concat();
        let request = RunRequest::read(bytes.into()).unwrap();
        assert_eq!(request, RunRequest { certain, guessed: guessed_timeout(7) });
    }

    #[test]
    fn a_guess_that_is_wrong_is_left_out_and_nothing_else() {
        let certain = messages::RunRequest { id: "42".into(), steps: "[]".into(), ..Default::default() };
        // A number, a text and eight bytes.
        for other in
            [&[7 << 3, 9][..], &[7 << 3 | 2, 3, b'1', b'0', b'm'], &[7 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 1]]
        {
            for bytes in
                [[&certain.encode_to_vec(), other].concat(), [other, &certain.encode_to_vec()].concat()]
            {
                let request = RunRequest::read(bytes.into()).unwrap();
                assert_eq!(request.certain, certain);
                assert_eq!(request.guessed.timeout.unwrap_or_default(), prost_types::Duration::default());
            }
        }
    }

    #[test]
    fn what_is_certain_must_be_right() {
        for bytes in [&[1 << 3 | 2, 1, 0xff][..], &[1 << 3, 1], &[6 << 3 | 2, 5, b'x'], &[0x0f]] {
            assert!(RunRequest::read(Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
    }
}

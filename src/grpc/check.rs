//! Looks at a request to run a job without running it: what every service makes of any bytes.

use bytes::Bytes;
use prost::Message;

use super::{compatible, draft, validate};
use crate::model::{Reason, Refusal};
use crate::pb::Incoming;
use crate::pb::compatible as compatible_messages;
use crate::pb::{v0, v1};

/// Whether `bytes`, a request to run a job as it is sent, has the shape of one: to the canonical service, to the compatible
/// one, and to the first draft, in this order. Nothing of it runs.
pub fn check_run(bytes: &[u8]) -> [Result<(), Refusal>; 3] {
    const DIGEST: [u8; 32] = [0; 32];
    let malformed = |_| Refusal::new(Reason::MalformedRequest, "it is no valid protobuf message of its type");
    let canonical = v1::RunRequest::decode(bytes)
        .map_err(malformed)
        .and_then(|request| validate::run_request(validate::job_id(&request.id)?, DIGEST, request).map(drop));
    let read = compatible_messages::RunRequest::read(Bytes::copy_from_slice(bytes));
    let compatible = read.map_err(malformed).and_then(|request| {
        let compatible_messages::RunRequest { certain, guessed } = request;
        compatible::run_request(validate::job_id(&certain.id)?, DIGEST, certain, guessed).map(drop)
    });
    let draft = v0::RunRequest::decode(bytes)
        .map_err(malformed)
        .and_then(|request| draft::run_request(validate::job_id(&request.id)?, DIGEST, request).map(drop));
    [canonical, compatible, draft]
}

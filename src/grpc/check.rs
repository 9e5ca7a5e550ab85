//! Checks a request to run a job without running it, and client bytes without a connection. For the fuzz targets.

use bytes::Bytes;
use prost::Message;

use super::{accept, compatible, draft, validate};
use crate::config::JobLogFormat;
use crate::model::{Reason, Refusal};
use crate::pb::Decodable;
use crate::pb::compatible as compatible_messages;
use crate::pb::{v0, v1};

/// Checks if `bytes`, an encoded request to run a job, has a valid shape for the canonical service, the compatible one,
/// and the first draft, in this order. Runs nothing.
pub fn check_run(bytes: &[u8]) -> [Result<(), Refusal>; 3] {
    const DIGEST: [u8; 32] = [0; 32];
    let malformed = |_| Refusal::new(Reason::MalformedRequest, "it is no valid protobuf message of its type");
    let canonical = v1::RunRequest::decode(bytes)
        .map_err(malformed)
        .and_then(|request| validate::run_request(validate::job_id(&request.id)?, DIGEST, request).map(drop));
    let read = compatible_messages::RunRequest::read(Bytes::copy_from_slice(bytes));
    let compatible = read.map_err(malformed).and_then(|request| {
        let compatible_messages::RunRequest { certain, guessed } = request;
        compatible::run_request(validate::job_id(&certain.id)?, DIGEST, certain, guessed, JobLogFormat::Auto)
            .map(drop)
    });
    let draft = v0::RunRequest::decode(bytes)
        .map_err(malformed)
        .and_then(|request| draft::run_request(validate::job_id(&request.id)?, DIGEST, request).map(drop));
    [canonical, compatible, draft]
}

/// Runs `bytes` of a client, in pieces of `piece` bytes, through the filter that protects the HTTP/2 library. Returns
/// the bytes that the library would get, or `None` if a header block is too large.
pub fn check_frames(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    accept::filtered(bytes, piece.max(1))
}

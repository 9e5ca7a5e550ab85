//! The messages that the daemon stores of a job's steps for FollowSteps: the event of a step, the kinds of stored messages, and the
//! functions that encode them. The services own the encoding (`grpc/encode.rs`); the actors call it through [`Encode`].

use crate::model::StepResult;

/// Encodes what is masked to the bytes that are stored and sent.
#[derive(Clone, Copy)]
pub struct Encode {
    /// Encodes a result.
    pub result: fn(&StepResult) -> Vec<u8>,
    /// Encodes an event.
    pub event: fn(&StepEvent) -> Vec<u8>,
}

/// Something that has happened to a step: it has begun, is tried again, has ended or is skipped.
#[derive(Clone, PartialEq)]
pub struct StepEvent {
    /// Number of the step within its job; the root's is 0.
    pub call: u32,
    /// Number of the step that it belongs to.
    pub parent: u32,
    /// True if it is a member of a group.
    pub is_member: bool,
    /// Number of the stream that its processes write.
    pub slot: u8,
    /// Its place: behind so many bytes of the log.
    pub log_bytes: u64,
    /// Its result so far, without those of its steps.
    pub result: StepResult,
}

/// Kind of a stored message of FollowSteps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKind {
    /// Something has happened to a step.
    Event,
    /// As an event, in a form that only earlier versions stored.
    News,
    /// Result of a step of the job's own list.
    Step,
    /// The job's own result.
    Root,
}

//! Converts the daemon's data to messages. Every match and every destructuring is exhaustive: no wildcard arm, no `..`.

use bytes::Bytes;
use prost::{DecodeError, Message};
use prost_types::value::Kind as PbKind;

use super::value;
use crate::actors::left_over::LeftOver;
use crate::actors::log_sink::LogPart;
use crate::actors::stored::{StepEvent, StoredKind};
use crate::actors::view::JobStatus;
use crate::clock;
use crate::model::{
    CancelCause, EndClass, ExecResult, JobState, Reason, ReferenceInfo, Refusal, StepFacts, StepInfo,
    StepOutcome, StepResult, StepStatus, StepUsage,
};
use crate::pb::v1;

/// Converts microseconds since the epoch.
pub(super) fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: (micros.rem_euclid(1_000_000) * 1_000) as i32,
    }
}

/// Makes the message of FollowSteps of what is stored. `None` for news, which earlier versions stored.
pub(super) fn stored(bytes: &[u8]) -> Result<Option<v1::FollowStepsResponse>, Refusal> {
    let unreadable = |error: DecodeError| {
        Refusal::new(Reason::DataLoss, format!("a stored step result cannot be read: {error}"))
    };
    Ok(match stored_kind(bytes) {
        StoredKind::News => None,
        StoredKind::Event => {
            let event = v1::StepEvent::decode(bytes).map_err(unreadable)?;
            let log_bytes = event.log_bytes;
            Some(v1::FollowStepsResponse { result: None, event: Some(event), log_bytes })
        }
        StoredKind::Step | StoredKind::Root => {
            let result = Some(v1::StepResult::decode(bytes).map_err(unreadable)?);
            Some(v1::FollowStepsResponse { result, event: None, log_bytes: 0 })
        }
    })
}

/// Maximum size in bytes of an answer with the states of all jobs: below the clients' default limit.
const MAX_STATES: usize = 3 << 20;

/// Makes one answer with the states of jobs.
pub(super) fn statuses(jobs: Vec<JobStatus>, (left, total): (Vec<LeftOver>, usize)) -> v1::StatusResponse {
    let mut answer = v1::StatusResponse {
        jobs: jobs.into_iter().map(status).collect(),
        left_over: left.into_iter().map(left_over).collect(),
        left_over_total: i32::try_from(total).unwrap_or(i32::MAX),
    };
    let len = answer.encoded_len();
    shorten_messages(len, &mut answer.jobs, |job| {
        job.current_step.iter_mut().chain([&mut job.message]).collect()
    });
    answer
}

fn left_over(LeftOver { id, path, reason, since }: LeftOver) -> v1::LeftOver {
    let id = id.map(|id| id.to_string()).unwrap_or_default();
    let path = path.to_string_lossy().into_owned();
    v1::LeftOver { id, path, reason, since: Some(since.into()) }
}

/// Shortens the messages of `jobs`, all to the same length, if their answer of `len` bytes is too large.
pub(super) fn shorten_messages<J>(len: usize, jobs: &mut [J], messages: fn(&mut J) -> Vec<&mut String>) {
    if len <= MAX_STATES {
        return;
    }
    let mut all: Vec<&mut String> = jobs.iter_mut().flat_map(messages).collect();
    let texts: usize = all.iter().map(|message| message.len()).sum();
    let room = MAX_STATES.saturating_sub(len - texts) / all.len().max(1);
    for message in &mut all {
        shorten(message, room);
    }
}

/// Shortens a text to at most `max` bytes at a character boundary. Ends it with `…` if that fits.
pub(super) fn shorten(text: &mut String, max: usize) {
    const CUT: &str = "…";
    if text.len() <= max {
        return;
    }
    text.truncate(text.floor_char_boundary(max.saturating_sub(CUT.len())));
    if text.len() + CUT.len() <= max {
        text.push_str(CUT);
    }
}

/// Converts the state of a job.
pub(super) fn status(status: JobStatus) -> v1::Status {
    let JobStatus {
        id,
        registered: _,
        state,
        exit_code,
        is_defect: _,
        cancel_cause,
        message,
        start_time,
        end_time,
        log_bytes,
        steps_done,
        allowed_failures,
        cpu_time,
        peak_memory,
        current,
        queue_position,
        is_paused,
        usage: used,
    } = status;
    v1::Status {
        id: id.to_string(),
        finished: matches!(state, JobState::Ended(_)),
        exit_code,
        start_time: start_time.map(timestamp),
        end_time: end_time.map(timestamp),
        state: state_number(state).into(),
        message,
        log_bytes: log_bytes as i64,
        steps_done: steps_done as i32,
        cpu_time: cpu_time.and_then(|t| t.try_into().ok()),
        peak_memory: peak_memory.map_or(0, |bytes| bytes as i64),
        current_step: current.names.to_vec(),
        step_number: current.number as i32,
        steps_total: current.total as i32,
        queue_position: queue_position as i32,
        paused: is_paused,
        usage: used.map(usage),
        elapsed: start_time.map(|start| elapsed(start, end_time)),
        allowed_failures: allowed_failures as i32,
        cancel_cause: cancel_cause.map_or(v1::CancelCause::Unspecified, cause_number).into(),
    }
}

/// Returns the time between two times in microseconds. Without an end, now is the end.
fn elapsed(start: i64, end: Option<i64>) -> prost_types::Duration {
    let micros = (end.unwrap_or_else(clock::now_micros) - start).max(0);
    prost_types::Duration { seconds: micros / 1_000_000, nanos: (micros % 1_000_000 * 1_000) as i32 }
}

fn usage(used: StepUsage) -> v1::Usage {
    let StepUsage { user, system, peak_memory, read, written } = used;
    v1::Usage {
        user_time: user.try_into().ok(),
        system_time: system.try_into().ok(),
        peak_memory_bytes: peak_memory.map(|bytes| bytes as i64),
        read_bytes: read.map(|bytes| bytes as i64),
        written_bytes: written.map(|bytes| bytes as i64),
    }
}

const fn cause_number(cause: CancelCause) -> v1::CancelCause {
    match cause {
        CancelCause::Cancel => v1::CancelCause::Cancel,
        CancelCause::Finish => v1::CancelCause::Finish,
        CancelCause::Shutdown => v1::CancelCause::Shutdown,
        CancelCause::QueuedTooLong => v1::CancelCause::QueuedTooLong,
        CancelCause::TimeLimit => v1::CancelCause::TimeLimit,
        CancelCause::Runaway => v1::CancelCause::Runaway,
        CancelCause::Silent => v1::CancelCause::Silent,
    }
}

const fn state_number(state: JobState) -> v1::State {
    match state {
        JobState::Queued => v1::State::Queued,
        JobState::Running => v1::State::Running,
        JobState::Cancelling => v1::State::Cancelling,
        JobState::Ended(EndClass::Success) => v1::State::Success,
        JobState::Ended(EndClass::Failure) => v1::State::Failure,
        JobState::Ended(EndClass::Cancelled) => v1::State::Cancelled,
        JobState::Ended(EndClass::Timeout) => v1::State::Timeout,
        JobState::Ended(EndClass::Interrupted) => v1::State::Interrupted,
    }
}

/// Minimum payload of a DATA frame, in bytes. HTTP/2 implementations count shorter frames that a slow reader leaves
/// unread, on the whole connection, and close it if there are too many (faults.md §3, fact 1).
const SHORT_FRAME: usize = 256;

/// Source of the padding.
static PADDING: [u8; SHORT_FRAME] = [0; SHORT_FRAME];

/// Makes the next piece of a log, padded to [`SHORT_FRAME`]. Joining lines makes short pieces rare on one stream, but a
/// connection carries many streams and its reader may pause for long.
pub(super) fn log_piece(data: Bytes) -> v1::FollowLogsResponse {
    let padding = PADDING.get(data.len()..).unwrap_or_default();
    v1::FollowLogsResponse { data, padding: Bytes::from_static(padding), unfinished: Bytes::new() }
}

/// Makes the message of a part of a log. An unfinished line is padded like a piece.
pub(super) fn log_part(part: LogPart) -> v1::FollowLogsResponse {
    match part {
        LogPart::Bytes(data) => log_piece(data),
        LogPart::Unfinished(line) => {
            let padding = PADDING.get(line.len()..).unwrap_or_default();
            v1::FollowLogsResponse {
                data: Bytes::new(),
                padding: Bytes::from_static(padding),
                unfinished: line,
            }
        }
    }
}

/// Maximum size of a message of FollowSteps, in bytes. Larger results lose their deepest parts (service.md §3.3).
const MAX_RESULT: usize = 3 << 20;

/// The field that tells an event from a result, which never has it. Others are skipped.
#[derive(Clone, Copy, PartialEq, Message)]
struct EventHead {
    /// Field `result` of an event.
    #[prost(message, optional, tag = "3")]
    result: Option<Skipped>,
}

/// The fields that classify a stored result. Others are skipped.
#[derive(Clone, Copy, PartialEq, Message)]
struct ResultHead {
    /// Field `step`, if present.
    #[prost(message, optional, tag = "1")]
    step: Option<Skipped>,
    /// Field `status`.
    #[prost(enumeration = "v1::step_result::Status", tag = "4")]
    status: i32,
}

/// A message whose fields are all skipped.
#[derive(Clone, Copy, PartialEq, Message)]
struct Skipped {}

/// Classifies what is stored of a job's steps.
pub fn stored_kind(stored: &[u8]) -> StoredKind {
    if matches!(EventHead::decode(stored), Ok(EventHead { result: Some(_) })) {
        return StoredKind::Event;
    }
    match ResultHead::decode(stored) {
        Ok(head) if head.status() == v1::step_result::Status::Running => StoredKind::News,
        Ok(ResultHead { step: None, .. }) => StoredKind::Root,
        Ok(_) | Err(_) => StoredKind::Step,
    }
}

/// Maximum length of a single text of a result that is still too large, in bytes. A name is not longer.
const SHORT_TEXT: usize = 4 << 10;

/// The parts that a result gives up, in this order, until it fits. Values go before their names. What is left at the end
/// is a fixed number of short texts.
const SACRIFICES: [fn(&mut v1::StepResult); 10] = [
    |result| result.attempts.clear(),
    |result| result.outputs.values_mut().for_each(|value| *value = null()),
    |result| result.exports.clear(),
    |result| result.env.clear(),
    |result| result.spec_definition = None,
    |result| result.exec_result.iter_mut().for_each(|exec| exec.command.clear()),
    |result| result.step.iter_mut().for_each(|step| step.env.clear()),
    |result| result.step.iter_mut().for_each(|step| step.inputs.clear()),
    |result| result.outputs.clear(),
    shorten_texts,
];

/// Shortens the texts that no earlier sacrifice removes.
fn shorten_texts(result: &mut v1::StepResult) {
    let v1::StepResult { step, exec_result, place, reason, .. } = result;
    let mut texts = vec![place, reason];
    texts.extend(exec_result.as_mut().map(|exec| &mut exec.work_dir));
    if let Some(v1::Step { name, step: reference, .. }) = step {
        texts.push(name);
        if let Some(v1::step::Reference { url, filename, version, step_path, .. }) = reference {
            *step_path = None;
            texts.extend([url, filename, version]);
        }
    }
    for text in texts.into_iter().filter(|text| text.len() > SHORT_TEXT) {
        text.truncate(text.floor_char_boundary(SHORT_TEXT));
        text.push('…');
    }
}

/// Encodes a result for storage.
pub fn step_result_bytes(result: &StepResult) -> Vec<u8> {
    reduced(result).encode_to_vec()
}

/// Encodes an event for storage.
pub fn step_event_bytes(event: &StepEvent) -> Vec<u8> {
    let StepEvent { call, parent, is_member, slot, log_bytes, result } = event;
    let log_bytes = *log_bytes as i64;
    let (result, stream) = (Some(reduced(result)), u32::from(*slot));
    let member = *is_member;
    v1::StepEvent { call: *call, parent: *parent, result, log_bytes, stream, member }.encode_to_vec()
}

/// Makes the message of a mark alone.
pub(super) fn mark(log_bytes: u64) -> v1::FollowStepsResponse {
    v1::FollowStepsResponse { log_bytes: log_bytes as i64, ..v1::FollowStepsResponse::default() }
}

/// Converts a result, reduced to [`MAX_RESULT`].
fn reduced(result: &StepResult) -> v1::StepResult {
    let mut message = step_result(result, 1);
    let mut depth = depth_of(&message);
    while message.encoded_len() > MAX_RESULT && depth > 1 {
        depth -= 1;
        cut_below(&mut message, depth);
    }
    for sacrifice in SACRIFICES {
        if message.encoded_len() <= MAX_RESULT {
            break;
        }
        sacrifice(&mut message);
    }
    message
}

fn depth_of(result: &v1::StepResult) -> usize {
    1 + result.sub_step_results.iter().map(depth_of).max().unwrap_or(0)
}

fn cut_below(result: &mut v1::StepResult, depth: usize) {
    if depth <= 1 {
        result.sub_step_results.clear();
    } else {
        result.sub_step_results.iter_mut().for_each(|sub| cut_below(sub, depth - 1));
    }
}

/// Nesting of messages that common decoders allow (prost, C++ and Java: 100), less the messages around a value.
const MAX_NESTING: usize = 90;

/// Levels of arrays and objects that are encoded as such. Deeper ones become JSON text.
const MAX_LEVELS: usize = 16;

/// Returns the levels for the values of a result at `depth`, 1 for the outermost. A level is up to three messages.
fn levels_at(depth: usize) -> usize {
    (MAX_NESTING.saturating_sub(depth) / 3).min(MAX_LEVELS)
}

/// Converts a result at `depth`, 1 for the outermost. Results nest at most 64 deep (language.md §6): bounded recursion.
fn step_result(result: &StepResult, depth: usize) -> v1::StepResult {
    let levels = levels_at(depth);
    let StepResult {
        step,
        definition,
        status,
        outputs,
        exports,
        env,
        exec,
        sub_steps,
        facts,
        outcome,
        reason,
        error_class,
        exit_code: _,
        attempts,
    } = result;
    let StepFacts { start, end, usage: used, number, total, steps, place, log_start, log_end } = facts;
    v1::StepResult {
        step: step.as_ref().map(|step| step_info(step, levels)),
        spec_definition: definition.as_deref().map(super::definition::message),
        status: step_status(*status).into(),
        outputs: outputs.iter().map(|(k, v)| (k.clone(), value::of_json(v, levels))).collect(),
        exports: exports.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        env: env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        exec_result: exec.as_ref().map(exec_result),
        sub_step_results: sub_steps.iter().map(|sub| step_result(sub, depth + 1)).collect(),
        start_time: start.map(timestamp),
        end_time: end.map(timestamp),
        usage: used.map(usage),
        number: *number as i32,
        total: *total as i32,
        steps: steps.map(|steps| steps as i32),
        place: place.clone(),
        log_start: log_start.map(|length| length as i64),
        log_end: log_end.map(|length| length as i64),
        outcome: step_outcome(*outcome).into(),
        reason: reason.clone(),
        error_class: error_class.unwrap_or_default().to_owned(),
        attempts: attempts.iter().map(|attempt| step_result(attempt, depth + 1)).collect(),
    }
}

const fn step_outcome(outcome: StepOutcome) -> v1::step_result::Outcome {
    match outcome {
        StepOutcome::Unspecified => v1::step_result::Outcome::Unspecified,
        StepOutcome::Success => v1::step_result::Outcome::Success,
        StepOutcome::Failure => v1::step_result::Outcome::Failure,
        StepOutcome::AllowedFailure => v1::step_result::Outcome::AllowedFailure,
        StepOutcome::Skipped => v1::step_result::Outcome::Skipped,
        StepOutcome::Cancelled => v1::step_result::Outcome::Cancelled,
    }
}

fn exec_result(exec: &ExecResult) -> v1::step_result::ExecResult {
    let ExecResult { command, work_dir, exit_code } = exec;
    v1::step_result::ExecResult {
        command: command.clone(),
        work_dir: work_dir.clone(),
        exit_code: *exit_code,
    }
}

const fn step_status(status: StepStatus) -> v1::step_result::Status {
    match status {
        StepStatus::Unspecified => v1::step_result::Status::Unspecified,
        StepStatus::Running => v1::step_result::Status::Running,
        StepStatus::Success => v1::step_result::Status::Success,
        StepStatus::Failure => v1::step_result::Status::Failure,
        StepStatus::Cancelled => v1::step_result::Status::Cancelled,
    }
}

fn step_info(step: &StepInfo, levels: usize) -> v1::Step {
    let StepInfo { name, reference, env, inputs } = step;
    v1::Step {
        name: name.clone(),
        step: Some(reference_info(reference)),
        env: env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        inputs: inputs.iter().map(|(k, v)| (k.clone(), value::of_json(v, levels))).collect(),
    }
}

fn reference_info(reference: &ReferenceInfo) -> v1::step::Reference {
    let ReferenceInfo { protocol, url, path, filename, version } = reference;
    let kind = match protocol.as_str() {
        "local" => v1::StepReferenceProtocol::Local,
        "git" => v1::StepReferenceProtocol::Git,
        "oci" => v1::StepReferenceProtocol::Oci,
        "dist" => v1::StepReferenceProtocol::Dist,
        "dynamic" => v1::StepReferenceProtocol::Dynamic,
        _ => v1::StepReferenceProtocol::Unspecified,
    };
    v1::step::Reference {
        protocol: kind.into(),
        url: url.clone(),
        filename: filename.clone(),
        version: version.clone(),
        step_path: Some(v1::step::reference::StepPath::Paths(v1::PathParts { parts: path.clone() })),
        ..v1::step::Reference::default()
    }
}

const fn null() -> prost_types::Value {
    prost_types::Value { kind: Some(PbKind::NullValue(0)) }
}

#[cfg(test)]
mod tests;

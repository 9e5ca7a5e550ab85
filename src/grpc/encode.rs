//! From what the daemon knows to messages. Exhaustive: no wildcard arm, no `..`.

use bytes::Bytes;
use prost::Message;
use prost_types::value::Kind as PbKind;

use crate::actors::view::JobStatus;
use crate::model::{
    EndClass, ExecResult, JobState, Reason, ReferenceInfo, Refusal, StepInfo, StepResult, StepStatus,
};
use crate::pb::v1;

/// A point in time from microseconds since the epoch.
pub(super) fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: (micros.rem_euclid(1_000_000) * 1_000) as i32,
    }
}

/// A stored result as a message.
pub(super) fn stored_result(bytes: &[u8]) -> Result<v1::StepResult, Refusal> {
    v1::StepResult::decode(bytes)
        .map_err(|_| Refusal::new(Reason::DataLoss, "a stored step result cannot be read"))
}

/// Largest answer with the states of all jobs in bytes: below what clients take by default.
const MAX_STATES: usize = 3 << 20;

/// States of jobs in one answer.
pub(super) fn statuses(jobs: Vec<JobStatus>) -> v1::StatusResponse {
    let mut answer = v1::StatusResponse { jobs: jobs.into_iter().map(status).collect() };
    let len = answer.encoded_len();
    shorten_messages(len, &mut answer.jobs, |job| vec![&mut job.message]);
    answer
}

/// If these jobs are too many for one answer, which is `len` bytes long, their messages are cut, each to the same length.
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

/// Cuts a text to at most `max` bytes between two characters; `…` says so where it has room.
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

/// State of a job.
pub(super) fn status(status: JobStatus) -> v1::Status {
    let JobStatus {
        id,
        registered: _,
        state,
        exit_code,
        message,
        start_time,
        end_time,
        log_bytes,
        steps_done,
        cpu_time,
        peak_memory,
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

/// HTTP/2 implementations count DATA frames shorter than this that a slow reader has not read, for the connection as a
/// whole, and close it when they are too many (faults.md, fact 1).
const SHORT_FRAME: usize = 256;

/// What short messages are filled up with.
static PADDING: [u8; SHORT_FRAME] = [0; SHORT_FRAME];

/// The next bytes of a log, filled up so that their DATA frame is no short one: joining lines makes such frames rare on
/// one stream, but a connection carries many and a reader may rest for long.
pub(super) fn log_piece(data: Bytes) -> v1::FollowLogsResponse {
    let padding = PADDING.get(data.len()..).unwrap_or_default();
    v1::FollowLogsResponse { data, padding: Bytes::from_static(padding) }
}

/// Largest message of FollowSteps in bytes; larger results lose their deepest parts (service.md §3.3).
const MAX_RESULT: usize = 3 << 20;

/// Whether a stored result is that of the root, which belongs to no step.
pub fn is_root_result(stored: &[u8]) -> bool {
    v1::StepResult::decode(stored).is_ok_and(|result| result.step.is_none())
}

/// What a result gives up, in this order, until it fits: outputs keep their names, the rest goes whole.
const SACRIFICES: [fn(&mut v1::StepResult); 7] = [
    |result| result.outputs.values_mut().for_each(|value| *value = null()),
    |result| result.exports.clear(),
    |result| result.env.clear(),
    |result| result.spec_definition = None,
    |result| result.exec_result.iter_mut().for_each(|exec| exec.command.clear()),
    |result| result.step.iter_mut().for_each(|step| step.env.clear()),
    |result| result.step.iter_mut().for_each(|step| step.inputs.clear()),
];

/// A result as a message, cut to [`MAX_RESULT`].
pub fn step_result_bytes(result: &StepResult) -> Vec<u8> {
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
    message.encode_to_vec()
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

/// Messages that common decoders let be nested in each other (prost, C++ and Java: 100), less those around a value.
const MAX_NESTING: usize = 90;

/// Levels of arrays and objects that are encoded as such; what lies deeper is shown as its JSON text.
const MAX_LEVELS: usize = 16;

/// Levels for the values of a result at `depth`, 1 for the outermost: each level is up to three messages.
fn levels_at(depth: usize) -> usize {
    (MAX_NESTING.saturating_sub(depth) / 3).min(MAX_LEVELS)
}

/// Results are nested at most 64 deep (language.md §6), so this recursion is bounded. `depth` is 1 for the outermost.
fn step_result(result: &StepResult, depth: usize) -> v1::StepResult {
    let levels = levels_at(depth);
    let StepResult { step, definition, status, outputs, exports, env, exec, sub_steps } = result;
    v1::StepResult {
        step: step.as_ref().map(|step| step_info(step, levels)),
        spec_definition: definition.as_deref().map(super::definition::message),
        status: step_status(*status).into(),
        outputs: outputs.iter().map(|(k, v)| (k.clone(), value(v, levels))).collect(),
        exports: exports.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        env: env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        exec_result: exec.as_ref().map(exec_result),
        sub_step_results: sub_steps.iter().map(|sub| step_result(sub, depth + 1)).collect(),
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
        inputs: inputs.iter().map(|(k, v)| (k.clone(), value(v, levels))).collect(),
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

/// A value with at most `levels` of arrays and objects; those below become strings that hold their JSON text.
pub(super) fn value(value: &serde_json::Value, levels: usize) -> prost_types::Value {
    let within = levels.saturating_sub(1);
    let kind = match value {
        serde_json::Value::Null => PbKind::NullValue(0),
        serde_json::Value::Bool(b) => PbKind::BoolValue(*b),
        serde_json::Value::Number(n) => PbKind::NumberValue(n.as_f64().unwrap_or_default()),
        serde_json::Value::String(s) => PbKind::StringValue(s.clone()),
        serde_json::Value::Array(_) | serde_json::Value::Object(_) if levels == 0 => {
            PbKind::StringValue(value.to_string())
        }
        serde_json::Value::Array(items) => PbKind::ListValue(prost_types::ListValue {
            values: items.iter().map(|item| self::value(item, within)).collect(),
        }),
        serde_json::Value::Object(members) => PbKind::StructValue(prost_types::Struct {
            fields: members.iter().map(|(k, v)| (k.clone(), self::value(v, within))).collect(),
        }),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests;

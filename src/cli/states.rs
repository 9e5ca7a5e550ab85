//! States of jobs as JSON and as words (cli.md, "status --output json").

use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::{end, secrets};
use crate::model::text;
use crate::pb::v1;

pub(super) fn name(status: &v1::Status) -> &'static str {
    match status.state() {
        v1::State::Queued => "queued",
        v1::State::Running => "running",
        v1::State::Cancelling => "cancelling",
        v1::State::Success => "success",
        v1::State::Cancelled => "cancelled",
        v1::State::Timeout => "timeout",
        v1::State::Interrupted => "interrupted",
        // A daemon without our additions to the protocol.
        v1::State::Unspecified if !status.finished => "running",
        v1::State::Unspecified if status.exit_code == 0 => "success",
        v1::State::Failure | v1::State::Unspecified => "failure",
    }
}

pub(super) fn to_json(status: &v1::Status) -> Value {
    let mut json = json!({
        "id": status.id,
        "state": name(status),
        "finished": status.finished,
        "message": status.message,
        "start_time": status.start_time.as_ref().and_then(time).map(rfc3339),
        "end_time": status.end_time.as_ref().and_then(time).map(rfc3339),
        "log_bytes": status.log_bytes,
        "steps_done": status.steps_done,
        "cpu_time": status.cpu_time.as_ref().map(seconds),
        "peak_memory": Some(status.peak_memory).filter(|bytes| *bytes > 0),
        "current_step": status.current_step,
        "step_number": status.step_number,
        "steps_total": status.steps_total,
        "queue_position": status.queue_position,
        "paused": status.paused,
        "usage": status.usage.as_ref().map(usage),
        "elapsed": status.elapsed.as_ref().map(seconds),
    });
    if let (true, Some(fields)) = (status.finished, json.as_object_mut()) {
        fields.insert("exit_code".to_owned(), end::code(status).into());
    }
    json
}

/// Times are in seconds.
pub(super) fn usage(usage: &v1::Usage) -> Value {
    json!({
        "user_time": usage.user_time.as_ref().map(seconds),
        "system_time": usage.system_time.as_ref().map(seconds),
        "peak_memory_bytes": usage.peak_memory_bytes,
        "read_bytes": usage.read_bytes,
        "written_bytes": usage.written_bytes,
    })
}

pub(super) fn seconds(duration: &prost_types::Duration) -> f64 {
    duration.seconds as f64 + f64::from(duration.nanos) / 1e9
}

/// Without left-overs there is no key for them.
pub(super) fn all_to_json(answer: &v1::StatusResponse) -> Value {
    let mut object = json!({"jobs": answer.jobs.iter().map(to_json).collect::<Vec<_>>()});
    if answer.left_over_total > 0 {
        let left_over = answer.left_over.iter().map(|left| {
            json!({
                "id": left.id,
                "path": left.path,
                "reason": left.reason,
                "since": left.since.as_ref().and_then(time).map(rfc3339),
            })
        });
        object["left_over"] = left_over.collect();
        object["left_over_total"] = answer.left_over_total.into();
    }
    object
}

/// Returns the lines below the table about what could not be removed of jobs.
pub(super) fn left_over(answer: &v1::StatusResponse) -> String {
    let mut text = String::new();
    for v1::LeftOver { id, path, reason, since: _ } in &answer.left_over {
        let of = if id.is_empty() { String::new() } else { format!(" of job {id}") };
        text += &printable(&format!("left over{of}: {path}: {reason}"));
        text.push('\n');
    }
    let more = i64::from(answer.left_over_total) - answer.left_over.len() as i64;
    if more > 0 {
        // Writing to memory does not fail.
        writeln!(text, "left over: {more} more").ok();
    }
    text
}

pub(super) fn time(timestamp: &prost_types::Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(timestamp.seconds, u32::try_from(timestamp.nanos).ok()?)
}

pub(super) fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Replaces control characters: a message may hold output of a step, which must not control the terminal. Secrets are
/// hidden before that, as nothing finds a shortened or changed one.
pub(super) fn printable(text: &str) -> String {
    text::for_people(&secrets::hide(text)).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Formats a number of bytes for people.
pub(super) fn bytes(count: i64) -> String {
    text::size(u64::try_from(count).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> v1::Status {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 123_456_000 });
        v1::Status {
            id: "42".into(),
            state: v1::State::Running as i32,
            start_time: at(1_763_632_800),
            log_bytes: 1234,
            steps_done: 2,
            current_step: vec!["build".into(), "compile".into()],
            step_number: 3,
            steps_total: 5,
            elapsed: Some(prost_types::Duration { seconds: 65, nanos: 900_000_000 }),
            ..Default::default()
        }
    }

    #[test]
    fn json_has_the_keys_of_the_manual() {
        let expected = r#"{"jobs":[{"id":"42","state":"running","finished":false,"message":"","start_time":"2025-11-20T10:00:00.123456Z","end_time":null,"log_bytes":1234,"steps_done":2,"cpu_time":null,"peak_memory":null,"current_step":["build","compile"],"step_number":3,"steps_total":5,"queue_position":0,"paused":false,"usage":null,"elapsed":65.9}]}"#;
        let answer = v1::StatusResponse { jobs: vec![job()], ..Default::default() };
        assert_eq!(all_to_json(&answer).to_string(), expected);
    }

    #[test]
    fn left_overs_are_told_below_the_table_and_in_json() {
        let left = v1::LeftOver {
            id: "42".into(),
            path: "/s/jobs/.gone-1".into(),
            reason: "cannot delete it: \x1b[0mOperation not permitted".into(),
            since: None,
        };
        let answer = v1::StatusResponse { left_over: vec![left], left_over_total: 3, ..Default::default() };
        let expected = "left over of job 42: /s/jobs/.gone-1: cannot delete it:  [0mOperation not permitted\n\
                        left over: 2 more\n";
        assert_eq!(left_over(&answer), expected);
        let json = all_to_json(&answer);
        assert_eq!((&json["left_over"][0]["id"], &json["left_over_total"]), (&json!("42"), &json!(3)));
    }
}

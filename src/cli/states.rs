//! States of jobs as JSON and as words (cli.md, "status --output json").

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
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
    json!({
        "id": status.id,
        "state": name(status),
        "finished": status.finished,
        "exit_code": status.exit_code,
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
    })
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

fn seconds(duration: &prost_types::Duration) -> f64 {
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

/// Between two columns of the table.
const GAP: &str = "  ";

/// Columns of the table.
const HEADER: [&str; 10] =
    ["ID", "STATE", "EXIT", "STARTED (UTC)", "TIME", "STEPS", "CPU", "MEMORY", "LOG", "MESSAGE"];

/// Place of the state in a row.
const STATE: usize = 1;

/// Returns the table, one line for each job. No line is wider than `width`: messages are cut. With `is_colored`, states
/// have colours.
pub(super) fn table(jobs: &[v1::Status], width: Option<usize>, is_colored: bool) -> String {
    let rows: Vec<_> = std::iter::once(HEADER.map(str::to_owned)).chain(jobs.iter().map(row)).collect();
    let mut widths = [0; HEADER.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let styles = std::iter::once(Style::new().bold()).chain(jobs.iter().map(style));
    let mut table = String::new();
    for (row, style) in rows.iter().zip(styles) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join(GAP);
        let line = cut(line.trim_end(), width);
        let state = widths[..STATE].iter().map(|width| width + GAP.len()).sum::<usize>();
        if is_colored {
            table.push_str(&painted(&line, state, widths[STATE], style));
        } else {
            table.push_str(&line);
        }
        table.push('\n');
    }
    table
}

/// Returns the line with `len` characters from `start` on in colour, as far as it has them.
fn painted(line: &str, start: usize, len: usize, style: Style) -> String {
    let part = |from, count| line.chars().skip(from).take(count).collect::<String>();
    let (before, state, after) = (part(0, start), part(start, len), part(start + len, usize::MAX));
    format!("{before}{style}{state}{style:#}{after}")
}

/// Returns the colour of a job's state: red and green for ends, yellow for what needs a look.
fn style(job: &v1::Status) -> Style {
    if job.paused {
        return AnsiColor::Yellow.on_default().bold();
    }
    match name(job) {
        "success" => AnsiColor::Green.on_default(),
        "failure" | "timeout" => AnsiColor::Red.on_default().bold(),
        "cancelling" | "cancelled" | "interrupted" => AnsiColor::Yellow.on_default(),
        "running" => AnsiColor::Cyan.on_default(),
        _ => Style::new().dimmed(),
    }
}

/// Cuts a line to `width` characters, the last of them a sign that there are more.
fn cut(line: &str, width: Option<usize>) -> Cow<'_, str> {
    match width.and_then(|width| line.char_indices().nth(width).zip(width.checked_sub(1))) {
        Some((_, kept)) => line.chars().take(kept).chain(['…']).collect::<String>().into(),
        None => line.into(),
    }
}

fn row(job: &v1::Status) -> [String; HEADER.len()] {
    let start = job.start_time.as_ref().and_then(time);
    let took = job.elapsed.as_ref().and_then(|elapsed| u64::try_from(elapsed.seconds).ok());
    [
        job.id.clone(),
        state(job),
        if job.finished { end::code(job).to_string() } else { "-".to_owned() },
        start.map_or("-".to_owned(), |start| start.format("%Y-%m-%d %H:%M:%S").to_string()),
        took.map_or("-".to_owned(), |took| {
            humantime::format_duration(std::time::Duration::from_secs(took)).to_string()
        }),
        steps(job),
        job.cpu_time.as_ref().map_or("-".to_owned(), |time| format!("{:.1}s", seconds(time))),
        if job.peak_memory > 0 { bytes(job.peak_memory) } else { "-".to_owned() },
        bytes(job.log_bytes),
        printable(&said(job)),
    ]
}

/// Returns the state with what delays the job: its place in the queue, or the disk.
fn state(job: &v1::Status) -> String {
    match (job.queue_position, job.paused) {
        (place @ 1.., _) => format!("{} #{place}", name(job)),
        (_, true) => "paused".to_owned(),
        _ => name(job).to_owned(),
    }
}

/// Returns the number of the running step, or else of ended ones, and the length of the list if it is known.
fn steps(job: &v1::Status) -> String {
    match (job.step_number, job.steps_total) {
        (_, 0) => job.steps_done.to_string(),
        (0, total) => format!("{}/{total}", job.steps_done),
        (number, total) => format!("{number}/{total}"),
    }
}

/// Returns the message, or else the running step.
fn said(job: &v1::Status) -> Cow<'_, str> {
    if !job.message.is_empty() || job.current_step.is_empty() {
        return job.message.as_str().into();
    }
    format!("step {}", job.current_step.join("/")).into()
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
        let expected = r#"{"jobs":[{"id":"42","state":"running","finished":false,"exit_code":0,"message":"","start_time":"2025-11-20T10:00:00.123456Z","end_time":null,"log_bytes":1234,"steps_done":2,"cpu_time":null,"peak_memory":null,"current_step":["build","compile"],"step_number":3,"steps_total":5,"queue_position":0,"paused":false,"usage":null,"elapsed":65.9}]}"#;
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

    #[test]
    fn table_lines_up_and_shows_no_control_bytes() {
        let mut failed = job();
        failed.id = "job-with-a-long-id".into();
        failed.message = "bad\x1b[31m\nthing".into();
        let table = table(&[job(), failed], None, false);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].find("STATE"), lines[1].find("running"));
        assert!(lines[1].contains("1m 5s") && lines[1].contains("1.2 KiB"), "{table}");
        assert!(!table.contains('\x1b'));
    }

    #[test]
    fn table_shows_how_far_a_job_is_and_what_delays_it() {
        let mut used = job();
        used.cpu_time = Some(prost_types::Duration { seconds: 1, nanos: 250_000_000 });
        used.peak_memory = 3 << 20;
        let queued = v1::Status { id: "43".into(), state: 1, queue_position: 2, ..Default::default() };
        let message = "paused: the disk of the state folder is full".to_owned();
        let paused = v1::Status { paused: true, message, ..job() };
        let table = table(&[used, queued, paused], None, false);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[1].contains("3/5") && lines[1].ends_with("step build/compile"), "{table}");
        assert!(lines[1].contains("1.2s") && lines[1].contains("3.0 MiB"), "{table}");
        assert!(lines[2].contains("queued #2"), "{table}");
        assert!(lines[3].contains(" paused ") && lines[3].ends_with("folder is full"), "{table}");
    }

    #[test]
    fn table_shows_the_code_that_follow_ends_with_and_cuts_messages_to_the_width() {
        let mut cancelled = job();
        (cancelled.finished, cancelled.exit_code) = (true, -2);
        cancelled.state = v1::State::Cancelled as i32;
        cancelled.message = "é".repeat(200);
        let wide = table(&[cancelled.clone()], None, false);
        let columns: Vec<_> = wide.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(columns[1..3], ["cancelled", "130"]);
        let narrow = table(&[cancelled.clone()], Some(120), false);
        let line = narrow.lines().last().unwrap();
        assert!(line.chars().count() == 120 && line.ends_with("é…"), "{line}");
        // Colours take no columns, and go no further than a line that is cut in its state.
        for width in [1, 5, 12, 120] {
            let colored = table(&[cancelled.clone()], Some(width), true);
            let plain = table(&[cancelled.clone()], Some(width), false);
            assert_eq!(anstream::adapter::strip_str(&colored).to_string(), plain);
            assert!(width < 120 || colored.contains("\x1b[33mcancelled"), "{colored:?}");
        }
    }
}

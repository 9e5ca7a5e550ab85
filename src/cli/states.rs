//! States of jobs as JSON and as words (cli.md, "status --output json").

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::end;
use crate::pb::v1;

/// Name of a state.
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

/// One job.
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
    })
}

/// All jobs.
pub(super) fn all_to_json(jobs: &[v1::Status]) -> Value {
    json!({"jobs": jobs.iter().map(to_json).collect::<Vec<_>>()})
}

/// A time of the protocol.
pub(super) fn time(timestamp: &prost_types::Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(timestamp.seconds, u32::try_from(timestamp.nanos).ok()?)
}

fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// The table, one line a job; `now` is for those that run. No line is wider than `width`: messages are cut.
pub(super) fn table(jobs: &[v1::Status], now: DateTime<Utc>, width: Option<usize>) -> String {
    let header =
        ["ID", "STATE", "EXIT", "STARTED (UTC)", "TIME", "STEPS", "LOG", "MESSAGE"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(jobs.iter().map(|job| row(job, now))).collect();
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        table.push_str(cut(line.trim_end(), width).as_ref());
        table.push('\n');
    }
    table
}

/// The first `width` characters, the last of them a sign that there are more.
fn cut(line: &str, width: Option<usize>) -> Cow<'_, str> {
    match width.and_then(|width| line.char_indices().nth(width).zip(width.checked_sub(1))) {
        Some((_, kept)) => line.chars().take(kept).chain(['…']).collect::<String>().into(),
        None => line.into(),
    }
}

fn row(job: &v1::Status, now: DateTime<Utc>) -> [String; 8] {
    let start = job.start_time.as_ref().and_then(time);
    let end = job.end_time.as_ref().and_then(time).unwrap_or(now);
    let took = start.and_then(|start| (end - start).to_std().ok());
    [
        job.id.clone(),
        name(job).to_owned(),
        if job.finished { end::code(job).to_string() } else { "-".to_owned() },
        start.map_or("-".to_owned(), |start| start.format("%Y-%m-%d %H:%M:%S").to_string()),
        took.map_or("-".to_owned(), |took| {
            humantime::format_duration(std::time::Duration::from_secs(took.as_secs())).to_string()
        }),
        job.steps_done.to_string(),
        bytes(job.log_bytes),
        printable(&job.message),
    ]
}

/// A message may hold what a step printed: no control byte of it reaches the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn bytes(count: i64) -> String {
    let count = count as f64;
    match ["B", "KiB", "MiB", "GiB"]
        .iter()
        .enumerate()
        .find(|(power, _)| count < 1024_f64.powi(*power as i32 + 1))
    {
        Some((0, unit)) => format!("{count} {unit}"),
        Some((power, unit)) => format!("{:.1} {unit}", count / 1024_f64.powi(power as i32)),
        None => format!("{:.1} GiB", count / 1024_f64.powi(3)),
    }
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
            ..Default::default()
        }
    }

    #[test]
    fn json_has_the_keys_of_the_manual() {
        let expected = r#"{"jobs":[{"id":"42","state":"running","finished":false,"exit_code":0,"message":"","start_time":"2025-11-20T10:00:00.123456Z","end_time":null,"log_bytes":1234,"steps_done":2}]}"#;
        assert_eq!(all_to_json(&[job()]).to_string(), expected);
    }

    #[test]
    fn table_lines_up_and_shows_no_control_bytes() {
        let mut failed = job();
        failed.id = "job-with-a-long-id".into();
        failed.message = "bad\x1b[31m\nthing".into();
        let now = time(&prost_types::Timestamp { seconds: 1_763_632_865, nanos: 123_456_000 }).unwrap();
        let table = table(&[job(), failed], now, None);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].find("STATE"), lines[1].find("running"));
        assert!(lines[1].contains("1m 5s") && lines[1].contains("1.2 KiB"), "{table}");
        assert!(!table.contains('\x1b'));
    }

    #[test]
    fn table_shows_the_code_that_follow_ends_with_and_cuts_messages_to_the_width() {
        let mut cancelled = job();
        (cancelled.finished, cancelled.exit_code) = (true, -2);
        cancelled.state = v1::State::Cancelled as i32;
        cancelled.message = "é".repeat(200);
        let now = Utc::now();
        let wide = table(&[cancelled.clone()], now, None);
        let columns: Vec<_> = wide.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(columns[1..3], ["cancelled", "130"]);
        let narrow = table(&[cancelled], now, Some(100));
        let line = narrow.lines().last().unwrap();
        assert!(line.chars().count() == 100 && line.ends_with("é…"), "{line}");
    }
}

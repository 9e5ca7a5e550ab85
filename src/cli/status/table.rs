//! The table of jobs that `status` prints.

use std::borrow::Cow;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use chrono::{DateTime, Utc};

use super::super::end;
use super::super::states::{bytes, name, printable, seconds, time};
use crate::pb::v1;

/// Between two columns.
const GAP: &str = "  ";

/// Before a message on a line of its own.
const INDENT: &str = "    ";

/// Columns before the message. On a terminal those from [`OPTIONAL`] on are shown as far as they fit.
const HEADER: [&str; 9] = ["ID", "STATE", "EXIT", "STARTED", "TIME", "STEPS", "CPU", "MEMORY", "LOG"];

/// Heading of the message.
const MESSAGE: &str = "MESSAGE";

/// Place of the first column that may be left out.
const OPTIONAL: usize = 6;

/// Place of the state in a row.
const STATE: usize = 1;

/// Length to which an id is cut if the row does not fit: that of an id by default.
const SHORT_ID: usize = 13;

/// The terminal that shows the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    pub(super) columns: usize,
    pub(super) now: DateTime<Utc>,
}

/// Returns the table, or `no jobs`. On a screen no line is wider than it is: times are relative, columns that do not fit
/// are left out, and a message that does not fit has a line of its own. With `is_colored`, states have colours.
pub(super) fn show(jobs: &[v1::Status], screen: Option<Screen>, is_colored: bool) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut rows: Vec<_> = jobs.iter().map(|job| cells(job, screen)).collect();
    let mut header = HEADER.map(str::to_owned);
    if screen.is_none() {
        "STARTED (UTC)".clone_into(&mut header[3]);
    }
    rows.insert(0, header);
    let columns = screen.map_or(usize::MAX, |screen| screen.columns);
    if wide(&widths(&rows), OPTIONAL) > columns {
        for id in rows.iter_mut().map(|row| &mut row[0]) {
            *id = cut(id, SHORT_ID).into_owned();
        }
    }
    let widths = widths(&rows);
    let messages: Vec<String> =
        std::iter::once(MESSAGE.to_owned()).chain(jobs.iter().map(|job| printable(&said(job)))).collect();
    let shown = shown(&widths, &messages, columns);
    let styles = std::iter::once(Style::new().bold()).chain(jobs.iter().map(style));
    let mut table = String::new();
    for ((row, message), style) in rows.iter().zip(&messages).zip(styles) {
        let cells = row.iter().zip(widths).take(shown).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join(GAP);
        let beside = format!("{line}{GAP}{message}");
        let is_beside = message.is_empty() || beside.chars().count() <= columns;
        // The heading of messages on lines of their own would be over nothing.
        let (line, below) =
            if is_beside { (beside, None) } else { (line, Some(message).filter(|text| *text != MESSAGE)) };
        let line = cut(line.trim_end(), columns);
        let state = widths[..STATE].iter().map(|width| width + GAP.len()).sum::<usize>();
        table.push_str(&if is_colored {
            painted(&line, state, widths[STATE], style)
        } else {
            line.into_owned()
        });
        table.push('\n');
        if let Some(message) = below {
            table.push_str(&cut(&format!("{INDENT}{message}"), columns));
            table.push('\n');
        }
    }
    table
}

/// Returns the number of columns that fit. A message that can stand beside the columns that are never left out does.
fn shown(widths: &[usize], messages: &[String], columns: usize) -> usize {
    let room = columns.saturating_sub(wide(widths, OPTIONAL) + GAP.len());
    let lengths = messages.iter().map(|message| message.chars().count());
    let beside = lengths.filter(|length| *length <= room).max().unwrap_or(0) + GAP.len();
    let fits = |shown: &usize| wide(widths, *shown).saturating_add(beside) <= columns;
    (OPTIONAL..=HEADER.len()).rev().find(fits).unwrap_or(OPTIONAL)
}

/// Returns the width of each column.
fn widths(rows: &[[String; HEADER.len()]]) -> [usize; HEADER.len()] {
    let mut widths = [0; HEADER.len()];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Returns the width of the first columns with the gaps between them.
fn wide(widths: &[usize], columns: usize) -> usize {
    widths.iter().take(columns).sum::<usize>() + GAP.len() * columns.saturating_sub(1)
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
fn cut(line: &str, width: usize) -> Cow<'_, str> {
    match line.char_indices().nth(width).zip(width.checked_sub(1)) {
        Some((_, kept)) => line.chars().take(kept).chain(['…']).collect::<String>().into(),
        None => line.into(),
    }
}

fn cells(job: &v1::Status, screen: Option<Screen>) -> [String; HEADER.len()] {
    let start = job.start_time.as_ref().and_then(time);
    let started = start.map(|start| match screen {
        Some(Screen { now, .. }) => format!("{} ago", brief((now - start).to_std().unwrap_or_default(), 1)),
        None => start.format("%Y-%m-%d %H:%M:%S").to_string(),
    });
    let took = job.elapsed.as_ref().and_then(|elapsed| u64::try_from(elapsed.seconds).ok());
    let absent = || "-".to_owned();
    [
        job.id.clone(),
        state(job),
        if job.finished { end::code(job).to_string() } else { absent() },
        started.unwrap_or_else(absent),
        took.map_or_else(absent, |took| brief(Duration::from_secs(took), 2)),
        steps(job),
        job.cpu_time.as_ref().map_or_else(absent, |time| format!("{:.1}s", seconds(time))),
        if job.peak_memory > 0 { bytes(job.peak_memory) } else { absent() },
        bytes(job.log_bytes),
    ]
}

/// Returns a duration in its largest units, at most `units` of them: `3d 4h`, `1m 5s`.
fn brief(duration: Duration, units: usize) -> String {
    let seconds = duration.as_secs();
    let parts =
        [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(parts.len() - 1);
    let shown = parts.iter().skip(first).take(units).filter(|(count, _)| *count > 0 || seconds == 0);
    shown.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: i64 = 1_763_632_800;

    fn job() -> v1::Status {
        v1::Status {
            id: "k7m2-x9qd-4tb".into(),
            state: v1::State::Running as i32,
            start_time: Some(prost_types::Timestamp { seconds: START, nanos: 123_456_000 }),
            log_bytes: 1234,
            steps_done: 2,
            current_step: vec!["build".into(), "compile".into()],
            step_number: 3,
            steps_total: 5,
            elapsed: Some(prost_types::Duration { seconds: 65, nanos: 900_000_000 }),
            ..Default::default()
        }
    }

    fn screen(columns: usize) -> Option<Screen> {
        let now = DateTime::from_timestamp(START + 125, 0)?;
        Some(Screen { columns, now })
    }

    fn cancelled() -> v1::Status {
        let message = "é".repeat(200);
        let state = v1::State::Cancelled as i32;
        v1::Status { finished: true, exit_code: -2, state, message, ..job() }
    }

    #[test]
    fn a_screen_of_80_columns_shows_times_that_have_passed_and_messages_below() {
        let short = v1::Status { message: "told".into(), ..cancelled() };
        let table = show(&[job(), cancelled(), short], screen(80), false);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{table}");
        assert!(lines[1].starts_with("k7m2-x9qd-4tb  running    -     2m ago   1m 5s"), "{table}");
        assert!(lines[1].ends_with("step build/compile"), "{table}");
        assert!(lines[2].contains("cancelled  130") && lines[3].starts_with("    ééé"), "{table}");
        assert!(lines[3].ends_with('…') && lines[4].ends_with("told"), "{table}");
    }

    #[test]
    fn elsewhere_a_job_is_one_line_with_times_of_the_clock() {
        let table = show(&[job(), cancelled()], None, false);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].find("STATE"), lines[1].find("running"));
        assert!(lines[1].contains("2025-11-20 10:00:00") && lines[1].contains("1.2 KiB"), "{table}");
        assert!(lines[2].ends_with(&"é".repeat(200)), "{table}");
        assert_eq!(show(&[], None, false), "no jobs\n");
    }

    #[test]
    fn a_row_shows_how_far_a_job_is_and_what_delays_it() {
        let mut used = job();
        used.cpu_time = Some(prost_types::Duration { seconds: 1, nanos: 250_000_000 });
        used.peak_memory = 3 << 20;
        let queued = v1::Status { id: "43".into(), state: 1, queue_position: 2, ..Default::default() };
        let message = "paused:\x1b[31m the disk\nis full".to_owned();
        let paused = v1::Status { paused: true, message, ..job() };
        let table = show(&[used, queued, paused], None, false);
        let lines: Vec<_> = table.lines().collect();
        assert!(
            lines[1].contains("3/5") && lines[1].contains("1.2s") && lines[1].contains("3.0 MiB"),
            "{table}"
        );
        assert!(lines[2].contains("queued #2"), "{table}");
        assert!(lines[3].contains(" paused ") && lines[3].ends_with("the disk is full"), "{table}");
        assert!(!table.contains('\x1b'));
    }

    #[test]
    fn durations_have_their_largest_units() {
        for (seconds, units, expected) in [
            (0, 2, "0s"),
            (59, 1, "59s"),
            (65, 2, "1m 5s"),
            (65, 1, "1m"),
            (3600, 2, "1h"),
            (3661, 2, "1h 1m"),
            (200_000, 2, "2d 7h"),
        ] {
            assert_eq!(brief(Duration::from_secs(seconds), units), expected);
        }
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_screen_and_colours_take_no_columns(
            columns in 1..200_usize,
            id in "[a-z]{1,60}",
            message in ".{0,120}",
        ) {
            let jobs = [v1::Status { id, message, ..cancelled() }, job()];
            let plain = show(&jobs, screen(columns), false);
            prop_assert!(plain.lines().all(|line| line.chars().count() <= columns), "{plain}");
            let colored = show(&jobs, screen(columns), true);
            prop_assert_eq!(anstream::adapter::strip_str(&colored).to_string(), plain);
        }
    }
}

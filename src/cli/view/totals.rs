//! Bars of the steps of a job that has ended, and its use of resources if it succeeded.

use std::time::Duration;

use anstyle::{AnsiColor, Style as Color};

use super::ends::OwnStep;
use super::rows::{Rows, duration};
use crate::cli::states;
use crate::cli::text::{clean, cut, width};
use crate::insight::tree::StepOutcome;
use crate::pb::v1;

/// Maximum number of steps shown. Of more steps, these are the longest.
const SHOWN: usize = 20;

/// Longest bar and longest name, in columns.
const BAR: usize = 40;
const NAME: usize = 40;

/// Returns the summary of a job that succeeded.
pub(super) fn lines(steps: &[OwnStep], status: &v1::Status, rows: &Rows) -> Vec<String> {
    let mut lines = Vec::new();
    if steps.len() > 1 {
        lines.push(String::new());
        lines.extend(bars(steps, rows));
    }
    let totals = rows.paint(&totals(status).join(", "), Color::new().dimmed());
    let what = rows.paint("succeeded", AnsiColor::Green.on_default().bold());
    let line = format!("job {what} {totals}");
    crate::cli::text::wrap(line.trim_end(), rows.width(), "", |row| lines.push(row.to_owned()));
    lines
}

/// Returns the bars of a job that did not succeed, and the steps that never ran. Without a name only their number is known.
pub(super) fn lines_of_unsuccessful(steps: &[OwnStep], not_run: &[String], rows: &Rows) -> Vec<String> {
    if steps.len() + not_run.len() < 2 {
        return Vec::new();
    }
    let mut lines = vec![String::new()];
    lines.extend(bars(steps, rows));
    let named: Vec<&String> = not_run.iter().filter(|name| !name.is_empty()).take(SHOWN).collect();
    let mark = rows.mark(StepOutcome::Skipped);
    for name in &named {
        let row = format!(
            "{mark} {}  {}",
            cut(&clean(name), NAME),
            rows.paint("did not run", Color::new().dimmed())
        );
        lines.push(cut(&row, rows.width()));
    }
    match (not_run.len() - named.len(), named.is_empty()) {
        (0, _) => {}
        (1, true) => lines.push(format!("{mark} 1 step did not run")),
        (more, true) => lines.push(format!("{mark} {more} steps did not run")),
        (more, false) => lines.push(format!("{mark} {more} more did not run")),
    }
    lines
}

/// Returns the colour of a step's bar.
fn color(outcome: StepOutcome) -> Color {
    match outcome {
        StepOutcome::Succeeded | StepOutcome::Skipped => AnsiColor::Green.on_default(),
        StepOutcome::Failed => AnsiColor::Red.on_default(),
        StepOutcome::Allowed | StepOutcome::Cancelled => AnsiColor::Yellow.on_default(),
    }
}

fn bars(steps: &[OwnStep], rows: &Rows) -> Vec<String> {
    let took = |step: &OwnStep| step.took.unwrap_or_default();
    let mut longest: Vec<usize> = (0..steps.len()).collect();
    longest.sort_by_key(|at| std::cmp::Reverse(steps.get(*at).map(took)));
    let mut shown: Vec<usize> = longest.iter().copied().take(SHOWN).collect();
    shown.sort_unstable();
    let shown: Vec<&OwnStep> = shown.into_iter().filter_map(|at| steps.get(at)).collect();
    let time_width = shown.iter().map(|step| duration(took(step)).len()).max().unwrap_or(0);
    let free = rows.width().saturating_sub(time_width + 6);
    let names: Vec<String> = shown.iter().map(|step| cut(&clean(&step.name), NAME.min(free))).collect();
    let name_width = names.iter().map(|name| width(name)).max().unwrap_or(0);
    let bar_width = free.saturating_sub(name_width).min(BAR);
    let most = shown.iter().copied().map(took).max().unwrap_or_default();
    let mut lines = Vec::new();
    for (step, name) in shown.iter().zip(&names) {
        let pad = name_width - width(name);
        let mark = rows.mark(step.outcome);
        if step.outcome == StepOutcome::Skipped {
            let reason = format!("skipped: {}", clean(&step.reason));
            let reason = rows.paint(&cut(&reason, free.saturating_sub(name_width)), Color::new().dimmed());
            lines.push(format!("{mark} {name}{:pad$}  {reason}", ""));
            continue;
        }
        let bar = bar(took(step), most, bar_width, rows.style.unicode);
        let bar_pad = bar_width - width(&bar);
        let bar = rows.paint(&bar, color(step.outcome));
        let time = duration(took(step));
        let attempts = match step.attempts {
            0 | 1 => String::new(),
            attempts => format!("  {attempts} attempts"),
        };
        let row = format!("{mark} {name}{:pad$}  {bar}{:bar_pad$}  {time:>time_width$}{attempts}", "", "");
        lines.push(cut(&row, rows.width()));
    }
    let rest = longest.iter().skip(SHOWN).filter_map(|at| steps.get(*at));
    let (count, sum) = rest.fold((0, Duration::ZERO), |(count, sum), step| (count + 1, sum + took(step)));
    if count > 0 {
        lines.push(cut(&format!("  and {count} shorter steps, {} together", duration(sum)), rows.width()));
    }
    lines
}

/// Returns a bar whose length is to `limit` as `part` is to `whole`, but at least one eighth of a column.
fn bar(part: Duration, whole: Duration, limit: usize, unicode: bool) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if whole.is_zero() {
        return String::new();
    }
    let eighths = (part.as_secs_f64() / whole.as_secs_f64() * limit as f64 * 8.0).round() as usize;
    let eighths = eighths.max(1).min(limit * 8);
    if unicode {
        format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
    } else {
        "#".repeat(eighths.div_ceil(8))
    }
}

/// Returns what is known of the whole job's time and use of resources.
fn totals(status: &v1::Status) -> Vec<String> {
    let time = |time: &Option<prost_types::Timestamp>| time.as_ref().and_then(states::time);
    let took = time(&status.start_time).zip(time(&status.end_time));
    let took = took.and_then(|(start, end)| (end - start).to_std().ok());
    let usage = status.usage.as_ref();
    let of_usage = || {
        let (user, system) = (usage?.user_time.as_ref(), usage?.system_time.as_ref());
        let times = [user, system].map(|time| time.and_then(positive));
        times.iter().any(Option::is_some).then(|| times.into_iter().flatten().sum::<Duration>())
    };
    let processor = status.cpu_time.as_ref().and_then(positive).or_else(of_usage);
    let peak = usage.and_then(|usage| usage.peak_memory_bytes);
    let peak = Some(status.peak_memory).filter(|peak| *peak > 0).or(peak);
    [
        took.map(|took| format!("in {}", duration(took))),
        processor.map(|time| format!("{} processor time", duration(time))),
        peak.map(|peak| format!("{} memory at most", states::bytes(peak))),
        Some(format!("{} of log", states::bytes(status.log_bytes))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn positive(time: &prost_types::Duration) -> Option<Duration> {
    Duration::try_from(*time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::view::tests::rows;

    fn step(name: &str, millis: u64) -> OwnStep {
        OwnStep {
            number: 1,
            total: 2,
            name: name.into(),
            outcome: StepOutcome::Succeeded,
            took: Some(Duration::from_millis(millis)),
            attempts: 1,
            reason: String::new(),
        }
    }

    fn status() -> v1::Status {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let (start_time, end_time) = (at(100), at(165));
        v1::Status { start_time, end_time, log_bytes: 2048, finished: true, ..Default::default() }
    }

    #[test]
    fn every_step_has_a_bar_to_the_scale_of_the_longest() {
        let lines = lines(&[step("build", 4000), step("test", 1000)], &status(), &rows(60));
        assert_eq!(
            lines,
            [
                "",
                "✓ build  ████████████████████████████████████████  4.0s",
                "✓ test   ██████████                                1.0s",
                "job succeeded in 1m 05s, 2.0 KiB of log",
            ]
        );
    }

    #[test]
    fn of_many_steps_the_longest_are_shown_and_the_others_counted() {
        let steps: Vec<_> = (0..200).map(|number| step(&format!("s{number}"), number * 10)).collect();
        let lines = lines(&steps, &status(), &rows(60));
        assert_eq!(lines.len(), 1 + SHOWN + 1 + 1);
        assert!(lines[1].starts_with("✓ s180 ") && lines[20].starts_with("✓ s199 "), "{lines:?}");
        assert_eq!(lines[21], "  and 180 shorter steps, 2m 41s together");
    }

    #[test]
    fn a_job_that_failed_shows_its_steps_and_those_that_never_ran() {
        let failed = OwnStep { outcome: StepOutcome::Failed, ..step("test", 1000) };
        let not_run = ["deploy", "tell"].map(str::to_owned);
        let shown = lines_of_unsuccessful(&[step("build", 4000), failed.clone()], &not_run, &rows(40));
        assert_eq!(
            shown,
            [
                "",
                "✓ build  ████████████████████████  4.0s",
                "✗ test   ██████                    1.0s",
                "○ deploy  did not run",
                "○ tell  did not run",
            ]
        );
        let unnamed =
            lines_of_unsuccessful(std::slice::from_ref(&failed), &vec![String::new(); 3], &rows(60));
        assert_eq!(unnamed.last().map(String::as_str), Some("○ 3 steps did not run"));
        let many: Vec<String> = (0..25).map(|number| format!("s{number}")).collect();
        let many = lines_of_unsuccessful(std::slice::from_ref(&failed), &many, &rows(60));
        assert_eq!((many.len(), many.last().unwrap().as_str()), (1 + 1 + SHOWN + 1, "○ 5 more did not run"));
        assert!(lines_of_unsuccessful(&[failed], &[], &rows(60)).is_empty());
    }

    #[test]
    fn what_is_used_is_told_where_it_is_known() {
        let cpu_time = Some(prost_types::Duration { seconds: 2, nanos: 500_000_000 });
        let status = v1::Status { cpu_time, peak_memory: 3 << 20, ..status() };
        let lines = lines(&[step("a", 1)], &status, &rows(100));
        let expected =
            ["job succeeded in 1m 05s, 2.5s processor time, 3.0 MiB memory at most, 2.0 KiB of log"];
        assert_eq!(lines, expected);
    }
}

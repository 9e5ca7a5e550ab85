//! Failures of steps, and what they look like in messages (language.md §14.2 to §14.4, flow.md §2 to §4).

use std::fmt::Write as _;
use std::time::Duration;

use step_runner_lang::ast::flow::FailureKind;
use step_runner_lang::ast::{Body, Function};
use step_runner_lang::diagnostic::{Class, Diagnostic, Severity};
use step_runner_lang::output_file::OutputFileError;
use step_runner_log::words::DaemonLine;
use step_runner_model::exit_code::STEP_TIMED_OUT;
use step_runner_model::{ExitStatus, LogChannel, text};

/// Maximum number of findings of one file in a message, as in an answer to Run (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// A failure of a step. Its message names the steps from the outermost list to the step that failed.
#[derive(Clone)]
pub(super) struct Failure {
    /// The steps named so far, innermost last, each as `step "NAME": `.
    prefix: String,
    /// Number of steps around the one that failed whose names are left out.
    unnamed: usize,
    /// Descriptions, at least one.
    details: Vec<String>,
    /// Exit code that decided, if a process did.
    pub(super) exit_code: Option<i32>,
    /// Class of the failure (language.md §18).
    pub(super) class: Class,
    /// Kind of failure that another attempt may cure.
    pub(super) kind: Option<FailureKind>,
}

impl Failure {
    /// A failure that no position describes.
    pub(super) fn plain(class: Class, detail: impl Into<String>) -> Self {
        Self {
            prefix: String::new(),
            unnamed: 0,
            details: vec![detail.into()],
            exit_code: None,
            class,
            kind: None,
        }
    }

    /// A failure with positions in files. There is at least one.
    pub(super) fn at(diagnostics: &[Diagnostic]) -> Self {
        let mut details: Vec<String> = diagnostics.iter().take(MAX_FINDINGS).map(located).collect();
        if let Some(more) = diagnostics.len().checked_sub(MAX_FINDINGS).filter(|more| *more > 0) {
            details.push(format!("and {more} more"));
        }
        let class = diagnostics.first().map_or(Class::Schema, |first| first.class);
        Self { details, ..Self::plain(class, "") }
    }

    /// A failure to load the function of a step.
    pub(super) fn loading(diagnostics: &[Diagnostic]) -> Self {
        Self { prefix: "failed to load: ".to_owned(), ..Self::at(diagnostics) }
    }

    /// Adds the kind.
    pub(super) fn of_kind(self, kind: FailureKind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// Leaves out the names of the step that failed and of the steps around it, `unnamed` in all.
    pub(super) fn unnamed(self, unnamed: usize) -> Self {
        Self { unnamed, ..self }
    }

    /// A failure because returned values cannot be used. Positions in a builtin's own file mean nothing to people.
    pub(super) fn returned(error: OutputFileError, function: &Function) -> Self {
        let failure = match &function.definition.body {
            Body::Exec(exec) if !function.file.starts_with("builtin://") => {
                let finding = Diagnostic::error(error.class, &function.file, exec.at, error.message);
                Self::at(&[finding.with_path("exec")])
            }
            _ => Self::plain(error.class, error.message),
        };
        // Only what the process may write differently next time. Types and names are errors of the file (flow.md §4.3).
        match failure.class {
            Class::Malformed | Class::Missing => failure.of_kind(FailureKind::Outputs),
            _ => failure,
        }
    }

    /// A process that ended without success.
    pub(super) fn process(status: ExitStatus) -> Self {
        let kind = match status {
            ExitStatus::Code(_) => FailureKind::Exit,
            ExitStatus::Signal(_) => FailureKind::Signal,
        };
        let failure = Self::plain(Class::Exec, format!("exec: {status}")).of_kind(kind);
        Self { exit_code: Some(status.job_code()), ..failure }
    }

    /// A process that ended after a shortage. The message still ends with the exit status (language.md §14.4).
    pub(super) fn short(of: &str, status: ExitStatus) -> Self {
        Self { details: vec![format!("{of}: exec: {status}")], ..Self::process(status) }
    }

    /// A process that could not be started.
    pub(super) fn not_started(why: &str) -> Self {
        Self::plain(Class::Exec, format!("exec: {why}")).of_kind(FailureKind::Start)
    }

    /// A step whose limit has passed.
    pub(super) fn timed_out(limit: Duration) -> Self {
        let text = format!("timed out after {}: exit status {STEP_TIMED_OUT}", duration(limit));
        Self {
            exit_code: Some(STEP_TIMED_OUT),
            ..Self::plain(Class::Timeout, text).of_kind(FailureKind::Timeout)
        }
    }

    /// Returns the failure of the list around step `name`.
    #[must_use]
    pub(super) fn within(mut self, name: &str) -> Self {
        match self.unnamed.checked_sub(1) {
            Some(left) => self.unnamed = left,
            None => self.prefix.insert_str(0, &format!("step \"{name}\": ")),
        }
        self
    }

    /// Returns the message in one text.
    pub(super) fn message(&self) -> String {
        format!("{}{}", self.prefix, self.details.join("; "))
    }

    /// Returns the message for warnings and lines about a job that goes on. They never end like the message of a job that
    /// has failed (flow.md §11).
    pub(super) fn in_passing(&self) -> String {
        text::without_exit_status(&self.message())
    }

    /// Returns the lines of a log that say that the job failed: one for each description.
    pub(super) fn lines(&self) -> Vec<(LogChannel, String)> {
        let (first, others) =
            self.details.split_first().map_or(("", &[][..]), |(first, others)| (first, others));
        let first = DaemonLine::JobFailed { message: &format!("{}{first}", self.prefix) }.to_parts();
        let other = |text: &String| DaemonLine::Other { channel: LogChannel::Err, text }.to_parts();
        std::iter::once(first).chain(others.iter().map(other)).collect()
    }
}

/// Returns `FILE:LINE:COLUMN: PATH: message`, without the word `warning`; not yet masked, cut or escaped.
pub(super) fn located(diagnostic: &Diagnostic) -> String {
    let mut plain = diagnostic.clone();
    plain.severity = Severity::Error;
    plain.unmasked()
}

/// Returns a duration in hours, minutes, seconds and milliseconds, such as `1m30s`.
pub(super) fn duration(duration: Duration) -> String {
    let (seconds, milliseconds) = (duration.as_secs(), duration.subsec_millis());
    let parts = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(milliseconds), "ms"),
    ];
    let mut shown = String::new();
    for (count, unit) in parts.iter().filter(|(count, _)| *count > 0) {
        // Writing to memory does not fail.
        write!(shown, "{count}{unit}").ok();
    }
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_the_units_that_they_need() {
        let shown = |milliseconds| duration(Duration::from_millis(milliseconds));
        assert_eq!(shown(90_000), "1m30s");
        assert_eq!(shown(4_000), "4s");
        assert_eq!(shown(3_600_000), "1h");
        assert_eq!(shown(86_400_000), "24h");
        assert_eq!(shown(1_500), "1s500ms");
        assert_eq!(shown(0), "0s");
    }

    #[test]
    fn a_message_names_the_steps_around_the_one_that_failed() {
        let failure = Failure::process(ExitStatus::Code(3)).within("in").within("out");
        assert_eq!(failure.message(), "step \"out\": step \"in\": exec: exit status 3");
        assert_eq!(failure.in_passing(), "step \"out\": step \"in\": exec: exit-status 3");
        let limit = Failure::timed_out(Duration::from_mins(5)).within("slow");
        assert_eq!(text::told_exit_status(&limit.message()), Some(STEP_TIMED_OUT));
        let cut = Failure::plain(Class::Limit, "too deep").unnamed(1).within("deep").within("circle");
        assert_eq!(cut.message(), "step \"circle\": too deep");
    }
}

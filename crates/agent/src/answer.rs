//! What an answer of the server means, as far as it needs no memory: the fields that are read, and below it waits
//! inside a call ([`retry`]), redirects ([`redirect`]) and error texts ([`text`]).

pub mod redirect;
pub mod retry;
pub mod text;

use std::time::Duration;

/// An answer, or none.
pub type Reply = Result<Answer, Unreachable>;

/// No answer came: the connection failed, was cut, or took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

/// The parts of an answer that decide. The body of a job is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Status code of HTTP.
    pub status: u16,
    /// `Job-Status`.
    pub job_status: Option<JobStatus>,
    /// Number after `-` in `Range`: how much of a trace the server has.
    pub range: Option<u64>,
    /// `X-GitLab-Trace-Update-Interval`, as it came.
    pub interval: Option<String>,
    /// `X-GitLab-Last-Update`, as it came.
    pub last_update: Option<String>,
}

/// State of a job at the server, as far as it means something to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// Somebody cancelled the job; it may clean up.
    Canceling,
    /// The server has ended the job: nothing that it does counts any more.
    Over,
    /// Any other: nothing to do.
    Other,
}

impl Answer {
    /// Makes an answer with a status code and nothing else.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Reads an answer. Names of headers are compared without case; of equal ones the first counts.
    pub fn read<'h>(status: u16, headers: impl IntoIterator<Item = (&'h str, &'h str)>) -> Self {
        let mut answer = Self::status(status);
        for (name, value) in headers {
            match name.to_ascii_lowercase().as_str() {
                "job-status" => {
                    answer.job_status.get_or_insert(JobStatus::read(value));
                }
                "range" if answer.range.is_none() => answer.range = range_end(value),
                "x-gitlab-trace-update-interval" => {
                    answer.interval.get_or_insert_with(|| value.to_owned());
                }
                "x-gitlab-last-update" => {
                    answer.last_update.get_or_insert_with(|| value.to_owned());
                }
                _ => {}
            }
        }
        answer
    }

    /// Returns the interval in whole seconds, if it is one from 1 second to `longest`.
    pub fn interval(&self, longest: Duration) -> Option<Duration> {
        let seconds = self.interval.as_deref()?.trim().parse::<u64>().ok()?;
        let interval = Duration::from_secs(seconds);
        (seconds > 0 && interval <= longest).then_some(interval)
    }

    /// True if the server has ended the job.
    pub fn is_over(&self) -> bool {
        self.job_status == Some(JobStatus::Over)
    }

    /// True if somebody cancels the job.
    pub fn is_canceling(&self) -> bool {
        self.job_status == Some(JobStatus::Canceling)
    }
}

impl JobStatus {
    fn read(value: &str) -> Self {
        match value.trim() {
            "canceling" => Self::Canceling,
            "canceled" | "failed" => Self::Over,
            _ => Self::Other,
        }
    }
}

/// Returns the number behind the `-` of a range such as `0-834`.
fn range_end(value: &str) -> Option<u64> {
    let (_, end) = value.trim().split_once('-')?;
    let is_number = !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| end.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_without_case_and_the_first_counts() {
        let answer = Answer::read(
            202,
            [
                ("JOB-STATUS", "canceling"),
                ("job-status", "failed"),
                ("Range", "0-920"),
                ("X-GitLab-Trace-Update-Interval", "3"),
                ("x-gitlab-last-update", "Odd value"),
                ("Server", "nginx"),
            ],
        );
        assert_eq!((answer.status, answer.range), (202, Some(920)));
        assert!(answer.is_canceling() && !answer.is_over());
        assert_eq!(answer.last_update.as_deref(), Some("Odd value"));
        assert_eq!(answer.interval(Duration::from_mins(15)), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_range_without_a_number_is_none() {
        for (text, end) in [
            ("0-834", Some(834)),
            ("bytes=0-1", Some(1)),
            ("0-", None),
            ("-", None),
            ("834", None),
            ("0--1", None),
            ("0-1x", None),
            ("0-99999999999999999999", None),
        ] {
            assert_eq!(range_end(text), end, "{text}");
        }
    }

    #[test]
    fn an_interval_is_a_whole_number_of_seconds_within_bounds() {
        let longest = Duration::from_mins(15);
        for (text, seconds) in [
            ("2", Some(2)),
            (" 3 ", Some(3)),
            ("900", Some(900)),
            ("901", None),
            ("0", None),
            ("-5", None),
            ("abc", None),
            ("1.5", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            let answer = Answer { interval: Some(text.to_owned()), ..Answer::status(202) };
            assert_eq!(answer.interval(longest), seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn only_three_states_of_a_job_mean_something() {
        for (text, status) in [
            ("canceling", JobStatus::Canceling),
            ("canceled", JobStatus::Over),
            ("failed", JobStatus::Over),
            ("running", JobStatus::Other),
            ("success", JobStatus::Other),
            ("", JobStatus::Other),
        ] {
            assert_eq!(JobStatus::read(text), status, "{text}");
        }
    }
}

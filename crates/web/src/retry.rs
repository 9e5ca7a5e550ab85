//! When a read from a server is tried again (language.md §7.7). Pure: gets the time, and says how long to wait.

use std::fmt;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Longest time to find a version. A worker that takes longer is killed.
pub const VERSION_LIMIT: Duration = Duration::from_mins(2);

/// Time after which no further try begins: the last one must end before [`VERSION_LIMIT`], so that its own error is told.
const RETRY_LIMIT: Duration = Duration::from_secs(100);

/// Waits before the second and further tries. A proxy or a server that restarts is usually back within seconds.
const WAITS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Takes a line that says what went wrong and is tried again.
pub type Notice = &'static dyn Fn(&str);

/// Decides whether one read is tried again.
#[derive(Debug)]
pub struct Retries {
    until: Instant,
    waits: std::slice::Iter<'static, Duration>,
}

impl Retries {
    /// Allows tries for a task that began at `begin`.
    pub fn since(begin: Instant) -> Self {
        Self { until: begin + RETRY_LIMIT, waits: WAITS.iter() }
    }

    /// Returns the time to wait before the next try. `asked` is the time for which the server asks. `None` if there is no
    /// try left, or the wait would be too long.
    pub fn next_wait(&mut self, now: Instant, asked: Option<Duration>) -> Option<Duration> {
        let wait = (*self.waits.next()?).max(asked.unwrap_or_default());
        now.checked_add(wait).filter(|begin| *begin <= self.until).map(|_| wait)
    }
}

/// True if a later answer to the same request may be better.
pub fn is_transient(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS) || status.is_server_error()
}

/// Says that a read failed and is tried again.
pub fn notice(why: &dyn fmt::Display, wait: Duration) -> String {
    let why = why.to_string();
    // The remedy that the message names is what happens now.
    let why = why.split_once(": try again").map_or(why.as_str(), |(why, _)| why);
    format!("{why}: trying again in {} s", wait.as_secs_f32())
}

/// Returns the time for which an answer asks before the next request: a number of seconds or a date.
pub fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = DateTime::parse_from_rfc2822(text).ok()?;
    Some((date.to_utc() - now).to_std().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn a_read_is_tried_a_few_times_with_longer_waits() {
        let now = Instant::now();
        let mut retries = Retries::since(now);
        let waits: Vec<_> = std::iter::from_fn(|| retries.next_wait(now, None)).collect();
        assert_eq!(waits, WAITS);
        assert!(waits.is_sorted());
    }

    #[test]
    fn a_wait_that_the_server_asks_for_counts_if_it_fits() {
        let now = Instant::now();
        let next = |seconds| Retries::since(now).next_wait(now, Some(Duration::from_secs(seconds)));
        assert_eq!(next(0), Some(WAITS[0]));
        assert_eq!(next(7), Some(Duration::from_secs(7)));
        assert_eq!(next(100), Some(RETRY_LIMIT));
        assert_eq!(next(101), None);
        assert_eq!(next(u64::MAX), None);
        let mut late = Retries::since(now);
        assert_eq!(late.next_wait(now + RETRY_LIMIT, None), None);
        assert!(RETRY_LIMIT < VERSION_LIMIT);
    }

    #[test]
    fn what_may_be_better_later_is_known() {
        for status in [408, 429, 500, 502, 503, 504, 599] {
            assert!(is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [200, 301, 400, 401, 403, 404, 410, 418] {
            assert!(!is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }

    #[test]
    fn a_notice_names_the_reason_and_the_wait() {
        let text = notice(&"the registry failed (status 503): try again later", WAITS[0]);
        assert_eq!(text, "the registry failed (status 503): trying again in 0.5 s");
        assert_eq!(notice(&"refused: check it", WAITS[1]), "refused: check it: trying again in 1 s");
    }

    #[test]
    fn seconds_and_dates_are_understood() {
        let now = DateTime::parse_from_rfc3339("2026-01-02T03:04:05Z").unwrap().to_utc();
        let after = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]), now)
        };
        assert_eq!(after("1"), Some(Duration::from_secs(1)));
        assert_eq!(after(" 120 "), Some(Duration::from_mins(2)));
        assert_eq!(after("Fri, 02 Jan 2026 03:04:15 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(after("Fri, 02 Jan 2026 03:03:15 GMT"), Some(Duration::ZERO));
        for text in ["", "-1", "soon", "1.5"] {
            assert_eq!(after(text), None, "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}

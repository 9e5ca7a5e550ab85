//! Tries of one call: which answers are tried again at once, and when (agent.md §2.2).

use std::time::Duration;

use super::Unreachable;
use crate::time::{Jitter, WallTime, http_date};

/// Tries of one call.
pub const TRIES: u32 = 5;

/// Wait before the second try, if the server names none. It doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Longest wait inside a call. A server that asks for more is asked again by the caller's own rule.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// What a server says about when to come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints<'h> {
    /// `RateLimit-ResetTime`: a date.
    pub reset_time: Option<&'h str>,
    /// `Retry-After`: seconds.
    pub retry_after: Option<&'h str>,
}

/// Returns how long to wait before the call is tried again. `None`: the outcome goes to the caller. `tries` counts
/// those made so far. A failed transport is the caller's: it knows if the call may have been carried out.
pub fn wait(
    outcome: Result<u16, Unreachable>,
    hints: Hints<'_>,
    tries: u32,
    now: WallTime,
    jitter: Jitter,
) -> Option<Duration> {
    let status = outcome.ok()?;
    if !is_temporary(status) || tries >= TRIES {
        return None;
    }
    let reset = hints.reset_time.and_then(http_date).filter(|time| *time >= now).map(|time| time.since(now));
    let after = || hints.retry_after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let own = || jitter.shorten(FIRST_WAIT * (1 << tries.saturating_sub(1).min(TRIES)));
    Some(reset.or_else(after).unwrap_or_else(own).min(LONGEST_WAIT))
}

/// True for answers of a server or proxy that cannot answer now.
pub const fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 512..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallTime = WallTime(1_795_386_065_000);

    fn waited(status: u16, hints: Hints<'_>, tries: u32) -> Option<u64> {
        wait(Ok(status), hints, tries, NOW, Jitter(0)).map(|wait| wait.as_millis() as u64)
    }

    #[test]
    fn a03_temporary_answers_are_tried_five_times() {
        for status in [408, 429, 500, 502, 503, 504, 512, 599] {
            let waits: Vec<_> = (1..=5).map(|tries| waited(status, Hints::default(), tries)).collect();
            assert_eq!(waits, [Some(100), Some(200), Some(400), Some(800), None], "{status}");
        }
        for status in [200, 204, 301, 400, 401, 403, 404, 409, 412, 416, 422, 501, 505, 511] {
            assert_eq!(waited(status, Hints::default(), 1), None, "{status}");
        }
        assert_eq!(wait(Err(Unreachable), Hints::default(), 1, NOW, Jitter(0)), None);
    }

    #[test]
    fn a03_the_date_counts_before_the_seconds_and_unreadable_waits_do_not() {
        let date = "Sun, 22 Nov 2026 22:21:09 GMT";
        let past = "Sun, 22 Nov 2026 22:21:04 GMT";
        let far = "Mon, 23 Nov 2026 22:21:05 GMT";
        for (reset_time, retry_after, millis) in [
            (Some(date), Some("2"), 4_000),
            (Some(past), Some("2"), 2_000),
            (Some("soon"), Some("2"), 2_000),
            (None, Some("-2"), 100),
            (None, Some("1.5"), 100),
            (None, Some(date), 100),
            (Some(far), None, 300_000),
            (None, Some("86400"), 300_000),
            (None, Some("0"), 0),
        ] {
            assert_eq!(waited(429, Hints { reset_time, retry_after }, 1), Some(millis));
        }
    }

    #[test]
    fn a03_own_waits_are_jittered() {
        let waits = (0..=255).filter_map(|jitter| wait(Ok(503), Hints::default(), 2, NOW, Jitter(jitter)));
        assert!(waits.into_iter().all(|wait| (100..=200).contains(&wait.as_millis())));
    }
}

//! Durations of CI files: `3h 30m`, `1 hour`, `90` (ci.md §2, row `timeout`).

use std::time::Duration;

/// Units by their names.
const UNITS: [(&[&str], u64); 7] = [
    (&["s", "sec", "secs", "second", "seconds"], 1),
    (&["m", "min", "mins", "minute", "minutes"], 60),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600),
    (&["d", "day", "days"], 86_400),
    (&["w", "wk", "wks", "week", "weeks"], 7 * 86_400),
    (&["mo", "mos", "month", "months"], 30 * 86_400),
    (&["y", "yr", "yrs", "year", "years"], 365 * 86_400),
];

/// Longest duration. Longer ones are mistakes.
const LONGEST: u64 = 10 * 365 * 86_400;

/// Parses a duration of at least one second. A number without a unit is one of seconds.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    seconds(text)
        .filter(|seconds| *seconds <= LONGEST as f64)
        .map(|seconds| Duration::from_secs(seconds as u64))
}

/// True for the time after which a server removes something: a duration of any length, or `never`.
pub(crate) fn is_expiry(text: &str) -> bool {
    text.eq_ignore_ascii_case("never") || seconds(text).is_some()
}

/// Returns the seconds of a duration of at least one.
fn seconds(text: &str) -> Option<f64> {
    let mut seconds = 0_f64;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        let behind = rest.get(digits..)?.trim_start();
        let letters = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let unit = behind.get(..letters)?.to_ascii_lowercase();
        let factor = if unit.is_empty() {
            1
        } else {
            UNITS.iter().find(|(names, _)| names.contains(&unit.as_str()))?.1
        };
        seconds += number * factor as f64;
        rest = behind.get(letters..)?.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        rest = rest.strip_prefix("and ").unwrap_or(rest).trim_start();
    }
    (seconds >= 1.0 && seconds.is_finite()).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_many_forms() {
        for (text, seconds) in [
            ("3h 30m", 12_600),
            ("3h30m", 12_600),
            ("1 hour", 3_600),
            ("1 hour and 20 minutes", 4_800),
            ("90", 90),
            ("1.5h", 5_400),
            ("2 days, 3 hrs", 183_600),
            ("1s", 1),
            ("2 WEEKS", 1_209_600),
            ("1mo", 2_592_000),
            ("1 yr", 31_536_000),
            ("10y", 315_360_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "1 fortnight", "-1h", "0", "1e9y", "100000y", "3651d", "0.9s", "1..5h", "never"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn artifacts_expire_after_any_time_or_never() {
        for text in ["1 week", "3 mins 4 sec", "2h20min", "47 yrs 6 mos and 4d", "42", "never", "Never"] {
            assert!(is_expiry(text), "{text}");
        }
        for text in ["", "soon", "0", "never ever", "1 fortnight"] {
            assert!(!is_expiry(text), "{text}");
        }
    }
}

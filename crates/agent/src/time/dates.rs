//! Dates of HTTP headers, and of files and bodies.

use super::WallTime;

/// Names of months in such dates.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Parses a date such as `Sun, 22 Nov 2026 22:21:05 GMT`, the one form that servers send today. Years before 1970
/// are not valid.
pub fn http_date(text: &str) -> Option<WallTime> {
    let (_, date) = text.trim().split_once(", ")?;
    let words: Vec<&str> = date.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let days = days_since_epoch(number(year, 4)?, month, number(day, 2)?)?;
    Some(WallTime((days * 86_400 + seconds(time)?) * 1_000))
}

/// Parses a date such as `2026-11-22T22:20:55.159Z`, or with an offset such as `+01:00` instead of `Z`. Parts of a
/// second are dropped.
pub fn date(text: &str) -> Option<WallTime> {
    let (day, time) = text.trim().split_once(['T', 't', ' '])?;
    let day: Vec<&str> = day.split('-').collect();
    let [year, month, day] = day[..] else { return None };
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(zone);
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    let days = days_since_epoch(
        number(year, 4)?,
        number(month, 2).filter(|month| (1..=12).contains(month))?,
        number(day, 2)?,
    )?;
    let here = days * 86_400 + seconds(time)?;
    let offset = |zone: &str| seconds(&format!("{zone}:00"));
    let there = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => here,
        ("+", zone) => here.checked_sub(offset(zone)?)?,
        ("-", zone) => here.checked_add(offset(zone)?)?,
        _ => return None,
    };
    Some(WallTime(there * 1_000))
}

/// Returns the seconds of a time of the day.
fn seconds(time: &str) -> Option<u64> {
    let clock: Vec<u64> = time.split(':').map(|part| number(part, 2)).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = clock[..] else { return None };
    (hours <= 23 && minutes <= 59 && seconds <= 60).then_some((hours * 60 + minutes) * 60 + seconds)
}

fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Returns the days from 1 January 1970 to a date.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    let length = |month: u64| match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if year < 1970 || day == 0 || day > length(month) {
        return None;
    }
    let before = year - 1;
    let leaps = before / 4 - before / 100 + before / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    Some((year - 1970) * 365 + leaps + (1..month).map(length).sum::<u64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds_since_the_epoch() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000),
            ("Sun, 22 Nov 2026 22:21:05 GMT", 1_795_386_065),
            ("Tue, 01 Mar 2072 00:00:00 GMT", 3_224_016_000),
        ] {
            assert_eq!(http_date(text), Some(WallTime(seconds * 1_000)), "{text}");
        }
    }

    #[test]
    fn dates_of_files_have_an_offset() {
        for (text, seconds) in [
            ("2026-11-22T22:21:05Z", Some(1_795_386_065)),
            ("2026-11-22T22:21:05.159150417Z", Some(1_795_386_065)),
            ("2026-11-22T23:21:05+01:00", Some(1_795_386_065)),
            ("2026-11-22T20:21:05-02:00", Some(1_795_386_065)),
            ("2026-11-22 22:21:05Z", Some(1_795_386_065)),
            ("2026-11-22T22:21:05", None),
            ("2026-11-22", None),
            ("2026-13-22T22:21:05Z", None),
            ("2026-11-22T22:21:05Zx", None),
            ("1970-01-01T00:00:00+01:00", None),
            ("", None),
        ] {
            assert_eq!(date(text), seconds.map(|seconds| WallTime(seconds * 1_000)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "soon",
            "3",
            "Sun, 22 Nov 2026 22:21:05",
            "Sun, 22 Nov 2026 25:21:05 GMT",
            "Sun, 30 Feb 2026 22:21:05 GMT",
            "Sun, 00 Nov 2026 22:21:05 GMT",
            "Sun, 22 Nov 1026 22:21:05 GMT",
            "Sun, +2 Nov 2026 22:21:05 GMT",
            "Sun, 22 Nov 2026 22:21:05 GMT more",
        ] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }
}

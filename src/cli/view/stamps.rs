//! Splits lines that a [`crate::log::pretty::Printer`] has printed into their parts.

use super::rows::{Line, RowOrigin};

/// Length of `HH:MM:SS.mmm TAG  `.
const PREFIX: usize = 18;

const DAY: i64 = 86_400_000_000;

/// Reads printed lines, whose times are times of day in UTC.
#[derive(Clone, Debug, Default)]
pub(super) struct Stamps {
    /// Origin and stream of a line whose end has not come yet.
    open: Option<(RowOrigin, u32)>,
}

impl Stamps {
    /// Reads a line, or the next piece of one. `near`, in microseconds since the epoch, tells the day.
    pub(super) fn read(&mut self, printed: &[u8], near: i64) -> Line {
        if let Some((origin, stream)) = self.open {
            let text = String::from_utf8_lossy(printed).into_owned();
            return Line { at: None, origin, stream, depth: 0, text };
        }
        let (prefix, text) = printed.split_at(PREFIX.min(printed.len()));
        let (origin, stream) = match prefix.get(13..16) {
            Some(b"out") => (RowOrigin::Stdout, 1),
            Some(b"err") => (RowOrigin::Stderr, 1),
            Some(b"run") => (RowOrigin::Daemon, 0),
            Some([number @ .., b'O']) => (RowOrigin::Stdout, stream(number)),
            Some([number @ .., _]) => (RowOrigin::Stderr, stream(number)),
            // A malformed line.
            _ => (RowOrigin::Stderr, 0),
        };
        self.open = Some((origin, stream));
        let at = Some(time(prefix, near).unwrap_or(near));
        Line { at, origin, stream, depth: 0, text: String::from_utf8_lossy(text).into_owned() }
    }

    pub(super) const fn end_line(&mut self) {
        self.open = None;
    }
}

/// Returns the number of a stream as a tag shows it; 0 if it is none.
fn stream(number: &[u8]) -> u32 {
    std::str::from_utf8(number).ok().and_then(|number| u32::from_str_radix(number, 16).ok()).unwrap_or(0)
}

/// Returns the moment nearest to `near` that has the prefix's time of day.
fn time(prefix: &[u8], near: i64) -> Option<i64> {
    let text = std::str::from_utf8(prefix.get(..12)?).ok()?;
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let seconds = number(0, 2)? * 3600 + number(3, 5)? * 60 + number(6, 8)?;
    let of_day = seconds * 1_000_000 + number(9, 12)? * 1000;
    let same_day = near - near.rem_euclid(DAY) + of_day;
    [same_day - DAY, same_day, same_day + DAY].into_iter().min_by_key(|at| (at - near).abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_of_the_day_nearest_to_now() {
        let midnight = 20_000 * DAY;
        for (now, text, expected) in [
            (midnight + 5, "23:59:59.500 out  x", midnight - 500_000),
            (midnight - 5, "00:00:01.000 out  x", midnight + 1_000_000),
            (midnight + 5_000_000, "00:00:04.001 err  x", midnight + 4_001_000),
        ] {
            assert_eq!(Stamps::default().read(text.as_bytes(), now).at, Some(expected), "{text}");
        }
    }

    #[test]
    fn a_piece_of_a_line_has_its_origin_and_no_time() {
        let mut stamps = Stamps::default();
        assert_eq!(stamps.read(b"00:00:01.000 err  first ", 0).text, "first ");
        let piece = stamps.read(b"second", 0);
        assert_eq!((piece.at, piece.origin, piece.text.as_str()), (None, RowOrigin::Stderr, "second"));
        stamps.end_line();
        assert_eq!(stamps.read(b"00:00:01.000 run  third", 0).origin, RowOrigin::Daemon);
    }
}

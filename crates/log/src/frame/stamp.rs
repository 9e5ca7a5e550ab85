//! The time in a header: 27 bytes, UTC, always six digits of microseconds (logs.md §1).

use chrono::{DateTime, Datelike as _, Timelike as _};

/// Microseconds in a second.
const SECOND: i64 = 1_000_000;

/// The first and the last microsecond whose year has four digits: 0000-01-01 and 9999-12-31.
const RANGE: (i64, i64) = (-62_167_219_200 * SECOND, 253_402_300_800 * SECOND - 1);

/// A point in time as written in a header: `YYYY-MM-DDTHH:MM:SS.uuuuuuZ` (logs.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp([u8; Stamp::LEN]);

impl Stamp {
    /// Length in bytes.
    pub(crate) const LEN: usize = 27;

    /// Makes the stamp of a time in microseconds since 1970-01-01T00:00:00Z.
    ///
    /// A year without exactly four digits is clamped to the nearest time with such a year. A [`Stamper`] is faster for
    /// many stamps in a row.
    pub fn from_unix_micros(micros: i64) -> Self {
        Stamper::new().stamp(micros)
    }

    /// Returns the 27 bytes.
    pub(crate) const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Makes stamps. It remembers the last second, so that calendar arithmetic is rare.
pub struct Stamper {
    second: i64,
    stamp: Stamp,
}

impl Stamper {
    /// Makes a stamper that has made no stamp yet.
    pub const fn new() -> Self {
        Self { second: 0, stamp: Stamp(*b"1970-01-01T00:00:00.000000Z") }
    }

    /// Makes the stamp of a time in microseconds since the epoch; clamps it as [`Stamp::from_unix_micros`] does.
    pub fn stamp(&mut self, micros: i64) -> Stamp {
        let micros = micros.clamp(RANGE.0, RANGE.1);
        let second = micros.div_euclid(SECOND);
        if second != self.second
            && let Some(time) = DateTime::from_timestamp(second, 0)
        {
            self.second = second;
            let text = &mut self.stamp.0;
            digits(&mut text[0..4], time.year().unsigned_abs());
            digits(&mut text[5..7], time.month());
            digits(&mut text[8..10], time.day());
            digits(&mut text[11..13], time.hour());
            digits(&mut text[14..16], time.minute());
            digits(&mut text[17..19], time.second());
        }
        digits(&mut self.stamp.0[20..26], micros.rem_euclid(SECOND) as u32);
        self.stamp
    }
}

impl Default for Stamper {
    fn default() -> Self {
        Self::new()
    }
}

/// Fills `field` with the last decimal digits of `value`, padded with zeros.
fn digits(field: &mut [u8], mut value: u32) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

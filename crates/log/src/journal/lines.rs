//! One JSON line per event, with its CRC-32 (service.md §6.6).
//!
//! A line is `{"crc32":"xxxxxxxx","event":EVENT}`: JSON itself, and of one fixed form, so that every byte of it is
//! either compared or covered by the check sum (which is that of the bytes of EVENT).

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Damage, DamageKind};

const OPEN: &[u8] = b"{\"crc32\":\"";
const MIDDLE: &[u8] = b"\",\"event\":";
const CLOSE: &[u8] = b"}\n";

/// Hexadecimal digits of a check sum.
const DIGITS: usize = 8;

/// Length in bytes that most lines do not exceed.
const USUAL_BYTES: usize = 512;

/// The event cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
#[error("the event cannot be written as a line of JSON")]
pub struct EncodeError(#[from] serde_json::Error);

/// Returns the line of `event`, line feed included. Append it with one write.
pub fn encode<T: Serialize + ?Sized>(event: &T) -> Result<Vec<u8>, EncodeError> {
    let mut line = Vec::with_capacity(USUAL_BYTES);
    line.extend_from_slice(OPEN);
    line.extend_from_slice(&[b'0'; DIGITS]);
    line.extend_from_slice(MIDDLE);
    let start = line.len();
    serde_json::to_writer(&mut line, event)?;
    let sum = check_sum(&line[start..]);
    line[OPEN.len()..][..DIGITS].copy_from_slice(&sum);
    line.extend_from_slice(CLOSE);
    Ok(line)
}

/// An event read from a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// Offset of its first byte in the file.
    pub start: u64,
    /// Offset behind its line feed: where the next record begins.
    pub end: u64,
    /// The event.
    pub event: T,
}

/// Reads the events of a journal, in order, up to the first damage. The iterator ends after an error.
pub struct Reader<'a, T> {
    rest: &'a [u8],
    /// Offset of `rest` in the file.
    at: u64,
    failed: bool,
    event: PhantomData<fn() -> T>,
}

impl<'a, T: DeserializeOwned> Reader<'a, T> {
    /// Makes a reader of `bytes`, the whole file.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0, failed: false, event: PhantomData }
    }

    /// Returns the length of the part read so far, all of it good.
    pub const fn position(&self) -> u64 {
        self.at
    }

    fn read(&self) -> Result<(usize, T), DamageKind> {
        let end = memchr::memchr(b'\n', self.rest).ok_or(DamageKind::Torn)? + 1;
        let json =
            checked_json(&self.rest[..end]).ok_or_else(|| DamageKind::of_mismatch(self.at, self.rest))?;
        let event = serde_json::from_slice(json)
            .map_err(|error: serde_json::Error| DamageKind::Unknown { column: error.column() })?;
        Ok((end, event))
    }
}

impl<T: DeserializeOwned> Iterator for Reader<'_, T> {
    type Item = Result<Record<T>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let start = self.at;
        match self.read() {
            Ok((len, event)) => {
                self.rest = &self.rest[len..];
                self.at += len as u64;
                Some(Ok(Record { start, end: self.at, event }))
            }
            Err(kind) => {
                self.failed = true;
                Some(Err(Damage { at: start, kind }))
            }
        }
    }
}

/// Returns the JSON of the event in a whole line, if form and check sum of the line are right.
fn checked_json(line: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = line.strip_prefix(OPEN)?.split_first_chunk::<DIGITS>()?;
    let json = rest.strip_prefix(MIDDLE)?.strip_suffix(CLOSE)?;
    (*sum == check_sum(json)).then_some(json)
}

/// Returns the CRC-32 of `bytes` in lower-case hexadecimal digits.
fn check_sum(bytes: &[u8]) -> [u8; DIGITS] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let sum = crc32fast::hash(bytes);
    let mut digits = [0; DIGITS];
    for (at, digit) in digits.iter_mut().rev().enumerate() {
        *digit = HEX[(sum >> (4 * at)) as usize & 15];
    }
    digits
}

//! Records of bytes, each with its length and a CRC-32 in front (service.md §6.6, `steps`).
//!
//! A record is: length (4 bytes), check sum of the length's bytes and the payload (4 bytes), payload; numbers are
//! little-endian. The check sum covers the length too, so a run of zero bytes is no record.

use super::{Damage, DamageKind};

/// The longest payload in bytes. A length above it is damage, not a reason to wait for that many bytes.
pub const MAX_RECORD: usize = 64 << 20;

/// Bytes in front of the payload.
const HEAD: usize = 8;

/// The longest record in bytes, all of it.
pub const MAX_FRAMED: usize = HEAD + MAX_RECORD;

/// The payload is longer than [`MAX_RECORD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {len} bytes is longer than the {MAX_RECORD} bytes allowed")]
pub struct RecordTooLong {
    /// Length of the payload in bytes.
    pub(crate) len: usize,
}

/// Appends the record of `payload` to `out`; it goes to the file with one write.
pub fn append_record(payload: &[u8], out: &mut Vec<u8>) -> Result<(), RecordTooLong> {
    let too_long = RecordTooLong { len: payload.len() };
    if payload.len() > MAX_RECORD {
        return Err(too_long);
    }
    let len = u32::try_from(payload.len()).map_err(|_| too_long)?.to_le_bytes();
    out.reserve(HEAD + payload.len());
    out.extend_from_slice(&len);
    out.extend_from_slice(&check_sum(len, payload).to_le_bytes());
    out.extend_from_slice(payload);
    Ok(())
}

/// Reads the payloads of a file of records, in order, up to the first damage. The iterator ends after an error.
pub struct Records<'a> {
    rest: &'a [u8],
    /// Offset of `rest` in the file.
    at: u64,
    failed: bool,
}

impl<'a> Records<'a> {
    /// Makes a reader of `bytes`, the whole file.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::starting_at(bytes, 0)
    }

    /// Makes a reader of `bytes`, the file from byte `at` on, where a record begins.
    pub const fn starting_at(bytes: &'a [u8], at: u64) -> Self {
        Self { rest: bytes, at, failed: false }
    }

    /// Returns the end of the part read so far; all of it is good.
    pub const fn position(&self) -> u64 {
        self.at
    }

    fn read(&self) -> Result<(&'a [u8], &'a [u8]), DamageKind> {
        let (len_bytes, rest) = self.rest.split_first_chunk::<4>().ok_or(DamageKind::Torn)?;
        let len = usize::try_from(u32::from_le_bytes(*len_bytes)).map_err(|_| DamageKind::Corrupt)?;
        if len > MAX_RECORD {
            return Err(DamageKind::Corrupt);
        }
        let (sum, rest) = rest.split_first_chunk::<4>().ok_or(DamageKind::Torn)?;
        let (payload, rest) = rest.split_at_checked(len).ok_or(DamageKind::Torn)?;
        if u32::from_le_bytes(*sum) != check_sum(*len_bytes, payload) {
            return Err(DamageKind::of_mismatch(self.at, self.rest));
        }
        Ok((payload, rest))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<&'a [u8], Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        match self.read() {
            Ok((payload, rest)) => {
                self.at += (self.rest.len() - rest.len()) as u64;
                self.rest = rest;
                Some(Ok(payload))
            }
            Err(kind) => {
                self.failed = true;
                Some(Err(Damage { at: self.at, kind }))
            }
        }
    }
}

fn check_sum(len: [u8; 4], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&len);
    hasher.update(payload);
    hasher.finalize()
}

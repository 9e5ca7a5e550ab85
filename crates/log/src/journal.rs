//! Records in an append-only file, each with a check sum. A record that was not written whole is found and reported.
//!
//! There are two framings. [`encode`] and [`Reader`] use one JSON line per event, for people and tools too (the
//! `journal` of a job, service.md §6.6). [`append_record`] and [`Records`] use bytes with their length in front (the
//! `steps` of a job).
//!
//! Both readers yield records up to the first damage and stop there: behind it nothing can be trusted. A write that a
//! crash cut off ([`DamageKind::Torn`]) may be cut from the file at [`Damage::at`]; any other damage needs a person.
//! Pure: the caller reads and writes the file.

pub mod event;
mod lines;
mod records;
#[cfg(test)]
mod tests;

pub use lines::{EncodeError, Reader, Record, encode};
pub use records::{MAX_FRAMED, MAX_RECORD, RecordTooLong, Records, append_record};

/// Longest journal that is read, in bytes: some 100 bytes an event.
pub const MAX_FILE: u64 = 64 << 20;

/// Damage that ends the records of a file before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged at byte {at}: {kind}")]
pub struct Damage {
    /// Offset of the first damaged record: the length of the good part.
    pub at: u64,
    /// Kind of the damage.
    pub kind: DamageKind,
}

/// Kind of damage of a record. No text here quotes the record: it may hold what must not be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageKind {
    /// The file ends inside the record, or has zero bytes instead of a part of it: its write was cut off.
    #[error("the last record is incomplete")]
    Torn,
    /// The bytes are not those that were written.
    #[error("the record does not match its check sum")]
    Corrupt,
    /// The bytes are intact, but this version does not know such an event.
    #[error("the event is of a kind or form unknown to this version (column {column} of it)")]
    Unknown {
        /// Position in the event's JSON, in bytes from 1; 0 if unknown.
        column: usize,
    },
}

/// Bytes that a disk writes whole or not at all; larger units are multiples of it.
const SECTOR: u64 = 512;

impl DamageKind {
    /// Returns the damage of a record that begins at byte `at` and whose check sum does not match. `rest` is the file
    /// from there on.
    ///
    /// After a power cut a file system may show zero bytes where a write never arrived. They begin with the record or a
    /// sector, and end with the sector or the file. A flipped bit makes nothing like it.
    fn of_mismatch(at: u64, rest: &[u8]) -> Self {
        let first = usize::try_from(SECTOR - at % SECTOR).unwrap_or(rest.len()).min(rest.len());
        let (first, sectors) = rest.split_at(first);
        let mut pieces = std::iter::once(first).chain(sectors.chunks(SECTOR as usize));
        let lacks_one = pieces.any(|piece| piece.iter().all(|byte| *byte == 0));
        if lacks_one { Self::Torn } else { Self::Corrupt }
    }
}

//! The synced length of a job's log: the part known to be on the disk (`durability = power`, service.md §6.4 item 4).
//!
//! The file `synced` holds one number. It is written after that many bytes of the log were synced, and is synced itself
//! before a follower can see them. So after a power cut it is never less than what any client has seen, and the log is
//! whole up to it. A job without the file ran with `durability = crash`: clients may have seen all of its log.
//!
//! The number lies within one sector, which a disk writes whole or not at all.

use std::io;

use super::{JobFolder, StoreError};
use step_runner_system::files;

pub(super) const SYNCED: &str = "synced";

/// Length of the file: the number, then its CRC-32, both little-endian.
const LEN: usize = 12;

impl JobFolder {
    /// Starts the note with zero bytes, which mean that nothing was noted yet.
    pub fn begin_synced(&self) -> Result<(), StoreError> {
        files::create_new(&self.shared.jobs, self.inside(SYNCED).as_str())
            .and_then(|file| files::write_all(file, &[0; LEN]))
            .map_err(self.error("create", SYNCED))
    }

    /// Notes that `len` bytes of the log are on the disk. A missing folder is no error.
    pub fn note_synced(&self, len: u64) -> Result<(), StoreError> {
        let written = files::open_write(&self.shared.jobs, self.inside(SYNCED).as_str())
            .and_then(|file| files::write_all(file, &encode(len)));
        match written {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written.map_err(self.error("write", SYNCED)),
        }
    }

    /// Removes the note, because clients can now see data that is not on the disk.
    pub fn forget_synced(&self) -> Result<(), StoreError> {
        match files::unlink(&self.shared.jobs, self.inside(SYNCED).as_str()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.error("remove", SYNCED)(error)),
            _ => Ok(()),
        }
    }

    /// Returns the noted length; 0 if a power cut came before the first note. `None` if nothing is noted at all.
    pub fn synced(&self) -> Option<u64> {
        match files::read_file(&self.shared.jobs, self.inside(SYNCED).as_str(), LEN as u64) {
            Ok(bytes) => Some(decode(&bytes).unwrap_or_default()),
            Err(_) => None,
        }
    }

    /// Removes the folder if a power cut came before Run was answered: the note was started but holds no number. Called
    /// for a record that cannot be read; no client knows of such a job. `false` if the note does not say so.
    pub fn drop_unanswered(&self) -> bool {
        let noted = files::read_file(&self.shared.jobs, self.inside(SYNCED).as_str(), LEN as u64);
        let is_unanswered = noted.is_ok_and(|bytes| decode(&bytes).is_none());
        if is_unanswered && !self.undo_making() {
            self.discard();
        }
        is_unanswered
    }
}

fn encode(len: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let (number, sum) = bytes.split_at_mut(8);
    number.copy_from_slice(&len.to_le_bytes());
    sum.copy_from_slice(&check_sum(len).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let (number, sum) = bytes.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(*number);
    (sum == check_sum(len).to_le_bytes()).then_some(len)
}

/// Check sum. It is not 0 for 0, so zero bytes are not a valid note.
fn check_sum(len: u64) -> u32 {
    crc32fast::hash(&len.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back_and_zeros_are_none() {
        for len in [0, 1, 4096, u64::MAX] {
            assert_eq!(decode(&encode(len)), Some(len));
        }
        assert_eq!(decode(&[0; LEN]), None);
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&encode(7)[..LEN - 1]), None);
    }
}

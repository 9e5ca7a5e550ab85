//! Small files of state that were written whole or are told apart: one line with kind, version and checksum, then JSON.
//!
//! A file is written beside its place and renamed, so a torn one means a defect of the disk. It is recognised all the
//! same, because what a record says decides if a job runs twice.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// First word of each file.
const MARK: &str = "step-runner-agent";

/// Largest file that is read. The largest one has a job's payload in it, which is at most 64 MiB.
pub const MAX_SIZE: usize = 128 << 20;

/// A file that cannot be used. Nothing of it is shown: it may hold a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The system does not give its content, perhaps only now. Holds the system's reason.
    #[error("the file cannot be read: {0}")]
    Unread(String),
    /// It is shorter than it says, or ends within its first line.
    #[error("the file was not written to its end")]
    Torn,
    /// It has other bytes than were written.
    #[error("the file does not match its checksum")]
    Damaged,
    /// It is no file of this kind.
    #[error("this is no such file of the agent")]
    Foreign,
    /// A newer version of this program wrote it.
    #[error("a newer version of the agent wrote the file (format {0})")]
    Newer(u32),
    /// It is intact, and says what this version does not understand.
    #[error("the file is intact, but this version does not understand it")]
    Unknown,
    /// It is larger than [`MAX_SIZE`].
    #[error("the file is too large")]
    TooLarge,
}

/// Encodes a value.
pub fn encode<T: Serialize>(kind: &str, version: u32, value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(value)?;
    let mut file =
        format!("{MARK} {kind} {version} {} {:08x}\n", body.len(), crc32fast::hash(&body)).into_bytes();
    file.extend_from_slice(&body);
    Ok(file)
}

/// Decodes a value. `version` is the newest that the caller understands.
pub fn decode<T: DeserializeOwned>(kind: &str, version: u32, file: &[u8]) -> Result<T, Unusable> {
    if file.len() > MAX_SIZE {
        return Err(Unusable::TooLarge);
    }
    let Some(end) = file.iter().position(|byte| *byte == b'\n') else {
        let is_start = file.starts_with(MARK.as_bytes()) || MARK.as_bytes().starts_with(file);
        return Err(if is_start { Unusable::Torn } else { Unusable::Foreign });
    };
    let (line, body) = file.split_at(end);
    let body = body.get(1..).unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| Unusable::Foreign)?;
    let words: Vec<&str> = line.split(' ').collect();
    let [mark, found_kind, found_version, length, sum] = words[..] else { return Err(Unusable::Foreign) };
    if mark != MARK || found_kind != kind {
        return Err(Unusable::Foreign);
    }
    let found_version: u32 = found_version.parse().map_err(|_| Unusable::Foreign)?;
    if found_version > version {
        return Err(Unusable::Newer(found_version));
    }
    let length: usize = length.parse().map_err(|_| Unusable::Foreign)?;
    if body.len() < length {
        return Err(Unusable::Torn);
    }
    let is_whole = body.len() == length && u32::from_str_radix(sum, 16) == Ok(crc32fast::hash(body));
    if !is_whole {
        return Err(Unusable::Damaged);
    }
    serde_json::from_slice(body).map_err(|_| Unusable::Unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn torn_damaged_foreign_and_newer_files_are_told_apart() {
        let file = encode("record", 2, &vec![1, 2, 3]).unwrap();
        assert_eq!(decode::<Vec<u8>>("record", 2, &file), Ok(vec![1, 2, 3]));
        assert_eq!(decode::<Vec<u8>>("record", 1, &file), Err(Unusable::Newer(2)));
        assert_eq!(decode::<Vec<u8>>("other", 2, &file), Err(Unusable::Foreign));
        assert_eq!(decode::<String>("record", 2, &file), Err(Unusable::Unknown));
        assert_eq!(decode::<Vec<u8>>("record", 2, b"[1,2,3]"), Err(Unusable::Foreign));
        assert_eq!(decode::<Vec<u8>>("record", 2, b"{}\n{}"), Err(Unusable::Foreign));
        assert_eq!(decode::<Vec<u8>>("record", 2, b""), Err(Unusable::Torn));
        let longer = [&file[..], b"\n"].concat();
        assert_eq!(decode::<Vec<u8>>("record", 2, &longer), Err(Unusable::Damaged));
    }

    proptest! {
        #[test]
        fn every_cut_is_torn_and_every_flipped_bit_is_found(text: String, at: prop::sample::Index, bit in 0..8_u8) {
            let file = encode("record", 1, &text).unwrap();
            let at = at.index(file.len());
            prop_assert_eq!(decode::<String>("record", 1, &file[..at]), Err(Unusable::Torn));
            let mut flipped = file.clone();
            flipped[at] ^= 1 << bit;
            let found = decode::<String>("record", 1, &flipped);
            prop_assert!(found.is_err() || found == Ok(text), "a flipped bit gives another value");
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes: Vec<u8>) {
            prop_assert!(decode::<String>("record", 1, &bytes).is_err());
        }
    }
}

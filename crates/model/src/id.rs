//! The id of a job and the name derived from it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest id in bytes (service.md §3).
const MAX_LEN: usize = 128;

/// A checked job id: 1–128 bytes of `A-Z a-z 0-9 . _ - : @ +`, the first a letter or digit (service.md §3). It is never
/// part of a path: folders are named by its [`JobKey`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(Arc<str>);

/// Reason why a text is not a job id. It never quotes the text, which may be huge or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// No byte at all.
    #[error("the id is empty")]
    Empty,
    /// More than 128 bytes.
    #[error("the id is {0} bytes long, at most {MAX_LEN} are allowed")]
    TooLong(usize),
    /// A byte outside the set, or a first byte that is neither letter nor digit.
    #[error(
        "character {} of the id is not allowed: use letters, digits and any of `._-:@+`, starting with a letter or digit", .0 + 1
    )]
    BadByte(usize),
}

impl JobId {
    /// Checks `text` and makes an id of it.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let bytes = text.as_bytes();
        let Some(first) = bytes.first() else { return Err(InvalidId::Empty) };
        if bytes.len() > MAX_LEN {
            return Err(InvalidId::TooLong(bytes.len()));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(InvalidId::BadByte(0));
        }
        match bytes.iter().position(|b| !(b.is_ascii_alphanumeric() || b"._-:@+".contains(b))) {
            Some(at) => Err(InvalidId::BadByte(at)),
            None => Ok(Self(text.into())),
        }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key that names the job's folder, and the job itself to the keeper.
    pub fn key(&self) -> JobKey {
        let digest = Sha256::digest(self.0.as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        JobKey(key)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// First 16 bytes of the SHA-256 of a [`JobId`]. Printed as 32 hex digits, it is the folder's name (service.md §6.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobKey(pub [u8; 16]);

impl JobKey {
    /// Parses the 32 lower-case hex digits that `Display` prints.
    pub fn parse(name: &str) -> Option<Self> {
        let digits = name.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        let mut key = [0; 16];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex(pair[0])? << 4 | hex(pair[1])?;
        }
        Some(Self(key))
    }
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_runners_and_of_our_client_pass() {
        for id in ["1", "4711-run", "run-20261121T101500-x", "a:b@c+d_e.f", &"a".repeat(128)] {
            assert!(JobId::parse(id).is_ok(), "{id}");
        }
    }

    #[test]
    fn hostile_ids_are_refused_and_never_quoted() {
        assert_eq!(JobId::parse(""), Err(InvalidId::Empty));
        assert_eq!(JobId::parse(&"a".repeat(10_240)), Err(InvalidId::TooLong(10_240)));
        for (id, at) in [("x/../../victim", 1), ("../x", 0), ("a\0b", 1), ("-a", 0), ("ä", 0), ("a b", 1)] {
            assert_eq!(JobId::parse(id), Err(InvalidId::BadByte(at)), "{id:?}");
        }
    }

    #[test]
    fn key_prints_and_parses_as_32_hex_digits() {
        let key = JobId::parse("42").unwrap().key();
        assert_eq!(key.to_string(), "73475cb40a568e8da8a045ced110137e");
        assert_eq!(JobKey::parse(&key.to_string()), Some(key));
        assert_eq!(JobKey::parse("73475CB40A568E8DA8A045CED110137E"), None);
        assert_eq!(JobKey::parse("xyz"), None);
    }
}

//! Digests of contents.

use sha2::digest::DynDigest;
use sha2::{Digest, Sha256, Sha512};

use super::ImageVersion;

/// Returns the digest of a content.
pub fn digest_of(bytes: &[u8]) -> String {
    digest_of_hash(&Sha256::digest(bytes))
}

/// Returns the digest of a content whose SHA-256 is known.
pub(crate) fn digest_of_hash(hash: &[u8]) -> String {
    format!("sha256:{}", hex(hash))
}

fn hex(hash: &[u8]) -> String {
    let digits: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

/// Compares a content that comes in pieces with the digest that names it.
pub(super) struct DigestCheck<'a> {
    expected: &'a str,
    hasher: Box<dyn DynDigest>,
}

impl<'a> DigestCheck<'a> {
    /// Starts a comparison; `None` if the digest is malformed or its algorithm not known.
    pub(super) fn new(expected: &'a str) -> Option<Self> {
        ImageVersion::digest(expected)?;
        let hasher: Box<dyn DynDigest> = match expected.split_once(':')?.0 {
            "sha256" => Box::<Sha256>::default(),
            "sha512" => Box::<Sha512>::default(),
            _ => return None,
        };
        Some(Self { expected, hasher })
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// True if the content was the one that the digest names.
    pub(super) fn matches(self) -> bool {
        let found = hex(&self.hasher.finalize());
        self.expected.split_once(':').is_some_and(|(_, expected)| expected == found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_has_its_digest_in_both_algorithms() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest_of(b""), empty);
        let long = format!("sha512:{}", hex(&Sha512::digest(b"abc")));
        for (digest, content, same) in [
            (empty.to_owned(), &b""[..], true),
            (empty.to_owned(), b"x", false),
            (digest_of(b"abc"), b"abc", true),
            (long.clone(), b"abc", true),
            (long, b"abd", false),
        ] {
            let mut check = DigestCheck::new(&digest).unwrap();
            for piece in content.chunks(2) {
                check.update(piece);
            }
            assert_eq!(check.matches(), same, "{digest}");
        }
        assert!(DigestCheck::new("md5:d41d8cd98f00b204e9800998ecf8427e").is_none());
    }
}

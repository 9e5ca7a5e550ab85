//! Tokens: opaque texts, whose form alone is checked (agent.md §2).
//!
//! GitLab issues tokens that a router can read ([`routable`]). An agent never decides anything by what they say: it
//! sends them, and shows the type of a runner to people.

pub mod routable;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest token. Routers and servers must accept this much in a header.
pub const MAX_TOKEN: usize = 4 << 10;

/// A token. It is printable ASCII without blanks, so it can stand in a header. `Debug` and [`Token::fingerprint`] show
/// nothing of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(String);

/// A text that is no token. The text itself is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// It is empty.
    #[error("the token is empty")]
    Empty,
    /// It has more than [`MAX_TOKEN`] bytes.
    #[error("the token has {0} bytes, more than {MAX_TOKEN}")]
    TooLong(usize),
    /// It has a byte that is no printable ASCII character, or a blank.
    #[error("byte {0} of the token is a blank or no printable ASCII character: copy the token alone")]
    Byte(usize),
}

/// Kinds of runner tokens, by which registration and removal differ (agent.md §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerTokenKind {
    /// A runner that was created at the server (`glrt-`): the server owns its options.
    Created,
    /// Any other: a registration gave it (`glrtr-`), or an old server did.
    Registered,
}

impl Token {
    /// Takes a text as a token. Blanks and line ends around it are removed: they come from files.
    pub fn new(text: &str) -> Result<Self, BadToken> {
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        if text.is_empty() {
            return Err(BadToken::Empty);
        }
        if text.len() > MAX_TOKEN {
            return Err(BadToken::TooLong(text.len()));
        }
        match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
            Some(at) => Err(BadToken::Byte(at + 1)),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// Returns the token itself, for a header or a body. Never for a message.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns what logs and messages show of a token: `sha256:` and 8 hex digits.
    pub fn fingerprint(&self) -> String {
        format!("sha256:{}", hex(&Sha256::digest(self.0.as_bytes()), 8))
    }

    /// Returns the kind of a runner's token. An instance can put a prefix of its own before `glrt-`.
    pub fn runner_kind(&self) -> RunnerTokenKind {
        let is_created = self.0.starts_with("glrt-")
            || self.0.split_once("-glrt-").is_some_and(|(prefix, _)| is_instance_prefix(prefix));
        if is_created { RunnerTokenKind::Created } else { RunnerTokenKind::Registered }
    }
}

/// True for a prefix that an instance can put before the prefixes of its tokens.
fn is_instance_prefix(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Returns the first `digits` hex digits of a hash.
pub(crate) fn hex(hash: &[u8], digits: usize) -> String {
    let digit = |at: usize| {
        let byte = hash.get(at / 2).copied().unwrap_or_default();
        char::from_digit(u32::from(if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 }), 16)
    };
    (0..digits).filter_map(digit).collect()
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.fingerprint())
    }
}

impl TryFrom<String> for Token {
    type Error = BadToken;

    fn try_from(text: String) -> Result<Self, BadToken> {
        Self::new(&text)
    }
}

impl From<Token> for String {
    fn from(token: Token) -> Self {
        token.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a17_a_token_is_printable_ascii_of_at_most_4_kib() {
        for (text, wanted) in [
            ("glrt-abc", Ok("glrt-abc")),
            ("  glrt-a.b_c-d\n", Ok("glrt-a.b_c-d")),
            ("", Err(BadToken::Empty)),
            (" \n", Err(BadToken::Empty)),
            ("a b", Err(BadToken::Byte(2))),
            ("a\u{e9}", Err(BadToken::Byte(2))),
            ("a\0", Err(BadToken::Byte(2))),
            ("a\nb", Err(BadToken::Byte(2))),
        ] {
            assert_eq!(Token::new(text).as_ref().map(Token::expose), wanted.as_ref().copied(), "{text:?}");
        }
        assert!(Token::new(&"x".repeat(MAX_TOKEN)).is_ok());
        assert_eq!(Token::new(&"x".repeat(MAX_TOKEN + 1)), Err(BadToken::TooLong(MAX_TOKEN + 1)));
    }

    #[test]
    fn created_runners_are_told_from_registered_ones() {
        for (text, kind) in [
            ("glrt-t1_abc", RunnerTokenKind::Created),
            ("acme-glrt-t1_abc", RunnerTokenKind::Created),
            ("glrtr-abc", RunnerTokenKind::Registered),
            ("acme-glrtr-abc", RunnerTokenKind::Registered),
            ("oldRandomToken12345", RunnerTokenKind::Registered),
            ("-glrt-x", RunnerTokenKind::Registered),
            ("GLRT-x", RunnerTokenKind::Registered),
        ] {
            assert_eq!(Token::new(text).unwrap().runner_kind(), kind, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_of_a_token_is_shown(text in "[!-~]{9,80}") {
            let token = Token::new(&text).unwrap();
            let shown = format!("{token:?}");
            prop_assert!(!shown.contains(&text) && shown.len() < 40, "{shown}");
            prop_assert_eq!(token.fingerprint().len(), "sha256:".len() + 8);
            let json = serde_json::to_string(&token).unwrap();
            prop_assert_eq!(serde_json::from_str::<Token>(&json).unwrap(), token);
        }

        #[test]
        fn any_text_is_a_token_or_an_error(text: String) {
            if let Err(error) = Token::new(&text) {
                prop_assert!(text.len() < 4 || !error.to_string().contains(&text));
            }
        }
    }
}

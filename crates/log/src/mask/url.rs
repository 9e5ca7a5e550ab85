//! URL parameters whose values are hidden: separator, key, `=` (masking.md §4).

use std::sync::LazyLock;

use super::automaton::Automaton;

const SEPARATORS: [&str; 4] = ["?", "&", "&amp;", r"\u0026"];

const KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// Returns the automaton that finds the `=` of a parameter. Its input must be [lower case](u8::to_ascii_lowercase).
pub(super) fn automaton() -> &'static Automaton {
    static AUTOMATON: LazyLock<Automaton> = LazyLock::new(|| {
        let mut parameters: Vec<String> = SEPARATORS
            .iter()
            .flat_map(|separator| KEYS.iter().map(move |key| format!("{separator}{key}=")))
            .collect();
        parameters.sort_unstable();
        Automaton::new(&parameters)
    });
    &AUTOMATON
}

/// Returns the first position at or after `from` where a parameter may start, or the length of `text`.
pub(super) fn first_possible_start(text: &[u8], from: usize) -> usize {
    text.get(from..)
        .and_then(|rest| memchr::memchr3(b'?', b'&', b'\\', rest))
        .map_or(text.len(), |at| from + at)
}

/// True if a byte ends a value where no phrase covers it.
pub(super) fn ends_value(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, 0x7F | b'?' | b'&')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_starts_with_a_byte_that_is_searched_for() {
        for separator in SEPARATORS {
            assert_eq!(first_possible_start(separator.as_bytes(), 0), 0);
        }
        assert_eq!(first_possible_start(b"abc", 1), 3);
    }
}

//! Secrets of the job that a command submits, hidden in what the command itself writes to stderr.
//!
//! The daemon masks the log, the results and its refusals. Findings in a local document, lines of it and the id of the
//! job are written without the daemon, so they are masked here (masking.md §7). This module owns the masker of the
//! process. Whoever cuts, wraps or escapes a text hides them first; [`super::terminal`] does so for every line.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::log::mask::{MaskConfig, MaskLimitError, Masker, PhraseSet};

/// Shortest line of a secret, in bytes, that is a secret by itself here: an excerpt shows single lines of a document.
/// Shorter ones, such as a bracket, would hide half of every message.
const SHORTEST_LINE: usize = 8;

/// Secrets registered last. The masker is made for the first line that is written: most commands write none.
struct Secrets {
    phrases: PhraseSet,
    masker: Option<Arc<Masker>>,
}

static SECRETS: Mutex<Option<Secrets>> = Mutex::new(None);

/// Hides these phrases, and tokens with these prefixes, from now on.
pub(super) fn register(phrases: &[String], prefixes: &[String]) -> Result<(), MaskLimitError> {
    let is_alone = |line: &&str| line.trim().len() >= SHORTEST_LINE;
    let several = phrases.iter().filter(|phrase| phrase.contains('\n'));
    let lines = several.flat_map(|phrase| phrase.lines().filter(is_alone));
    let all = phrases.iter().map(String::as_str).chain(lines);
    let (phrases, _warnings) = PhraseSet::prepare(all, prefixes, &MaskConfig::default())?;
    *SECRETS.lock() = Some(Secrets { phrases, masker: None });
    Ok(())
}

/// Returns the text without the registered secrets: the same one if it holds none. Call it before a text is cut,
/// wrapped or escaped.
pub(super) fn hide(text: &str) -> Cow<'_, str> {
    let mut secrets = SECRETS.lock();
    let Some(Secrets { phrases, masker }) = &mut *secrets else { return text.into() };
    let masker = masker.get_or_insert_with(|| Masker::compile(phrases));
    let masked = masker.mask(text).into_data();
    if masked == text { text.into() } else { masked.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_secret_are_hidden_unless_they_are_short() {
        assert_eq!(hide("text before"), "text before");
        register(&["first line of it\n}\nhunter2_abcdef99\n".to_owned()], &[]).unwrap();
        assert_eq!(hide("1 | hunter2_abcdef99: {x}"), "1 | [MASKED]: {x}");
        *SECRETS.lock() = None;
    }
}

//! Secrets of the job that a command submits, hidden in what the command itself writes to stderr.
//!
//! The daemon masks the log, the results and its refusals. Findings in a local document, lines of it and the id of the
//! job are written without the daemon, so they are masked here (masking.md §7). This module owns the masker of the
//! process. Whoever cuts, wraps or escapes a text hides them first; [`super::terminal`] does so for every line.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::log::mask::{MASK_TEXT, MaskConfig, MaskLimitError, Masker, PhraseSet};

/// Shortest line of a secret, in bytes, that is a secret by itself here: an excerpt shows single lines of a document.
/// Shorter ones, such as a bracket, would hide half of every message.
const SHORTEST_LINE: usize = 8;

/// Secrets registered last. The masker is made for the first line that is written: most commands write none.
struct Secrets {
    phrases: PhraseSet,
    masker: Option<Arc<Masker>>,
}

static SECRETS: Mutex<Option<Secrets>> = Mutex::new(None);

/// Sensitive texts of documents, hidden in lines of documents alone.
struct Literals {
    /// Short words, hidden where they stand alone: parts of other words are no secret.
    words: Vec<String>,
    /// All others.
    texts: Vec<String>,
    /// Made for the first line.
    masker: Option<Result<Arc<Masker>, MaskLimitError>>,
}

static LITERALS: Mutex<Literals> =
    Mutex::new(Literals { words: Vec::new(), texts: Vec::new(), masker: None });

/// Hides these phrases, and tokens with these prefixes, from now on.
pub(super) fn register(phrases: &[String], prefixes: &[String]) -> Result<(), MaskLimitError> {
    *SECRETS.lock() = Some(Secrets { phrases: prepared(phrases, prefixes)?, masker: None });
    Ok(())
}

/// Hides these texts in lines of documents from now on.
pub(super) fn add_literals(texts: Vec<String>) {
    if !texts.is_empty() {
        let is_word = |text: &String| text.len() < SHORTEST_LINE && text.chars().all(char::is_alphanumeric);
        let (words, texts): (Vec<_>, Vec<_>) = texts.into_iter().partition(is_word);
        let mut literals = LITERALS.lock();
        literals.words.extend(words);
        literals.texts.extend(texts);
        literals.masker = None;
    }
}

fn prepared(phrases: &[String], prefixes: &[String]) -> Result<PhraseSet, MaskLimitError> {
    let is_alone = |line: &&str| line.trim().len() >= SHORTEST_LINE;
    let several = phrases.iter().filter(|phrase| phrase.contains('\n'));
    let lines = several.flat_map(|phrase| phrase.lines().filter(is_alone));
    let all = phrases.iter().map(String::as_str).chain(lines);
    PhraseSet::prepare(all, prefixes, &MaskConfig::default()).map(|(phrases, _warnings)| phrases)
}

/// Returns the text without the registered secrets: the same one if it holds none. Call it before a text is cut,
/// wrapped or escaped.
pub(super) fn hide(text: &str) -> Cow<'_, str> {
    let mut secrets = SECRETS.lock();
    let Some(Secrets { phrases, masker }) = &mut *secrets else { return text.into() };
    masked(text.into(), masker.get_or_insert_with(|| Masker::compile(phrases)))
}

/// Returns a line of a document without the registered secrets and without sensitive texts of documents.
pub(super) fn hide_in_line(line: &str) -> Cow<'_, str> {
    let mut shown = hide(line);
    let mut literals = LITERALS.lock();
    let Literals { words, texts, masker } = &mut *literals;
    if !texts.is_empty() {
        match masker.get_or_insert_with(|| prepared(texts, &[]).map(|phrases| Masker::compile(&phrases))) {
            Ok(masker) => shown = masked(shown, masker),
            // They are too many to look for.
            Err(_) => return MASK_TEXT.into(),
        }
    }
    let is_secret = |word: &str| words.iter().any(|secret| secret == word);
    if shown.split(|c: char| !c.is_alphanumeric()).any(is_secret) {
        let is_end = |c: char| !c.is_alphanumeric();
        let hidden = |piece: &str| match piece.trim_end_matches(is_end) {
            word if is_secret(word) => piece.replacen(word, MASK_TEXT, 1),
            _ => piece.to_owned(),
        };
        shown = shown.split_inclusive(is_end).map(hidden).collect::<String>().into();
    }
    shown
}

fn masked<'t>(text: Cow<'t, str>, masker: &Arc<Masker>) -> Cow<'t, str> {
    let masked = masker.mask(&text).into_data();
    if masked == text { text } else { masked.into() }
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

    #[test]
    fn sensitive_texts_of_documents_are_hidden_in_lines_of_documents_alone() {
        add_literals(vec!["lit-hunter2".to_owned(), "lit-\"q\"-lit".to_owned()]);
        assert_eq!(hide_in_line("{token: lit-hunter2}"), "{token: [MASKED]}");
        assert_eq!(hide_in_line(r#"token: "lit-\"q\"-lit""#), r#"token: "[MASKED]""#);
        assert_eq!(hide("lit-hunter2"), "lit-hunter2");
        add_literals(vec!["7q".to_owned()]);
        assert_eq!(hide_in_line("{a7q: 7q, b: [7q], c: 7q1}"), "{a7q: [MASKED], b: [[MASKED]], c: 7q1}");
    }
}

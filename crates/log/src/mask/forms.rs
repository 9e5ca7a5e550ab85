//! The forms of a phrase (masking.md §2): pure functions from bytes to byte strings. Escapes are not among them: the
//! search reads them (`readings.rs`).

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};

/// Shorter phrases, and shorter lines of phrases, have no encoded forms: those would match too much other text.
pub(super) const MIN_LENGTH: usize = 8;

/// Returns the groups *lines* and *words*, without the phrase itself: the phrase with LF as its line ends, each of its
/// long lines, and the words of these lines, or of the phrase if it has none, with one blank between them.
pub(super) fn lines(phrase: &[u8]) -> Vec<Vec<u8>> {
    if phrase.len() < MIN_LENGTH {
        return Vec::new();
    }
    let lines: Vec<&[u8]> = phrase.split(|byte| matches!(byte, b'\r' | b'\n')).map(trim).collect();
    let long = lines.iter().filter(|line| line.len() >= MIN_LENGTH);
    let mut forms: Vec<Vec<u8>> =
        if lines.len() > 1 { long.map(|line| line.to_vec()).collect() } else { Vec::new() };
    let line_feeds = with_line_feeds(phrase);
    let passed_on: Vec<Vec<u8>> = if forms.is_empty() {
        vec![words(phrase), words(&line_feeds)]
    } else {
        forms.iter().map(|line| words(line)).collect()
    };
    for words in passed_on {
        if words.len() >= MIN_LENGTH && words != phrase && !forms.contains(&words) {
            forms.push(words);
        }
    }
    if lines.len() > 1 {
        forms.insert(0, line_feeds);
    }
    forms
}

/// Returns the phrase with LF as its line ends. Any number of CRs before an LF are part of the line end.
fn with_line_feeds(phrase: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(phrase.len());
    for &byte in phrase {
        if byte == b'\n' {
            while out.pop_if(|last| *last == b'\r').is_some() {}
        }
        out.push(byte);
    }
    out
}

/// Returns the words of a text with one blank between them, as a shell passes on a variable without quotes.
fn words(text: &[u8]) -> Vec<u8> {
    let words = text.split(|byte| matches!(byte, b' ' | b'\t' | b'\n')).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ')
}

/// Returns the group *base64* of a phrase, and of its *lines* and *words*; perhaps with duplicates.
pub(super) fn encodings(phrase: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    if phrase.len() >= MIN_LENGTH {
        base64(phrase, &mut forms);
        for line in lines(phrase) {
            base64(&line, &mut forms);
        }
        let line_feeds = with_line_feeds(phrase);
        if line_feeds.contains(&b'\n') {
            base64(&replace(&line_feeds, b"\n", b"\r\n"), &mut forms);
        }
    }
    forms
}

/// Removes leading and trailing Unicode white space. Bytes that are not UTF-8 do not count as white space.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    trim_end(trim_start(bytes))
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let valid = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    &bytes[valid.len() - valid.trim_start().len()..]
}

fn trim_end(mut bytes: &[u8]) -> &[u8] {
    // The last character has at most four bytes; all but its first are continuation bytes.
    while let Some(start) = bytes.iter().rposition(|byte| byte & 0xC0 != 0x80)
        && let Ok(last) = std::str::from_utf8(&bytes[start..])
        && last.chars().all(char::is_whitespace)
    {
        bytes = &bytes[..start];
    }
    bytes
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = 0;
    for at in memchr::memmem::find_iter(text, from) {
        out.extend_from_slice(&text[rest..at]);
        out.extend_from_slice(to);
        rest = at + from.len();
    }
    out.extend_from_slice(&text[rest..]);
    out
}

fn base64(phrase: &[u8], forms: &mut Vec<Vec<u8>>) {
    let line = [phrase, b"\n"].concat();
    for text in [phrase, &line] {
        for encoded in [
            STANDARD.encode(text),
            STANDARD_NO_PAD.encode(text),
            URL_SAFE.encode(text),
            URL_SAFE_NO_PAD.encode(text),
        ] {
            forms.push(encoded.into_bytes());
        }
    }
    // The characters that depend on the phrase alone if `before` other bytes share its first group of three.
    for before in 0..3 {
        let shifted = [&[0, 0][..before], phrase].concat();
        let wholly = (8 * before).div_ceil(6)..8 * shifted.len() / 6;
        for encoded in [STANDARD_NO_PAD.encode(&shifted), URL_SAFE_NO_PAD.encode(&shifted)] {
            forms.push(encoded.as_bytes()[wholly.clone()].to_vec());
        }
    }
}

#[cfg(test)]
mod tests;

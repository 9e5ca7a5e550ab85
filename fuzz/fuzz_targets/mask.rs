//! Masked output does not depend on how the text is cut into writes, and contains no phrase.
//!
//! Input: a line of phrases (separated by blanks), a line of token prefixes, a line whose bytes are the lengths of
//! the writes, and the text.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use step_runner::log::mask::{DefaultPrefixes, MASK, MaskConfig, MaskStream, Masker, PhraseSet};

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(4, |&byte| byte == b'\n');
    let (Some(phrases), Some(prefixes), Some(lengths), Some(text)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return;
    };
    let list = |line: &[u8]| line.split(|&byte| byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let config = MaskConfig { default_prefixes: DefaultPrefixes::Glpat, ..MaskConfig::default() };
    let Ok((set, _)) = PhraseSet::prepare(list(phrases), list(prefixes), &config) else { return };
    let masker = Masker::compile(&set);

    let whole = run(&masker, [text]);
    assert_eq!(whole, run(&masker, text.chunks(1)), "single bytes");

    let mut rest = text;
    let mut writes = Vec::new();
    for &length in lengths.iter().cycle() {
        if rest.is_empty() || writes.len() > text.len() {
            break;
        }
        let (write, after) = rest.split_at(usize::from(length).min(rest.len()));
        writes.push(write);
        rest = after;
    }
    writes.push(rest);
    assert_eq!(whole, run(&masker, writes), "writes of the given lengths");

    // A phrase is found whatever of it is escaped. The lengths choose the bytes.
    for phrase in list(phrases) {
        if phrase.len() >= SHORTEST && phrase.iter().all(u8::is_ascii_alphanumeric) {
            let choices = lengths.iter().copied().chain([1]).cycle();
            let written: String =
                phrase.iter().zip(choices).map(|(&byte, choice)| escaped(byte, choice)).collect();
            let out = run(&masker, [written.as_bytes()]);
            assert!(split(&out).all(<[u8]>::is_empty), "{written}");
        }
    }

    // The text between two masks is copied from the input, so it must not contain a phrase.
    for piece in split(&whole) {
        for phrase in list(phrases).iter().map(|phrase| phrase.trim_ascii()) {
            let found = !phrase.is_empty() && piece.windows(phrase.len()).any(|window| window == phrase);
            assert!(!found, "a phrase is left");
        }
    }
});

/// Shorter phrases count without escapes only.
const SHORTEST: usize = 8;

/// Writes a byte in one of several ways.
fn escaped(byte: u8, choice: u8) -> String {
    match choice % 6 {
        0 => char::from(byte).to_string(),
        1 => format!("%{byte:02X}"),
        2 => format!("\\u{byte:04x}"),
        3 => format!("\\{byte:03o}"),
        4 => format!("\\x{byte:02x}"),
        _ => format!("&#{byte};"),
    }
}

fn run<'a>(masker: &Arc<Masker>, writes: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut stream, mut out) = (MaskStream::new(Arc::clone(masker)), Vec::new());
    for write in writes {
        stream.push(write, &mut out);
    }
    stream.finish(&mut out);
    out
}

/// Returns the pieces of text between masks.
fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mask = text.windows(MASK.len()).position(|window| window == MASK);
        rest = mask.map(|at| &text[at + MASK.len()..]);
        Some(&text[..mask.unwrap_or(text.len())])
    })
}

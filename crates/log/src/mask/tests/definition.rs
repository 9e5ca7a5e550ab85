//! The second implementation: masking.md §2 to §5 on the whole text, as literally as possible. It uses no streams,
//! automata or detectors. `tests/shows/masking.rs` includes this file too.

use super::writings::ends;

/// Replacement of hidden bytes (masking.md §1).
const MASKED: &[u8] = b"[MASKED]";

/// Computes the spans of one text and its output. `counts` decides if a form found at a position is an occurrence.
/// Forms continue after breaks behind `columns` characters of base64, and contain `escapes`.
pub(crate) fn by_definition(
    forms: &[Vec<u8>],
    columns: Option<usize>,
    escapes: bool,
    counts: impl Fn(&[u8], usize) -> bool,
    prefixes: &[&str],
    text: &[u8],
) -> Vec<u8> {
    // Phrase spans.
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for form in forms {
        for start in 0..text.len() {
            if text[start..].starts_with(form) && counts(form, start) {
                spans.push((start, start + form.len()));
            }
            if let Some(columns) = columns
                && let Some((end, length)) = wrapped(form, columns, text, start)
                && length == form.len()
                && counts(form, start)
            {
                spans.push((start, end));
            }
            if escapes && counts(form, start) {
                spans.extend(ends(form, text, start).into_iter().map(|end| (start, end)));
            }
        }
    }
    let covered: Vec<bool> =
        (0..text.len()).map(|at| spans.iter().any(|&(start, end)| (start..end).contains(&at))).collect();

    // Runs.
    for prefix in prefixes {
        for start in (0..text.len()).filter(|&at| text[at..].starts_with(prefix.as_bytes())) {
            let from = start + prefix.len();
            let run = (from..text.len())
                .take_while(|&at| {
                    covered[at] || text[at].is_ascii_alphanumeric() || b"-._=".contains(&text[at])
                })
                .count();
            if run > 0 {
                spans.push((from, from + run));
            }
        }
    }

    // Values.
    let mut at = 0;
    while at < text.len() {
        let Some(length) = parameter_length(&text[at..]) else {
            at += 1;
            continue;
        };
        let from = at + length;
        let ends = |&at: &usize| !covered[at] && (text[at] <= 0x20 || b"\x7f?&".contains(&text[at]));
        at = (from..text.len()).find(ends).unwrap_or(text.len());
        spans.push((from, at));
    }

    // Joining.
    let mut out = Vec::new();
    for at in 0..=text.len() {
        if spans.contains(&(at, at)) {
            out.extend_from_slice(MASKED);
        }
        if at == text.len() {
            break;
        }
        let hidden = spans.iter().any(|&(start, end)| start <= at && at < end);
        let joined = spans.iter().any(|&(start, end)| start < at && at < end);
        if !hidden {
            out.push(text[at]);
        } else if !joined {
            out.extend_from_slice(MASKED);
        }
    }
    out
}

/// Compares `text` from `start` on with a form, skipping breaks, up to the form's first line end. Returns where they
/// cease to agree and how many bytes of the form that is.
pub(crate) fn wrapped(form: &[u8], columns: usize, text: &[u8], start: usize) -> Option<(usize, usize)> {
    let line = form.split(|byte| b"\r\n".contains(byte)).next()?;
    let (mut at, mut length) = (start, 0);
    while at < text.len() {
        let line_end = match &text[at..] {
            [b'\n', ..] | [b'\r'] => 1, // what may come behind a last CR is not known
            [b'\r', b'\n', ..] => 2,
            _ => 0,
        };
        if line.get(length) == Some(&text[at]) {
            at += 1;
            length += 1;
        } else if line_end > 0 && length > 0 && length < form.len() && is_behind_base64(columns, &text[..at])
        {
            at += line_end;
        } else {
            break;
        }
    }
    (length > 0).then_some((at, length))
}

/// True if a line end after this text is a break.
fn is_behind_base64(columns: usize, text: &[u8]) -> bool {
    let is_base64 = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    text.iter().rev().take_while(is_base64).count() >= columns
}

const SEPARATORS: [&str; 4] = ["?", "&", "&amp;", "\\u0026"];

const KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// Returns the length of the parameter that `text` starts with, including its `=`.
fn parameter_length(text: &[u8]) -> Option<usize> {
    let skip = |text: &'_ [u8], word: &str| {
        let start = text.get(..word.len())?;
        start.eq_ignore_ascii_case(word.as_bytes()).then_some(word.len())
    };
    SEPARATORS.iter().find_map(|separator| {
        let key = skip(text, separator)?;
        let equals = KEYS.iter().find_map(|name| Some(key + skip(&text[key..], name)?))?;
        (text.get(equals) == Some(&b'=')).then_some(equals + 1)
    })
}

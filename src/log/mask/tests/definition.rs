//! masking.md §2 to §5 on the whole text, as literally as possible: the second calculation. Knows nothing of streams,
//! automata and detectors. `tests/shows/masking.rs` includes this file too.

/// What stands in the place of hidden bytes (masking.md §1).
const MASKED: &[u8] = b"[MASKED]";

/// Spans of one text, and from them its output. `counts` tells whether a form found at this place is an occurrence.
pub(crate) fn by_definition(
    forms: &[Vec<u8>],
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

const SEPARATORS: [&str; 4] = ["?", "&", "&amp;", "\\u0026"];

const KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// Length of the parameter, up to and with its `=`, that `text` starts with.
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

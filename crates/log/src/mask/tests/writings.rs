//! Part of the second implementation: masking.md §2 on escapes. It goes from a form to its writings, where the masker
//! goes from a text to what it stands for. `tests/shows/masking.rs` includes this file too.

/// Shorter forms count without escapes only.
const SHORTEST: usize = 8;

/// Returns the ends of all occurrences of `form` with escapes that start at `start`.
pub(crate) fn ends(form: &[u8], text: &[u8], start: usize) -> Vec<usize> {
    if form.len() < SHORTEST {
        return Vec::new();
    }
    let mut walk = Walk::new(form, text);
    walk.go(start, 0, false);
    walk.ends
}

/// True if bytes behind `text` can complete an occurrence of `form` that starts at `start`. `open` tells if a text is
/// the beginning of an escape.
pub(crate) fn may_go_on(form: &[u8], text: &[u8], start: usize, open: impl Fn(&[u8]) -> bool) -> bool {
    let mut walk = Walk::new(form, text);
    walk.go(start, 0, false);
    walk.seen
        .iter()
        .any(|&(at, done, _)| at == text.len() && at > start && done < form.len() || open(&text[at..]))
}

/// All ways to read a text as a form.
struct Walk<'a> {
    form: &'a [u8],
    text: &'a [u8],
    /// Position in the text, in the form, and if a CR of a line end is before it.
    seen: Vec<(usize, usize, bool)>,
    ends: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn new(form: &'a [u8], text: &'a [u8]) -> Self {
        Self { form, text, seen: Vec::new(), ends: Vec::new() }
    }

    fn go(&mut self, at: usize, done: usize, behind_cr: bool) {
        if done == self.form.len() {
            self.ends.push(at);
            return;
        }
        if self.seen.contains(&(at, done, behind_cr)) {
            return;
        }
        self.seen.push((at, done, behind_cr));
        let (form, text) = (&self.form[done..], &self.text[at..]);
        for (taken, length) in writings(form, text) {
            if !behind_cr || form[0] == b'\n' && taken == 1 {
                self.go(at + length, done + taken, false);
            }
        }
        if done > 0 && !behind_cr {
            for nothing in ["''", "'$'"] {
                if text.starts_with(nothing.as_bytes()) {
                    self.go(at + nothing.len(), done, false);
                }
            }
        }
        if done > 0 && form[0] == b'\n' {
            for (_, length) in writings(b"\r", text) {
                self.go(at + length, done, true);
            }
        }
    }
}

/// Returns how many bytes at the start of `form` the start of `text` can stand for, and the length of that start.
fn writings(form: &[u8], text: &[u8]) -> Vec<(usize, usize)> {
    let byte = form[0];
    let mut all = Vec::new();
    if text.first() == Some(&byte) {
        all.push((1, 1));
    }
    if !text.first().is_some_and(|first| b"%\\&'+".contains(first)) {
        return all;
    }
    let mut fixed = vec![format!("\\{byte:03o}")];
    let letter = match byte {
        0x07 => "a",
        0x08 => "b",
        b'\t' => "t",
        b'\n' => "n",
        0x0B => "v",
        0x0C => "f",
        b'\r' => "r",
        0x1B => "eE",
        _ => "",
    };
    fixed.extend(letter.chars().map(|letter| format!("\\{letter}")));
    if byte == b' ' || byte.is_ascii_punctuation() {
        fixed.push(format!("\\{}", char::from(byte)));
    }
    fixed.extend(
        match byte {
            b' ' => &["+"][..],
            b'\'' => &["''", r"'\''", r#"'"'"'"#, "&apos;"],
            b'"' => &["&quot;"],
            b'&' => &["&amp;"],
            b'<' => &["&lt;"],
            b'>' => &["&gt;"],
            _ => &[],
        }
        .iter()
        .map(|&writing| writing.to_owned()),
    );
    all.extend(
        fixed.iter().filter(|writing| text.starts_with(writing.as_bytes())).map(|writing| (1, writing.len())),
    );
    for head in ["%", r"\x"] {
        all.extend(digits(text, head, 2..=2, "", 16, u32::from(byte)).map(|length| (1, length)));
    }

    let Some(character) = character(form) else { return all };
    let (taken, code) = (character.len_utf8(), u32::from(character));
    let mut units = [0; 2];
    let lengths = match character.encode_utf16(&mut units) {
        [unit] => digits(text, r"\u", 4..=4, "", 16, u32::from(*unit)),
        [high, low] => digits(text, r"\u", 4..=4, "", 16, u32::from(*high)).and_then(|length| {
            Some(length + digits(&text[length..], r"\u", 4..=4, "", 16, u32::from(*low))?)
        }),
        _ => None,
    };
    let lengths = [
        lengths,
        digits(text, r"\U", 8..=8, "", 16, code),
        digits(text, r"\u{", 1..=8, "}", 16, code),
        digits(text, r"\x{", 1..=8, "}", 16, code),
        digits(text, "&#x", 1..=8, ";", 16, code),
        digits(text, "&#X", 1..=8, ";", 16, code),
        digits(text, "&#", 1..=9, ";", 10, code),
        digits(text, r"\x", 2..=2, "", 16, code).filter(|_| taken == 2),
    ];
    all.extend(lengths.into_iter().flatten().map(|length| (taken, length)));
    all
}

fn character(form: &[u8]) -> Option<char> {
    form.utf8_chunks().next()?.valid().chars().next()
}

/// Returns the length of `head`, digits that are `code`, and `tail`, if `text` starts with them.
fn digits(
    text: &[u8],
    head: &str,
    count: std::ops::RangeInclusive<usize>,
    tail: &str,
    radix: u32,
    code: u32,
) -> Option<usize> {
    let rest = text.strip_prefix(head.as_bytes())?;
    let most = rest.iter().take(*count.end()).take_while(|byte| char::from(**byte).is_digit(radix)).count();
    let fits = |&length: &usize| {
        let number = std::str::from_utf8(&rest[..length])
            .ok()
            .and_then(|digits| u32::from_str_radix(digits, radix).ok());
        number == Some(code) && rest[length..].starts_with(tail.as_bytes())
    };
    let length = count.filter(|length| *length <= most).find(fits)?;
    Some(head.len() + length + tail.len())
}
